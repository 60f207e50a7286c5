//! Threads that call a node's JSON-RPC at a rate, while something else is measured.

use crate::client::Client;
use anyhow::Context as _;
use std::{
    net::SocketAddr,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Longest wait of a thread for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Threads that send requests until they are stopped.
pub struct Callers {
    begin: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

/// Outcome of the calls.
pub struct Called {
    /// Calls a second that were answered; each call of a batch counts.
    pub per_second: f64,
    /// Share of them whose answer was a result and no error.
    pub taken: f64,
}

impl Callers {
    /// Starts a thread for each list of bodies. Each thread sends the bodies of its list in order, and begins
    /// again at the end. All threads together send `per_second` bodies a second, or fewer, because a thread
    /// waits for each answer.
    pub fn start(to: SocketAddr, bodies: &Arc<[Vec<String>]>, per_second: u64) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (sent, taken) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let pause = Duration::from_secs(1) * bodies.len() as u32 / per_second as u32;
        let send = |thread: usize| {
            let (bodies, stop) = (bodies.clone(), stop.clone());
            let (sent, taken) = (sent.clone(), taken.clone());
            thread::spawn(move || {
                // Callers have machines of their own.
                tandem_actor::take_idle_priority();
                let mut client = Client::public(to, ANSWER_TIME_MAX);
                let mut next = Instant::now();
                for body in bodies[thread].iter().cycle() {
                    if stop.load(Relaxed) {
                        break;
                    }
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    // A client that is behind is not sent all at once what it missed.
                    next = (next + pause).max(Instant::now());
                    let answer = client.post(body)?.value;
                    let answers = match answer.as_array() {
                        Some(batch) => batch,
                        None => slice::from_ref(&answer),
                    };
                    let good = answers.iter().filter(|it| it["result"].is_string()).count();
                    sent.fetch_add(answers.len() as u64, Relaxed);
                    taken.fetch_add(good as u64, Relaxed);
                }
                Ok(())
            })
        };
        let threads = (0..bodies.len()).map(send).collect();
        Self { begin: Instant::now(), stop, sent, taken, threads }
    }

    /// Stops the threads.
    ///
    /// # Errors
    /// If a thread had no answer to a call.
    pub fn end(self) -> anyhow::Result<Called> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let (sent, taken) = (self.sent.load(Relaxed) as f64, self.taken.load(Relaxed) as f64);
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().ok().context("a thread that calls panicked")??;
        }
        Ok(Called { per_second: sent / seconds, taken: taken / sent.max(1.0) })
    }
}
