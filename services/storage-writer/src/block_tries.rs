//! Trie nodes that a block writes into the base. They come from the trie diff that was handed over,
//! once each node is checked, from the one that led to the block's root in this process, or are
//! computed from the block's state diff.

use crate::{
    Error,
    apply::Tries,
    body,
    chain::{Origin, Pending, TrieParts},
    codec::PendingRecord,
    diff_check::{Extent, verify_handed_over},
    metrics,
    shared::Shared,
};
use tandem_store::View;

/// Each block whose number is a multiple of this has all nodes of its trie diff checked, even if this
/// process computed them: a mistake in the workers' code is found within this many blocks.
pub const OWN_NODES_CHECKED_EVERY: u64 = 64;

/// Returns the block's trie diff. Uses the one that was handed over if it leads to the root in the
/// header and, where it needs that, every node of it fits. Computes it otherwise.
///
/// # Errors
/// When the database fails or is damaged; [`Error::StateRoot`] when the block does not lead to the
/// state root in its header.
pub fn of_block(
    shared: &Shared,
    view: &View<'_>,
    block: &Pending,
    record: &PendingRecord,
) -> Result<Tries, Error> {
    let root = body::header(view, block.id.hash)?.state_root;
    // Parts may have arrived since the block was taken.
    let trie = shared.state.lock().chain.get(&block.id.hash).map(|b| b.trie.clone());
    if let Some(parts) = trie.as_ref().and_then(TrieParts::complete) {
        let is_own = trie.as_ref().is_some_and(|trie| trie.origin() == Origin::Here);
        let is_due = block.id.number.is_multiple_of(OWN_NODES_CHECKED_EVERY);
        let extent = if is_own && !is_due { Extent::Tops } else { Extent::AllNodes };
        let parts = parts.to_vec();
        if let Some(tries) = verify_handed_over(view, block.id, root, parts, extent)? {
            return Ok(tries);
        }
    }
    ::metrics::counter!(metrics::TRIE_DIFFS_RECOMPUTED).increment(1);
    Tries::compute(view, &record.diff.accounts)?.check(block.id, root)
}
