//! Blob transactions from users, and their blobs for the consensus layer.
//!
//! ```text
//! eth_sendRawTransaction ─► decode ─► rules ─► state at the head ─► blob-validator ─► pool
//!                           (a thread that may wait)                (KZG, once)
//! engine_getBlobs ────────────────────────────────────────────────► blob-validator: its store
//! engine_newPayload ─► note what a valid block holds
//! engine_forkchoiceUpdated ─► blocks that are final: their transactions leave the pool,
//!                                                    their blobs blob-validator
//! ```
//!
//! blob-validator alone holds the blobs. A transaction in the pool was verified with its blobs, and
//! is not verified again if it is resubmitted. It is not forwarded: there is no network for it, and
//! locally built payloads have no transactions.
//!
//! **Bounds.** The pool is bounded by bytes (including blobs), by age and by a handful of
//! transactions for each sender; see [`Pool`]. When it is full, the lowest-paying transactions are
//! evicted for one that pays more, together with their blobs.

mod error;
mod included;
mod pool;
mod rank;
mod validate;

pub use error::SendError;
pub(crate) use included::Contents;
pub use validate::{any_network_form_bytes_max, network_form_bytes_max};

use crate::{chain::Chain, config::Config, metrics as names};
use included::Included;
use metrics::{counter, gauge};
use parking_lot::Mutex;
use pool::{Pool, PoolError};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::{NetworkFormError, decode_network_form, decode_transaction};
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::{
    blob_validator::{BlobApi, Error as BlobError, StoredBlob, Verdict},
    storage::Forkchoice,
};
use tracing::{Span, debug, warn};
use validate::{Candidate, validate};

/// Maximum waiting time of a transaction for the verdict on its blobs.
const VERDICT_TIME_MAX: Duration = Duration::from_secs(10);

/// The blob transactions, and access to their blobs.
pub struct BlobPool {
    chain: Arc<Chain>,
    blobs: Arc<dyn BlobApi>,
    state: Mutex<State>,
}

struct State {
    pool: Pool,
    included: Included,
}

impl BlobPool {
    pub(crate) fn new(config: &Config, chain: Arc<Chain>, blobs: Arc<dyn BlobApi>) -> Self {
        let age_max = Duration::from_secs(config.blob_pool_seconds);
        let pool = Pool::new(config.blob_pool_bytes_max, age_max);
        let included = Included::default();
        Self { chain, blobs, state: Mutex::new(State { pool, included }) }
    }

    /// Accepts a blob transaction in its network form. Returns its hash.
    ///
    /// # Errors
    /// [`SendError`]; the transaction is then not in the pool, unless it was before.
    pub async fn send(self: &Arc<Self>, raw: Bytes) -> Result<B256, SendError> {
        let result = self.take(raw).await;
        let outcome = result.as_ref().map_or_else(SendError::kind, |_| "accepted");
        counter!(names::BLOB_TRANSACTIONS, "outcome" => outcome).increment(1);
        match &result {
            Ok(hash) => debug!(%hash, "blob transaction accepted"),
            Err(error) => debug!(%error, "transaction refused"),
        }
        result
    }

    async fn take(self: &Arc<Self>, raw: Bytes) -> Result<B256, SendError> {
        let pool = self.clone();
        let span = Span::current();
        let check = move || span.in_scope(|| pool.check(&raw));
        let checked = tokio::task::spawn_blocking(check).await.map_err(|error| {
            crate::Error::WorkerDied { task: "check a transaction", reason: error.to_string() }
        })?;
        let Checked { candidate: Candidate { entry, account, market, bundle }, known } = checked?;
        if known && self.is_stored(&entry.versioned_hashes).await {
            return Err(PoolError::AlreadyKnown.into());
        }
        match self.blobs.validate(bundle, VERDICT_TIME_MAX).await? {
            Verdict::Valid => {}
            Verdict::Invalid(refusal) => return Err(SendError::Sidecar(refusal)),
        }
        let (hash, versioned_hashes) = (entry.hash, entry.versioned_hashes.clone());
        let mut state = self.state.lock();
        let inserted = state.pool.insert(Instant::now(), entry, &account, market);
        show(&state.pool);
        drop(state);
        match inserted {
            Ok(left) => self.forget(&left),
            Err(error) => {
                // Another transaction of this sender was faster. Its blobs may be the same.
                let left = self.state.lock().pool.settle(&[], &versioned_hashes);
                self.forget(&left);
                return Err(error.into());
            }
        }
        Ok(hash)
    }

    /// Checks everything except the blobs. May wait for the database.
    fn check(&self, raw: &Bytes) -> Result<Checked, SendError> {
        if raw.first() != Some(&0x03) {
            // Refused in any case, but malformed input gets its own error.
            return Err(match decode_transaction(raw) {
                Ok(_) => SendError::OtherType,
                Err(reason) => SendError::Malformed(NetworkFormError::Transaction(reason)),
            });
        }
        let form = decode_network_form(raw)?;
        let (hash, wrapper) = (*form.transaction.hash(), form.sidecar.wrapper);
        let known = self.state.lock().pool.has(&hash, wrapper);
        let candidate = validate(&self.chain, form)?;
        let Candidate { entry, account, market, .. } = &candidate;
        self.state.lock().pool.check(entry, account, *market)?;
        Ok(Checked { candidate, known })
    }

    /// Returns whether blob-validator still holds the blobs of a transaction that it found valid. A
    /// transaction's blobs come and go together, so only the first is requested.
    async fn is_stored(&self, versioned_hashes: &[B256]) -> bool {
        let first = &versioned_hashes[..versioned_hashes.len().min(1)];
        let stored = self.blobs.get_blobs(first).await;
        stored.is_ok_and(|stored| stored.iter().all(Option::is_some))
    }

    /// Returns blobs by versioned hash, in the order of the request, `None` for a missing one.
    ///
    /// # Errors
    /// Returns blob-validator's errors.
    pub async fn get(
        &self,
        versioned_hashes: &[B256],
    ) -> Result<Vec<Option<Arc<StoredBlob>>>, BlobError> {
        let blobs = self.blobs.get_blobs(versioned_hashes).await;
        if let Err(error) = &blobs {
            warn!(%error, "blobs cannot be read");
        }
        blobs
    }

    /// Notes the contents of a valid block.
    pub(crate) fn note(&self, id: BlockId, parent: B256, contents: Contents) {
        self.state.lock().included.note(id, parent, contents);
    }

    /// Follows the head: final and expired transactions leave.
    pub(crate) fn follow(&self, forkchoice: Forkchoice) {
        let Forkchoice { head, finalized, .. } = forkchoice;
        let mut state = self.state.lock();
        let settled = state.included.follow(head, finalized.map(|block| block.number));
        let before = state.pool.len();
        let mut left = state.pool.expire(Instant::now());
        for Contents { transactions, blobs } in settled {
            left.extend(state.pool.settle(&transactions, &blobs));
        }
        if state.pool.len() != before {
            show(&state.pool);
        }
        drop(state);
        self.forget(&left);
    }

    fn forget(&self, versioned_hashes: &[B256]) {
        if !versioned_hashes.is_empty() {
            self.blobs.forget(versioned_hashes);
        }
    }
}

struct Checked {
    candidate: Candidate,
    /// Whether the transaction is already in the pool, in this form.
    known: bool,
}

fn show(pool: &Pool) {
    gauge!(names::BLOB_POOL_TRANSACTIONS).set(pool.len() as f64);
    gauge!(names::BLOB_POOL_BYTES).set(pool.bytes() as f64);
}
