//! Methods of the public port (execution-apis, `src/eth` and `src/debug`), by topic.

mod access_lists;
mod blocks;
mod calls;
mod fees;
mod logs;
mod node;
mod raw;
mod send;
mod state;
mod transactions;
mod txpool;

pub(super) use logs::{BlockLogs, Filter, FilterJson};
pub(super) use node::syncing;

use super::ClientInfo;
use super::hex::BlockParam;
use super::pool::{CallPools, Lane, cut_error};
use super::prices::Prices;
use crate::queries::Queries;
use crate::{BlockTag, Chain, ChainReads, Error};
use std::sync::{Arc, OnceLock};
use tandem_chain::ChainSpec;
use tandem_http::RpcError;
use tandem_http::usage::{Cut, Running};
use tandem_http::{Answer, Methods, Params, Positional};
use tandem_primitives::BlockId;
use tandem_proto::storage;
use tandem_proto::tx_pool::TxPoolApi;
use tracing::warn;

/// Error code for history that is not kept any more.
const PRUNED_HISTORY: i32 = 4444;

/// Data sources of the methods.
struct Source {
    chain: Arc<Chain>,
    queries: Arc<Queries>,
    spec: ChainSpec,
    client: ClientInfo,
    /// Pool of transactions, empty if this process has none.
    pool: Arc<OnceLock<Arc<dyn TxPoolApi>>>,
    pools: Arc<CallPools>,
    prices: Arc<Prices>,
    /// Port that is served.
    lane: Lane,
}

/// Returns the methods of the public port:
///
/// * `eth_chainId`, `eth_syncing`, `eth_config`, `eth_capabilities`, `net_version`,
///   `web3_clientVersion`
/// * `eth_blockNumber`, `eth_getBlockByNumber`, `eth_getBlockByHash`, `eth_getBlockReceipts`,
///   `eth_getBlockTransactionCountByHash`, `…ByNumber`, `eth_getUncleCountByBlockHash`, `…Number`
/// * `eth_getTransactionByHash`, `eth_getTransactionByBlockHashAndIndex`, `…NumberAndIndex`,
///   `eth_getTransactionReceipt`, `eth_getLogs`
/// * `eth_getBalance`, `eth_getTransactionCount`, `eth_getCode`, `eth_getStorageAt`,
///   `eth_getStorageValues`, `eth_getProof`
/// * `eth_call`, `eth_estimateGas`, `eth_createAccessList`
/// * `eth_gasPrice`, `eth_maxPriorityFeePerGas`, `eth_baseFee`, `eth_blobBaseFee`,
///   `eth_feeHistory`
/// * `eth_sendRawTransaction`, blob transactions with their blobs; `txpool_status`, `txpool_content`,
///   `txpool_contentFrom`, `txpool_inspect`. They are errors in a process without a pool.
/// * `debug_getRawHeader`, `debug_getRawBlock`, `debug_getRawReceipts`, `debug_getRawTransaction`
/// * `eth_getBlockAccessList`, `debug_getRawBlockAccessList`, while the list is kept
///
/// All reading methods run on a bounded number of separate threads at the lowest priority. Time is
/// bounded by `call_seconds_max`, gas by `call_gas_max` and `batch_gas_max`, log queries by
/// `log_blocks_max` and `log_results_max` of [`crate::Config`]. Lists are bounded by constants
/// here.
pub fn eth_methods(reads: &ChainReads, client: ClientInfo) -> Methods {
    eth_methods_of(reads, client, Lane::Public)
}

/// Returns the methods of [`eth_methods`] for either port.
pub(super) fn eth_methods_of(reads: &ChainReads, client: ClientInfo, lane: Lane) -> Methods {
    let ChainReads { chain, queries, pools, prices, transactions: pool } = reads.clone();
    let spec = chain.spec().clone();
    let source = Arc::new(Source { chain, queries, spec, client, pool, pools, prices, lane });
    let mut methods = Methods::new();
    node::add(&mut methods, &source);
    blocks::add(&mut methods, &source);
    transactions::add(&mut methods, &source);
    logs::add(&mut methods, &source);
    state::add(&mut methods, &source);
    calls::add(&mut methods, &source);
    fees::add(&mut methods, &source);
    raw::add(&mut methods, &source);
    access_lists::add(&mut methods, &source);
    send::add(&mut methods, &source);
    txpool::add(&mut methods, &source);
    methods
}

impl Source {
    /// Returns the pool of transactions.
    fn pool(&self) -> Result<&Arc<dyn TxPoolApi>, RpcError> {
        self.pool.get().ok_or_else(|| RpcError::server("this process has no transaction pool"))
    }
}

/// Adds a method without parameters that answers at once.
fn add_quick(
    methods: &mut Methods,
    source: &Arc<Source>,
    name: &'static str,
    answer: fn(&Source) -> Answer,
) {
    let source = source.clone();
    methods.add(name, move |params: Params| {
        let result = params.decode::<NoParams>().and_then(|NoParams| answer(&source));
        std::future::ready(result)
    });
}

/// Adds a method that looks something up in the chain.
fn add_reading<P: Positional + Send + 'static>(
    methods: &mut Methods,
    source: &Arc<Source>,
    name: &'static str,
    answer: fn(&Source, P) -> Answer,
) {
    let source = source.clone();
    methods.add(name, move |params: Params| {
        let (read, usage) = (source.clone(), params.usage());
        let work = move |_: &Running<'_>| answer(&read, params.decode()?);
        source.pools.reads.run(source.lane, usage, work)
    });
}

/// Adds a method that executes code or reads much. It must check often whether it must end.
fn add_calling<P: Positional + Send + 'static>(
    methods: &mut Methods,
    source: &Arc<Source>,
    name: &'static str,
    answer: fn(&Source, &Running<'_>, P) -> Answer,
) {
    let source = source.clone();
    methods.add(name, move |params: Params| {
        let (read, usage) = (source.clone(), params.usage());
        let work = move |running: &Running<'_>| answer(&read, running, params.decode()?);
        source.pools.calls.run(source.lane, usage, work)
    });
}

/// Empty parameter list.
#[derive(Default)]
struct NoParams;

impl Positional for NoParams {
    fn read<'de, A: serde::de::SeqAccess<'de>>(seq: &mut A) -> Result<Self, A::Error> {
        match seq.next_element::<serde::de::IgnoredAny>()? {
            None => Ok(Self),
            Some(_) => Err(serde::de::Error::custom("too many arguments, want at most 0")),
        }
    }
}

/// Resolves the block of a call once, because a tag could refer to another block a moment later.
fn pin(source: &Source, block: Option<BlockParam>) -> Result<BlockId, RpcError> {
    let tag = block.map_or(BlockTag::Latest, |BlockParam(tag)| tag);
    match source.chain.resolve(tag) {
        Ok(Some(id)) => Ok(id),
        Ok(None) | Err(Error::UnknownBlock) => Err(RpcError::server(match tag {
            BlockTag::Hash(_) => "header for hash not found",
            _ => "header not found",
        })),
        Err(error) => Err(read_error(error)),
    }
}

/// Returns the value read, or `None` if there is no such block.
fn known<T>(result: Result<Option<T>, Error>) -> Result<Option<T>, RpcError> {
    match result {
        Err(Error::UnknownBlock) => Ok(None),
        result => result.map_err(read_error),
    }
}

/// Converts a read error to an error object.
fn read_error(error: Error) -> RpcError {
    match &error {
        Error::Storage(storage::Error::Pruned { .. }) => return pruned_history(),
        Error::StateUnavailable { block, oldest } | Error::ProofUnavailable { block, oldest }
            if block.number < *oldest =>
        {
            return RpcError::new(PRUNED_HISTORY, error.to_string());
        }
        Error::StateUnavailable { .. }
        | Error::ProofUnavailable { .. }
        | Error::UnknownBlock
        | Error::InvalidCall(_)
        | Error::Cut(Cut::TimedOut(_)) => {}
        Error::Cut(cut) => return cut_error(*cut),
        _ => warn!(%error, "read failed"),
    }
    RpcError::server(error)
}

/// Reports history that is not kept any more (EIP-4444; execution-apis, error group `4444`).
fn pruned_history() -> RpcError {
    RpcError::new(PRUNED_HISTORY, "Pruned history unavailable")
}

/// Reports an invalid signature in a stored block, which validation should have excluded.
fn defect(block: BlockId, error: impl std::fmt::Display) -> RpcError {
    warn!(%block, %error, "stored block has an invalid signature");
    RpcError::internal()
}
