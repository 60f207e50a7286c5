//! File formats of blocks with their witnesses.

use super::{Ancestors, ExecutionWitness};
use alloy_consensus::Header;
use alloy_primitives::U64;
use alloy_rlp::Decodable;
use serde::{
    Deserialize, Deserializer,
    de::{
        MapAccess, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
};
use serde_json::value::RawValue;
use std::fmt;
use tandem_chain::{Block, BlockError, Payload, PayloadSidecar};
use tandem_primitives::{B256, Bytes};

/// Block with its witness.
#[derive(Clone, Debug)]
pub struct Input {
    /// Chain of the block, if the file names it (EIP-155).
    pub chain_id: Option<u64>,
    /// The block, if the file has it.
    pub block: Option<Block>,
    /// Witness for its execution.
    pub witness: ExecutionWitness,
}

/// Reason why a file is not a block with its witness.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file is not the expected JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A header in the witness cannot be decoded.
    #[error("header {index} of the witness: {reason}")]
    Header {
        /// Position in the list, from 0.
        index: usize,
        /// Error of the decoder.
        reason: alloy_rlp::Error,
    },
    /// A claimed parent lacks a header with its state root.
    #[error("syntheticParent without a header")]
    NoClaim,
    /// The block cannot be decoded, or its parts do not match.
    #[error("block: {0}")]
    Block(#[from] BlockError),
    /// The parameters of the engine call are not those of `engine_newPayload`.
    #[error("engine: {0}")]
    Engine(String),
    /// The block and the engine call contain different blocks.
    #[error("the engine call is of block {engine}, not {block}")]
    TwoBlocks {
        /// Hash of the block in the engine call.
        engine: B256,
        /// Hash of the separate block.
        block: B256,
    },
}

/// Decodes a block's RLP from a file. Accepts the bytes, their hexadecimal digits, these as a JSON
/// string, or the answer of `debug_getRawBlock`.
///
/// # Errors
/// [`InputError::Json`], [`InputError::Block`].
pub fn decode_block(file: &[u8]) -> Result<Block, InputError> {
    #[derive(Deserialize)]
    struct RawBlockJson {
        result: Bytes,
    }
    let text = file.trim_ascii();
    let rlp = match text.first() {
        Some(b'{') => serde_json::from_slice::<RawBlockJson>(text)?.result,
        Some(b'"') => serde_json::from_slice(text)?,
        _ => match const_hex::decode(text) {
            Ok(rlp) => rlp.into(),
            Err(_) => Bytes::copy_from_slice(file),
        },
    };
    Ok(Block::from_rlp(&rlp)?)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileJson {
    chain_id: Option<ChainId>,
    block: Option<Bytes>,
    engine: Option<EngineJson>,
    #[serde(default)]
    synthetic_parent: bool,
    #[serde(default)]
    block_hashes: Vec<B256>,
    witness: Option<WitnessJson>,
    /// Witness in a JSON-RPC answer.
    result: Option<WitnessJson>,
    // Members of a bare witness.
    state: Option<Vec<Bytes>>,
    #[serde(default)]
    codes: Vec<Bytes>,
    #[serde(default)]
    headers: Vec<HeaderJson>,
}

/// Chain id as a number, or as a text with its digits.
struct ChainId(u64);

impl<'de> Deserialize<'de> for ChainId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChainIdVisitor;
        impl Visitor<'_> for ChainIdVisitor {
            type Value = ChainId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a chain id")
            }

            fn visit_u64<E>(self, id: u64) -> Result<ChainId, E> {
                Ok(ChainId(id))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ChainId, E> {
                let id = U64::deserialize(StrDeserializer::new(text))?;
                Ok(ChainId(id.to()))
            }
        }
        deserializer.deserialize_any(ChainIdVisitor)
    }
}

#[derive(Deserialize)]
struct EngineJson {
    method: String,
    params: Box<RawValue>,
}

/// Answer of `debug_executionWitness`. Its `keys`, which some clients give, are not needed.
#[derive(Deserialize)]
struct WitnessJson {
    state: Vec<Bytes>,
    codes: Vec<Bytes>,
    headers: Vec<HeaderJson>,
}

/// Header of a witness. Most clients give RLP, some versions of geth give the objects of
/// `eth_getHeaderByHash`.
enum HeaderJson {
    Rlp(Bytes),
    Object(Box<Header>),
}

impl<'de> Deserialize<'de> for HeaderJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = HeaderJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header, as RLP or as an object")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<HeaderJson, E> {
                Bytes::deserialize(StrDeserializer::new(text)).map(HeaderJson::Rlp)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HeaderJson, A::Error> {
                let header = Header::deserialize(MapAccessDeserializer::new(map))?;
                Ok(HeaderJson::Object(Box::new(header)))
            }
        }
        deserializer.deserialize_any(HeaderVisitor)
    }
}

impl Input {
    /// Reads one of these:
    ///
    /// * an object with `witness` (`state`, `codes`, `headers`), `block` (RLP) or `engine`
    ///   (`method` and `params` of `engine_newPayload`), and `chainId`. With `syntheticParent` only
    ///   the last header's state root is trusted, and `blockHashes` are the hashes of the blocks
    ///   before, the parent's first;
    /// * the answer of `debug_executionWitness`, with or without the JSON-RPC object around it,
    ///   optionally with `block` and `chainId` beside `state`.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn parse(json: &str) -> Result<Self, InputError> {
        let mut file: FileJson = serde_json::from_str(json)?;
        let block = file.take_block()?;
        let chain_id = file.chain_id.take().map(|ChainId(id)| id);
        let FileJson { synthetic_parent, block_hashes, .. } = file;
        let alone = |state| WitnessJson { state, codes: file.codes, headers: file.headers };
        let WitnessJson { state, codes, headers } = file
            .witness
            .or(file.result)
            .or(file.state.map(alone))
            .ok_or_else(|| <serde_json::Error as serde::de::Error>::missing_field("witness"))?;
        let headers: Vec<Header> = headers
            .into_iter()
            .enumerate()
            .map(|(index, header)| {
                header.decode().map_err(|reason| InputError::Header { index, reason })
            })
            .collect::<Result<_, _>>()?;
        let ancestors = if synthetic_parent {
            let state_root = headers.last().ok_or(InputError::NoClaim)?.state_root;
            Ancestors::Claimed { state_root, hashes: block_hashes }
        } else {
            Ancestors::Headers(headers)
        };
        Ok(Self { chain_id, block, witness: ExecutionWitness { state, codes, ancestors } })
    }
}

impl FileJson {
    /// Returns the block. If the file has it in two forms, they must be equal.
    fn take_block(&mut self) -> Result<Option<Block>, InputError> {
        let block = self.block.take().map(|rlp| Block::from_rlp(&rlp)).transpose()?;
        let engine = self.engine.take().map(EngineJson::block).transpose()?;
        if let (Some(block), Some(engine)) = (&block, &engine)
            && block.id != engine.id
        {
            let (engine, block) = (engine.id.hash, block.id.hash);
            return Err(InputError::TwoBlocks { engine, block });
        }
        Ok(block.or(engine))
    }
}

impl EngineJson {
    fn block(self) -> Result<Block, InputError> {
        let Self { method, params } = self;
        if !method.starts_with("engine_newPayload") {
            return Err(InputError::Engine(format!("{method} brings no block")));
        }
        type Params = (Option<Payload>, Option<Vec<B256>>, Option<B256>, Option<Vec<Bytes>>);
        let (payload, hashes, root, requests) =
            tandem_http::Params::new(Box::<str>::from(params).into_string().into())
                .decode::<Params>()
                .map_err(|error| InputError::Engine(error.message.into_owned()))?;
        let payload = payload.ok_or(InputError::Engine("no payload".into()))?;
        let sidecar = PayloadSidecar {
            versioned_hashes: hashes,
            parent_beacon_block_root: root,
            execution_requests: requests,
        };
        Ok(Block::from_payload(payload, &sidecar)?)
    }
}

impl HeaderJson {
    fn decode(self) -> Result<Header, alloy_rlp::Error> {
        match self {
            Self::Object(header) => Ok(*header),
            Self::Rlp(rlp) => {
                let rest = &mut rlp.as_ref();
                let header = Header::decode(rest)?;
                if rest.is_empty() { Ok(header) } else { Err(alloy_rlp::Error::UnexpectedLength) }
            }
        }
    }
}
