//! Tests two executors on one storage-writer: the one on standby answers calls, and takes over.

use crate::binary;
use rustix::process::Signal;
use serde_json::json;
use std::time::{Duration, Instant};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::{
    Client, Corpus, Recorded, Service, SingleExecutor, init, send_head, send_payload, signal,
};
use tempfile::TempDir;
use tokio::task::block_in_place;

/// Time that a consensus client waits for an answer.
const CALL_MAX: Duration = Duration::from_secs(8);

/// A storage-writer and a worker, for executors that come and go.
struct House {
    folder: TempDir,
    storage: Service,
    worker: Service,
    /// Seconds for which an executor keeps its ports open at the end.
    linger: &'static str,
}

impl House {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        init(binary(), folder.path());
        let storage = Service::storage_writer(binary(), folder.path(), "storage", 0);
        let url = format!("http://{}", storage.address);
        let own = ["multiproof-worker", "--storage-writer", &url];
        let worker = Service::start(binary(), folder.path(), "worker", 0, &own);
        Self { folder, storage, worker, linger: "5" }
    }

    fn executor(&self, name: &str) -> SingleExecutor {
        let at = |service: &Service| format!("http://{}", service.address);
        let (storage, worker) = (at(&self.storage), at(&self.worker));
        let more = ["--storage-writer", &storage, "--worker", &worker];
        let variables = [("TANDEM__EXECUTOR__LINGER_SECONDS", self.linger)];
        SingleExecutor::start_with(binary(), self.folder.path(), name, &more, &variables)
    }

    /// Returns an executor that has the right to write, and one on standby.
    fn pair(&self) -> (SingleExecutor, SingleExecutor) {
        let first = self.executor("first");
        first.service.becomes_ready();
        let second = self.executor("second");
        second.service.becomes_ready();
        assert!(first.has_right() && !second.has_right());
        (first, second)
    }

    fn restart_storage(&mut self, name: &str) {
        let port = self.storage.address.port();
        self.storage.running.kill();
        self.storage = Service::storage_writer(binary(), self.folder.path(), name, port);
    }
}

/// Sends a block and makes it the head, with retries. Returns the longest time of a call.
async fn send(engine: &mut Client, block: &Recorded) -> Duration {
    let end = Instant::now() + Duration::from_secs(60);
    let mut longest = Duration::ZERO;
    loop {
        let begun = Instant::now();
        let sent = send_payload(engine, block).await;
        longest = longest.max(begun.elapsed());
        let error = match sent {
            Ok(()) => match send_head(engine, block.hash).await {
                Ok(()) => return longest,
                Err(error) => error,
            },
            Err(error) => error,
        };
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_stands_by_is_ready_and_answers_and_takes_over() {
    let house = House::start();
    let (mut first, second) = block_in_place(|| house.pair());
    let mut blocks = Corpus::demo().payloads();
    let (mut direct, mut through) = (first.endpoints.engine(), second.endpoints.engine());
    // The executor on standby answers VALID for blocks of which it executes nothing.
    let mut times = [Vec::new(), Vec::new()];
    for (index, block) in blocks.by_ref().take(20).enumerate() {
        let engine = if index % 2 == 0 { &mut direct } else { &mut through };
        let begun = Instant::now();
        send_payload(engine, &block).await.unwrap();
        times[index % 2].push(begun.elapsed());
        send_head(engine, block.hash).await.unwrap();
    }
    times.iter_mut().for_each(|times| times.sort_unstable());
    let [direct, passed] = times.map(|times| times[times.len() / 2]);
    eprintln!("newPayload p50: {direct:?} at the holder, {passed:?} through the other");
    let number = second.endpoints.http().call("eth_blockNumber", json!([])).await.unwrap();
    assert_eq!(number, json!("0x14"));
    assert!(!second.has_right());
    // It refuses a caller without a token itself.
    let mut stranger = second.endpoints.engine();
    let refused = stranger.post("{}", None).await.unwrap();
    assert_eq!((refused.status, &refused.body[..]), (401, &b"missing token\n"[..]));

    let gone = Instant::now();
    block_in_place(|| first.service.running.kill());
    let block = blocks.next().unwrap();
    let longest = send(&mut through, &block).await;
    eprintln!("VALID {:?} after SIGKILL, longest call {longest:?}", gone.elapsed());
    assert!(second.has_right());
    block_in_place(|| second.service.becomes_ready());
    let log = second.service.running.log();
    assert!(log.contains("first has the right to write"), "{log}");
    for block in blocks {
        send_payload(&mut through, &block).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_one_passes_calls_on_to_its_successor_for_a_while() {
    // Longer than the calls of this test take on a busy machine.
    let house = House { linger: "15", ..House::start() };
    let (mut first, second) = block_in_place(|| house.pair());
    let mut blocks = Corpus::demo().payloads();
    let mut kept = first.endpoints.engine();
    send(&mut kept, &blocks.next().unwrap()).await;
    assert!(kept.is_connected().await);

    let begun = Instant::now();
    signal(first.service.running.pid(), Signal::TERM);
    // Over a new connection, like that of a client that is still routed there.
    let mut new = first.endpoints.engine();
    let mut longest = send(&mut new, &blocks.next().unwrap()).await;
    eprintln!("VALID {:?} after SIGTERM, longest call {longest:?}", begun.elapsed());
    block_in_place(|| second.takes_over());
    assert!(!kept.is_connected().await, "idle connections end");
    assert_eq!(first.service.get("/readyz"), (503, "waiting for: the end".to_owned()));
    assert_eq!(first.service.get("/livez").0, 200);
    // The old executor still answers while the new one does.
    longest = longest.max(send(&mut new, &blocks.next().unwrap()).await);
    longest = longest.max(send(&mut second.endpoints.engine(), &blocks.next().unwrap()).await);
    longest = longest.max(send(&mut first.endpoints.engine(), &blocks.next().unwrap()).await);
    assert!(longest < CALL_MAX, "{longest:?}");
    let log = first.service.running.log();
    assert!(log.contains("calls are passed on to the successor"), "{log}");
    let status = block_in_place(|| first.service.running.ends());
    assert!(status.success(), "{status}\n{}", first.service.running.log());
    eprintln!("ended {:?} after SIGTERM, longest call {longest:?}", begun.elapsed());
    send(&mut second.endpoints.engine(), &blocks.next().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_one_without_a_successor_says_so() {
    let house = House { linger: "15", ..House::start() };
    let mut only = house.executor("only");
    block_in_place(|| only.service.becomes_ready());
    let mut blocks = Corpus::demo().payloads();
    send(&mut only.endpoints.engine(), &blocks.next().unwrap()).await;
    signal(only.service.running.pid(), Signal::TERM);
    block_in_place(|| only.service.waits_for("the end"));
    let begun = Instant::now();
    let refused = send_payload(&mut only.endpoints.engine(), &blocks.next().unwrap()).await;
    let took = begun.elapsed();
    let error = refused.unwrap_err();
    let reason = "this executor is stopping, and no other one has the right to write";
    assert!(error.starts_with("HTTP 503: ") && error.contains(reason), "{error}");
    assert!(took < CALL_MAX, "{took:?}");
    eprintln!("refused after {took:?}");
    assert!(block_in_place(|| only.service.running.ends()).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_storage_writer_comes_back_to_the_executor_that_it_had() {
    let mut house = House::start();
    let (first, second) = block_in_place(|| house.pair());
    let mut blocks = Corpus::demo().payloads();
    for round in 0..4 {
        block_in_place(|| house.restart_storage(&format!("storage-{round}")));
        // Both ask at once; the other executor answers through the holder.
        let block = blocks.next().unwrap();
        send(&mut second.endpoints.engine(), &block).await;
        assert!(first.has_right() && !second.has_right(), "{round}");
        block_in_place(|| {
            first.service.becomes_ready();
            second.service.becomes_ready();
        });
    }
    let log = house.storage.running.log();
    assert!(!log.contains("epoch granted"), "{log}");
}

#[test]
fn an_executor_that_stands_by_takes_over_when_the_first_is_gone() {
    let mut house = House::start();
    let (mut first, mut second) = house.pair();
    // Longer than a lease: the first executor renews it.
    std::thread::sleep(Duration::from_secs(3));
    assert!(first.has_right() && !second.has_right());

    let gone = Instant::now();
    first.service.running.kill();
    second.takes_over();
    eprintln!("took over {:?} after SIGKILL", gone.elapsed());

    let mut third = house.executor("third");
    third.service.becomes_ready();
    let gone = Instant::now();
    signal(second.service.running.pid(), Signal::TERM);
    third.takes_over();
    eprintln!("took over {:?} after SIGTERM", gone.elapsed());
    assert!(second.service.running.ends().success());

    // An executor that is silent for longer than a lease, while another one waits, is fenced and
    // ends.
    let fourth = house.executor("fourth");
    fourth.service.becomes_ready();
    signal(third.service.running.pid(), Signal::STOP);
    fourth.takes_over();
    signal(third.service.running.pid(), Signal::CONT);
    assert!(!third.service.running.ends().success());
    let log = third.service.running.log();
    assert!(log.contains("another executor has taken over"), "{log}");
    assert!(fourth.has_right());

    // A restarted storage-writer finds its executor again.
    house.storage.running.kill();
    fourth.service.waits_for("storage-writer");
    let (port, folder) = (house.storage.address.port(), house.folder.path());
    house.storage = Service::storage_writer(binary(), folder, "again", port);
    fourth.service.becomes_ready();
    assert!(fourth.has_right());
}

#[test]
fn one_that_does_not_reach_the_executor_with_the_right_is_not_ready() {
    let house = House::start();
    let first = house.executor("first");
    first.service.becomes_ready();
    let second = house.executor("second");
    second.service.becomes_ready();
    // The executor stands still and keeps no promise. Before its lease ends, no other one has the
    // right.
    signal(first.service.running.pid(), Signal::STOP);
    let gone = || {
        let (code, text) = second.service.get("/readyz");
        let waits = text == "waiting for: the right to write, or the executor that has it";
        // A busy machine may see the take-over first.
        (second.has_right() || (code == 503 && waits)).then_some(())
    };
    eventually("the standing still is noticed", gone);
    second.takes_over();
    second.service.becomes_ready();
}

#[test]
fn an_executor_that_stands_by_ends_in_the_midst_of_a_question() {
    let folder = TempDir::new().unwrap();
    // No service listens there: the executor waits for a connection when it is told to end.
    let nowhere = ["--storage-writer=http://127.0.0.1:1", "--worker=http://127.0.0.1:1"];
    let mut lonely = SingleExecutor::start(binary(), folder.path(), "lonely", &nowhere);
    lonely.service.waits_for("storage-writer");
    assert!(lonely.service.running.terminate().0.success());
    let log = lonely.service.running.log();
    assert!(!log.contains("panicked"), "{log}");
}
