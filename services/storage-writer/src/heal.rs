//! Damaged tries of the base, made again from its flat state while storage-writer runs.
//!
//! The flat state says all that the tries say. A trie node that is missing or wrong is therefore no
//! reason to stop: the smallest part that has it is rebuilt, compared with what is stored, and
//! what differs is written. That takes as long as reading that part of the state.

use crate::{
    Error, meta, metrics,
    shared::Shared,
    verify::{mend_all, mend_shard, mend_storage},
};
use tandem_primitives::{B256, Shard};
use tandem_store::Store;
use tracing::{error, warn};

/// The part of the tries that an error speaks of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Storage(B256),
    Shard(Shard),
    All,
}

impl Part {
    /// The parts to rebuild, one after the other until the damage is gone.
    fn of(error: &Error) -> Vec<Self> {
        use tandem_trie::Error as Trie;
        match error {
            Error::Trie(
                Trie::Missing { owner: Some(owner), .. }
                | Trie::StorageRoot { address_hash: owner, .. },
            ) => vec![Self::Storage(*owner), Self::Shard(Shard::of(owner)), Self::All],
            Error::Trie(Trie::Missing { owner: None, key, .. } | Trie::AccountLeaf(key)) => {
                vec![Self::Shard(Shard::of(key)), Self::All]
            }
            Error::Trie(Trie::Malformed(..) | Trie::Hash { .. }) | Error::StateRoot { .. } => {
                vec![Self::All]
            }
            _ => Vec::new(),
        }
    }

    /// Rebuilds it; returns the number of nodes that differed.
    fn mend(self, store: &Store) -> Result<u64, Error> {
        match self {
            Self::Storage(owner) => mend_storage(store, owner),
            Self::Shard(shard) => mend_shard(store, shard),
            Self::All => mend_all(store),
        }
    }
}

/// Does `work`, which reads the base's tries. Where it fails by damage to them, they are rebuilt
/// from the flat state and the work is done again.
///
/// The caller holds the lock on `Shared::mended`, so the base stands still; `mended` is what it
/// guards.
///
/// # Errors
/// Those of the work, where rebuilding does not help.
pub fn with_healing<T>(
    shared: &Shared,
    mended: &mut Option<B256>,
    mut work: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut failure = match work() {
        Ok(done) => return Ok(done),
        Err(failure) => failure,
    };
    let base = meta::base(&shared.store.view())?;
    let parts = Part::of(&failure);
    // Everything was rebuilt at this base, and it did not help: it need not be read once more.
    if parts.is_empty() || *mended == Some(base.hash) {
        return Err(failure);
    }
    for part in parts {
        warn!(%base, ?part, error = %failure, "tries are damaged, rebuilding from the flat state");
        ::metrics::counter!(metrics::TRIES_REBUILT).increment(1);
        let nodes = part.mend(&shared.store)?;
        warn!(%base, ?part, nodes, "tries rebuilt from the flat state");
        if nodes == 0 {
            continue;
        }
        match work() {
            Ok(done) => return Ok(done),
            Err(error) => failure = error,
        }
    }
    error!(%base, error = %failure, "rebuilding the tries does not help");
    *mended = Some(base.hash);
    Err(failure)
}
