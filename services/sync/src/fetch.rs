//! One request to a peer, and the check of its answer.

use crate::{
    check::{self, ChainHeader, Checked, Fault},
    metrics as names,
    sink::BlockSink,
    state::{Failure, RequestId, Wanted},
};
use metrics::{counter, histogram};
use std::{sync::Arc, time::Instant};
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::{
    peer_sessions::{Error, Fetch, Fetched, PeerId, PeerSessionsApi},
    storage::BlockRef,
};
use tokio::task::spawn_blocking;
use tracing::{Instrument, debug, debug_span};

/// Checked answer of a peer.
pub enum Answer {
    /// Headers, highest first, and the place of the first that is executed.
    Headers(Vec<ChainHeader>, Option<usize>),
    /// Blocks, with the bytes of each body.
    Bodies(Vec<(BlockId, Checked, usize)>),
    /// No valid chain has this header, although the hashes lead to it.
    Impossible(B256),
    /// No answer that helps.
    Failed(Failure),
}

/// Asks a peer, and checks the answer on a thread that may block.
pub async fn fetch(
    sessions: Arc<dyn PeerSessionsApi>,
    sink: Arc<dyn BlockSink>,
    request: RequestId,
    peer: PeerId,
    wanted: Wanted,
) -> (RequestId, Answer) {
    let (kind, items) = match &wanted {
        Wanted::Headers { limit, .. } => ("headers", *limit as usize),
        Wanted::Bodies(headers) => ("bodies", headers.len()),
    };
    let span = debug_span!("sync_request", kind, items);
    let asked = Instant::now();
    let answer = ask(sessions, sink, peer, wanted).instrument(span).await;
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
            return Answer::Failed(match error {
                Error::Gone | Error::Timeout | Error::Unavailable(_) => Failure::Gone,
                Error::Busy | Error::Refused(_) => Failure::Busy,
            });
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
                Answer::Bodies(blocks)
            }
            Err(error) => fault(error),
        },
    }
}
