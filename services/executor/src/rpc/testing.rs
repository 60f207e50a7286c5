//! `testing_buildBlockV1` (execution-apis, `src/testing`): a block of given transactions, or of the
//! pool's, that is built at once and kept nowhere. Only for tests of clients.

use super::engine_api::{engine_error, known_fork};
use super::engine_types::check_attributes;
use super::get_payload::{self, newest_version};
use super::hex::{Hex, Quantity};
use crate::builder::Order;
use crate::{BlockTag, Error, Handle};
use alloy_primitives::{B256, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use tandem_chain::Fork;
use tandem_http::{Methods, Params, RpcError, Streamed, code, off_reactor, required};

/// Parent, attributes, transactions (`null` for those of the pool) and extra data.
type BuildParams =
    (Option<Hex<B256>>, Option<Box<RawValue>>, Option<Vec<Hex<Bytes>>>, Option<Hex<Bytes>>);

/// Longest extra data of a block (Yellow Paper, 4.3.4).
const EXTRA_DATA_MAX: usize = 32;

/// Returns `testing_buildBlockV1`, or nothing unless `testing_methods` of [`crate::Config`] is set.
pub fn testing_methods(engine: &Handle) -> Methods {
    let mut methods = Methods::new();
    if engine.serves_tests() {
        let engine = engine.clone();
        methods.add_streaming("testing_buildBlockV1", move |params| {
            build_block(engine.clone(), params)
        });
    }
    methods
}

/// The one member of the attributes that says of which version they are.
#[derive(Deserialize)]
struct When {
    timestamp: Quantity<u64>,
}

async fn build_block(engine: Handle, params: Params) -> Streamed {
    let (parent, attributes, transactions, extra_data) =
        params.decode_large::<BuildParams>().await?;
    let Hex(parent) = required(parent, 0)?;
    let attributes = required(attributes, 1)?;
    if extra_data.as_ref().is_some_and(|Hex(data)| data.len() > EXTRA_DATA_MAX) {
        let reason = format!("extra data is longer than {EXTRA_DATA_MAX} bytes");
        return Err(RpcError::new(code::INVALID_PARAMS, reason));
    }
    let (chain, spec) = (engine.chain().clone(), engine.spec().clone());
    let check = move || {
        let header = chain.header(BlockTag::Hash(parent)).map_err(engine_error)?;
        let (_, header) = header.ok_or_else(|| RpcError::server(Error::UnknownBlock))?;
        let fork_at = |timestamp| known_fork(&spec, timestamp);
        let when: Result<When, _> = tandem_json::from_str(attributes.get());
        let fork = when.ok().and_then(|When { timestamp }| fork_at(timestamp.0));
        let version = match fork {
            Some(Fork::Shanghai) => 2,
            Some(Fork::Cancun | Fork::Prague | Fork::Osaka) => 3,
            Some(fork) if fork < Fork::Shanghai => 1,
            _ => 4,
        };
        check_attributes(version, &attributes, header.timestamp, fork_at)
    };
    let attributes = off_reactor(check).await?;
    let order = Order {
        parent,
        attributes,
        transactions: transactions.map(|all| all.into_iter().map(|Hex(raw)| raw).collect()),
        extra_data: extra_data.map(|Hex(data)| data),
    };
    let built = engine.build_block(order).await.map_err(|error| match error {
        Error::CannotInclude { reason, .. } => RpcError::server(reason),
        Error::NothingToBuild { .. } => RpcError::server(error),
        error => engine_error(error),
    })?;
    get_payload::answer(newest_version(built.fork), Arc::new(built)).await
}
