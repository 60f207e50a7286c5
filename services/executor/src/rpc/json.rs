//! Blocks, transactions, receipts and logs as JSON. Members, encoding and order are geth's, so that
//! answers can be compared byte for byte (execution-apis, `src/schemas`).

use super::hex::Quantity;
use alloy_consensus::{Eip658Value, Header, Transaction as _, TxReceipt};
use alloy_eips::Typed2718;
use alloy_eips::eip2930::AccessList;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, Log, U256};
use serde::Serialize;
use tandem_chain::{Block, Transaction};
use tandem_primitives::BlockId;

/// Block of a rendered object, and the values that depend on the block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockContext {
    id: BlockId,
    timestamp: u64,
    base_fee: Option<u64>,
}

impl BlockContext {
    pub(super) fn new(id: BlockId, header: &Header) -> Self {
        Self { id, timestamp: header.timestamp, base_fee: header.base_fee_per_gas }
    }
}

/// Block with its transactions as hashes or in full.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BlockJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    base_fee_per_gas: Option<Quantity<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_gas_used: Option<Quantity<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_access_list_hash: Option<B256>,
    difficulty: Quantity<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    excess_blob_gas: Option<Quantity<u64>>,
    extra_data: &'a Bytes,
    gas_limit: Quantity<u64>,
    gas_used: Quantity<u64>,
    hash: B256,
    logs_bloom: &'a Bloom,
    miner: Address,
    mix_hash: B256,
    nonce: B64,
    number: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_beacon_block_root: Option<B256>,
    parent_hash: B256,
    receipts_root: B256,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_hash: Option<B256>,
    #[serde(rename = "sha3Uncles")]
    ommers_hash: B256,
    size: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_number: Option<Quantity<u64>>,
    state_root: B256,
    timestamp: Quantity<u64>,
    transactions: Transactions<'a>,
    transactions_root: B256,
    /// Hashes of ommers, always empty after the merge.
    uncles: Vec<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    withdrawals: Option<&'a [Withdrawal]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    withdrawals_root: Option<B256>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Transactions<'a> {
    Hashes(&'a [B256]),
    Full(Vec<TransactionJson<'a>>),
}

impl<'a> BlockJson<'a> {
    /// Renders a block. With `senders` (one for each transaction), the transactions are in full.
    pub(super) fn new(block: &'a Block, senders: Option<&[Address]>) -> Self {
        let header = &block.header;
        let context = BlockContext::new(block.id, header);
        let transactions = match senders {
            None => Transactions::Hashes(&block.transaction_hashes),
            Some(senders) => {
                let full =
                    block.transactions.iter().zip(&block.transaction_hashes[..]).zip(senders);
                let render = |(index, ((transaction, &hash), &from))| {
                    TransactionJson::new(context, index as u64, transaction, hash, from)
                };
                Transactions::Full(full.enumerate().map(render).collect())
            }
        };
        Self {
            base_fee_per_gas: header.base_fee_per_gas.map(Quantity),
            blob_gas_used: header.blob_gas_used.map(Quantity),
            block_access_list_hash: header.block_access_list_hash,
            difficulty: Quantity(header.difficulty),
            excess_blob_gas: header.excess_blob_gas.map(Quantity),
            extra_data: &header.extra_data,
            gas_limit: Quantity(header.gas_limit),
            gas_used: Quantity(header.gas_used),
            hash: block.id.hash,
            logs_bloom: &header.logs_bloom,
            miner: header.beneficiary,
            mix_hash: header.mix_hash,
            nonce: header.nonce,
            number: Quantity(header.number),
            parent_beacon_block_root: header.parent_beacon_block_root,
            parent_hash: header.parent_hash,
            receipts_root: header.receipts_root,
            requests_hash: header.requests_hash,
            ommers_hash: header.ommers_hash,
            size: Quantity(block.rlp_len() as u64),
            slot_number: header.slot_number.map(Quantity),
            state_root: header.state_root,
            timestamp: Quantity(header.timestamp),
            transactions,
            transactions_root: header.transactions_root,
            uncles: block.ommers.iter().map(Header::hash_slow).collect(),
            withdrawals: block.withdrawals.as_deref(),
            withdrawals_root: header.withdrawals_root,
        }
    }
}

/// Transaction of a block.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TransactionJson<'a> {
    block_hash: Option<B256>,
    block_number: Option<Quantity<u64>>,
    block_timestamp: Option<Quantity<u64>>,
    from: Address,
    gas: Quantity<u64>,
    gas_price: Quantity<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_fee_per_gas: Option<Quantity<u128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_priority_fee_per_gas: Option<Quantity<u128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_fee_per_blob_gas: Option<Quantity<u128>>,
    hash: B256,
    input: &'a Bytes,
    nonce: Quantity<u64>,
    to: Option<Address>,
    transaction_index: Option<Quantity<u64>>,
    value: Quantity<U256>,
    #[serde(rename = "type")]
    kind: Quantity<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_list: Option<&'a AccessList>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain_id: Option<Quantity<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_versioned_hashes: Option<&'a [B256]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorization_list: Option<Vec<AuthorizationJson>>,
    v: Quantity<u128>,
    r: Quantity<U256>,
    s: Quantity<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    y_parity: Option<Quantity<u8>>,
}

/// Authorization of a set-code transaction (EIP-7702).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuthorizationJson {
    chain_id: Quantity<U256>,
    address: Address,
    nonce: Quantity<u64>,
    y_parity: Quantity<u8>,
    r: Quantity<U256>,
    s: Quantity<U256>,
}

impl<'a> TransactionJson<'a> {
    /// Renders the transaction at this position of a block.
    pub(super) fn new(
        block: BlockContext,
        index: u64,
        transaction: &'a Transaction,
        hash: B256,
        from: Address,
    ) -> Self {
        Self {
            block_hash: Some(block.id.hash),
            block_number: Some(Quantity(block.id.number)),
            block_timestamp: Some(Quantity(block.timestamp)),
            gas_price: Quantity(transaction.effective_gas_price(block.base_fee)),
            transaction_index: Some(Quantity(index)),
            ..Self::pooled(transaction, hash, from)
        }
    }

    /// Renders a transaction that is in no block.
    pub(super) fn pooled(transaction: &'a Transaction, hash: B256, from: Address) -> Self {
        let signature = transaction.signature();
        let parity = u8::from(signature.v());
        let is_typed = !transaction.is_legacy();
        let v = match transaction.chain_id() {
            _ if is_typed => u128::from(parity),
            // Replay protection of EIP-155.
            Some(id) => u128::from(id) * 2 + 35 + u128::from(parity),
            None => 27 + u128::from(parity),
        };
        let tip = transaction.max_priority_fee_per_gas();
        let authorizations = transaction.authorization_list().map(|list| {
            let render = |signed: &alloy_eips::eip7702::SignedAuthorization| AuthorizationJson {
                chain_id: Quantity(signed.chain_id),
                address: signed.address,
                nonce: Quantity(signed.nonce),
                y_parity: Quantity(signed.y_parity()),
                r: Quantity(signed.r()),
                s: Quantity(signed.s()),
            };
            list.iter().map(render).collect()
        });
        Self {
            block_hash: None,
            block_number: None,
            block_timestamp: None,
            from,
            gas: Quantity(transaction.gas_limit()),
            gas_price: Quantity(transaction.max_fee_per_gas()),
            max_fee_per_gas: tip.map(|_| Quantity(transaction.max_fee_per_gas())),
            max_priority_fee_per_gas: tip.map(Quantity),
            max_fee_per_blob_gas: transaction.max_fee_per_blob_gas().map(Quantity),
            hash,
            input: transaction.input(),
            nonce: Quantity(transaction.nonce()),
            to: transaction.to(),
            transaction_index: None,
            value: Quantity(transaction.value()),
            kind: Quantity(transaction.ty()),
            access_list: transaction.access_list(),
            chain_id: transaction.chain_id().map(Quantity),
            blob_versioned_hashes: transaction.blob_versioned_hashes(),
            authorization_list: authorizations,
            v: Quantity(v),
            r: Quantity(signature.r()),
            s: Quantity(signature.s()),
            y_parity: is_typed.then_some(Quantity(parity)),
        }
    }
}

/// Receipt of a transaction.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReceiptJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_gas_price: Option<Quantity<u128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_gas_used: Option<Quantity<u64>>,
    block_hash: B256,
    block_number: Quantity<u64>,
    contract_address: Option<Address>,
    cumulative_gas_used: Quantity<u64>,
    effective_gas_price: Quantity<u128>,
    from: Address,
    gas_used: Quantity<u64>,
    logs: Vec<LogJson<'a>>,
    logs_bloom: Bloom,
    /// State root after the transaction, before Byzantium instead of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Quantity<u8>>,
    to: Option<Address>,
    transaction_hash: B256,
    transaction_index: Quantity<u64>,
    #[serde(rename = "type")]
    kind: Quantity<u8>,
}

/// Header of a block, as subscribers to new heads get it.
#[derive(Serialize)]
pub(super) struct HeadJson<'a> {
    #[serde(flatten)]
    pub header: &'a Header,
    pub hash: B256,
}

/// Log of a receipt.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogJson<'a> {
    address: Address,
    topics: &'a [B256],
    data: &'a Bytes,
    block_number: Quantity<u64>,
    transaction_hash: B256,
    transaction_index: Quantity<u64>,
    block_hash: B256,
    block_timestamp: Quantity<u64>,
    log_index: Quantity<u64>,
    removed: bool,
}

/// Position of a log in its block.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogPlace {
    /// Hash of its transaction.
    pub transaction_hash: B256,
    /// Position of its transaction.
    pub transaction_index: u64,
    /// Position among all logs of the block.
    pub log_index: u64,
}

impl<'a> LogJson<'a> {
    /// Renders a log of a canonical block.
    pub(super) fn new(block: BlockContext, place: LogPlace, log: &'a Log) -> Self {
        Self {
            address: log.address,
            topics: log.topics(),
            data: &log.data.data,
            block_number: Quantity(block.id.number),
            transaction_hash: place.transaction_hash,
            transaction_index: Quantity(place.transaction_index),
            block_hash: block.id.hash,
            block_timestamp: Quantity(block.timestamp),
            log_index: Quantity(place.log_index),
            removed: false,
        }
    }

    /// Says that the block has left the canonical chain, or not.
    pub(super) fn removed(self, removed: bool) -> Self {
        Self { removed, ..self }
    }
}

/// Transaction of a receipt.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiptOf<'a> {
    /// The transaction.
    pub transaction: &'a Transaction,
    /// Hash of the transaction.
    pub hash: B256,
    /// Sender of the transaction.
    pub from: Address,
    /// Position in the block.
    pub index: usize,
    /// Price of blob gas in the block, `None` before Cancun.
    pub blob_gas_price: Option<u128>,
}

impl<'a> ReceiptJson<'a> {
    /// Renders the receipt of one transaction. `receipts` are all of its block, because gas and log
    /// numbers count through the block. Returns `None` if there is no receipt at that position.
    pub(super) fn new<R: TxReceipt<Log = Log>>(
        block: BlockContext,
        receipts: &'a [R],
        of: ReceiptOf<'a>,
    ) -> Option<Self> {
        let receipt = receipts.get(of.index)?;
        let before = &receipts[..of.index];
        let gas_before = before.last().map_or(0, R::cumulative_gas_used);
        let logs_before: usize = before.iter().map(|receipt| receipt.logs().len()).sum();
        let render_log = |(position, log): (usize, &'a Log)| {
            let place = LogPlace {
                transaction_hash: of.hash,
                transaction_index: of.index as u64,
                log_index: (logs_before + position) as u64,
            };
            LogJson::new(block, place, log)
        };
        let transaction = of.transaction;
        let blob_gas_used = transaction.blob_gas_used();
        let (root, status) = match receipt.status_or_post_state() {
            Eip658Value::PostState(root) => (Some(root), None),
            Eip658Value::Eip658(success) => (None, Some(Quantity(u8::from(success)))),
        };
        Some(Self {
            blob_gas_price: blob_gas_used.and(of.blob_gas_price).map(Quantity),
            blob_gas_used: blob_gas_used.map(Quantity),
            block_hash: block.id.hash,
            block_number: Quantity(block.id.number),
            contract_address: transaction.is_create().then(|| of.from.create(transaction.nonce())),
            cumulative_gas_used: Quantity(receipt.cumulative_gas_used()),
            effective_gas_price: Quantity(transaction.effective_gas_price(block.base_fee)),
            from: of.from,
            gas_used: Quantity(receipt.cumulative_gas_used().saturating_sub(gas_before)),
            logs: receipt.logs().iter().enumerate().map(render_log).collect(),
            logs_bloom: receipt.bloom(),
            root,
            status,
            to: transaction.to(),
            transaction_hash: of.hash,
            transaction_index: Quantity(of.index as u64),
            kind: Quantity(transaction.ty()),
        })
    }
}

#[cfg(test)]
mod tests;
