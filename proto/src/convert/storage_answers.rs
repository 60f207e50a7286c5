//! Answers of storage-writer.

use super::{
    error::{At, ConvertError},
    field::{count, hash_bytes, nested, range, size},
    state::{account_list, accounts, codes, number_list, numbers},
    storage::{epoch, lease, lease_ms, token_bytes},
    trie::{existing_node_list, existing_nodes},
};
use crate::{
    storage::{
        Block, BlockRecord, Checkpoint, Epoch, ExecutorAddress, Holder, KeptBlock, PendingBlock,
        Promotion, ReadState, StateValues, Term, TransactionPlace, TrieNodes,
    },
    wire::storage_writer::v1::{
        self, get_block_response::Record, get_header_response::Header,
        get_holder_response::Holder as HolderMessage, get_transaction_response::Place,
    },
};
use std::sync::Arc;
use tandem_primitives::{BlockId, Bytes, StateDiff, TrieDiff};

impl From<Epoch> for v1::AcquireEpochResponse {
    fn from(epoch: Epoch) -> Self {
        Self { epoch: epoch.number, token: token_bytes(epoch) }
    }
}

impl TryFrom<v1::AcquireEpochResponse> for Epoch {
    type Error = ConvertError;

    fn try_from(wire: v1::AcquireEpochResponse) -> Result<Self, ConvertError> {
        epoch(wire.epoch, &wire.token).at("acquire_epoch.token")
    }
}

impl From<Option<Holder>> for v1::GetHolderResponse {
    fn from(holder: Option<Holder>) -> Self {
        let holder = holder.map(|holder| HolderMessage {
            executor: holder.executor,
            epoch: holder.epoch,
            lease_ms: lease_ms(holder.lease),
            address: holder.address.map(Into::into),
        });
        Self { holder }
    }
}

impl TryFrom<v1::GetHolderResponse> for Option<Holder> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetHolderResponse) -> Result<Self, ConvertError> {
        let Some(wire) = wire.holder else { return Ok(None) };
        let lease = lease(wire.lease_ms).at("get_holder.holder.lease_ms")?;
        let address = wire.address.map(ExecutorAddress::try_from).transpose();
        let address = address.at("get_holder.holder.address")?;
        Ok(Some(Holder { epoch: wire.epoch, executor: wire.executor, lease, address }))
    }
}

impl From<Checkpoint> for v1::GetCheckpointResponse {
    fn from(checkpoint: Checkpoint) -> Self {
        Self {
            genesis: Some(checkpoint.genesis.into()),
            genesis_json: checkpoint.genesis_json.as_ref().to_owned(),
            base: Some(checkpoint.base.into()),
            forkchoice: Some(checkpoint.forkchoice.into()),
            writes_fail: checkpoint.writes_fail,
            oldest_block: checkpoint.oldest_block,
        }
    }
}

impl TryFrom<v1::GetCheckpointResponse> for Checkpoint {
    type Error = ConvertError;

    fn try_from(wire: v1::GetCheckpointResponse) -> Result<Self, ConvertError> {
        Ok(Self {
            genesis: nested(wire.genesis).at("get_checkpoint.genesis")?,
            genesis_json: wire.genesis_json.into(),
            base: nested(wire.base).at("get_checkpoint.base")?,
            forkchoice: nested(wire.forkchoice).at("get_checkpoint.forkchoice")?,
            writes_fail: wire.writes_fail,
            oldest_block: wire.oldest_block,
        })
    }
}

impl From<BlockId> for v1::CheckpointDatabaseResponse {
    fn from(head: BlockId) -> Self {
        Self { head: Some(head.into()) }
    }
}

impl TryFrom<v1::CheckpointDatabaseResponse> for BlockId {
    type Error = ConvertError;

    fn try_from(wire: v1::CheckpointDatabaseResponse) -> Result<Self, ConvertError> {
        nested(wire.head).at("checkpoint_database.head")
    }
}

impl From<Promotion> for v1::PromoteResponse {
    fn from(promotion: Promotion) -> Self {
        let Promotion { term, head } = promotion;
        Self { term: term.0, head: Some(head.into()) }
    }
}

impl TryFrom<v1::PromoteResponse> for Promotion {
    type Error = ConvertError;

    fn try_from(wire: v1::PromoteResponse) -> Result<Self, ConvertError> {
        Ok(Self { term: Term(wire.term), head: nested(wire.head).at("promote.head")? })
    }
}

impl From<Block> for v1::ListPendingResponse {
    fn from(block: Block) -> Self {
        Self { block: Some(block.into()), kept: false }
    }
}

impl From<PendingBlock> for v1::ListPendingResponse {
    fn from(block: PendingBlock) -> Self {
        let PendingBlock { id, parent, header, kept } = block;
        let block = v1::Block {
            id: Some(id.into()),
            parent: hash_bytes(parent),
            header: header.0,
            ..v1::Block::default()
        };
        Self { block: Some(block), kept }
    }
}

impl TryFrom<v1::ListPendingResponse> for PendingBlock {
    type Error = ConvertError;

    fn try_from(wire: v1::ListPendingResponse) -> Result<Self, ConvertError> {
        let kept = wire.kept;
        let Block { id, parent, header, .. } = wire.try_into()?;
        Ok(Self { id, parent, header, kept })
    }
}

impl From<Option<Arc<StateDiff>>> for v1::GetStateDiffsResponse {
    fn from(diff: Option<Arc<StateDiff>>) -> Self {
        Self { diff: diff.map(|diff| (&*diff).into()) }
    }
}

impl TryFrom<v1::GetStateDiffsResponse> for Option<Arc<StateDiff>> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetStateDiffsResponse) -> Result<Self, ConvertError> {
        let diff = wire.diff.map(StateDiff::try_from).transpose().at("get_state_diffs.diff")?;
        Ok(diff.map(Arc::new))
    }
}

impl From<Option<KeptBlock>> for v1::GetKeptResponse {
    fn from(block: Option<KeptBlock>) -> Self {
        Self { block: block.map(Into::into) }
    }
}

impl TryFrom<v1::GetKeptResponse> for Option<KeptBlock> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetKeptResponse) -> Result<Self, ConvertError> {
        wire.block.map(KeptBlock::try_from).transpose().at("get_kept.block")
    }
}

impl TryFrom<v1::ListPendingResponse> for Block {
    type Error = ConvertError;

    fn try_from(wire: v1::ListPendingResponse) -> Result<Self, ConvertError> {
        nested(wire.block).at("list_pending.block")
    }
}

impl TryFrom<v1::GetTrieDiffResponse> for TrieDiff {
    type Error = ConvertError;

    /// Reads one part; [`super::TrieDiffParts`] makes the parts.
    fn try_from(wire: v1::GetTrieDiffResponse) -> Result<Self, ConvertError> {
        wire.part.unwrap_or_default().try_into().at("get_trie_diff.part")
    }
}

impl From<StateValues> for v1::ReadStateResponse {
    fn from(values: StateValues) -> Self {
        let known = || values.codes.iter().flatten();
        let codes: Vec<u8> = known().flatten().copied().collect();
        Self {
            base: Some(values.base.into()),
            accounts: Some(account_list(values.accounts.iter().copied())),
            slots: Some(number_list(values.slots.iter().copied())),
            codes_known: values.codes.iter().map(|code| u8::from(code.is_some())).collect(),
            code_sizes: known().map(|code| size(code.len())).collect(),
            codes: codes.into(),
        }
    }
}

impl v1::ReadStateResponse {
    /// Returns the values that answer this request.
    ///
    /// # Errors
    /// If the answer is malformed, or does not have exactly one value for each requested item.
    pub fn into_values(self, request: &ReadState) -> Result<StateValues, ConvertError> {
        self.values(request).at("read_state")
    }

    fn values(self, request: &ReadState) -> Result<StateValues, ConvertError> {
        let base = nested(self.base).at("base")?;
        let wire = self.accounts.unwrap_or_default();
        let accounts = accounts(&wire, request.accounts.len()).at("accounts")?;
        let wire = self.slots.unwrap_or_default();
        let slots = numbers(&wire, request.slots.len()).at("slots")?;
        count(request.codes.len() as u64, self.codes_known.len()).at("codes_known")?;
        let mut known_count = 0;
        for (index, &known) in self.codes_known.iter().enumerate() {
            range(0, 1, known).at_index(index).at("codes_known")?;
            known_count += u64::from(known);
        }
        count(known_count, self.code_sizes.len()).at("code_sizes")?;
        let mut known = codes(&self.code_sizes, &self.codes)?;
        let codes = self.codes_known.iter().map(
            |&is_known| {
                if is_known == 1 { known.next() } else { None }
            },
        );
        Ok(StateValues { base, accounts, slots, codes: codes.collect() })
    }
}

impl From<TrieNodes> for v1::WalkTrieResponse {
    fn from(nodes: TrieNodes) -> Self {
        Self { base: Some(nodes.base.into()), nodes: Some(existing_node_list(&nodes.nodes)) }
    }
}

impl TryFrom<v1::WalkTrieResponse> for TrieNodes {
    type Error = ConvertError;

    /// Returns the nodes of the account trie first, and those of each trie in the order sent.
    /// Duplicates are not checked: a repeated node costs nothing except its bytes.
    fn try_from(wire: v1::WalkTrieResponse) -> Result<Self, ConvertError> {
        let base = nested(wire.base).at("walk_trie.base")?;
        let nodes = existing_nodes(wire.nodes.unwrap_or_default()).at("walk_trie.nodes")?;
        Ok(Self { base, nodes })
    }
}

impl From<Option<BlockRecord>> for v1::GetBlockResponse {
    fn from(record: Option<BlockRecord>) -> Self {
        let record = record.map(|record| Record {
            id: Some(record.id.into()),
            header: record.header.0,
            body: record.body.0,
            receipts: record.receipts.0,
        });
        Self { record }
    }
}

impl TryFrom<v1::GetBlockResponse> for Option<BlockRecord> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetBlockResponse) -> Result<Self, ConvertError> {
        let Some(record) = wire.record else { return Ok(None) };
        Ok(Some(BlockRecord {
            id: nested(record.id).at("get_block.record.id")?,
            header: record.header.into(),
            body: record.body.into(),
            receipts: record.receipts.into(),
        }))
    }
}

impl From<Option<(BlockId, Bytes)>> for v1::GetHeaderResponse {
    fn from(header: Option<(BlockId, Bytes)>) -> Self {
        let header = header.map(|(id, rlp)| Header { id: Some(id.into()), rlp: rlp.0 });
        Self { header }
    }
}

impl TryFrom<v1::GetHeaderResponse> for Option<(BlockId, Bytes)> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetHeaderResponse) -> Result<Self, ConvertError> {
        let Some(header) = wire.header else { return Ok(None) };
        let id = nested(header.id).at("get_header.header.id")?;
        Ok(Some((id, header.rlp.into())))
    }
}

impl From<Option<Bytes>> for v1::GetAccessListResponse {
    fn from(list: Option<Bytes>) -> Self {
        Self { access_list: list.map(|list| list.0) }
    }
}

impl TryFrom<v1::GetAccessListResponse> for Option<Bytes> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetAccessListResponse) -> Result<Self, ConvertError> {
        Ok(wire.access_list.map(Into::into))
    }
}

impl From<Option<TransactionPlace>> for v1::GetTransactionResponse {
    fn from(place: Option<TransactionPlace>) -> Self {
        let place =
            place.map(|place| Place { block: Some(place.block.into()), index: place.index });
        Self { place }
    }
}

impl TryFrom<v1::GetTransactionResponse> for Option<TransactionPlace> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetTransactionResponse) -> Result<Self, ConvertError> {
        let Some(place) = wire.place else { return Ok(None) };
        let block = nested(place.block).at("get_transaction.place.block")?;
        Ok(Some(TransactionPlace { block, index: place.index }))
    }
}
