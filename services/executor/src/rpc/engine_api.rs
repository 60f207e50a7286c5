//! The `engine` methods (execution-apis, `src/engine`).

use super::ClientInfo;
use super::engine_types::{
    ClientVersionJson, ForkchoiceParams, ForkchoiceUpdatedJson, ForkchoiceV4Params, NewPayload,
    PayloadBodyJson, PayloadStatusJson, check_attributes, decode_new_payload,
};
use super::eth::eth_methods_of;
use super::get_blob_cells::{self, CellIndices};
use super::get_blobs::{Service, Version, check_count};
use super::get_payload::{self, PayloadIdJson, check_get_payload, unknown_payload};
use super::hex::{Hex, Quantity};
use super::policies::policy_methods;
use super::pool::Lane;
use super::strict::Strict;
use super::testing::testing_methods;
use crate::{BlockTag, Chain, Error, ForkchoiceState, Handle, Status};
use alloy_primitives::B256;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use tandem_chain::{ChainSpec, Fork};
use tandem_http::{Answer, Methods, Params, Streamed, off_reactor, required, to_result};
use tandem_http::{RpcError, code};
use tandem_proto::blob_validator::{self, StoredBlob};
use tandem_proto::storage;
use tracing::{debug, warn};

/// Methods listed by `engine_exchangeCapabilities`, except itself, as specified.
const CAPABILITIES: [&str; 24] = [
    "engine_forkchoiceUpdatedV1",
    "engine_forkchoiceUpdatedV2",
    "engine_forkchoiceUpdatedV3",
    "engine_forkchoiceUpdatedV4",
    "engine_getBlobsV1",
    "engine_getBlobsV2",
    "engine_getBlobsV3",
    "engine_getBlobsV4",
    "engine_getClientVersionV1",
    "engine_getPayloadBodiesByHashV1",
    "engine_getPayloadBodiesByHashV2",
    "engine_getPayloadBodiesByRangeV1",
    "engine_getPayloadBodiesByRangeV2",
    "engine_getPayloadV1",
    "engine_getPayloadV2",
    "engine_getPayloadV3",
    "engine_getPayloadV4",
    "engine_getPayloadV5",
    "engine_getPayloadV6",
    "engine_newPayloadV1",
    "engine_newPayloadV2",
    "engine_newPayloadV3",
    "engine_newPayloadV4",
    "engine_newPayloadV5",
];

/// Maximum number of bodies returned at once. The specification requires at least 32; 128 full
/// blocks are some 50 MB of JSON.
const PAYLOAD_BODIES_MAX: u64 = 128;

/// Returns the methods of the Engine API port.
///
/// These are the `engine` methods, all of [`super::eth_methods`], and the `tandem` methods, which
/// read and change policies. The specification requires some `eth` methods, so that a consensus
/// client needs only one connection.
pub fn engine_methods(engine: &Handle, client: ClientInfo) -> Methods {
    let mut methods = eth_methods_of(&engine.reads(), client.clone(), Lane::Engine);
    methods.extend(testing_methods(engine));
    for (name, version) in [
        ("engine_newPayloadV1", 1),
        ("engine_newPayloadV2", 2),
        ("engine_newPayloadV3", 3),
        // Osaka did not change this version.
        ("engine_newPayloadV4", 4),
        ("engine_newPayloadV5", 5),
    ] {
        let engine = engine.clone();
        methods.add(name, move |params| new_payload(engine.clone(), version, params));
    }
    for (name, version) in [
        ("engine_forkchoiceUpdatedV1", 1),
        ("engine_forkchoiceUpdatedV2", 2),
        ("engine_forkchoiceUpdatedV3", 3),
        ("engine_forkchoiceUpdatedV4", 4),
    ] {
        let engine = engine.clone();
        methods.add(name, move |params| forkchoice_updated(engine.clone(), version, params));
    }
    for (name, version) in [
        ("engine_getPayloadV1", 1),
        ("engine_getPayloadV2", 2),
        ("engine_getPayloadV3", 3),
        ("engine_getPayloadV4", 4),
        ("engine_getPayloadV5", 5),
        ("engine_getPayloadV6", 6),
    ] {
        let engine = engine.clone();
        methods.add_streaming(name, move |params| get_payload(engine.clone(), version, params));
    }
    for (name, version) in [
        ("engine_getBlobsV1", Version::V1),
        ("engine_getBlobsV2", Version::V2),
        ("engine_getBlobsV3", Version::V3),
    ] {
        let engine = engine.clone();
        methods.add_streaming(name, move |params| get_blobs(engine.clone(), version, params));
    }
    let cells_of = engine.clone();
    methods.add_streaming("engine_getBlobsV4", move |params| get_cells(cells_of.clone(), params));
    for (name, version) in
        [("engine_getPayloadBodiesByHashV1", 1), ("engine_getPayloadBodiesByHashV2", 2)]
    {
        let engine = engine.clone();
        methods.add(name, move |params| bodies_by_hash(engine.clone(), version, params));
    }
    for (name, version) in
        [("engine_getPayloadBodiesByRangeV1", 1), ("engine_getPayloadBodiesByRangeV2", 2)]
    {
        let engine = engine.clone();
        methods.add(name, move |params| bodies_by_range(engine.clone(), version, params));
    }
    methods.add("engine_exchangeCapabilities", |params| async move {
        let (theirs,) = params.decode::<(Option<Names>,)>()?;
        required(theirs, 0)?;
        to_result(&CAPABILITIES)
    });
    methods.add("engine_getClientVersionV1", move |params| {
        std::future::ready(client_version(&client, &params))
    });
    methods.extend(policy_methods(engine.policies(), engine.bus()));
    methods
}

/// List of names that is read, but not kept.
struct Names;

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;
        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Names, A::Error> {
                while seq.next_element::<Cow<'_, str>>()?.is_some() {}
                Ok(Names)
            }
        }
        deserializer.deserialize_seq(NamesVisitor)
    }
}

/// Returns the fork at this time, or `None` from the first unknown fork on.
pub(super) fn known_fork(spec: &ChainSpec, timestamp: u64) -> Option<Fork> {
    let is_unknown = spec.unsupported_fork().is_some_and(|fork| timestamp >= fork.time);
    (!is_unknown).then(|| spec.fork_at(timestamp))
}

async fn new_payload(engine: Handle, version: u8, params: Params) -> Answer {
    let spec = engine.spec().clone();
    let is_large = params.is_large();
    let decode = move || {
        let params = decode_new_payload(version, &params)?;
        NewPayload::new(version, params, |timestamp| known_fork(&spec, timestamp))
    };
    let NewPayload { payload, sidecar } =
        if is_large { off_reactor(decode).await? } else { decode()? };
    let status = engine.new_payload(version, payload, sidecar).await.map_err(engine_error)?;
    to_result(&PayloadStatusJson::of_new_payload(version, status))
}

async fn forkchoice_updated(engine: Handle, version: u8, params: Params) -> Answer {
    let (state, attributes): ForkchoiceParams = match version {
        1..=3 => params.decode_large().await?,
        _ => {
            // The columns of custody are for nodes that sample blobs from peers; this one has none.
            let (state, attributes, _): ForkchoiceV4Params = params.decode_large().await?;
            (state, attributes)
        }
    };
    let Strict(state) = required(state, 0)?;
    let state = ForkchoiceState::from(state);
    let head = state.head;
    let status = engine.forkchoice_updated(state).await.map_err(engine_error)?;
    let payload_id = match (status.status, attributes) {
        (Status::Valid, Some(attributes)) => {
            start_build(&engine, version, head, attributes).await?
        }
        _ => None,
    };
    to_result(&ForkchoiceUpdatedJson { payload_status: status.into(), payload_id })
}

/// Checks the attributes and begins to build. Returns `None` if no payload may be built.
async fn start_build(
    engine: &Handle,
    version: u8,
    head: B256,
    attributes: Box<RawValue>,
) -> Result<Option<PayloadIdJson>, RpcError> {
    let (chain, spec) = (engine.chain().clone(), engine.spec().clone());
    let check = move || {
        let header = chain.header(BlockTag::Hash(head)).map_err(engine_error)?;
        let (id, header) = header.ok_or_else(|| engine_error(Error::UnknownBlock))?;
        // The forkchoice was not applied, so no payload is built (paris.md, point 2).
        if chain.precedes_finalized(id).map_err(engine_error)? {
            return Ok(None);
        }
        let fork_at = |timestamp| known_fork(&spec, timestamp);
        check_attributes(version, &attributes, header.timestamp, fork_at).map(Some)
    };
    let Some(attributes) = off_reactor(check).await? else { return Ok(None) };
    Ok(Some(engine.start_build(head, attributes).0.into()))
}

async fn get_payload(engine: Handle, version: u8, params: Params) -> Streamed {
    let (id,) = params.decode::<(Option<PayloadIdJson>,)>()?;
    let id = required(id, 0)?;
    let built = engine.get_payload(id.into()).await.map_err(engine_error)?;
    let built = built.ok_or_else(|| unknown_payload(id))?;
    check_get_payload(version, built.fork)?;
    get_payload::answer(version, built).await
}

async fn get_blobs(engine: Handle, version: Version, params: Params) -> Streamed {
    let (hashes,) = params.decode_large::<(Option<Vec<Hex<B256>>>,)>().await?;
    let hashes: Vec<B256> = required(hashes, 0)?.into_iter().map(|Hex(hash)| hash).collect();
    let service = version.check_fork(head_fork(&engine).await?)?;
    check_count(&hashes)?;
    if service == Service::Unable {
        return version.unable(hashes.len());
    }
    match stored_blobs(&engine, &hashes).await {
        Ok(blobs) => version.answer(blobs),
        Err(_) => version.unable(hashes.len()),
    }
}

async fn stored_blobs(
    engine: &Handle,
    hashes: &[B256],
) -> Result<Vec<Option<Arc<StoredBlob>>>, blob_validator::Error> {
    let blobs = engine.blobs().get_blobs(hashes).await;
    blobs.inspect_err(|error| warn!(%error, "blobs cannot be read"))
}

async fn head_fork(engine: &Handle) -> Result<Fork, RpcError> {
    let chain = engine.chain().clone();
    let head = off_reactor(move || {
        let head = chain.header(BlockTag::Latest).map_err(engine_error)?;
        head.ok_or_else(|| engine_error(Error::UnknownBlock))
    });
    let (_, head) = head.await?;
    Ok(engine.spec().fork_of(&head))
}

async fn get_cells(engine: Handle, params: Params) -> Streamed {
    let (hashes, indices) =
        params.decode_large::<(Option<Vec<Hex<B256>>>, Option<CellIndices>)>().await?;
    let hashes: Vec<B256> = required(hashes, 0)?.into_iter().map(|Hex(hash)| hash).collect();
    let indices = required(indices, 1)?;
    // Like V3, this version needs the proofs that come with Osaka.
    let service = Version::V3.check_fork(head_fork(&engine).await?)?;
    check_count(&hashes)?;
    if service == Service::Unable {
        return Version::V3.unable(hashes.len());
    }
    match stored_blobs(&engine, &hashes).await {
        Ok(blobs) => get_blob_cells::answer(blobs, indices).await,
        Err(_) => Version::V3.unable(hashes.len()),
    }
}

async fn bodies_by_hash(engine: Handle, version: u8, params: Params) -> Answer {
    let (hashes,) = params.decode_large::<(Option<Vec<B256>>,)>().await?;
    let hashes = required(hashes, 0)?;
    check_body_count(hashes.len() as u64)?;
    let chain = engine.chain().clone();
    off_reactor(move || {
        let tags = hashes.into_iter().map(BlockTag::Hash);
        bodies(&chain, version, tags)
    })
    .await
}

async fn bodies_by_range(engine: Handle, version: u8, params: Params) -> Answer {
    let (start, count) = params.decode::<(Option<Quantity<u64>>, Option<Quantity<u64>>)>()?;
    let (start, count) = (required(start, 0)?.0, required(count, 1)?.0);
    if start == 0 || count == 0 {
        let reason = "start and count must be at least 1";
        return Err(RpcError::engine(code::INVALID_PARAMS, reason));
    }
    check_body_count(count)?;
    let chain = engine.chain().clone();
    off_reactor(move || {
        // Blocks above the head are omitted, not null.
        let end = start.saturating_add(count).min(chain.head().number.saturating_add(1));
        bodies(&chain, version, (start..end).map(BlockTag::Number))
    })
    .await
}

fn check_body_count(count: u64) -> Result<(), RpcError> {
    if count <= PAYLOAD_BODIES_MAX {
        return Ok(());
    }
    let reason = format_args!("{count} bodies, at most {PAYLOAD_BODIES_MAX}");
    Err(RpcError::engine(code::TOO_LARGE_REQUEST, reason))
}

fn bodies(chain: &Chain, version: u8, tags: impl Iterator<Item = BlockTag>) -> Answer {
    let body = |tag| -> Result<_, Error> {
        let block = match chain.block(tag) {
            // A body that is not kept any more is null (EIP-4444).
            Err(Error::Storage(storage::Error::Pruned { .. })) => None,
            found => found?,
        };
        let Some(block) = block else { return Ok(None) };
        let list = match version >= 2 && block.header.block_access_list_hash.is_some() {
            true => chain.access_list(BlockTag::Hash(block.id.hash))?,
            false => None,
        };
        Ok(Some(PayloadBodyJson::new(version, block, list)))
    };
    let bodies: Result<Vec<_>, _> = tags.map(body).collect();
    to_result(&bodies.map_err(engine_error)?)
}

fn client_version(client: &ClientInfo, params: &Params) -> Answer {
    let (theirs,) = params.decode::<(Option<ClientVersionJson>,)>()?;
    let theirs = required(theirs, 0)?;
    debug!(name = %theirs.name, version = %theirs.version, "consensus client introduced itself");
    to_result(&[ClientVersionJson {
        code: ClientInfo::CODE.into(),
        name: ClientInfo::NAME.into(),
        version: format!("v{}", client.version),
        commit: const_hex::encode_prefixed(client.commit),
    }])
}

/// Converts an engine error to an error object.
pub(super) fn engine_error(error: Error) -> RpcError {
    let code = match &error {
        Error::InvalidForkchoice(_) => code::INVALID_FORKCHOICE_STATE,
        Error::ReorgTooDeep { .. } => code::TOO_DEEP_REORG,
        _ => {
            warn!(%error, "engine call failed");
            code::SERVER_ERROR
        }
    };
    RpcError::engine(code, error)
}
