//! Single records of the meta table.

use crate::{Error, codec, grant::Grant};
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes};
use tandem_proto::storage::{Forkchoice, Term};
use tandem_store::{Batch, View, tables::Meta};

const GENESIS: &str = "genesis";
const GENESIS_JSON: &str = "genesis_json";
const ALLOC_DIGEST: &str = "alloc_digest";
const BASE: &str = "base";
const FORKCHOICE: &str = "forkchoice";
const EPOCH: &str = "epoch";
const GRANT: &str = "grant";
const HEARD_TERM: &str = "heard_term";
const DOWNLOAD: &str = "download";
const STATE_LOAD: &str = "state_load";
const OLDEST_BLOCK: &str = "oldest_block";
const SCRUB: &str = "scrub";
const HISTORY: &str = "history";

fn required<T>(
    view: &View<'_>,
    key: &'static str,
    decode: impl FnOnce(&Bytes) -> Option<T>,
) -> Result<T, Error> {
    let bytes = view.get::<Meta>(key)?.ok_or_else(|| Error::absent(format!("record {key}")))?;
    decode(&bytes).ok_or_else(|| Error::Damaged(format!("malformed record {key}")))
}

/// Returns the block whose state the base holds.
pub fn base(view: &View<'_>) -> Result<BlockId, Error> {
    required(view, BASE, |bytes| codec::decode_block(bytes))
}

pub fn put_base(batch: &mut Batch<'_>, base: &BlockId) {
    batch.put::<Meta>(BASE, &codec::encode_block(base));
}

/// Returns the last durable forkchoice. Its head is always the base or a descendant of it.
pub fn forkchoice(view: &View<'_>) -> Result<Forkchoice, Error> {
    required(view, FORKCHOICE, |bytes| codec::decode_forkchoice(bytes))
}

pub fn put_forkchoice(batch: &mut Batch<'_>, forkchoice: &Forkchoice) {
    batch.put::<Meta>(FORKCHOICE, &codec::encode_forkchoice(forkchoice));
}

/// Returns the newest grant of the right to write.
pub fn grant(view: &View<'_>) -> Result<Grant, Error> {
    let epoch = match view.get::<Meta>(EPOCH)? {
        None => 0,
        Some(bytes) => match bytes.as_ref().try_into() {
            Ok(bytes) => u64::from_be_bytes(bytes),
            Err(_) => return Err(Error::Damaged("malformed record epoch".to_owned())),
        },
    };
    let grant = view.get::<Meta>(GRANT)?.map(|bytes| Grant::decode(&bytes)).transpose()?;
    // Version 0.1.0 writes only the number, and leaves records that it does not know.
    Ok(grant.filter(|grant| grant.epoch == epoch).unwrap_or_else(|| Grant::bare(epoch)))
}

pub fn put_grant(batch: &mut Batch<'_>, grant: &Grant) -> Result<(), Error> {
    batch.put::<Meta>(EPOCH, &grant.epoch.to_be_bytes());
    batch.put::<Meta>(GRANT, &grant.encode()?);
    Ok(())
}

/// Returns the highest term of another storage-writer, the first one if none was heard of.
pub fn heard_term(view: &View<'_>) -> Result<Term, Error> {
    let Some(bytes) = view.get::<Meta>(HEARD_TERM)? else { return Ok(Term::default()) };
    let bytes = bytes.as_ref().try_into();
    let bytes = bytes.map_err(|_| Error::Damaged("malformed record heard_term".to_owned()))?;
    Ok(Term(u32::from_be_bytes(bytes)))
}

pub fn put_heard_term(batch: &mut Batch<'_>, term: Term) {
    batch.put::<Meta>(HEARD_TERM, &term.0.to_be_bytes());
}

/// Returns how far the download of a state is, as its caller said; `None` if none is under way.
pub fn download(view: &View<'_>) -> Result<Option<Bytes>, Error> {
    Ok(view.get::<Meta>(DOWNLOAD)?)
}

pub fn put_download(batch: &mut Batch<'_>, progress: &[u8]) {
    batch.put::<Meta>(DOWNLOAD, progress);
}

pub fn delete_download(batch: &mut Batch<'_>) {
    batch.delete::<Meta>(DOWNLOAD);
}

/// Returns the progress of the load that makes or made the state; `None` if there was none.
pub fn state_load(view: &View<'_>) -> Result<Option<Bytes>, Error> {
    Ok(view.get::<Meta>(STATE_LOAD)?)
}

pub fn put_state_load(batch: &mut Batch<'_>, record: &[u8]) {
    batch.put::<Meta>(STATE_LOAD, record);
}

/// Returns the next part of the database that the scrubber checks, and the second (Unix time) at which it
/// ended its last pass; `None` before the first start that knows a scrubber.
pub fn scrub(view: &View<'_>) -> Result<Option<(u16, u64)>, Error> {
    let Some(bytes) = view.get::<Meta>(SCRUB)? else { return Ok(None) };
    let record = bytes.split_first_chunk().and_then(|(part, ended)| {
        Some((u16::from_be_bytes(*part), u64::from_be_bytes(ended.try_into().ok()?)))
    });
    record.map(Some).ok_or_else(|| Error::Damaged(format!("malformed record {SCRUB}")))
}

pub fn put_scrub(batch: &mut Batch<'_>, (part, ended): (u16, u64)) {
    batch.put::<Meta>(SCRUB, &[&part.to_be_bytes()[..], &ended.to_be_bytes()].concat());
}

/// Returns the height from which on all blocks of the base have bodies and receipts.
pub fn oldest_block(view: &View<'_>) -> Result<BlockNumber, Error> {
    match view.get::<Meta>(OLDEST_BLOCK)? {
        // A database that never lost one.
        None => Ok(genesis(view)?.id.number),
        Some(bytes) => match bytes.as_ref().try_into() {
            Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
            Err(_) => Err(Error::Damaged(format!("malformed record {OLDEST_BLOCK}"))),
        },
    }
}

pub fn put_oldest_block(batch: &mut Batch<'_>, number: BlockNumber) {
    batch.put::<Meta>(OLDEST_BLOCK, &number.to_be_bytes());
}

/// Returns the oldest block to whose state history leads, and the number of blocks in a span of it;
/// `None` if none is kept.
pub fn history(view: &View<'_>) -> Result<Option<(BlockNumber, u64)>, Error> {
    let Some(bytes) = view.get::<Meta>(HISTORY)? else { return Ok(None) };
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
    let record = bytes.split_at_checked(8).and_then(|(a, b)| number(a).zip(number(b)));
    record.map(Some).ok_or_else(|| Error::Damaged(format!("malformed record {HISTORY}")))
}

pub fn put_history(batch: &mut Batch<'_>, oldest: BlockNumber, span_blocks: u64) {
    batch.put::<Meta>(HISTORY, &[oldest.to_be_bytes(), span_blocks.to_be_bytes()].concat());
}

pub fn delete_history(batch: &mut Batch<'_>) {
    batch.delete::<Meta>(HISTORY);
}

/// Chain that the database was made for.
#[derive(Clone, Debug)]
pub struct Genesis {
    /// The genesis block.
    pub id: BlockId,
    /// Geth's genesis file without `alloc`.
    pub json: String,
    /// Digest of `alloc` that does not depend on order or spelling; [`NO_ALLOC`] for a copy.
    pub alloc_digest: B256,
}

/// Digest in the database of a copy, which has no accounts of a genesis.
pub const NO_ALLOC: B256 = B256::ZERO;

impl Genesis {
    /// Returns whether the database was made as a copy of another one.
    pub fn is_copy(&self) -> bool {
        self.alloc_digest == NO_ALLOC
    }
}

pub fn genesis(view: &View<'_>) -> Result<Genesis, Error> {
    Ok(Genesis {
        id: required(view, GENESIS, |bytes| codec::decode_block(bytes))?,
        json: required(view, GENESIS_JSON, |bytes| String::from_utf8(bytes.to_vec()).ok())?,
        alloc_digest: required(view, ALLOC_DIGEST, |bytes| B256::try_from(bytes.as_ref()).ok())?,
    })
}

pub fn put_genesis(batch: &mut Batch<'_>, genesis: &Genesis) {
    batch.put::<Meta>(GENESIS, &codec::encode_block(&genesis.id));
    batch.put::<Meta>(GENESIS_JSON, genesis.json.as_bytes());
    batch.put::<Meta>(ALLOC_DIGEST, genesis.alloc_digest.as_slice());
}
