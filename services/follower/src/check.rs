//! Checks of a block of the feed that need no state. Pure.

use crate::Error;
use alloy_consensus::Header;
use tandem_chain::{BodyRoots, decode_header, decode_receipts, receipts_root};
use tandem_primitives::{BlockId, keccak256};
use tandem_proto::feed::{Changes, FeedBlock};

/// Checks that a block is the next one after `at`, and that header, body, receipts and access list
/// belong together. Returns its header.
///
/// # Errors
/// [`Error::Refused`] with the block and what is wrong.
pub fn check(block: &FeedBlock, at: BlockId) -> Result<Header, Error> {
    let refuse = |what: String| Error::block(block.id, what);
    if block.id.number != at.number + 1 {
        return Err(refuse(format!("expected block {} after {at}", at.number + 1)));
    }
    let hash = keccak256(&block.header);
    if hash != block.id.hash {
        return Err(refuse(format!("its header has hash {hash}")));
    }
    let header = decode_header(&block.header).map_err(|error| refuse(error.to_string()))?;
    if header.number != block.id.number {
        return Err(refuse(format!("its header has number {}", header.number)));
    }
    if header.parent_hash != at.hash {
        return Err(refuse(format!("its parent is {}, expected {at}", header.parent_hash)));
    }
    let roots = BodyRoots::of(&block.body).map_err(|error| refuse(format!("body: {error}")))?;
    if !roots.fit(&header) {
        return Err(refuse("its body does not have the roots in its header".to_owned()));
    }
    let receipts =
        decode_receipts(&block.receipts).map_err(|error| refuse(format!("receipts: {error}")))?;
    let (root, _) = receipts_root(&receipts);
    if root != header.receipts_root {
        let want = header.receipts_root;
        return Err(refuse(format!("receipts root {root}, its header has {want}")));
    }
    if let Changes::List(list) = &block.changes {
        let hash = keccak256(list);
        if header.block_access_list_hash != Some(hash) {
            return Err(refuse(format!("its access list has hash {hash}, its header another")));
        }
    }
    Ok(header)
}
