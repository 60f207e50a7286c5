//! Move of the pivot along its chain by access lists (EIP-7928). The list of a block names all that the
//! block changed, so with the lists of all blocks in between, what is downloaded becomes a part of the new
//! pivot's state. Ranges that are not done yet are written too, and replaced when they come.

use super::{
    Surroundings,
    ask::Asker,
    check::{self, Fault},
    progress::Progress,
    worker::{Stop, blocking},
};
use crate::{config::Config, metrics as names};
use metrics::counter;
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes};
use tandem_proto::peer_sessions::{Fetch, Fetched};

/// Lists that are asked for at once.
const LISTS_AT_ONCE: usize = 16;

/// Block between two pivots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedBlock {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of its access list.
    pub list_hash: B256,
    /// Root of the state after it.
    pub root: B256,
}

/// Makes the changes of these blocks to what is downloaded. The first one is the child of the block whose
/// state that is, and each other one that of the block before. Notes each block as the pivot, so a restart
/// goes on there.
///
/// # Errors
/// [`Stop`]. The blocks before the error are done.
pub async fn replay(
    around: &Surroundings,
    config: &Config,
    blocks: &[ListedBlock],
    progress: &Progress,
) -> Result<(), Stop> {
    let Surroundings { sessions, peers, downloads } = around;
    let asker = Asker::new(sessions.clone(), peers.clone(), config.requests_per_peer_max);
    let mut left = blocks;
    while !left.is_empty() {
        let asked = &left[..left.len().min(LISTS_AT_ONCE)];
        let fetch = Fetch::AccessLists(asked.iter().map(|block| block.id.hash).collect());
        let wanted: Vec<B256> = asked.iter().map(|block| block.list_hash).collect();
        let check = move |fetched| match fetched {
            Fetched::AccessLists(lists) => check::access_lists(&wanted, lists),
            _ => Err(Fault::Lie),
        };
        let lists: Vec<Bytes> = asker.fetch("access_lists", fetch, check).await?;
        let (done, rest) = left.split_at(lists.len());
        for (block, list) in done.iter().zip(lists) {
            let noted = progress.noted_at(block.id, block.root);
            blocking(downloads, move |downloads| downloads.put_listed(&list, &noted)).await?;
            counter!(names::REPLAYED).increment(1);
        }
        left = rest;
    }
    Ok(())
}

/// Returns the blocks above one up to another, lowest first, from headers that lead from the one to the
/// other; `None` if they do not, or if a block has no access list.
pub fn path<'a>(
    from: BlockId,
    to: BlockId,
    mut header: impl FnMut(BlockNumber) -> Option<&'a [u8]>,
) -> Option<Vec<ListedBlock>> {
    let mut blocks = Vec::new();
    let mut wanted = to.hash;
    for number in (from.number + 1..=to.number).rev() {
        let rlp = header(number)?;
        let id = BlockId::new(number, tandem_primitives::keccak256(rlp));
        let header = tandem_chain::decode_header(rlp).ok()?;
        if id.hash != wanted {
            return None;
        }
        let list_hash = header.block_access_list_hash?;
        blocks.push(ListedBlock { id, list_hash, root: header.state_root });
        wanted = header.parent_hash;
    }
    blocks.reverse();
    (wanted == from.hash).then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn chain(blocks: u64, is_listed: impl Fn(u64) -> bool) -> Vec<(BlockId, Vec<u8>)> {
        let mut chain: Vec<(BlockId, Vec<u8>)> = Vec::new();
        for number in 0..blocks {
            let list = is_listed(number);
            let header = Header {
                number,
                parent_hash: chain.last().map(|(id, _)| id.hash).unwrap_or_default(),
                state_root: B256::repeat_byte(number as u8),
                base_fee_per_gas: Some(1),
                withdrawals_root: Some(B256::ZERO),
                blob_gas_used: Some(0),
                excess_blob_gas: Some(0),
                parent_beacon_block_root: Some(B256::ZERO),
                requests_hash: Some(B256::ZERO),
                block_access_list_hash: list.then(|| B256::repeat_byte(0x80 + number as u8)),
                ..Header::default()
            };
            let id = BlockId::new(number, header.hash_slow());
            chain.push((id, alloy_rlp::encode(&header)));
        }
        chain
    }

    #[test]
    fn a_path_has_every_block_between_two_pivots_of_one_chain() {
        let blocks = chain(9, |_| true);
        let at = |number: u64| blocks.get(number as usize).map(|(_, rlp)| &rlp[..]);
        let found = path(blocks[3].0, blocks[7].0, at).unwrap();
        let ids: Vec<_> = found.iter().map(|block| block.id).collect();
        assert_eq!(ids, blocks[4..8].iter().map(|(id, _)| *id).collect::<Vec<_>>());
        assert_eq!(found[0].root, B256::repeat_byte(4));
        assert_eq!(found[3].list_hash, B256::repeat_byte(0x87));
    }

    #[test]
    fn there_is_no_path_to_another_branch_over_a_gap_or_without_lists() {
        let blocks = chain(9, |number| number != 6);
        let at = |number: u64| blocks.get(number as usize).map(|(_, rlp)| &rlp[..]);
        assert_eq!(path(blocks[3].0, blocks[7].0, at), None, "a block has no list");
        assert!(path(blocks[6].0, blocks[8].0, at).is_some());
        assert_eq!(path(BlockId::new(6, B256::ZERO), blocks[8].0, at), None, "another branch");
        assert_eq!(path(blocks[6].0, BlockId::new(8, B256::ZERO), at), None, "another head");
        assert_eq!(path(blocks[6].0, blocks[8].0, |n| at(n).filter(|_| n != 7)), None, "a gap");
    }
}
