//! Trie nodes that a block writes into the base. They come from the trie diff that was handed over,
//! once each node is checked, or are computed from the block's state diff.

use crate::{
    Error,
    apply::Tries,
    body,
    chain::{Pending, TrieParts},
    codec::PendingRecord,
    diff_check, metrics,
    shared::Shared,
};
use std::time::Instant;
use tandem_primitives::{B256, BlockId};
use tandem_store::View;
use tracing::error;

/// Returns the block's trie diff. Uses the one that was handed over if it leads to the root in the
/// header and every node of it fits. Computes it otherwise.
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
    let parts = shared.state.lock().chain.get(&block.id.hash).map(|b| b.trie.clone());
    if let Some(parts) = parts.as_ref().and_then(TrieParts::complete) {
        let tries = Tries::from_parts(view, parts.to_vec()).and_then(|t| t.check(block.id, root));
        if let Some(tries) = accept(view, block.id, root, tries)? {
            return Ok(tries);
        }
        ::metrics::counter!(metrics::TRIE_DIFFS_REFUSED).increment(1);
    }
    ::metrics::counter!(metrics::TRIE_DIFFS_RECOMPUTED).increment(1);
    Tries::compute(view, &record.diff.accounts)?.check(block.id, root)
}

/// Returns a diff that was handed over, `None` when it cannot be used.
fn accept(
    view: &View<'_>,
    block: BlockId,
    root: B256,
    tries: Result<Tries, Error>,
) -> Result<Option<Tries>, Error> {
    let tries = match tries {
        Ok(tries) => tries,
        Err(error @ (Error::StateRoot { .. } | Error::Trie(_))) => {
            error!(%block, %root, %error, "trie diff does not fit its block");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let started = Instant::now();
    let checked = diff_check::check(view, &tries.parts)?;
    ::metrics::histogram!(metrics::TRIE_DIFF_CHECK_SECONDS).record(started.elapsed());
    let Err(fault) = checked else { return Ok(Some(tries)) };
    error!(
        %block, owner = ?fault.owner, path = fault.path_text(), error = %fault.fault,
        "trie diff refused for one of its nodes"
    );
    Ok(None)
}
