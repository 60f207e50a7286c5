//! Writers that call a storage-writer directly, and the judge of what was accepted.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_proto::{
    storage::{Forkchoice, Term},
    wire::storage_writer::v1::{self, storage_writer_client::StorageWriterClient},
};
use tonic::transport::{Channel, Endpoint};

/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(8);

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_millis(800);

/// Calls that were accepted in a term.
struct Accepted {
    /// Side that accepted it.
    side: usize,
    /// End of the first call that was accepted.
    first_end: Instant,
    /// Begin of the last one.
    last_begin: Instant,
}

/// Judge of grants and writes. It notes when each call began and ended, as its caller saw it.
#[derive(Default)]
pub struct Judge {
    terms: Mutex<BTreeMap<Term, Accepted>>,
    writes: Mutex<[u64; 2]>,
}

impl Judge {
    /// Notes a call that was accepted.
    fn note(&self, term: Term, side: usize, begin: Instant, end: Instant) {
        let mut terms = self.terms.lock().unwrap();
        let new = Accepted { side, first_end: end, last_begin: begin };
        let noted = terms.entry(term).or_insert(new);
        // The check reports it.
        if noted.side != side {
            noted.side = usize::MAX;
        }
        noted.first_end = noted.first_end.min(end);
        noted.last_begin = noted.last_begin.max(begin);
    }

    /// Returns the writes that a side accepted.
    pub fn accepted(&self, side: usize) -> u64 {
        self.writes.lock().unwrap()[side]
    }

    /// Returns the number of terms in which something was accepted.
    pub fn terms(&self) -> usize {
        self.terms.lock().unwrap().len()
    }

    /// Checks that each term is that of one side, and that no call of a term began and was accepted
    /// after one of a later term had been.
    pub fn check(&self, at: impl Fn() -> String) {
        let terms = self.terms.lock().unwrap();
        let mut later: Option<(Term, Instant)> = None;
        for (term, Accepted { side, first_end, last_begin }) in terms.iter().rev() {
            assert!(*side < 2, "{}: two sides accepted writes in {term:?}", at());
            if let Some((newer, end)) = later {
                let late = last_begin.saturating_duration_since(end);
                assert!(
                    late.is_zero(),
                    "{}: {term:?} accepted a call that began {late:?} after {newer:?} had",
                    at()
                );
            }
            later = Some(match later {
                Some((newer, end)) if end < *first_end => (newer, end),
                _ => (*term, *first_end),
            });
        }
    }
}

/// Thread that writes at one side all the time.
pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    /// Starts to write a forkchoice at the storage-writer with this address.
    pub fn start(side: usize, address: SocketAddr, fork: Forkchoice, judge: Arc<Judge>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(write(side, address, fork, &judge, &stopped));
        });
        Self { stop, thread }
    }

    /// Ends the writes.
    pub fn stop(self) {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap();
    }
}

/// Asks for the right to write whenever it is lost, and writes with it. No look at the health of the
/// storage-writer keeps it from trying.
async fn write(
    side: usize,
    address: SocketAddr,
    forkchoice: Forkchoice,
    judge: &Judge,
    stop: &AtomicBool,
) {
    let endpoint = Endpoint::new(format!("http://{address}")).unwrap().timeout(ANSWER_MAX);
    let mut client = StorageWriterClient::new(endpoint.connect_lazy());
    let mut granted: Option<v1::AcquireEpochResponse> = None;
    while !stop.load(SeqCst) {
        let begin = Instant::now();
        let result = match &granted {
            None => acquire(&mut client, side).await.map(|answer| {
                let epoch = answer.epoch;
                granted = Some(answer);
                epoch
            }),
            Some(v1::AcquireEpochResponse { epoch, token }) => {
                let request = v1::CanonicalizeRequest {
                    epoch: *epoch,
                    forkchoice: Some(forkchoice.into()),
                    token: token.clone(),
                };
                let answer = client.canonicalize(request).await;
                answer.map(|_| {
                    judge.writes.lock().unwrap()[side] += 1;
                    *epoch
                })
            }
        };
        match result {
            Ok(epoch) => judge.note(Term::of_epoch(epoch), side, begin, Instant::now()),
            Err(_) => granted = None,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn acquire(
    client: &mut StorageWriterClient<Channel>,
    side: usize,
) -> Result<v1::AcquireEpochResponse, tonic::Status> {
    let request = v1::AcquireEpochRequest {
        executor: format!("writer-{side}"),
        takes_token: true,
        ..v1::AcquireEpochRequest::default()
    };
    client.acquire_epoch(request).await.map(tonic::Response::into_inner)
}

#[test]
fn the_judge_refuses_two_writers() {
    let begun = Instant::now();
    let at = |ms: u64| begun + Duration::from_millis(ms);
    let judged = |calls: &[(u32, usize, u64, u64)]| {
        let judge = Judge::default();
        for (term, side, begin, end) in calls {
            judge.note(Term(*term), *side, at(*begin), at(*end));
        }
        std::panic::catch_unwind(|| judge.check(|| "a test".to_owned())).is_ok()
    };
    assert!(judged(&[(0, 0, 1, 2), (1, 1, 3, 4), (2, 0, 5, 6)]));
    assert!(judged(&[(0, 0, 1, 5), (1, 1, 3, 4)]), "it may have been accepted before");
    assert!(!judged(&[(0, 0, 1, 2), (1, 1, 3, 4), (0, 0, 5, 6)]));
    assert!(!judged(&[(2, 0, 1, 2), (0, 0, 3, 4), (1, 1, 2, 5)]));
    assert!(!judged(&[(1, 0, 1, 2), (1, 1, 3, 4)]));
}
