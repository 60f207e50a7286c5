//! Memory of the items an input lists that are larger in memory than four times their smallest
//! encoding. An independent reader counts them. A target allows for these besides the four bytes
//! for each byte of its input, so that the rest of the input stays within those.

use alloy_consensus::TxReceipt;
use alloy_eips::{eip2930::AccessListItem, eip7702::SignedAuthorization};
use alloy_primitives::{B256, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tandem_chain::{Receipt, Transaction, take_item};
use tandem_overlap::Span;

/// Factor for a growing list: one that doubles holds up to three times its items while it moves.
const GROWING: usize = 3;

/// Memory of a transaction in a block: decoded, with its bytes and its hash. While the root of the
/// list is computed, its key and its place are added. The smallest one has 10 bytes.
const TRANSACTION: usize =
    size_of::<Transaction>() + size_of::<Bytes>() + size_of::<B256>() + 6 * size_of::<usize>();

/// Memory of a node, code or header that is read from a text: its bytes and, unless it is empty,
/// its reference count.
const NODE_TEXT: usize = size_of::<Bytes>() + 3 * size_of::<usize>();

/// A log of a receipt.
type Log = <Receipt as TxReceipt>::Log;

/// Returns 0, for targets without such items.
pub fn none(_: &[u8]) -> usize {
    0
}

/// Returns the memory of the spans in a file of traces. Each span has at least its two ids. As
/// protobuf these are 32 bytes, and any 32 bytes may be a span. As JSON, the name of the second id
/// marks a span.
pub fn spans(file: &[u8]) -> usize {
    let text = file.trim_ascii_start().first().is_none_or(|first| matches!(first, b'{' | b'['));
    let spans = match text {
        true => file.windows(6).filter(|name| name.eq_ignore_ascii_case(b"spanid")).count(),
        false => file.len() / 32,
    };
    // The span, and its ids among the known ids.
    spans * (size_of::<Span>() + 2 * size_of::<u128>()) * GROWING
}

/// Returns the memory of the lists in a transaction, given as EIP-2718 bytes. An entry of an access
/// list has at least 23 bytes, an authorization at least 27.
pub fn transaction(raw: &[u8]) -> usize {
    let Some(1..=4) = raw.first() else { return 0 };
    lists(payload(&raw[1..]))
}

/// Returns the memory of the lists among the fields of a typed transaction.
fn lists(fields: &[u8]) -> usize {
    let lists = items(fields).filter(|(header, _)| header.list);
    let sizes = [size_of::<AccessListItem>(), size_of::<SignedAuthorization>()];
    lists.zip(sizes).map(|((_, list), size)| items(list).count() * size * GROWING).sum()
}

/// Returns the memory of the lists in a transaction as sent: a blob transaction may include its
/// blobs.
pub fn sent(raw: &[u8]) -> usize {
    match raw.split_first() {
        // The transaction is then the first field.
        Some((3, form)) if payload(form).first() >= Some(&0xc0) => {
            let body = items(payload(form)).next().map_or(&[][..], |(_, body)| body);
            lists(body)
        }
        _ => transaction(raw),
    }
}

/// Returns the memory of the transactions in a body, given as RLP.
pub fn body(rlp: &[u8]) -> usize {
    let Some((_, transactions)) = items(payload(rlp)).next() else { return 0 };
    fields(transactions)
}

/// Returns the memory of the transactions in a whole block, given as RLP: its second field.
pub fn block(rlp: &[u8]) -> usize {
    let Some((_, transactions)) = items(payload(rlp)).nth(1) else { return 0 };
    fields(transactions)
}

fn fields(transactions: &[u8]) -> usize {
    let lists = |(header, raw): (alloy_rlp::Header, &[u8])| match header.list {
        true => TRANSACTION,
        false => TRANSACTION + transaction(raw),
    };
    items(transactions).map(lists).sum()
}

/// Returns the memory of receipts as the database has them, at least 5 bytes each, and of their
/// logs, at least 24 bytes each.
pub fn receipts(rlp: &[u8]) -> usize {
    let logs = |receipt| items(receipt).nth(3).map_or(0, |(_, logs)| items(logs).count());
    items(payload(rlp))
        .map(|(_, receipt)| size_of::<Receipt>() + logs(receipt) * size_of::<Log>() * GROWING)
        .sum()
}

/// Returns the memory of the transactions in the requests of an HTTP body: those of payloads, and
/// raw ones.
pub fn requests(http_body: &[u8]) -> usize {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(borrow)]
        params: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Payload<'a> {
        #[serde(borrow)]
        transactions: Vec<Cow<'a, str>>,
    }
    let Ok(text) = std::str::from_utf8(http_body) else { return 0 };
    let one = |text: &str| {
        let Ok(request) = serde_json::from_str::<Request<'_>>(text) else { return 0 };
        let Some(first) = request.params.first() else { return 0 };
        if request.method == "eth_sendRawTransaction" {
            return serde_json::from_str::<Bytes>(first.get()).map_or(0, |raw| sent(&raw));
        }
        let Ok(payload) = serde_json::from_str::<Payload<'_>>(first.get()) else { return 0 };
        let raw = payload.transactions.iter().filter_map(|raw| raw.parse::<Bytes>().ok());
        raw.map(|raw| TRANSACTION + transaction(&raw)).sum()
    };
    match serde_json::from_str::<Vec<&RawValue>>(text) {
        Ok(batch) => batch.into_iter().map(|request| one(request.get())).sum(),
        Err(_) => one(text),
    }
}

/// Returns the memory of the texts in a file with a block and its witness, and of the block's
/// transactions. Each text of a node, code or header becomes a `Bytes`.
pub fn witness_file(file: &[u8]) -> usize {
    #[derive(Deserialize)]
    struct File<'a> {
        block: Option<Bytes>,
        #[serde(borrow)]
        engine: Option<&'a RawValue>,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }
    // A text has two quotation marks.
    let texts = file.iter().filter(|&&byte| byte == b'"').count() / 2;
    let text_lists = texts * NODE_TEXT * GROWING;
    let text = file.trim_ascii();
    let hex = || alloy_primitives::hex::decode(text).ok();
    if let Some(rlp) = serde_json::from_slice::<Bytes>(text).map(Into::into).ok().or_else(hex) {
        return block(&rlp);
    }
    let Ok(File { block: rlp, engine, result }) = serde_json::from_slice(text) else {
        return block(file) + text_lists;
    };
    let result = result.and_then(|result| serde_json::from_str::<Bytes>(result.get()).ok());
    let blocks: usize = [rlp, result].iter().flatten().map(|rlp| block(rlp)).sum();
    blocks + text_lists + engine.map_or(0, |engine| requests(engine.get().as_bytes()))
}

/// Returns the payload of the first item of this RLP, empty if there is none.
fn payload(mut rlp: &[u8]) -> &[u8] {
    take_item(&mut rlp).map_or(&[], |(_, payload)| payload)
}

/// Returns the items of a list's payload, up to the first malformed one.
fn items(mut rlp: &[u8]) -> impl Iterator<Item = (alloy_rlp::Header, &[u8])> {
    std::iter::from_fn(move || match rlp.is_empty() {
        true => None,
        false => take_item(&mut rlp).ok(),
    })
}
