//! The `eth`, `net` and `web3` methods (execution-apis, `src/eth`).

use super::ClientInfo;
use super::error::{RpcError, code};
use super::hex::{BlockParam, NumberParam, Quantity, parse_storage_key};
use super::json::{BlockContext, BlockJson, ReceiptJson, ReceiptOf, TransactionJson};
use super::methods::{Answer, Methods, Params, Positional, off_reactor, required, to_result};
use super::revert::revert_error;
use crate::{BlockTag, CallOutcome, CallRequest, Chain, Error, Handle};
use alloy_consensus::transaction::SignerRecoverable;
use alloy_eips::eip2930::AccessList;
use alloy_primitives::{Address, B256, Bytes, U256};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use tandem_chain::{Block, ChainSpec, recover_senders};
use tandem_primitives::{Account, BlockId};
use tracing::warn;

/// What the methods read from.
struct Source {
    chain: Arc<Chain>,
    spec: ChainSpec,
    client: ClientInfo,
}

/// The methods of the public port. `eth_getLogs` and `eth_sendRawTransaction` answer -32601 and
/// say that they are not served yet.
pub fn eth_methods(engine: &Handle, client: ClientInfo) -> Methods {
    let source =
        Arc::new(Source { chain: engine.chain().clone(), spec: engine.spec().clone(), client });
    let mut methods = Methods::new();
    add_quick(&mut methods, &source, "eth_chainId", |source| {
        to_result(&Quantity(source.spec.chain_id()))
    });
    add_quick(&mut methods, &source, "net_version", |source| {
        to_result(&source.spec.chain_id().to_string())
    });
    add_quick(&mut methods, &source, "web3_clientVersion", |source| {
        to_result(&source.client.version_line())
    });
    add_quick(&mut methods, &source, "eth_blockNumber", |source| {
        to_result(&Quantity(source.chain.head().number))
    });
    // Blocks come from the consensus layer alone: there is never a sync of our own under way.
    add_quick(&mut methods, &source, "eth_syncing", |_| to_result(&false));

    add(&mut methods, &source, "eth_getBlockByNumber", block_by_number);
    add(&mut methods, &source, "eth_getBlockByHash", block_by_hash);
    add(&mut methods, &source, "eth_getTransactionByHash", transaction_by_hash);
    add(&mut methods, &source, "eth_getTransactionReceipt", transaction_receipt);
    add(&mut methods, &source, "eth_getBalance", balance);
    add(&mut methods, &source, "eth_getTransactionCount", transaction_count);
    add(&mut methods, &source, "eth_getCode", code_at);
    add(&mut methods, &source, "eth_getStorageAt", storage_at);
    add(&mut methods, &source, "eth_call", call);
    for name in ["eth_getLogs", "eth_sendRawTransaction"] {
        methods.add(name, move |_| async move {
            let message = format!("the method {name} is not served by this client yet");
            Err(RpcError::new(code::METHOD_NOT_FOUND, message))
        });
    }
    methods
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

/// Adds a method that reads the chain, off the reactor.
fn add<P: Positional + Send + 'static>(
    methods: &mut Methods,
    source: &Arc<Source>,
    name: &'static str,
    answer: fn(&Source, P) -> Answer,
) {
    let source = source.clone();
    methods.add(name, move |params: Params| {
        let source = source.clone();
        off_reactor(move || answer(&source, params.decode()?))
    });
}

/// No parameters at all.
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

fn block_by_number(source: &Source, (number, full): (Option<NumberParam>, Option<bool>)) -> Answer {
    render_block(source, required(number, 0)?.0, required(full, 1)?)
}

fn block_by_hash(source: &Source, (hash, full): (Option<B256>, Option<bool>)) -> Answer {
    render_block(source, BlockTag::Hash(required(hash, 0)?), required(full, 1)?)
}

fn render_block(source: &Source, tag: BlockTag, full: bool) -> Answer {
    let block = match source.chain.block(tag) {
        Ok(Some(block)) => block,
        Ok(None) | Err(Error::UnknownBlock) => return to_result(&()),
        Err(error) => return Err(read_error(error)),
    };
    if !full {
        return to_result(&BlockJson::new(&block, None));
    }
    let senders = recover_senders(&block).map_err(|error| defect(block.id, error))?;
    to_result(&BlockJson::new(&block, Some(&senders)))
}

/// A transaction with its block.
fn find_transaction(source: &Source, hash: B256) -> Result<Option<(Block, usize)>, RpcError> {
    let Some(place) = source.chain.transaction(hash).map_err(read_error)? else {
        return Ok(None);
    };
    let block = source.chain.block(BlockTag::Hash(place.block.hash)).map_err(read_error)?;
    let index = place.index as usize;
    Ok(block.filter(|block| index < block.transactions.len()).map(|block| (block, index)))
}

fn sender(block: &Block, index: usize) -> Result<Address, RpcError> {
    block.transactions[index].recover_signer().map_err(|error| defect(block.id, error))
}

fn transaction_by_hash(source: &Source, (hash,): (Option<B256>,)) -> Answer {
    let hash = required(hash, 0)?;
    let Some((block, index)) = find_transaction(source, hash)? else {
        return to_result(&());
    };
    let from = sender(&block, index)?;
    let context = BlockContext::new(block.id, &block.header);
    let transaction = &block.transactions[index];
    to_result(&TransactionJson::new(context, index as u64, transaction, hash, from))
}

fn transaction_receipt(source: &Source, (hash,): (Option<B256>,)) -> Answer {
    let hash = required(hash, 0)?;
    let Some((block, index)) = find_transaction(source, hash)? else {
        return to_result(&());
    };
    let Some(receipts) = source.chain.receipts(block.id.hash).map_err(read_error)? else {
        return to_result(&());
    };
    let header = &block.header;
    let blob_params = source.spec.blob_params_of(header);
    let of = ReceiptOf {
        transaction: &block.transactions[index],
        hash,
        from: sender(&block, index)?,
        index,
        blob_gas_price: blob_params.and_then(|params| header.blob_fee(params)),
    };
    to_result(&ReceiptJson::new(BlockContext::new(block.id, header), &receipts, of))
}

/// Parameters of the methods that read an account: the address and the block, by default the head.
type AccountParams = (Option<Address>, Option<BlockParam>);

/// The block that a call reads, held fast: a tag could mean another one a moment later.
fn pin(source: &Source, block: Option<BlockParam>) -> Result<BlockTag, RpcError> {
    let tag = block.map_or(BlockTag::Latest, |BlockParam(tag)| tag);
    match source.chain.resolve(tag) {
        Ok(Some(id)) => Ok(BlockTag::Hash(id.hash)),
        Ok(None) | Err(Error::UnknownBlock) => Err(RpcError::server(match tag {
            BlockTag::Hash(_) => "header for hash not found",
            _ => "header not found",
        })),
        Err(error) => Err(read_error(error)),
    }
}

fn account(source: &Source, (address, block): AccountParams) -> Result<Account, RpcError> {
    let address = required(address, 0)?;
    let tag = pin(source, block)?;
    Ok(source.chain.account(tag, address).map_err(read_error)?.unwrap_or_default())
}

fn balance(source: &Source, params: AccountParams) -> Answer {
    to_result(&Quantity(account(source, params)?.balance))
}

fn transaction_count(source: &Source, params: AccountParams) -> Answer {
    to_result(&Quantity(account(source, params)?.nonce))
}

fn code_at(source: &Source, (address, block): AccountParams) -> Answer {
    let address = required(address, 0)?;
    let tag = pin(source, block)?;
    to_result(&source.chain.code(tag, address).map_err(read_error)?)
}

fn storage_at(
    source: &Source,
    (address, key, block): (Option<Address>, Option<String>, Option<BlockParam>),
) -> Answer {
    let (address, key) = (required(address, 0)?, required(key, 1)?);
    let slot = parse_storage_key(&key).map_err(RpcError::invalid_params)?;
    let tag = pin(source, block)?;
    let value = source.chain.storage(tag, address, slot).map_err(read_error)?;
    to_result(&B256::from(value))
}

/// The transaction object of `eth_call`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallJson {
    from: Option<Address>,
    to: Option<Address>,
    gas: Option<Quantity<u64>>,
    gas_price: Option<Quantity<u128>>,
    max_fee_per_gas: Option<Quantity<u128>>,
    max_priority_fee_per_gas: Option<Quantity<u128>>,
    value: Option<Quantity<U256>>,
    nonce: Option<Quantity<u64>>,
    data: Option<Bytes>,
    input: Option<Bytes>,
    access_list: Option<AccessList>,
    chain_id: Option<Quantity<U256>>,
    /// Blobs and authorizations would change what the call sees, so they are not just left out.
    blob_versioned_hashes: Option<Vec<B256>>,
    authorization_list: Option<Box<RawValue>>,
}

impl CallJson {
    fn into_request(self, chain_id: u64) -> Result<CallRequest, RpcError> {
        if self.blob_versioned_hashes.is_some_and(|hashes| !hashes.is_empty())
            || self.authorization_list.is_some()
        {
            let reason = "blobVersionedHashes and authorizationList are not supported in calls";
            return Err(RpcError::invalid_params(reason));
        }
        if let Some(Quantity(theirs)) = self.chain_id
            && theirs != U256::from(chain_id)
        {
            return Err(RpcError::server(format_args!(
                "chainId does not match node's (have={theirs}, want={chain_id})"
            )));
        }
        let data = match (self.input, self.data) {
            (Some(input), Some(data)) if input != data => {
                let reason = "both \"data\" and \"input\" are set and not equal. \
                              Please use \"input\" to pass transaction call data";
                return Err(RpcError::server(reason));
            }
            (input, data) => input.or(data).unwrap_or_default(),
        };
        Ok(CallRequest {
            from: self.from,
            to: self.to,
            gas: self.gas.map(|gas| gas.0),
            gas_price: self.gas_price.map(|price| price.0),
            max_fee_per_gas: self.max_fee_per_gas.map(|fee| fee.0),
            max_priority_fee_per_gas: self.max_priority_fee_per_gas.map(|fee| fee.0),
            value: self.value.map(|value| value.0),
            data,
            nonce: self.nonce.map(|nonce| nonce.0),
            access_list: self.access_list,
        })
    }
}

/// The call, the block, and overrides of state and block, which are not supported.
type CallParams =
    (Option<CallJson>, Option<BlockParam>, Option<Box<RawValue>>, Option<Box<RawValue>>);

fn call(source: &Source, (request, block, state, environment): CallParams) -> Answer {
    let request = required(request, 0)?.into_request(source.spec.chain_id())?;
    if [state, environment].iter().flatten().any(|overrides| overrides.get() != "{}") {
        return Err(RpcError::invalid_params("overrides are not supported"));
    }
    let tag = pin(source, block)?;
    match source.chain.call(tag, request).map_err(read_error)? {
        CallOutcome::Return(output) => to_result(&output),
        CallOutcome::Revert(output) => Err(revert_error(&output)),
        CallOutcome::Halt(reason) => Err(RpcError::server(reason)),
    }
}

/// The error object for what could not be read.
fn read_error(error: Error) -> RpcError {
    match &error {
        Error::StateUnavailable(_) | Error::UnknownBlock | Error::InvalidCall(_) => {}
        _ => warn!(%error, "read failed"),
    }
    RpcError::server(error)
}

/// A block that is stored was validated, so its signatures are good.
fn defect(block: BlockId, error: impl std::fmt::Display) -> RpcError {
    warn!(%block, %error, "stored block has an invalid signature");
    RpcError::internal()
}
