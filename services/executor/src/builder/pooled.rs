//! Candidates from the pool: pages of what pays best, as far as the block has room for them.

use super::{
    assemble::Draft,
    pace::{Pace, Pacing},
    selection::{Room, Selection},
    sidecars,
};
use crate::{
    block::fill::{Candidate, Candidates, Judgment},
    error::Error,
};
use alloy_consensus::Transaction as _;
use std::{sync::Arc, time::Duration, vec};
use tandem_chain::{BlobParams, ChainSpec, Fork, MAX_BLOCK_RLP_LEN, decode_transaction};
use tandem_primitives::Bytes;
use tandem_proto::{
    blob_validator::{BlobApi, StoredBlob},
    tx_pool::{BestPage, BestQuery, PooledTransaction, TxPoolApi},
};
use tokio::{runtime::Runtime, time::timeout};
use tracing::debug;

/// Transactions that are taken from the pool at once.
const PAGE: usize = 2_048;

/// Longest wait for a page.
const PAGE_WAIT_MAX: Duration = Duration::from_millis(200);

/// Blob transactions that are looked at, for each blob that fits into the block: some may lack their
/// blobs, or have too many.
const BLOB_TRANSACTIONS_PER_BLOB: u64 = 4;

/// Bytes of a block besides transactions and withdrawals: the header, and the lists' own headers.
const HEADER_BYTES_MAX: usize = 2_048;

/// Bytes of a withdrawal: two numbers of eight bytes, an address, an amount, each with its header.
const WITHDRAWAL_BYTES_MAX: usize = 52;

/// Sources of transactions and blobs.
pub struct Sources<'a> {
    /// Pool of transactions.
    pub pool: &'a dyn TxPoolApi,
    /// Blobs of the pool's transactions.
    pub blobs: &'a dyn BlobApi,
    /// Reactor for their answers.
    pub runtime: &'a Runtime,
}

/// Block that the candidates are for.
pub struct Target<'a> {
    /// Fork of the block.
    pub fork: Fork,
    /// Query for its transactions.
    query: BestQuery,
    room: Room,
    pace: Pace<'a>,
}

impl<'a> Target<'a> {
    /// Describes the block of this draft. `blobs_max` is the node's own limit.
    pub fn new(
        spec: &ChainSpec,
        draft: &Draft<'_>,
        blobs_max: Option<u64>,
        pace: Pace<'a>,
    ) -> Self {
        let header = &draft.header;
        let withdrawals = draft.attributes.withdrawals.as_ref().map_or(0, Vec::len);
        let fork = spec.fork_of(header);
        let params = spec.blob_params_of(header);
        let allowed = params.map_or(0, |BlobParams { max_blob_count, .. }| max_blob_count);
        let blobs = allowed.min(blobs_max.unwrap_or(u64::MAX));
        let bytes = if fork >= Fork::Osaka { MAX_BLOCK_RLP_LEN } else { usize::MAX };
        let others = HEADER_BYTES_MAX + withdrawals * WITHDRAWAL_BYTES_MAX;
        let query = BestQuery {
            base_fee: header.base_fee_per_gas.unwrap_or_default().into(),
            blob_fee: params.filter(|_| blobs > 0).and_then(|params| header.blob_fee(params)),
            blob_transactions_max: (blobs * BLOB_TRANSACTIONS_PER_BLOB) as usize,
            skip: 0,
            transactions_max: PAGE,
            unless: None,
        };
        let room = Room { blobs, bytes: bytes.saturating_sub(others) };
        Self { fork, query, room, pace }
    }
}

/// Candidates of one attempt.
pub struct Pooled<'a> {
    sources: &'a Sources<'a>,
    fork: Fork,
    query: BestQuery,
    page: vec::IntoIter<PooledTransaction>,
    is_last_page: bool,
    selection: Selection,
    pace: Pace<'a>,
    /// Bytes and blobs of the candidate that is being executed.
    tried: (Bytes, Vec<Arc<StoredBlob>>),
    /// Content of the block so far.
    pub taken: Contents,
    /// Version of the pool at the first page.
    pub version: u64,
}

/// Transactions of a block, and their blobs.
#[derive(Default)]
pub struct Contents {
    /// EIP-2718 bytes, in the order of the block.
    pub raw: Vec<Bytes>,
    /// Blobs in the order of the transactions.
    pub blobs: Vec<Arc<StoredBlob>>,
}

impl<'a> Pooled<'a> {
    /// Takes the first page from the pool. Returns `None` if the pool has no candidate, or is as it
    /// was at the version `unless`.
    pub fn open(sources: &'a Sources<'a>, target: Target<'a>, unless: Option<u64>) -> Option<Self> {
        let Target { fork, query, room, pace } = target;
        let mut pooled = Self {
            sources,
            fork,
            query,
            page: Vec::new().into_iter(),
            is_last_page: false,
            selection: Selection::new(room),
            pace,
            tried: Default::default(),
            taken: Contents::default(),
            version: 0,
        };
        let page = pooled.read(BestQuery { unless, ..query })?;
        pooled.version = page.version;
        pooled.turn_to(page);
        (!pooled.page.as_slice().is_empty()).then_some(pooled)
    }

    fn read(&self, query: BestQuery) -> Option<BestPage> {
        let Sources { pool, runtime, .. } = self.sources;
        let asked = pool.best(query);
        match runtime.block_on(async { timeout(PAGE_WAIT_MAX, asked).await }) {
            Ok(Ok(page)) => Some(page),
            Ok(Err(error)) => {
                debug!(%error, "the pool gives no transactions");
                None
            }
            Err(_) => None,
        }
    }

    fn turn_to(&mut self, page: BestPage) {
        self.is_last_page = page.is_last;
        self.query.skip += page.transactions.len();
        self.page = page.transactions.into_iter();
    }

    fn next_pooled(&mut self) -> Option<PooledTransaction> {
        if let Some(next) = self.page.next() {
            return Some(next);
        }
        if self.is_last_page {
            return None;
        }
        let page = self.read(self.query)?;
        self.turn_to(page);
        self.page.next()
    }
}

impl Candidates for Pooled<'_> {
    fn next(&mut self) -> Result<Option<Candidate>, Error> {
        while !self.selection.is_over() {
            match self.pace.next() {
                Pacing::Go => {}
                Pacing::Close => return Ok(None),
                Pacing::GiveUp => return Err(Error::BuildGivenUp),
            }
            let Some(PooledTransaction { sender, raw, .. }) = self.next_pooled() else { break };
            let Ok(transaction) = decode_transaction(&raw) else {
                self.selection.close(sender);
                continue;
            };
            if !self.selection.admits(sender, &transaction, raw.len()) {
                continue;
            }
            let mut blobs = Vec::new();
            if let Some(hashes) = transaction.blob_versioned_hashes() {
                let Sources { runtime, blobs: stored, .. } = self.sources;
                match sidecars::fetch(runtime, *stored, self.fork, hashes) {
                    Some(found) => blobs = found,
                    None => {
                        self.selection.close(sender);
                        continue;
                    }
                }
            }
            self.tried = (raw, blobs);
            return Ok(Some(Candidate { transaction, sender }));
        }
        Ok(None)
    }

    fn judged(&mut self, judgment: Judgment) {
        let (raw, blobs) = std::mem::take(&mut self.tried);
        if judgment == Judgment::Taken {
            self.taken.raw.push(raw);
            self.taken.blobs.extend(blobs);
        }
        self.selection.judged(judgment);
    }
}
