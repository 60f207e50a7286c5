//! Checks of what peers send. Pure: hashes prove headers, and headers prove bodies.

use tandem_chain::{
    Block, BlockError, BodyRoots, decode_network_receipts, encode_receipts, receipts_root,
};
use tandem_primitives::{B256, BlockId, Bytes, keccak256};

/// Header whose hash was computed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainHeader {
    /// Number and hash of the block.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// RLP of the header.
    pub rlp: Bytes,
}

/// Fault of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// An item has another hash or root than the one that was asked for: the peer is at fault.
    #[error("the peer sent data that its hash disproves")]
    Lie,
    /// The hashes are right, but no valid chain has such a header: the chain is at fault.
    #[error("header {0} cannot be part of a chain")]
    Chain(B256),
}

/// Checks headers that were asked for by the hash of the first one, downwards.
///
/// # Errors
/// [`Fault`].
pub fn headers(start: B256, limit: usize, items: Vec<Bytes>) -> Result<Vec<ChainHeader>, Fault> {
    if items.len() > limit {
        return Err(Fault::Lie);
    }
    let mut headers = Vec::<ChainHeader>::with_capacity(items.len());
    let mut expected = start;
    for rlp in items {
        if keccak256(&rlp) != expected {
            return Err(Fault::Lie);
        }
        let Ok(header) = tandem_chain::decode_header(&rlp) else {
            return Err(Fault::Chain(expected));
        };
        if let Some(above) = headers.last()
            && header.number + 1 != above.id.number
        {
            return Err(Fault::Chain(above.id.hash));
        }
        let id = BlockId::new(header.number, expected);
        expected = header.parent_hash;
        headers.push(ChainHeader { id, parent: header.parent_hash, rlp });
    }
    Ok(headers)
}

/// Block whose body belongs to its header, although it does not decode: the block is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undecodable {
    /// Hash of its parent.
    pub parent: B256,
    /// The rule that the body breaks.
    pub error: BlockError,
}

/// Block whose body belongs to its header.
pub type Checked = Result<Block, Undecodable>;

/// Block with its body, and with its receipts if they were asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// Block whose body belongs to its header.
    pub block: Checked,
    /// Receipts as the database stores them.
    pub receipts: Option<Bytes>,
}

/// Checks the receipts of a block, in the form of eth/69. Returns them as the database stores them.
///
/// # Errors
/// [`Fault::Lie`] if they are not those of the header.
pub fn receipts(header: &ChainHeader, list: &[u8]) -> Result<Bytes, Fault> {
    let receipts = decode_network_receipts(list).map_err(|_| Fault::Lie)?;
    let (root, _) = receipts_root(&receipts);
    let expected = tandem_chain::decode_header(&header.rlp).map_err(|_| Fault::Lie)?.receipts_root;
    if root == expected { Ok(encode_receipts(&receipts)) } else { Err(Fault::Lie) }
}

/// Checks bodies of these blocks. A peer may leave out blocks that it lacks. Returns the blocks that
/// it sent, each with the bytes of its body.
///
/// # Errors
/// [`Fault::Lie`] if a body belongs to none of the blocks that are left.
pub fn bodies(
    wanted: &[ChainHeader],
    items: Vec<Bytes>,
) -> Result<Vec<(BlockId, Checked, usize)>, Fault> {
    let mut left = wanted.iter();
    let mut blocks = Vec::with_capacity(items.len().min(wanted.len()));
    for body in items {
        let (roots, len) = (BodyRoots::of(&body).map_err(|_| Fault::Lie)?, body.len());
        let fits = |header: &&ChainHeader| {
            tandem_chain::decode_header(&header.rlp).is_ok_and(|header| roots.fit(&header))
        };
        let header = left.find(fits).ok_or(Fault::Lie)?;
        let block = Block::decode(header.rlp.clone(), body);
        let block = block.map_err(|error| Undecodable { parent: header.parent, error });
        blocks.push((header.id, block, len));
    }
    Ok(blocks)
}
