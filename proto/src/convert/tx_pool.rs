//! Requests to tx-pool and its answers.

use super::{
    error::{At, ConvertError, Reason},
    field::{
        at_most, count, hash, hash_bytes, hash_list, items, length, range, required, size,
        sizes_from, split,
    },
    status::{cut, said, sent, status},
};
use crate::{
    limits::{
        ARRIVALS_MAX, POOL_ADD_TRANSACTIONS_MAX, POOL_MESSAGE_BYTES_MAX, POOL_PAGE_BYTES,
        POOL_PAGE_TRANSACTIONS_MAX, REFUSAL_KIND_BYTES_MAX,
    },
    tx_pool::{Arrivals, BestPage, BestQuery, Content, Counts, Error, PooledTransaction},
    wire::tx_pool::v1::{self, error as error_wire},
};
use bytes::Bytes;
use prost::Message as _;
use std::{time::Duration, vec};
use tandem_primitives::{Address, B256, Bytes as Raw};
use tonic::{Code, Status};

/// Longest wait that an answer may demand, in ms.
const RETRY_AFTER_MS_MAX: u64 = 60_000;

/// Maximum number of transactions in one message: those of [`POOL_MESSAGE_BYTES_MAX`] bytes, as each
/// takes 53 bytes besides its own.
const TRANSACTIONS_MAX: usize = POOL_MESSAGE_BYTES_MAX / 53;

fn address(bytes: &[u8]) -> Result<Address, Reason> {
    length(20, bytes.len())?;
    Ok(Address::from_slice(bytes))
}

fn address_bytes(address: Address) -> Bytes {
    Bytes::copy_from_slice(address.as_slice())
}

impl From<&[PooledTransaction]> for v1::Transactions {
    fn from(transactions: &[PooledTransaction]) -> Self {
        let mut senders = Vec::with_capacity(transactions.len() * 20);
        let mut raw = Vec::with_capacity(transactions.iter().map(|tx| tx.raw.len()).sum());
        for tx in transactions {
            senders.extend_from_slice(tx.sender.as_slice());
            raw.extend_from_slice(&tx.raw);
        }
        Self {
            hashes: hash_list(transactions.iter().map(|tx| &tx.hash)),
            senders: senders.into(),
            sizes: transactions.iter().map(|tx| size(tx.raw.len())).collect(),
            raw: raw.into(),
        }
    }
}

impl TryFrom<v1::Transactions> for Vec<PooledTransaction> {
    type Error = ConvertError;

    fn try_from(wire: v1::Transactions) -> Result<Self, ConvertError> {
        transactions(wire, TRANSACTIONS_MAX)
    }
}

/// Converts at most `max` transactions from columns; errors name the column.
fn transactions(
    wire: v1::Transactions,
    max: usize,
) -> Result<Vec<PooledTransaction>, ConvertError> {
    let hashes = items::<32>(&wire.hashes).at("hashes")?;
    at_most(max, hashes.len()).at("hashes")?;
    let expected = hashes.len() as u64;
    let senders = items::<20>(&wire.senders).at("senders")?;
    count(expected, senders.len()).at("senders")?;
    count(expected, wire.sizes.len()).at("sizes")?;
    sizes_from(1, &wire.sizes).at("sizes")?;
    let raw = split(&wire.sizes, wire.raw).at("raw")?;
    let transactions = hashes.iter().zip(senders).zip(raw).map(|((hash, sender), raw)| {
        PooledTransaction { hash: hash.into(), sender: sender.into(), raw }
    });
    Ok(transactions.collect())
}

impl From<&[Raw]> for v1::AddRequest {
    fn from(transactions: &[Raw]) -> Self {
        let raw = match transactions {
            [raw] => raw.0.clone(),
            _ => transactions.concat().into(),
        };
        Self { sizes: transactions.iter().map(|raw| size(raw.len())).collect(), raw }
    }
}

impl TryFrom<v1::AddRequest> for Vec<Raw> {
    type Error = ConvertError;

    /// Takes any bytes: what is no transaction is refused as such.
    fn try_from(wire: v1::AddRequest) -> Result<Self, ConvertError> {
        at_most(POOL_ADD_TRANSACTIONS_MAX, wire.sizes.len()).at("add.sizes")?;
        Ok(split(&wire.sizes, wire.raw).at("add.raw")?.collect())
    }
}

/// Hash of each added transaction, or why it was not added.
type Outcomes = Vec<Result<B256, Error>>;

impl From<Outcomes> for v1::AddResponse {
    fn from(outcomes: Outcomes) -> Self {
        let mut errors = Vec::new();
        let error_sizes = outcomes.iter().map(|outcome| match outcome {
            Ok(_) => 0,
            Err(error) => {
                let error = v1::Error::from(error).encode_to_vec();
                errors.extend_from_slice(&error);
                size(error.len())
            }
        });
        let error_sizes = error_sizes.collect();
        let hashes = outcomes.into_iter().flatten().flat_map(|hash| hash.0);
        Self { error_sizes, errors: errors.into(), hashes: hashes.collect() }
    }
}

impl TryFrom<v1::AddResponse> for Outcomes {
    type Error = ConvertError;

    fn try_from(wire: v1::AddResponse) -> Result<Self, ConvertError> {
        at_most(POOL_ADD_TRANSACTIONS_MAX, wire.error_sizes.len()).at("add.error_sizes")?;
        let errors = split(&wire.error_sizes, wire.errors).at("add.errors")?;
        let hashes = items::<32>(&wire.hashes).at("add.hashes")?;
        let added = wire.error_sizes.iter().filter(|&&size| size == 0).count();
        count(added as u64, hashes.len()).at("add.hashes")?;
        let mut hashes = hashes.iter();
        let mut outcomes = Vec::with_capacity(wire.error_sizes.len());
        for error in errors {
            // An error is never empty, as it has a kind. There is a hash for each other transaction.
            if error.is_empty() {
                outcomes.extend(hashes.next().map(|hash| Ok(B256::from(hash))));
                continue;
            }
            let error = v1::Error::decode(error.0);
            let error = error.map_err(|_| ConvertError::from(Reason::Malformed));
            let error =
                error.and_then(Error::try_from).at_index(outcomes.len()).at("add.errors")?;
            outcomes.push(Err(error));
        }
        Ok(outcomes)
    }
}

impl From<B256> for v1::GetRequest {
    fn from(hash: B256) -> Self {
        Self { hash: hash_bytes(hash) }
    }
}

impl TryFrom<v1::GetRequest> for B256 {
    type Error = ConvertError;

    fn try_from(wire: v1::GetRequest) -> Result<Self, ConvertError> {
        hash(&wire.hash).at("get.hash")
    }
}

impl From<Option<PooledTransaction>> for v1::GetResponse {
    fn from(found: Option<PooledTransaction>) -> Self {
        Self { transaction: found.map(|tx| v1::Transactions::from(&[tx][..])) }
    }
}

impl TryFrom<v1::GetResponse> for Option<PooledTransaction> {
    type Error = ConvertError;

    fn try_from(wire: v1::GetResponse) -> Result<Self, ConvertError> {
        let Some(found) = wire.transaction else { return Ok(None) };
        let mut found = transactions(found, 1).at("get.transaction")?;
        count(1, found.len()).at("get.transaction.hashes")?;
        Ok(found.pop())
    }
}

impl From<Address> for v1::GetNextNonceRequest {
    fn from(sender: Address) -> Self {
        Self { sender: address_bytes(sender) }
    }
}

impl TryFrom<v1::GetNextNonceRequest> for Address {
    type Error = ConvertError;

    fn try_from(wire: v1::GetNextNonceRequest) -> Result<Self, ConvertError> {
        address(&wire.sender).at("get_next_nonce.sender")
    }
}

impl From<Counts> for v1::GetCountsResponse {
    fn from(counts: Counts) -> Self {
        Self { pending: counts.pending as u64, queued: counts.queued as u64 }
    }
}

impl From<v1::GetCountsResponse> for Counts {
    fn from(wire: v1::GetCountsResponse) -> Self {
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Self { pending: number(wire.pending), queued: number(wire.queued) }
    }
}

fn fee_bytes(fee: u128) -> Bytes {
    Bytes::copy_from_slice(&fee.to_be_bytes())
}

fn fee(bytes: &[u8]) -> Result<u128, Reason> {
    let wrong = Reason::Length { expected: 16, got: bytes.len() as u64 };
    Ok(u128::from_be_bytes(bytes.try_into().map_err(|_| wrong)?))
}

impl From<BestQuery> for v1::ListBestRequest {
    /// Asks for no more transactions than a page has.
    fn from(query: BestQuery) -> Self {
        Self {
            base_fee: fee_bytes(query.base_fee),
            blob_fee: query.blob_fee.map(fee_bytes).unwrap_or_default(),
            blob_transactions_max: query.blob_transactions_max as u64,
            skip: query.skip as u64,
            transactions_max: size(query.transactions_max.clamp(1, POOL_PAGE_TRANSACTIONS_MAX)),
            unless: query.unless,
        }
    }
}

impl TryFrom<v1::ListBestRequest> for BestQuery {
    type Error = ConvertError;

    fn try_from(wire: v1::ListBestRequest) -> Result<Self, ConvertError> {
        let max = POOL_PAGE_TRANSACTIONS_MAX as u64;
        range(1, max, wire.transactions_max).at("list_best.transactions_max")?;
        let blob_fee = match wire.blob_fee.is_empty() {
            true => None,
            false => Some(fee(&wire.blob_fee).at("list_best.blob_fee")?),
        };
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Self {
            base_fee: fee(&wire.base_fee).at("list_best.base_fee")?,
            blob_fee,
            blob_transactions_max: number(wire.blob_transactions_max),
            skip: number(wire.skip),
            transactions_max: wire.transactions_max as usize,
            unless: wire.unless,
        })
    }
}

impl From<BestPage> for v1::ListBestResponse {
    fn from(page: BestPage) -> Self {
        let transactions = Some(v1::Transactions::from(&page.transactions[..]));
        Self { transactions, version: page.version, is_last: page.is_last }
    }
}

impl TryFrom<v1::ListBestResponse> for BestPage {
    type Error = ConvertError;

    fn try_from(wire: v1::ListBestResponse) -> Result<Self, ConvertError> {
        let page = required(wire.transactions).at("list_best.transactions")?;
        let transactions =
            transactions(page, POOL_PAGE_TRANSACTIONS_MAX).at("list_best.transactions")?;
        Ok(Self { transactions, version: wire.version, is_last: wire.is_last })
    }
}

impl From<Arrivals> for v1::ListArrivalsResponse {
    fn from(page: Arrivals) -> Self {
        let transactions = Some(v1::Transactions::from(&page.transactions[..]));
        Self { transactions, upto: page.upto }
    }
}

impl TryFrom<v1::ListArrivalsResponse> for Arrivals {
    type Error = ConvertError;

    fn try_from(wire: v1::ListArrivalsResponse) -> Result<Self, ConvertError> {
        let page = required(wire.transactions).at("list_arrivals.transactions")?;
        let transactions = transactions(page, ARRIVALS_MAX).at("list_arrivals.transactions")?;
        Ok(Self { transactions, upto: wire.upto })
    }
}

impl From<Option<Address>> for v1::ListContentRequest {
    fn from(sender: Option<Address>) -> Self {
        Self { sender: sender.map(address_bytes).unwrap_or_default() }
    }
}

impl TryFrom<v1::ListContentRequest> for Option<Address> {
    type Error = ConvertError;

    fn try_from(wire: v1::ListContentRequest) -> Result<Self, ConvertError> {
        match wire.sender.is_empty() {
            true => Ok(None),
            false => address(&wire.sender).at("list_content.sender").map(Some),
        }
    }
}

/// Messages that carry the content of the pool, each of about [`POOL_PAGE_BYTES`] bytes at most.
pub struct ContentParts {
    pending: vec::IntoIter<PooledTransaction>,
    queued: vec::IntoIter<PooledTransaction>,
}

impl From<Content> for ContentParts {
    fn from(content: Content) -> Self {
        Self { pending: content.pending.into_iter(), queued: content.queued.into_iter() }
    }
}

/// Takes transactions as far as there is room.
fn part(from: &mut vec::IntoIter<PooledTransaction>, room: &mut usize) -> Vec<PooledTransaction> {
    let mut part = Vec::new();
    while *room > 0
        && let Some(tx) = from.next()
    {
        *room = room.saturating_sub(tx.raw.len() + size_of::<PooledTransaction>());
        part.push(tx);
    }
    part
}

impl Iterator for ContentParts {
    type Item = v1::ListContentResponse;

    fn next(&mut self) -> Option<v1::ListContentResponse> {
        let mut room = POOL_PAGE_BYTES;
        let pending = part(&mut self.pending, &mut room);
        let queued = part(&mut self.queued, &mut room);
        if pending.is_empty() && queued.is_empty() {
            return None;
        }
        Some(v1::ListContentResponse {
            pending: Some(pending[..].into()),
            queued: Some(queued[..].into()),
        })
    }
}

impl TryFrom<v1::ListContentResponse> for Content {
    type Error = ConvertError;

    fn try_from(wire: v1::ListContentResponse) -> Result<Self, ConvertError> {
        let list = |list: Option<v1::Transactions>| list.unwrap_or_default().try_into();
        Ok(Self {
            pending: list(wire.pending).at("list_content.pending")?,
            queued: list(wire.queued).at("list_content.queued")?,
        })
    }
}

impl From<&Error> for v1::Error {
    /// Cuts texts at [`ERROR_TEXT_BYTES_MAX`](crate::limits::ERROR_TEXT_BYTES_MAX).
    fn from(error: &Error) -> Self {
        use error_wire::{Kind, Overloaded, Refused};
        let kind = match error {
            Error::Refused { kind, reason } => {
                Kind::Refused(Refused { kind: kind.to_string(), reason: cut(reason) })
            }
            Error::Overloaded { retry_after } => {
                let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                Kind::Overloaded(Overloaded {
                    retry_after_ms: retry_after_ms.min(RETRY_AFTER_MS_MAX),
                })
            }
            Error::Unavailable(text) => Kind::Unavailable(cut(text)),
        };
        Self { kind: Some(kind) }
    }
}

fn is_kind(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=REFUSAL_KIND_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_letter)
}

impl TryFrom<v1::Error> for Error {
    type Error = ConvertError;

    fn try_from(wire: v1::Error) -> Result<Self, ConvertError> {
        use error_wire::Kind;
        Ok(match required(wire.kind).at("kind")? {
            Kind::Refused(refused) => {
                if !is_kind(&refused.kind) {
                    return Err(Reason::NotAKind).at("refused.kind");
                }
                Self::Refused { kind: refused.kind.into(), reason: refused.reason }
            }
            Kind::Overloaded(overloaded) => {
                let ms = overloaded.retry_after_ms;
                range(0, RETRY_AFTER_MS_MAX, ms).at("overloaded.retry_after_ms")?;
                Self::Overloaded { retry_after: Duration::from_millis(ms) }
            }
            Kind::Unavailable(text) => Self::Unavailable(text),
        })
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Refused { .. } => Code::FailedPrecondition,
            Error::Overloaded { .. } => Code::ResourceExhausted,
            Error::Unavailable(_) => Code::Unavailable,
        };
        status(code, &error.to_string(), &v1::Error::from(&error))
    }
}

impl From<Status> for Error {
    /// Returns the error that was sent, or else [`Error::Unavailable`]: the caller must do without
    /// the answer, whatever the reason.
    fn from(status: Status) -> Self {
        sent::<v1::Error, _>(&status).unwrap_or_else(|| Self::Unavailable(said(&status)))
    }
}

impl From<ConvertError> for Error {
    /// Reports a malformed answer.
    fn from(error: ConvertError) -> Self {
        Self::Unavailable(cut(&format!("malformed answer: {error}")))
    }
}
