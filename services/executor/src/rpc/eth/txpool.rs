//! Content of the pool, in the form of geth's `txpool` methods.

use super::super::hex::{Hex, Quantity};
use super::super::json::TransactionJson;
use super::{RpcError, Source};
use alloy_consensus::Transaction as _;
use alloy_primitives::Address;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_chain::{Transaction, decode_transaction};
use tandem_http::usage::Running;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_proto::tx_pool::PooledTransaction;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    let its = source.clone();
    methods.add("txpool_status", move |_| status(its.clone()));
    let its = source.clone();
    methods.add("txpool_content", move |params: Params| {
        rendered(its.clone(), params, |pending, queued| {
            to_result(&Lists { pending: by_sender(pending, json), queued: by_sender(queued, json) })
        })
    });
    let its = source.clone();
    methods.add("txpool_inspect", move |params: Params| {
        rendered(its.clone(), params, |pending, queued| {
            to_result(&Lists { pending: by_sender(pending, line), queued: by_sender(queued, line) })
        })
    });
    let its = source.clone();
    methods.add("txpool_contentFrom", move |params| content_from(its.clone(), params));
}

/// Pending and queued transactions.
#[derive(Serialize)]
struct Lists<T> {
    pending: T,
    queued: T,
}

async fn status(source: Arc<Source>) -> Answer {
    let counts = source.pool()?.counts().await.map_err(RpcError::server)?;
    let quantity = |count: usize| Quantity(count as u64);
    to_result(&Lists { pending: quantity(counts.pending), queued: quantity(counts.queued) })
}

/// Decoded transaction of the pool.
struct Decoded {
    pooled: PooledTransaction,
    transaction: Transaction,
}

type Render = fn(&[Decoded], &[Decoded]) -> Answer;

/// Reads the pool and renders it. Decoding thousands of transactions takes a while, so it runs where
/// calls of users run.
async fn rendered(source: Arc<Source>, params: Params, render: Render) -> Answer {
    let content = source.pool()?.content(None).await.map_err(RpcError::server)?;
    let work = move |running: &Running<'_>| {
        render(&decoded(running, content.pending)?, &decoded(running, content.queued)?)
    };
    source.pools.calls.run(source.lane, params.usage(), work).await
}

async fn content_from(source: Arc<Source>, params: Params) -> Answer {
    let usage = params.usage();
    let (sender,) = params.decode::<(Option<Hex<Address>>,)>()?;
    let Hex(sender) = required(sender, 0)?;
    let content = source.pool()?.content(Some(sender)).await.map_err(RpcError::server)?;
    let work = move |running: &Running<'_>| {
        let (pending, queued) =
            (decoded(running, content.pending)?, decoded(running, content.queued)?);
        to_result(&Lists { pending: by_nonce(&pending, json), queued: by_nonce(&queued, json) })
    };
    source.pools.calls.run(source.lane, usage, work).await
}

fn decoded(
    running: &Running<'_>,
    transactions: Vec<PooledTransaction>,
) -> Result<Vec<Decoded>, RpcError> {
    let decode = |pooled: PooledTransaction| {
        running.check().map_err(super::cut_error)?;
        let transaction = decode_transaction(&pooled.raw).map_err(RpcError::server)?;
        Ok(Decoded { pooled, transaction })
    };
    transactions.into_iter().map(decode).collect()
}

/// Groups transactions by sender and nonce. Keys are texts, in their order, as in geth.
fn by_sender<'a, T>(
    transactions: &'a [Decoded],
    render: fn(&'a Decoded) -> T,
) -> BTreeMap<String, BTreeMap<String, T>> {
    let groups = transactions.chunk_by(|one, next| one.pooled.sender == next.pooled.sender);
    let name = |group: &[Decoded]| group.first().map(|it| it.pooled.sender.to_checksum(None));
    groups.filter_map(|group| Some((name(group)?, by_nonce(group, render)))).collect()
}

fn by_nonce<'a, T>(
    transactions: &'a [Decoded],
    render: fn(&'a Decoded) -> T,
) -> BTreeMap<String, T> {
    transactions.iter().map(|it| (it.transaction.nonce().to_string(), render(it))).collect()
}

fn json(decoded: &Decoded) -> TransactionJson<'_> {
    let Decoded { pooled, transaction } = decoded;
    TransactionJson::pooled(transaction, pooled.hash, pooled.sender)
}

/// Returns a transaction as geth's `txpool_inspect` describes it.
fn line(decoded: &Decoded) -> String {
    let transaction = &decoded.transaction;
    let to =
        transaction.to().map_or_else(|| "contract creation".to_owned(), |to| to.to_checksum(None));
    let (value, gas) = (transaction.value(), transaction.gas_limit());
    format!("{to}: {value} wei + {gas} gas × {} wei", transaction.max_fee_per_gas())
}
