//! Blobs of the transactions of a built block.

use std::{sync::Arc, time::Duration};
use tandem_chain::Fork;
use tandem_primitives::B256;
use tandem_proto::blob_validator::{BlobApi, CELLS, StoredBlob};
use tokio::{runtime::Runtime, time::timeout};
use tracing::debug;

/// Longest wait for the blobs of one transaction.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Returns the blobs of a transaction with the proofs that the fork demands. `None` if one of them
/// is missing, has other proofs only, or cannot be had in time.
pub fn fetch(
    runtime: &Runtime,
    blobs: &dyn BlobApi,
    fork: Fork,
    versioned_hashes: &[B256],
) -> Option<Vec<Arc<StoredBlob>>> {
    let asked = blobs.get_blobs(versioned_hashes);
    let answer = runtime.block_on(async { timeout(WAIT_MAX, asked).await });
    let found = match answer {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            debug!(%error, "blobs cannot be read");
            return None;
        }
        Err(_) => return None,
    };
    let usable = |blob: &StoredBlob| match fork >= Fork::Osaka {
        true => blob.cell_proofs.as_ref().is_some_and(|proofs| proofs.len() == CELLS),
        false => blob.proof.is_some(),
    };
    let all: Option<Vec<_>> = found.into_iter().map(|it| it.filter(|blob| usable(blob))).collect();
    all.filter(|all| all.len() == versioned_hashes.len())
}
