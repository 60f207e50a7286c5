//! A consensus client: an empty block and a forkchoice every quarter of a second over one
//! connection. Each call is retried until it is VALID.

use crate::{
    blocks::{self, Tip, child, forkchoice},
    client::Client,
};
use alloy_primitives::B256;
use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Longest time that the client waits for an answer, as consensus clients do for newPayload.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(8);
/// Time from one block to the next.
const PACE: Duration = Duration::from_millis(250);
/// Pause before a failed call is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Distances in blocks from the head to the safe block and to the finalized block.
const FINALITY: [usize; 2] = [32, 64];
/// Maximum of recorded calls; at this pace more than two hours.
const CALLS_MAX: usize = 100_000;

/// A client that runs until it is dropped.
pub struct Load {
    shared: Arc<Shared>,
    begun: Instant,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    pause: AtomicBool,
    calls: Mutex<VecDeque<Call>>,
}

struct Call {
    ended: Instant,
    took: Duration,
    is_payload: bool,
    /// VALID, another status, or an error.
    answer: String,
}

/// Calls and blocks that the client saw since a moment.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Blocks found VALID.
    pub blocks: usize,
    /// Longest time in which no block was found VALID, in seconds.
    pub gap: f64,
    /// Longest call, in seconds.
    pub hang: f64,
    /// Number of failed calls by answer.
    pub failed: BTreeMap<String, usize>,
    /// Number of answers SYNCING or INVALID, which mean that a block is lost.
    pub lost: usize,
}

impl Window {
    /// Returns the text for the note of a figure.
    pub fn note(&self) -> String {
        let failed: Vec<_> =
            self.failed.iter().map(|(answer, count)| format!("{count} x {answer}")).collect();
        let failed = if failed.is_empty() { "none".to_owned() } else { failed.join(", ") };
        format!("{} blocks, calls failed: {failed}", self.blocks)
    }
}

impl Load {
    /// Connects to an Engine API whose chain is made of [`blocks`], and begins at its head.
    ///
    /// # Errors
    /// If the head is not known.
    pub fn start(address: SocketAddr, secret: &Path) -> anyhow::Result<Self> {
        let mut engine = Client::engine(address, secret, CALL_TIME_MAX)?;
        let head = head(&mut engine)?;
        let shared = Arc::new(Shared::default());
        let sender = Sender { engine, shared: shared.clone(), recent: VecDeque::new(), head };
        let thread = std::thread::spawn(move || sender.run());
        Ok(Self { shared, begun: Instant::now(), thread: Some(thread) })
    }

    /// Returns the events since `from`, up to now.
    pub fn since(&self, from: Instant) -> Window {
        window(self.shared.calls.lock().iter(), from, Instant::now())
    }

    /// Returns the events since the start.
    pub fn all(&self) -> Window {
        self.since(self.begun)
    }

    /// Returns whether blocks have been VALID without a failed call for this time.
    pub fn is_flowing(&self, time: Duration) -> bool {
        let now = Instant::now();
        let from = now.checked_sub(time).unwrap_or(now);
        let window = self.since(from);
        window.blocks > 0 && window.failed.is_empty() && window.gap < time.as_secs_f64() / 2.0
    }

    /// Stops or resumes sending blocks.
    pub fn pause(&self, is_paused: bool) {
        self.shared.pause.store(is_paused, Relaxed);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

/// A block, its state root and its slot.
struct Head {
    tip: Tip,
    state_root: B256,
    slot: u64,
}

/// Returns the head of a chain of empty blocks.
fn head(engine: &mut Client) -> anyhow::Result<Head> {
    let block = engine.call("eth_getBlockByNumber", &json!(["latest", false]))?;
    let hash = |field: &str| -> anyhow::Result<B256> {
        Ok(block[field].as_str().with_context(|| format!("no {field} of the head"))?.parse()?)
    };
    let number = |field: &str| -> anyhow::Result<u64> {
        let text = block[field].as_str().with_context(|| format!("no {field} of the head"))?;
        Ok(u64::from_str_radix(text.trim_start_matches("0x"), 16)?)
    };
    Ok(Head {
        tip: Tip { number: number("number")?, hash: hash("hash")? },
        state_root: hash("stateRoot")?,
        slot: blocks::slot_of(number("timestamp")?),
    })
}

struct Sender {
    engine: Client,
    shared: Arc<Shared>,
    /// Hashes of the last blocks, newest first.
    recent: VecDeque<B256>,
    head: Head,
}

impl Sender {
    fn run(mut self) {
        while !self.shared.stop.load(Relaxed) {
            if self.shared.pause.load(Relaxed) {
                std::thread::sleep(PACE);
                continue;
            }
            let begun = Instant::now();
            self.head.slot += 1;
            let (next, body) = child(self.head.tip, self.head.state_root, self.head.slot, 0);
            self.until_valid(&body, true);
            self.recent.push_front(next.hash);
            self.recent.truncate(FINALITY[1] + 1);
            let [safe, finalized] = FINALITY.map(|behind| self.behind(behind));
            self.until_valid(&forkchoice(next.hash, safe, finalized), false);
            self.head.tip = next;
            std::thread::sleep(PACE.saturating_sub(begun.elapsed()));
        }
    }

    fn behind(&self, blocks: usize) -> B256 {
        self.recent.get(blocks).copied().unwrap_or(B256::ZERO)
    }

    /// Sends a call until its answer is VALID.
    fn until_valid(&mut self, body: &str, is_payload: bool) {
        while !self.shared.stop.load(Relaxed) {
            let begun = Instant::now();
            let answer = match self.engine.post(body) {
                Ok(answer) => status(&answer.value),
                Err(error) => reason(&error),
            };
            let ended = Instant::now();
            let is_valid = answer == "VALID";
            let mut calls = self.shared.calls.lock();
            calls.push_back(Call { ended, took: ended - begun, is_payload, answer });
            if calls.len() > CALLS_MAX {
                calls.pop_front();
            }
            drop(calls);
            if is_valid {
                return;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}

/// Returns the status in an answer to newPayload or forkchoiceUpdated, or its error.
fn status(answer: &Value) -> String {
    let result = &answer["result"];
    let status = result["status"].as_str().or(result["payloadStatus"]["status"].as_str());
    let error = || format!("error {}: {:.60}", answer["error"]["code"], answer["error"]["message"]);
    status.map_or_else(error, str::to_owned)
}

/// Shortens an error, so that similar ones can be counted.
fn reason(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let text = text.split(" (os error").next().unwrap_or_default();
    format!("{:.80}", text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn window<'a>(calls: impl Iterator<Item = &'a Call>, from: Instant, to: Instant) -> Window {
    let mut window = Window::default();
    let mut last = from;
    for call in calls {
        let is_valid = call.answer == "VALID";
        if call.ended < from {
            continue;
        }
        window.hang = window.hang.max(call.took.as_secs_f64());
        if is_valid && call.is_payload {
            window.blocks += 1;
            window.gap = window.gap.max((call.ended - last).as_secs_f64());
            last = call.ended;
        }
        if !is_valid {
            *window.failed.entry(call.answer.clone()).or_default() += 1;
            window.lost += usize::from(matches!(call.answer.as_str(), "SYNCING" | "INVALID"));
        }
    }
    window.gap = window.gap.max(to.saturating_duration_since(last).as_secs_f64());
    window
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_the_longest_gap_and_call_and_counts_what_failed() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let call = |ended: u64, took: u64, answer: &str| Call {
            ended: at(ended),
            took: Duration::from_secs(took),
            is_payload: true,
            answer: answer.to_owned(),
        };
        let calls = [
            call(1, 1, "VALID"),
            call(2, 0, "VALID"),
            call(9, 7, "connect: refused"),
            call(10, 0, "VALID"),
            call(11, 0, "SYNCING"),
        ];
        let seen = window(calls.iter(), at(2), at(12));
        assert_eq!((seen.blocks, seen.gap, seen.hang, seen.lost), (2, 8.0, 7.0, 1));
        assert_eq!(seen.failed["connect: refused"], 1);
        let unfinished = window(calls.iter(), at(10), at(40));
        assert_eq!(unfinished.gap, 30.0, "the gap that is still open counts");
    }

    #[test]
    fn statuses_of_both_calls_and_errors_are_read() {
        assert_eq!(status(&json!({"result": {"status": "VALID"}})), "VALID");
        assert_eq!(status(&json!({"result": {"payloadStatus": {"status": "SYNCING"}}})), "SYNCING");
        let error = status(&json!({"error": {"code": -32000, "message": "storage"}}));
        assert_eq!(error, "error -32000: \"storage\"");
    }
}
