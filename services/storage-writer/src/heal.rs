//! Repair of damaged tries of the base from its flat state, while storage-writer runs.
//!
//! The flat state contains all the information of the tries. So a missing or wrong trie node is no
//! reason to stop. The smallest part that contains the node is rebuilt and compared with the stored
//! nodes, and differences are written. This takes as long as reading that part of the state.

use crate::{
    Error, meta, metrics,
    shared::Shared,
    verify::{mend_all, mend_shard, mend_storage},
};
use tandem_primitives::{B256, Shard};
use tandem_store::Store;
use tracing::{error, warn};

/// Part of the tries that an error concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Storage(B256),
    Shard(Shard),
    All,
}

impl Part {
    /// Returns the parts to rebuild, one after the other until the damage is gone.
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

    /// Rebuilds the part. Returns the number of nodes that differed.
    fn mend(self, store: &Store) -> Result<u64, Error> {
        match self {
            Self::Storage(owner) => mend_storage(store, owner),
            Self::Shard(shard) => mend_shard(store, shard),
            Self::All => mend_all(store),
        }
    }
}

/// Does `work`, which reads the base's tries. When it fails because they are damaged, rebuilds them
/// from the flat state and retries the work.
///
/// The caller holds the lock on `Shared::mended`, so the base does not move. `mended` is the value
/// that the lock guards.
///
/// # Errors
/// The errors of the work, when rebuilding does not help.
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
    // Everything was rebuilt at this base without success, so it need not be read again.
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
