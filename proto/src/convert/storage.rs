//! Requests to storage-writer.

use super::{
    error::{At, ConvertError, Reason},
    field::{
        at_most, hash, hash_bytes, hash_list, items, nested, range, required, shard_bits, shards,
    },
};
use crate::{
    limits::{
        CALLER_NAME_BYTES_MAX, LEASE_MS_MAX, READ_ACCOUNTS_MAX, READ_CODES_MAX, READ_SLOTS_MAX,
        STATE_DIFFS_MAX,
    },
    storage::{
        Block, BlockRef, Claim, Epoch, EpochToken, ExecutorAddress, Forkchoice, KeptBlock,
        ReadState, is_host,
    },
    wire::storage_writer::v1::{self, block_ref::By},
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tandem_primitives::{B256, BlockId, BlockNumber, ShardSet, TrieDiff, WalkTarget};

impl From<Forkchoice> for v1::Forkchoice {
    fn from(forkchoice: Forkchoice) -> Self {
        Self {
            head: Some(forkchoice.head.into()),
            safe: forkchoice.safe.map(Into::into),
            finalized: forkchoice.finalized.map(Into::into),
        }
    }
}

impl TryFrom<v1::Forkchoice> for Forkchoice {
    type Error = ConvertError;

    fn try_from(wire: v1::Forkchoice) -> Result<Self, ConvertError> {
        Ok(Self {
            head: nested(wire.head).at("head")?,
            safe: wire.safe.map(BlockId::try_from).transpose().at("safe")?,
            finalized: wire.finalized.map(BlockId::try_from).transpose().at("finalized")?,
        })
    }
}

impl From<Block> for v1::Block {
    fn from(block: Block) -> Self {
        Self {
            id: Some(block.id.into()),
            parent: hash_bytes(block.parent),
            header: block.header.0,
            body: block.body.0,
            receipts: block.receipts.0,
            transaction_hashes: hash_list(block.transaction_hashes.iter()),
            diff: Some((&*block.diff).into()),
            access_list: block.access_list.map(|list| list.0),
        }
    }
}

impl TryFrom<v1::Block> for Block {
    type Error = ConvertError;

    fn try_from(wire: v1::Block) -> Result<Self, ConvertError> {
        let transactions = items(&wire.transaction_hashes).at("transaction_hashes")?;
        let diff = wire.diff.unwrap_or_default().try_into().at("diff")?;
        Ok(Self {
            id: nested(wire.id).at("id")?,
            parent: hash(&wire.parent).at("parent")?,
            header: wire.header.into(),
            body: wire.body.into(),
            receipts: wire.receipts.into(),
            transaction_hashes: transactions.iter().map(B256::from).collect(),
            diff: Arc::new(diff),
            access_list: wire.access_list.map(Into::into),
        })
    }
}

impl From<BlockRef> for v1::BlockRef {
    fn from(block: BlockRef) -> Self {
        let by = match block {
            BlockRef::Number(number) => By::Number(number),
            BlockRef::Hash(hash) => By::Hash(hash_bytes(hash)),
        };
        Self { by: Some(by) }
    }
}

impl TryFrom<v1::BlockRef> for BlockRef {
    type Error = ConvertError;

    fn try_from(wire: v1::BlockRef) -> Result<Self, ConvertError> {
        Ok(match required(wire.by)? {
            By::Number(number) => Self::Number(number),
            By::Hash(bytes) => Self::Hash(hash(&bytes).at("hash")?),
        })
    }
}

/// Request of an executor for the right to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochRequest {
    /// Claim with the name of the executor and its lease.
    pub claim: Claim,
    /// Epoch that the executor already holds.
    pub held: Option<Epoch>,
}

impl From<EpochRequest> for v1::AcquireEpochRequest {
    fn from(request: EpochRequest) -> Self {
        let Claim { executor, lease, takes_token, address } = request.claim;
        let held = request.held;
        Self {
            address: address.map(Into::into),
            executor,
            lease_ms: lease_ms(lease),
            held: held.map_or(0, |epoch| epoch.number),
            takes_token,
            held_token: held.map(token_bytes).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::AcquireEpochRequest> for EpochRequest {
    type Error = ConvertError;

    fn try_from(wire: v1::AcquireEpochRequest) -> Result<Self, ConvertError> {
        at_most(CALLER_NAME_BYTES_MAX, wire.executor.len()).at("acquire_epoch.executor")?;
        let lease = lease(wire.lease_ms).at("acquire_epoch.lease_ms")?;
        let held = epoch(wire.held, &wire.held_token).at("acquire_epoch.held_token")?;
        let held = (held.number != 0).then_some(held);
        let address = wire.address.map(ExecutorAddress::try_from).transpose();
        let address = address.at("acquire_epoch.address")?;
        let (executor, takes_token) = (wire.executor, wire.takes_token);
        Ok(Self { claim: Claim { executor, lease, takes_token, address }, held })
    }
}

impl From<ExecutorAddress> for v1::ExecutorAddress {
    fn from(address: ExecutorAddress) -> Self {
        let ExecutorAddress { host, engine_port, http_port } = address;
        Self { host, engine_port: engine_port.into(), http_port: http_port.into() }
    }
}

impl TryFrom<v1::ExecutorAddress> for ExecutorAddress {
    type Error = ConvertError;

    fn try_from(wire: v1::ExecutorAddress) -> Result<Self, ConvertError> {
        if !is_host(&wire.host) {
            return Err(Reason::NotAHost).at("host");
        }
        let engine_port = port(wire.engine_port).at("engine_port")?;
        let http_port = port(wire.http_port).at("http_port")?;
        Ok(Self { host: wire.host, engine_port, http_port })
    }
}

fn port(number: u32) -> Result<u16, Reason> {
    range(1, u16::MAX.into(), number)?;
    Ok(number as u16)
}

impl From<(Epoch, Duration)> for v1::KeepEpochRequest {
    fn from((epoch, lease): (Epoch, Duration)) -> Self {
        Self { epoch: epoch.number, lease_ms: lease_ms(lease), token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::KeepEpochRequest> for (Epoch, Duration) {
    type Error = ConvertError;

    fn try_from(wire: v1::KeepEpochRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("keep_epoch.token")?;
        Ok((epoch, lease(wire.lease_ms).at("keep_epoch.lease_ms")?))
    }
}

/// Reads an epoch from its number and its token.
pub(super) fn epoch(number: u64, token: &[u8]) -> Result<Epoch, Reason> {
    let token = match token {
        [] => None,
        bytes => {
            let got = bytes.len() as u64;
            let bytes = bytes.try_into().map_err(|_| Reason::Length { expected: 16, got })?;
            Some(EpochToken(bytes))
        }
    };
    Ok(Epoch { number, token })
}

/// Encodes the token of an epoch as a field.
pub(super) fn token_bytes(epoch: Epoch) -> Bytes {
    epoch.token.map(|EpochToken(bytes)| Bytes::copy_from_slice(&bytes)).unwrap_or_default()
}

pub(super) fn lease_ms(lease: Duration) -> u32 {
    lease.as_millis().min(LEASE_MS_MAX.into()) as u32
}

pub(super) fn lease(ms: u32) -> Result<Duration, ConvertError> {
    at_most(LEASE_MS_MAX as usize, ms as usize)?;
    Ok(Duration::from_millis(ms.into()))
}

impl From<B256> for v1::GetTrieDiffRequest {
    fn from(block: B256) -> Self {
        Self { block: hash_bytes(block) }
    }
}

impl TryFrom<v1::GetTrieDiffRequest> for B256 {
    type Error = ConvertError;

    fn try_from(wire: v1::GetTrieDiffRequest) -> Result<Self, ConvertError> {
        hash(&wire.block).at("get_trie_diff.block")
    }
}

impl From<&ReadState> for v1::ReadStateRequest {
    fn from(request: &ReadState) -> Self {
        let mut slots = Vec::with_capacity(request.slots.len() * 64);
        for (address, slot) in &request.slots {
            slots.extend_from_slice(address.as_slice());
            slots.extend_from_slice(slot.as_slice());
        }
        Self {
            accounts: hash_list(request.accounts.iter()),
            slots: slots.into(),
            codes: hash_list(request.codes.iter()),
        }
    }
}

impl TryFrom<v1::ReadStateRequest> for ReadState {
    type Error = ConvertError;

    fn try_from(wire: v1::ReadStateRequest) -> Result<Self, ConvertError> {
        let accounts =
            bounded::<32>(&wire.accounts, READ_ACCOUNTS_MAX).at("read_state.accounts")?;
        let slots = bounded::<64>(&wire.slots, READ_SLOTS_MAX).at("read_state.slots")?;
        let codes = bounded::<32>(&wire.codes, READ_CODES_MAX).at("read_state.codes")?;
        let slot = |slot: &[u8; 64]| (B256::from_slice(&slot[..32]), B256::from_slice(&slot[32..]));
        Ok(Self {
            accounts: accounts.iter().map(B256::from).collect(),
            slots: slots.iter().map(slot).collect(),
            codes: codes.iter().map(B256::from).collect(),
        })
    }
}

fn bounded<const N: usize>(bytes: &[u8], max: usize) -> Result<&[[u8; N]], Reason> {
    let items = items(bytes)?;
    at_most(max, items.len())?;
    Ok(items)
}

impl From<&[WalkTarget]> for v1::WalkTrieRequest {
    fn from(targets: &[WalkTarget]) -> Self {
        Self { targets: Some(targets.into()) }
    }
}

impl TryFrom<v1::WalkTrieRequest> for Vec<WalkTarget> {
    type Error = ConvertError;

    fn try_from(wire: v1::WalkTrieRequest) -> Result<Self, ConvertError> {
        wire.targets.unwrap_or_default().try_into().at("walk_trie.targets")
    }
}

impl From<(Epoch, Block)> for v1::CommitRequest {
    fn from((epoch, block): (Epoch, Block)) -> Self {
        Self { epoch: epoch.number, block: Some(block.into()), token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::CommitRequest> for (Epoch, Block) {
    type Error = ConvertError;

    fn try_from(wire: v1::CommitRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("commit.token")?;
        Ok((epoch, nested(wire.block).at("commit.block")?))
    }
}

impl From<(Epoch, B256)> for v1::DiscardRequest {
    fn from((epoch, block): (Epoch, B256)) -> Self {
        Self { epoch: epoch.number, block: hash_bytes(block), token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::DiscardRequest> for (Epoch, B256) {
    type Error = ConvertError;

    fn try_from(wire: v1::DiscardRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("discard.token")?;
        Ok((epoch, hash(&wire.block).at("discard.block")?))
    }
}

impl From<&[B256]> for v1::GetStateDiffsRequest {
    fn from(blocks: &[B256]) -> Self {
        Self { blocks: hash_list(blocks.iter()), without_slots: false }
    }
}

impl TryFrom<v1::GetStateDiffsRequest> for Vec<B256> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetStateDiffsRequest) -> Result<Self, ConvertError> {
        let blocks = bounded::<32>(&wire.blocks, STATE_DIFFS_MAX).at("get_state_diffs.blocks")?;
        Ok(blocks.iter().map(B256::from).collect())
    }
}

impl From<(Epoch, B256)> for v1::ProveRequest {
    fn from((epoch, block): (Epoch, B256)) -> Self {
        Self { epoch: epoch.number, block: hash_bytes(block), token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::ProveRequest> for (Epoch, B256) {
    type Error = ConvertError;

    fn try_from(wire: v1::ProveRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("prove.token")?;
        Ok((epoch, hash(&wire.block).at("prove.block")?))
    }
}

impl From<KeptBlock> for v1::KeptBlock {
    fn from(block: KeptBlock) -> Self {
        Self {
            id: Some(block.id.into()),
            parent: hash_bytes(block.parent),
            header: block.header.0,
            body: block.body.0,
        }
    }
}

impl TryFrom<v1::KeptBlock> for KeptBlock {
    type Error = ConvertError;

    fn try_from(wire: v1::KeptBlock) -> Result<Self, ConvertError> {
        Ok(Self {
            id: nested(wire.id).at("id")?,
            parent: hash(&wire.parent).at("parent")?,
            header: wire.header.into(),
            body: wire.body.into(),
        })
    }
}

impl From<(Epoch, KeptBlock)> for v1::KeepRequest {
    fn from((epoch, block): (Epoch, KeptBlock)) -> Self {
        Self { epoch: epoch.number, block: Some(block.into()), token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::KeepRequest> for (Epoch, KeptBlock) {
    type Error = ConvertError;

    fn try_from(wire: v1::KeepRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("keep.token")?;
        Ok((epoch, nested(wire.block).at("keep.block")?))
    }
}

impl From<B256> for v1::GetKeptRequest {
    fn from(block: B256) -> Self {
        Self { block: hash_bytes(block) }
    }
}

impl TryFrom<v1::GetKeptRequest> for B256 {
    type Error = ConvertError;

    fn try_from(wire: v1::GetKeptRequest) -> Result<Self, ConvertError> {
        hash(&wire.block).at("get_kept.block")
    }
}

impl From<(B256, ShardSet, &TrieDiff)> for v1::PutTrieDiffRequest {
    fn from((block, shards, diff): (B256, ShardSet, &TrieDiff)) -> Self {
        Self { block: hash_bytes(block), shards: shard_bits(shards), diff: Some(diff.into()) }
    }
}

impl TryFrom<v1::PutTrieDiffRequest> for (B256, ShardSet, TrieDiff) {
    type Error = ConvertError;

    fn try_from(wire: v1::PutTrieDiffRequest) -> Result<Self, ConvertError> {
        let block = hash(&wire.block).at("put_trie_diff.block")?;
        let shards = shards(wire.shards).at("put_trie_diff.shards")?;
        let diff = wire.diff.unwrap_or_default().try_into().at("put_trie_diff.diff")?;
        Ok((block, shards, diff))
    }
}

impl From<(Epoch, Forkchoice)> for v1::CanonicalizeRequest {
    fn from((epoch, forkchoice): (Epoch, Forkchoice)) -> Self {
        Self { epoch: epoch.number, forkchoice: Some(forkchoice.into()), token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::CanonicalizeRequest> for (Epoch, Forkchoice) {
    type Error = ConvertError;

    fn try_from(wire: v1::CanonicalizeRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("canonicalize.token")?;
        Ok((epoch, nested(wire.forkchoice).at("canonicalize.forkchoice")?))
    }
}

impl From<(Epoch, BlockNumber)> for v1::RewindRequest {
    fn from((epoch, to): (Epoch, BlockNumber)) -> Self {
        Self { epoch: epoch.number, to, token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::RewindRequest> for (Epoch, BlockNumber) {
    type Error = ConvertError;

    fn try_from(wire: v1::RewindRequest) -> Result<Self, ConvertError> {
        Ok((epoch(wire.epoch, &wire.token).at("rewind.token")?, wire.to))
    }
}

impl From<BlockRef> for v1::GetBlockRequest {
    fn from(block: BlockRef) -> Self {
        Self { block: Some(block.into()), without_receipts: false }
    }
}

impl TryFrom<v1::GetBlockRequest> for BlockRef {
    type Error = ConvertError;

    fn try_from(wire: v1::GetBlockRequest) -> Result<Self, ConvertError> {
        nested(wire.block).at("get_block.block")
    }
}

impl From<BlockRef> for v1::GetHeaderRequest {
    fn from(block: BlockRef) -> Self {
        Self { block: Some(block.into()) }
    }
}

impl TryFrom<v1::GetHeaderRequest> for BlockRef {
    type Error = ConvertError;

    fn try_from(wire: v1::GetHeaderRequest) -> Result<Self, ConvertError> {
        nested(wire.block).at("get_header.block")
    }
}

impl From<BlockRef> for v1::GetAccessListRequest {
    fn from(block: BlockRef) -> Self {
        Self { block: Some(block.into()) }
    }
}

impl TryFrom<v1::GetAccessListRequest> for BlockRef {
    type Error = ConvertError;

    fn try_from(wire: v1::GetAccessListRequest) -> Result<Self, ConvertError> {
        nested(wire.block).at("get_access_list.block")
    }
}

impl From<B256> for v1::GetTransactionRequest {
    fn from(hash: B256) -> Self {
        Self { hash: hash_bytes(hash) }
    }
}

impl TryFrom<v1::GetTransactionRequest> for B256 {
    type Error = ConvertError;

    fn try_from(wire: v1::GetTransactionRequest) -> Result<Self, ConvertError> {
        hash(&wire.hash).at("get_transaction.hash")
    }
}
