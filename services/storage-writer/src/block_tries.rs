//! Trie nodes that blocks write into the base. They come from the trie diffs that were handed over,
//! once each node is checked, from those that led to the blocks' roots in this process, or are
//! computed from a block's state diff.

use crate::{
    Error,
    apply::Tries,
    body,
    chain::{Origin, Pending, TrieParts},
    diff_check::{Extent, verify_handed_over},
    metrics,
    shared::{Shared, record},
};
use tandem_store::View;

/// Each block whose number is a multiple of this has all nodes of its trie diff checked, even if this
/// process computed them: a mistake in the workers' code is found within this many blocks.
pub const OWN_NODES_CHECKED_EVERY: u64 = 64;

/// Returns the changes of the trie diffs that were handed over for blocks, the first a child of the base,
/// if they lead to the root in the last header and, where they need that, every node of them fits. `None`
/// when one of them is missing or they cannot be used.
///
/// # Errors
/// When the database fails.
pub fn handed_over(
    shared: &Shared,
    view: &View<'_>,
    blocks: &[Pending],
) -> Result<Option<Tries>, Error> {
    let Some(last) = blocks.last() else { return Ok(None) };
    let (mut diffs, mut extent) = (Vec::new(), Extent::Tops);
    {
        // Parts may have arrived since the blocks were taken.
        let state = shared.state.lock();
        for block in blocks {
            let trie = state.chain.get(&block.id.hash).map(|pending| &pending.trie);
            let Some(parts) = trie.and_then(TrieParts::complete) else { return Ok(None) };
            diffs.extend_from_slice(parts);
            let is_own = trie.is_some_and(|trie| trie.origin() == Origin::Here);
            if !is_own || block.id.number.is_multiple_of(OWN_NODES_CHECKED_EVERY) {
                extent = Extent::AllNodes;
            }
        }
    }
    let root = body::header(view, last.id.hash)?.state_root;
    verify_handed_over(view, last.id, root, diffs, extent)
}

/// Returns the changes of a child of the base: those that were handed over if they can be used, and
/// otherwise those that its state diff makes.
///
/// # Errors
/// When the database fails or is damaged; [`Error::StateRoot`] when the block does not lead to the
/// state root in its header.
pub fn of_block(shared: &Shared, view: &View<'_>, block: &Pending) -> Result<Tries, Error> {
    if let Some(tries) = handed_over(shared, view, std::slice::from_ref(block))? {
        return Ok(tries);
    }
    ::metrics::counter!(metrics::TRIE_DIFFS_RECOMPUTED).increment(1);
    let root = body::header(view, block.id.hash)?.state_root;
    Tries::compute(view, &record(view, block)?.diff.accounts)?.check(block.id, root)
}
