//! What an input lists that is larger in memory than four times its smallest encoding, counted by
//! a reading of its own. A target allows for these beside the four bytes for each byte of its
//! input, so that everything else in the same input stays within them.

use alloy_consensus::TxReceipt;
use alloy_eips::{eip2930::AccessListItem, eip7702::SignedAuthorization};
use alloy_primitives::{B256, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tandem_chain::{Receipt, Transaction, take_item};
use tandem_overlap::Span;

/// A list that doubles holds up to three times its items while it moves.
const GROWING: usize = 3;

/// A transaction of a block: decoded, its bytes and its hash, and while the root of the list is made
/// its key and its place. The smallest one has 10 bytes.
const TRANSACTION: usize =
    size_of::<Transaction>() + size_of::<Bytes>() + size_of::<B256>() + 6 * size_of::<usize>();

/// A node, code or header that is read from a text: its bytes and what counts its owners, where it
/// is not empty.
const NODE_TEXT: usize = size_of::<Bytes>() + 3 * size_of::<usize>();

/// The logs of a receipt.
type Log = <Receipt as TxReceipt>::Log;

/// For targets that list nothing of the kind.
pub fn none(_: &[u8]) -> usize {
    0
}

/// The spans of a file of traces. Each has its two ids at least: 32 bytes as protobuf, where each may
/// be a span; as JSON it is known by the name of the second one.
pub fn spans(file: &[u8]) -> usize {
    let text = file.trim_ascii_start().first().is_none_or(|first| matches!(first, b'{' | b'['));
    let spans = match text {
        true => file.windows(6).filter(|name| name.eq_ignore_ascii_case(b"spanid")).count(),
        false => file.len() / 32,
    };
    // The span, and its ids among those that are known.
    spans * (size_of::<Span>() + 2 * size_of::<u128>()) * GROWING
}

/// The lists in a transaction, as EIP-2718 bytes: 23 bytes or more for each entry of an access
/// list, 27 for an authorization.
pub fn transaction(raw: &[u8]) -> usize {
    let Some(1..=4) = raw.first() else { return 0 };
    lists(payload(&raw[1..]))
}

/// The lists among the fields of a typed transaction.
fn lists(fields: &[u8]) -> usize {
    let lists = items(fields).filter(|(header, _)| header.list);
    let sizes = [size_of::<AccessListItem>(), size_of::<SignedAuthorization>()];
    lists.zip(sizes).map(|((_, list), size)| items(list).count() * size * GROWING).sum()
}

/// The lists in a transaction as it is sent: a blob transaction may come with its blobs.
pub fn sent(raw: &[u8]) -> usize {
    match raw.split_first() {
        // The transaction is the first field then.
        Some((3, form)) if payload(form).first() >= Some(&0xc0) => {
            let body = items(payload(form)).next().map_or(&[][..], |(_, body)| body);
            lists(body)
        }
        _ => transaction(raw),
    }
}

/// The transactions in a body, as RLP.
pub fn body(rlp: &[u8]) -> usize {
    let Some((_, transactions)) = items(payload(rlp)).next() else { return 0 };
    fields(transactions)
}

/// The transactions in a whole block, as RLP: its second field.
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

/// Receipts as the database has them, 5 bytes or more each, and their logs, 24 bytes or more.
pub fn receipts(rlp: &[u8]) -> usize {
    let logs = |receipt| items(receipt).nth(3).map_or(0, |(_, logs)| items(logs).count());
    items(payload(rlp))
        .map(|(_, receipt)| size_of::<Receipt>() + logs(receipt) * size_of::<Log>() * GROWING)
        .sum()
}

/// The transactions in the requests of an HTTP body: those of a payload, and raw ones.
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

/// The texts in a file with a block and its witness, of which nodes, codes and headers make a
/// `Bytes` each, and the block's transactions.
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

/// The payload of the first item of this RLP, nothing where there is none.
fn payload(mut rlp: &[u8]) -> &[u8] {
    take_item(&mut rlp).map_or(&[], |(_, payload)| payload)
}

/// The items of a list's payload, up to the first malformed one.
fn items(mut rlp: &[u8]) -> impl Iterator<Item = (alloy_rlp::Header, &[u8])> {
    std::iter::from_fn(move || match rlp.is_empty() {
        true => None,
        false => take_item(&mut rlp).ok(),
    })
}
