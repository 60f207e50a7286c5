use crate::{
    Transaction,
    bloom::Blooms,
    codec::{count_items, exact_list},
    transaction::PARALLEL_MIN,
};
use alloy_consensus::{Eip658Value, TxReceipt, TxType};
use alloy_evm::{
    Evm,
    eth::receipt_builder::{self, ReceiptBuilderCtx},
};
use alloy_primitives::{B256, Bloom, Bytes, Log};
use alloy_rlp::{BufMut, Decodable, Encodable, RlpDecodable, RlpEncodable};
use rayon::prelude::*;
use tandem_trie::{ListTrie, list_root};

/// Size of the shortest receipt in bytes: four empty fields, in a list.
const RECEIPT_LEN_MIN: usize = 5;

/// Receipt without its bloom filter, which follows from its logs.
#[derive(Clone, PartialEq, Eq, Debug, Default, RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct Receipt {
    /// Type of the transaction (EIP-2718).
    pub tx_type: TxType,
    /// Whether the transaction succeeded instead of reverting (EIP-658).
    pub success: bool,
    /// Gas used by this transaction and those before it in the block.
    pub cumulative_gas_used: u64,
    /// Logs of the contracts.
    pub logs: Vec<Log>,
    /// Root of the state after the transaction. Before Byzantium it takes the place of the status;
    /// afterwards it is `None`.
    pub post_state: Option<B256>,
}

impl TxReceipt for Receipt {
    type Log = Log;

    fn status_or_post_state(&self) -> Eip658Value {
        self.post_state.map_or(Eip658Value::Eip658(self.success), Eip658Value::PostState)
    }

    fn status(&self) -> bool {
        self.success
    }

    fn bloom(&self) -> Bloom {
        alloy_primitives::logs_bloom(&self.logs)
    }

    fn cumulative_gas_used(&self) -> u64 {
        self.cumulative_gas_used
    }

    fn logs(&self) -> &[Log] {
        &self.logs
    }

    fn into_logs(self) -> Vec<Log> {
        self.logs
    }
}

impl Receipt {
    /// Returns the receipt as the receipts trie holds it: its EIP-2718 bytes.
    pub fn encode_with_bloom(&self, bloom: &Bloom) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_for_trie(bloom, &self.logs, &mut out);
        out
    }

    fn encode_for_trie(&self, bloom: &Bloom, logs: &dyn Encodable, out: &mut Vec<u8>) {
        let status: &dyn Encodable = match &self.post_state {
            Some(root) => root,
            None => &self.success,
        };
        if self.tx_type != TxType::Legacy {
            out.push(self.tx_type as u8);
        }
        encode_fields(&[status, &self.cumulative_gas_used, bloom, logs], out);
    }

    /// Encodes the receipt as [`Encodable`] does, with logs that are encoded already.
    fn encode_for_database(&self, logs: &EncodedLogs<'_>, out: &mut Vec<u8>) {
        let Self { tx_type, success, cumulative_gas_used, post_state, .. } = self;
        match post_state {
            Some(root) => encode_fields(&[tx_type, success, cumulative_gas_used, logs, root], out),
            None => encode_fields(&[tx_type, success, cumulative_gas_used, logs], out),
        }
    }
}

/// RLP of logs.
struct EncodedLogs<'a>(&'a [u8]);

impl Encodable for EncodedLogs<'_> {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, out: &mut dyn BufMut) {
        out.put_slice(self.0);
    }
}

fn encode_fields(fields: &[&dyn Encodable], out: &mut Vec<u8>) {
    let payload_length = fields.iter().map(|field| field.length()).sum();
    alloy_rlp::Header { list: true, payload_length }.encode(out);
    fields.iter().for_each(|field| field.encode(out));
}

/// Builder of [`Receipt`]s for alloy-evm's block executor. Unlike alloy's own builder, it leaves
/// the bloom filters to the computation of the receipts root. [`receipts_root`] makes them in
/// parallel.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiptBuilder;

impl receipt_builder::ReceiptBuilder for ReceiptBuilder {
    type Transaction = Transaction;
    type Receipt = Receipt;

    fn build_receipt<E: Evm>(&self, context: ReceiptBuilderCtx<'_, TxType, E>) -> Receipt {
        Receipt {
            tx_type: context.tx_type,
            success: context.result.is_success(),
            cumulative_gas_used: context.cumulative_gas_used,
            logs: context.result.into_logs(),
            post_state: None,
        }
    }
}

/// Returns the root of the receipts, and the bloom filter over all their logs.
pub fn receipts_root(receipts: &[Receipt]) -> (B256, Bloom) {
    let encode = |blooms: &mut Blooms, receipt: &Receipt| {
        let bloom = blooms.of(&receipt.logs);
        (receipt.encode_with_bloom(&bloom), bloom)
    };
    let (encoded, blooms): (Vec<_>, Vec<_>) = match receipts.len() < PARALLEL_MIN {
        true => {
            let mut blooms = Blooms::default();
            receipts.iter().map(|receipt| encode(&mut blooms, receipt)).unzip()
        }
        false => receipts.par_iter().map_init(Blooms::default, encode).unzip(),
    };
    let bloom = blooms.iter().fold(Bloom::ZERO, |all, bloom| all | *bloom);
    (list_root(&encoded), bloom)
}

/// Incremental [`receipts_root`] and [`encode_receipts`] of receipts that arrive one after another. Most
/// of the work is done as they arrive, on one thread.
#[derive(Debug, Default)]
pub struct ReceiptsTrie {
    list: ListTrie,
    blooms: Blooms,
    bloom: Bloom,
    /// RLP of the newest receipt's logs, which trie and database have alike.
    logs: Vec<u8>,
    /// Newest receipt, as the trie has it.
    item: Vec<u8>,
    /// Room for the header of a list, then the receipts, as the database has them. Empty without receipts.
    stored: Vec<u8>,
}

impl ReceiptsTrie {
    /// Returns the number of receipts so far.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there is no receipt yet.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds the receipt of the next transaction.
    pub fn push(&mut self, receipt: &Receipt) {
        let bloom = self.blooms.of(&receipt.logs);
        self.bloom |= bloom;
        self.logs.clear();
        receipt.logs.encode(&mut self.logs);
        let logs = EncodedLogs(&self.logs);
        self.item.clear();
        receipt.encode_for_trie(&bloom, &logs, &mut self.item);
        self.list.push(&self.item);
        if self.stored.is_empty() {
            self.stored.resize(LIST_HEADER_MAX, 0);
        }
        receipt.encode_for_database(&logs, &mut self.stored);
    }

    /// Returns the root of the receipts, the bloom filter over all their logs, and the bytes of
    /// [`encode_receipts`].
    pub fn finish(mut self) -> (B256, Bloom, Bytes) {
        let payload_length = self.stored.len().saturating_sub(LIST_HEADER_MAX);
        let mut header = Vec::with_capacity(LIST_HEADER_MAX);
        alloy_rlp::Header { list: true, payload_length }.encode(&mut header);
        let start = LIST_HEADER_MAX - header.len();
        self.stored.resize(self.stored.len().max(LIST_HEADER_MAX), 0);
        self.stored[start..LIST_HEADER_MAX].copy_from_slice(&header);
        (self.list.root(), self.bloom, Bytes::from(self.stored).slice(start..))
    }
}

/// Encodes the receipts of a block as the database stores them: an RLP list of receipts. Each holds
/// type, status, cumulative gas and logs, without a bloom filter, and before Byzantium the state
/// root.
pub fn encode_receipts(receipts: &[Receipt]) -> Bytes {
    let mut out = Vec::new();
    alloy_rlp::encode_list(receipts, &mut out);
    out.into()
}

/// Largest header of an RLP list.
const LIST_HEADER_MAX: usize = 9;

/// Returns the receipts of a block as the protocol eth/69 has them (EIP-7642), from the bytes of
/// [`encode_receipts`]: a list of `[type, status or state root, cumulative gas, logs]`. The bytes
/// are the same, except for blocks from before Byzantium.
///
/// # Errors
/// The error of the decoder.
pub fn network_receipts(stored: &Bytes) -> Result<Bytes, alloy_rlp::Error> {
    let mut items = exact_list(stored)?;
    // Either all receipts of a block have a state root, or none has.
    if items.is_empty() || Receipt::decode(&mut items)?.post_state.is_none() {
        return Ok(stored.clone());
    }
    let mut content = Vec::with_capacity(stored.len());
    for Receipt { tx_type, cumulative_gas_used, logs, post_state, .. } in decode_receipts(stored)? {
        let fields: [&dyn Encodable; 4] =
            [&tx_type, &post_state.unwrap_or_default(), &cumulative_gas_used, &logs];
        let payload_length = fields.iter().map(|field| field.length()).sum();
        alloy_rlp::Header { list: true, payload_length }.encode(&mut content);
        fields.iter().for_each(|field| field.encode(&mut content));
    }
    Ok(list(&content))
}

/// Reads the receipts of a block in the form of the protocol eth/69, which [`network_receipts`]
/// writes. Whether a transaction from before Byzantium succeeded is not in them.
///
/// # Errors
/// The error of the decoder.
pub fn decode_network_receipts(bytes: &[u8]) -> Result<Vec<Receipt>, alloy_rlp::Error> {
    let mut items = exact_list(bytes)?;
    let mut receipts = Vec::with_capacity(count_items(items)?.min(items.len() / RECEIPT_LEN_MIN));
    while !items.is_empty() {
        let mut fields = alloy_rlp::Header::decode_bytes(&mut items, true)?;
        let tx_type = TxType::decode(&mut fields)?;
        let has_root = alloy_rlp::Header::decode(&mut &*fields)?.payload_length == 32;
        let (success, post_state) = match has_root {
            true => (false, Some(B256::decode(&mut fields)?)),
            false => (bool::decode(&mut fields)?, None),
        };
        let cumulative_gas_used = u64::decode(&mut fields)?;
        let logs = Vec::decode(&mut fields)?;
        if !fields.is_empty() {
            return Err(alloy_rlp::Error::UnexpectedLength);
        }
        receipts.push(Receipt { tx_type, success, cumulative_gas_used, logs, post_state });
    }
    Ok(receipts)
}

/// Returns the receipts of a block as the receipts trie holds them, with bloom filters, from the
/// bytes of [`encode_receipts`]: a list, in which those of typed transactions are strings.
///
/// # Errors
/// The error of the decoder.
pub fn trie_receipts(stored: &[u8]) -> Result<Bytes, alloy_rlp::Error> {
    let mut content = Vec::new();
    for receipt in decode_receipts(stored)? {
        let encoded = receipt.encode_with_bloom(&receipt.bloom());
        match receipt.tx_type {
            TxType::Legacy => content.extend_from_slice(&encoded),
            _ => encoded[..].encode(&mut content),
        }
    }
    Ok(list(&content))
}

/// Returns an RLP list of items that are encoded already.
fn list(items: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(items.len() + 9);
    alloy_rlp::Header { list: true, payload_length: items.len() }.encode(&mut out);
    out.extend_from_slice(items);
    out.into()
}

/// Decodes receipts encoded by [`encode_receipts`].
///
/// # Errors
/// The error of the decoder, also when bytes are left over.
pub fn decode_receipts(bytes: &[u8]) -> Result<Vec<Receipt>, alloy_rlp::Error> {
    let mut items = exact_list(bytes)?;
    let mut receipts = Vec::with_capacity(count_items(items)?.min(items.len() / RECEIPT_LEN_MIN));
    while !items.is_empty() {
        receipts.push(Receipt::decode(&mut items)?);
    }
    Ok(receipts)
}
