//! Messages between a client and a server.

use crate::scripted::{Event, Host, Scripted, begin, roots, update, wait_until};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_multiproof_workers_client::{Client, ClientConfig};
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    multiproof::{Error, Foresight, Prefetch, ProofApi, ShardRoots},
    storage,
    wire::multiproof_workers::v1::{
        self, multiproof_workers_client::MultiproofWorkersClient,
        process_block_request::Command as WireCommand,
    },
};
use tandem_telemetry::{Recorder, Ring, SpanContext, TraceLevel};
use tonic::Code;
use tracing_subscriber::layer::SubscriberExt;

fn start() -> (Arc<Scripted>, Host, Arc<Client>) {
    start_with(ClientConfig::default())
}

fn start_with(config: ClientConfig) -> (Arc<Scripted>, Host, Arc<Client>) {
    let workers = Arc::new(Scripted::default());
    let host = Host::start(workers.clone());
    let client = host.client(config);
    (workers, host, client)
}

fn run(client: &Client, number: u64) -> Result<ShardRoots, Error> {
    let mut session = client.begin(begin(number))?;
    session.update(update(number, 2));
    session.finish();
    session.roots()
}

#[test]
fn two_blocks_in_a_row_arrive_in_order_on_one_stream() {
    let (workers, _host, client) = start();
    assert_eq!(run(&client, 1).unwrap(), roots(1));
    assert_eq!(run(&client, 2).unwrap(), roots(2));
    let block = |number| {
        [Event::Begin(begin(number)), Event::Update((*update(number, 2)).clone()), Event::Finish]
    };
    assert_eq!(workers.events(), [block(1), block(2)].concat());
}

#[test]
fn roots_alone_finish_the_block() {
    let (workers, _host, client) = start();
    assert_eq!(client.begin(begin(1)).unwrap().roots().unwrap(), roots(1));
    assert_eq!(workers.events(), [Event::Begin(begin(1)), Event::Finish]);
}

#[test]
fn errors_of_every_kind_keep_their_variant() {
    let (workers, _host, client) = start();
    let hash = B256::repeat_byte(1);
    let errors = [
        Error::ParentUnreachable { parent: hash, base: BlockId::new(3, hash) },
        Error::Storage(storage::Error::Fenced { held: 1, granted: 2 }),
        Error::Storage(storage::Error::UnknownBlock(hash)),
        Error::Storage(storage::Error::RewindTooDeep { to: 1, oldest: 2 }),
        Error::Storage(storage::Error::Store("corrupt".into())),
        Error::Storage(storage::Error::Unavailable("away".into())),
        Error::Storage(storage::Error::Refused("too large".into())),
        Error::Trie("node".into()),
        Error::Unavailable,
    ];
    for error in errors {
        *workers.roots_error.lock().unwrap() = Some(error.clone());
        assert_eq!(run(&client, 1), Err(error.clone()));
        *workers.roots_error.lock().unwrap() = None;
        *workers.begin_error.lock().unwrap() = Some(error.clone());
        assert_eq!(run(&client, 1), Err(error));
        *workers.begin_error.lock().unwrap() = None;
    }
    assert_eq!(run(&client, 1), Ok(roots(1)), "the stream goes on");
}

#[test]
fn what_is_not_finished_is_cancelled_and_a_refusal_keeps_its_place() {
    let (workers, _host, client) = start();
    let mut session = client.begin(begin(1)).unwrap();
    session.update(update(1, 0));
    drop(session);
    client.discard(B256::repeat_byte(1));
    run(&client, 2).unwrap();
    client.discard(B256::repeat_byte(2));
    let mut finished = client.begin(begin(3)).unwrap();
    finished.finish();
    drop(finished);
    run(&client, 4).unwrap();
    let expected = [
        Event::Begin(begin(1)),
        Event::Update((*update(1, 0)).clone()),
        Event::Cancel,
        Event::Discard(B256::repeat_byte(1)),
        Event::Begin(begin(2)),
        Event::Update((*update(2, 2)).clone()),
        Event::Finish,
        Event::Discard(B256::repeat_byte(2)),
        Event::Begin(begin(3)),
        Event::Finish,
        Event::Begin(begin(4)),
        Event::Update((*update(4, 2)).clone()),
        Event::Finish,
    ];
    assert_eq!(workers.events(), expected);
}

#[test]
fn advice_arrives_and_never_waits() {
    let (workers, _host, client) =
        start_with(ClientConfig { queue_capacity: 8, ..ClientConfig::default() });
    let keys = vec![(B256::repeat_byte(5), vec![B256::repeat_byte(6)]), (B256::ZERO, vec![])];
    let keys = Arc::new(Prefetch { accounts: keys });
    // The server may not be there yet: the advice is dropped, at once.
    client.prefetch(B256::ZERO, keys.clone());
    let block = begin(1).block.hash;
    let session = client.begin(begin(1)).unwrap();
    client.prefetch(block, keys.clone());
    let wanted = Event::Prefetch(block, (*keys).clone());
    workers.wait_for(|events| events.contains(&wanted));
    let before = update(1, 1).accounts.clone();
    let foresight = Foresight { before, after: update(1, 2).accounts.clone() };
    client.foresee(block, Arc::new(foresight.clone()));
    let wanted = Event::Foresee(block, foresight);
    workers.wait_for(|events| events.contains(&wanted));
    session.roots().unwrap();

    workers.gate.set_closed(true);
    let mut session = client.begin(begin(2)).unwrap();
    session.update(update(2, 1));
    let started = Instant::now();
    for _ in 0..50_000 {
        client.prefetch(begin(2).block.hash, keys.clone());
    }
    assert!(started.elapsed() < Duration::from_secs(5), "none of it waited");
    workers.gate.set_closed(false);
    session.roots().unwrap();
    let advice =
        workers.events().iter().filter(|event| matches!(event, Event::Prefetch(..))).count();
    assert!(advice < 50_000, "what found no room was dropped: {advice}");
}

/// The caller waits when everything between it and the workers is full, and nothing is lost.
#[test]
fn a_full_queue_holds_the_caller_until_there_is_room() {
    let (workers, _host, client) = start_with(ClientConfig {
        queue_capacity: 4,
        answer_ms_max: 60_000,
        ..ClientConfig::default()
    });
    const UPDATES: u64 = 4_000;
    workers.gate.set_closed(true);
    let sent = Arc::new(AtomicU64::new(0));
    let counting = sent.clone();
    let caller = thread::spawn(move || {
        let mut session = client.begin(begin(1)).unwrap();
        for number in 0..UPDATES {
            session.update(update(number, 500));
            counting.fetch_add(1, Relaxed);
        }
        session.roots()
    });
    // The caller stops well before the end, because everything in between is bounded.
    wait_until(|| sent.load(Relaxed) > 50);
    let mut before = u64::MAX;
    while sent.load(Relaxed) != before {
        before = sent.load(Relaxed);
        thread::sleep(Duration::from_millis(300));
    }
    assert!(before < UPDATES, "{before}");
    workers.gate.set_closed(false);
    assert_eq!(caller.join().unwrap(), Ok(roots(1)));
    let accounts = workers.events().into_iter().flat_map(|event| match event {
        Event::Update(update) => update.accounts,
        _ => Vec::new(),
    });
    // Each update has an account of its own, so those that were merged have theirs one after the other.
    let expected = (0..UPDATES).flat_map(|number| update(number, 500).accounts.clone());
    assert!(accounts.eq(expected), "all of them, in order");
}

#[test]
fn workers_that_do_not_answer_in_time_are_not_waited_for() {
    let config = ClientConfig { queue_capacity: 4, answer_ms_max: 200, ..ClientConfig::default() };
    let (workers, _host, client) = start_with(config);
    workers.gate.set_closed(true);
    let started = Instant::now();
    assert_eq!(run(&client, 1), Err(Error::Unavailable));
    // The queue is full before the end of this block.
    let mut session = client.begin(begin(2)).unwrap();
    (0..4_000).for_each(|number| session.update(update(number, 500)));
    assert_eq!(session.roots(), Err(Error::Unavailable));
    assert!(started.elapsed() < Duration::from_secs(20));
    workers.gate.set_closed(false);
    wait_until(|| run(&client, 3) == Ok(roots(3)));
}

#[test]
fn status_and_refusals_have_calls_of_their_own() {
    let (workers, host, client) = start();
    wait_until(|| client.is_connected());
    assert_eq!(client.status(), workers.status());
    host.runtime.block_on(async {
        let address = format!("http://{}", host.address);
        let mut calls = MultiproofWorkersClient::connect(address).await.unwrap();
        let status = calls.get_status(v1::GetStatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status, workers.status().unwrap().into());
        let block = B256::repeat_byte(4);
        calls.discard(v1::DiscardRequest::from(block)).await.unwrap();
        let short = v1::DiscardRequest { block: vec![1].into() };
        let refused = calls.discard(short).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.message(), "discard.block: expected 32 bytes, got 1");
    });
    workers.wait_for(|events| events == [Event::Discard(B256::repeat_byte(4))]);
}

#[test]
fn a_malformed_command_ends_the_stream_and_names_the_field() {
    let (workers, host, client) = start();
    let request = |command| v1::ProcessBlockRequest { session: 1, command };
    let begin = v1::Begin::from((begin(1), String::new()));
    let requests = [request(Some(WireCommand::Begin(begin))), request(None)];
    host.runtime.block_on(async {
        let address = format!("http://{}", host.address);
        let mut calls = MultiproofWorkersClient::connect(address).await.unwrap();
        // The stream stays open on this side.
        let requests =
            tokio_stream::StreamExt::chain(tokio_stream::iter(requests), tokio_stream::pending());
        let mut answers = calls.process_block(requests).await.unwrap().into_inner();
        let refused = answers.message().await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.message(), "process_block.command: is missing");
    });
    workers.wait_for(|events| events.last() == Some(&Event::Cancel));
    assert_eq!(run(&client, 2), Ok(roots(2)), "others are served");
}

#[test]
fn a_session_that_nobody_began_is_answered() {
    let (_workers, host, _client) = start();
    let finish =
        v1::ProcessBlockRequest { session: 9, command: Some(WireCommand::Finish(v1::Finish {})) };
    host.runtime.block_on(async {
        let address = format!("http://{}", host.address);
        let mut calls = MultiproofWorkersClient::connect(address).await.unwrap();
        let answers = calls.process_block(tokio_stream::iter([finish])).await.unwrap();
        let answer = answers.into_inner().message().await.unwrap().unwrap();
        assert_eq!(answer.session, 9);
        let expected = v1::Error::from(&Error::Unavailable);
        let error = v1::process_block_response::Answer::Error(expected);
        assert_eq!(answer.answer, Some(error));
    });
}

#[test]
fn a_block_continues_the_trace_of_its_caller() {
    let recorder = Recorder::new(TraceLevel::Stage, Arc::new(Ring::new(100_000, 64 << 20)));
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    // The server's thread has no subscriber of its own.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let (_workers, _host, client) = start();
    let context = {
        let span = tracing::info_span!(target: "tandem_executor", "caller").entered();
        run(&client, 1).unwrap();
        SpanContext::of(&span).unwrap()
    };
    let find = || {
        let spans = recorder.ring().traces(usize::MAX).into_iter().flatten();
        spans
            .into_iter()
            .find(|span| span.name == "process_block" && span.trace_id == context.trace_id)
    };
    wait_until(|| find().is_some());
    let span = find().unwrap();
    assert_eq!(span.parent_id, context.span_id);
    assert_eq!(span.service, "multiproof-workers");
}
