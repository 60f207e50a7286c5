//! One request to a peer, and the check of its answer.

use crate::{
    check::{self, Arrived, ChainHeader, Fault},
    metrics as names,
    sink::BlockSink,
    state::{Failure, RequestId, Wanted},
};
use alloy_rlp::Header;
use metrics::{counter, histogram};
use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Instant,
};
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes};
use tandem_proto::{
    peer_sessions::{Error, Fetch, Fetched, PeerId, PeerSessionsApi},
    storage::BlockRef,
};
use tokio::task::spawn_blocking;
use tracing::{Instrument, debug, debug_span};

/// Bytes of the receipts of one block: more than the largest gas limit pays for.
const RECEIPTS_BYTES_MAX: usize = 64 << 20;

/// Checked answer of a peer.
pub enum Answer {
    /// Headers, highest first, and the place of the first that is executed.
    Headers(Vec<ChainHeader>, Option<usize>),
    /// Blocks, with the bytes of each body.
    Bodies(Vec<(BlockId, Arrived, usize)>),
    /// No valid chain has this header, although the hashes lead to it.
    Impossible(B256),
    /// No answer that helps.
    Failed(Failure),
}

/// Asks a peer, and checks the answer on a thread that may block. Blocks up to `receipts_to` come with
/// their receipts.
pub async fn fetch(
    sessions: Arc<dyn PeerSessionsApi>,
    sink: Arc<dyn BlockSink>,
    request: RequestId,
    peer: PeerId,
    wanted: Wanted,
    receipts_to: Option<BlockNumber>,
) -> (RequestId, Answer) {
    let (kind, items) = match &wanted {
        Wanted::Headers { limit, .. } => ("headers", *limit as usize),
        Wanted::Bodies(headers) => ("bodies", headers.len()),
    };
    let span = debug_span!("sync_request", kind, items);
    let asked = Instant::now();
    let asking = async {
        let headers = match (&wanted, receipts_to) {
            (Wanted::Bodies(headers), Some(last)) => {
                headers.iter().filter(|header| header.id.number <= last).cloned().collect()
            }
            _ => Vec::new(),
        };
        let answer = ask(sessions.clone(), sink, peer, wanted).await;
        with_receipts(&*sessions, peer, headers, answer).await
    };
    let answer = asking.instrument(span).await;
    let outcome = match &answer {
        Answer::Headers(headers, _) => outcome(headers.len(), items),
        Answer::Bodies(blocks) => outcome(blocks.len(), items),
        Answer::Impossible(_) => "full",
        Answer::Failed(Failure::Gone) => "gone",
        Answer::Failed(Failure::Busy) => "busy",
        Answer::Failed(Failure::Late) => "late",
        Answer::Failed(Failure::Lie) => "lie",
    };
    counter!(names::REQUESTS, "kind" => kind, "outcome" => outcome).increment(1);
    histogram!(names::REQUEST_SECONDS, "kind" => kind).record(asked.elapsed());
    (request, answer)
}

/// Adds receipts to blocks. A block whose receipts the peer lacks does not count as sent.
async fn with_receipts(
    sessions: &dyn PeerSessionsApi,
    peer: PeerId,
    wanted: Vec<ChainHeader>,
    answer: Answer,
) -> Answer {
    let Answer::Bodies(mut blocks) = answer else { return answer };
    let sent = |header: &ChainHeader| blocks.iter().any(|(id, ..)| *id == header.id);
    let wanted: Vec<_> = wanted.into_iter().filter(sent).collect();
    if wanted.is_empty() {
        return Answer::Bodies(blocks);
    }
    let ids: HashSet<B256> = wanted.iter().map(|header| header.id.hash).collect();
    let mut found = match receipts(sessions, peer, wanted).await {
        Ok(found) => found,
        Err(failure) => return Answer::Failed(failure),
    };
    blocks.retain_mut(|(id, arrived, bytes)| {
        arrived.receipts = found.remove(&id.hash);
        *bytes += arrived.receipts.as_ref().map_or(0, |receipts| receipts.len());
        arrived.receipts.is_some() || !ids.contains(&id.hash)
    });
    Answer::Bodies(blocks)
}

/// Fetches the receipts of blocks, as far as a peer has them. Returns them by block.
pub async fn receipts(
    sessions: &dyn PeerSessionsApi,
    peer: PeerId,
    mut wanted: Vec<ChainHeader>,
) -> Result<HashMap<B256, Bytes>, Failure> {
    let mut found = HashMap::new();
    // Receipts of the first block that came in earlier answers.
    let (mut first, mut content) = (0, Vec::new());
    while !wanted.is_empty() {
        let hashes = wanted.iter().map(|header| header.id.hash).collect();
        let fetched = sessions.fetch(peer, Fetch::Receipts { first, hashes }).await;
        let (incomplete, mut lists) = match fetched {
            Ok(Fetched::Receipts { incomplete, blocks }) => (incomplete, blocks),
            Ok(_) => return Err(Failure::Lie),
            Err(error) => {
                debug!(%error, "request to a peer failed");
                return Err(failure(&error));
            }
        };
        if lists.len() > wanted.len() {
            return Err(Failure::Lie);
        }
        let cut = if incomplete { lists.pop() } else { None };
        if lists.is_empty() && cut.is_none() {
            break;
        }
        if !lists.is_empty() {
            let rest = wanted.split_off(lists.len());
            let (done, before) = (mem::replace(&mut wanted, rest), mem::take(&mut content));
            first = 0;
            let checked = spawn_blocking(move || check_receipts(done, lists, before)).await;
            // A panic of the check is a fault of this node.
            found.extend(checked.unwrap_or(Err(Failure::Busy))?);
        }
        if let Some(part) = cut {
            let mut items = Header::decode_bytes(&mut &part[..], true).map_err(|_| Failure::Lie)?;
            content.extend_from_slice(items);
            let before = first;
            while !items.is_empty() && content.len() <= RECEIPTS_BYTES_MAX {
                let item = Header::decode(&mut items).map_err(|_| Failure::Lie)?;
                items = items.get(item.payload_length..).ok_or(Failure::Lie)?;
                first += 1;
            }
            if first == before || !items.is_empty() {
                return Err(Failure::Lie);
            }
        }
    }
    Ok(found)
}

/// Checks lists of receipts, the first of which continues earlier content.
fn check_receipts(
    headers: Vec<ChainHeader>,
    lists: Vec<Bytes>,
    before: Vec<u8>,
) -> Result<Vec<(B256, Bytes)>, Failure> {
    let mut before = Some(before).filter(|before| !before.is_empty());
    let mut checked = Vec::with_capacity(lists.len());
    for (header, list) in headers.iter().zip(lists) {
        let list = match before.take() {
            None => list,
            Some(mut content) => {
                let rest = Header::decode_bytes(&mut &list[..], true).map_err(|_| Failure::Lie)?;
                content.extend_from_slice(rest);
                let mut whole = Vec::with_capacity(content.len() + 9);
                Header { list: true, payload_length: content.len() }.encode(&mut whole);
                whole.extend_from_slice(&content);
                whole.into()
            }
        };
        let receipts = check::receipts(header, &list).map_err(|_| Failure::Lie)?;
        checked.push((header.id.hash, receipts));
    }
    Ok(checked)
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Gone | Error::Timeout | Error::Unavailable(_) => Failure::Gone,
        Error::Busy | Error::Refused(_) => Failure::Busy,
    }
}

fn outcome(got: usize, wanted: usize) -> &'static str {
    match got {
        0 => "empty",
        _ if got < wanted => "part",
        _ => "full",
    }
}

async fn ask(
    sessions: Arc<dyn PeerSessionsApi>,
    sink: Arc<dyn BlockSink>,
    peer: PeerId,
    wanted: Wanted,
) -> Answer {
    let fetch = match &wanted {
        Wanted::Headers { start, limit } => Fetch::Headers {
            start: BlockRef::Hash(*start),
            limit: *limit as u32,
            skip: 0,
            reverse: true,
        },
        Wanted::Bodies(headers) => {
            Fetch::Bodies(headers.iter().map(|header| header.id.hash).collect())
        }
    };
    let items = match sessions.fetch(peer, fetch).await {
        Ok(Fetched::Headers(items) | Fetched::Bodies(items)) => items,
        Ok(_) => return Answer::Failed(Failure::Lie),
        Err(error) => {
            debug!(%error, "request to a peer failed");
            return Answer::Failed(failure(&error));
        }
    };
    let checked = spawn_blocking(move || check_items(&*sink, &wanted, items)).await;
    // A panic of the check is a fault of this node.
    checked.unwrap_or(Answer::Failed(Failure::Busy))
}

fn check_items(sink: &dyn BlockSink, wanted: &Wanted, items: Vec<Bytes>) -> Answer {
    let fault = |fault| match fault {
        Fault::Lie => Answer::Failed(Failure::Lie),
        Fault::Chain(culprit) => Answer::Impossible(culprit),
    };
    match wanted {
        Wanted::Headers { start, limit } => match check::headers(*start, *limit as usize, items) {
            Ok(headers) => {
                counter!(names::HEADERS).increment(headers.len() as u64);
                let below = headers.last().and_then(|last| {
                    Some(BlockId::new(last.id.number.checked_sub(1)?, last.parent))
                });
                let ids: Vec<_> = headers.iter().map(|header| header.id).chain(below).collect();
                let known = sink.first_known(&ids);
                Answer::Headers(headers, known)
            }
            Err(error) => fault(error),
        },
        Wanted::Bodies(headers) => match check::bodies(headers, items) {
            Ok(blocks) => {
                let bytes: usize = blocks.iter().map(|(_, _, bytes)| bytes).sum();
                counter!(names::BYTES).increment(bytes as u64);
                let arrived = |(id, block, bytes)| (id, Arrived { block, receipts: None }, bytes);
                Answer::Bodies(blocks.into_iter().map(arrived).collect())
            }
            Err(error) => fault(error),
        },
    }
}
