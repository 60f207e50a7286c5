//! At the level `job`, each job of a proof thread is a span. The recorder belongs to the whole
//! process, so this is a test of its own.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/token.rs"]
mod token;

use fake::Fake;
use std::sync::Arc;
use tandem_policy::LivePolicies;
use tandem_proto::multiproof::{Begin, ProofApi, StateUpdate};
use tandem_telemetry::{Config, SpanRecord, TraceLevel, Traces, Value, init, union_of_intervals};
use token::{id, policies, small, start, token, token_state};
use tracing::info_span;

fn number(span: &SpanRecord, attribute: &str) -> i64 {
    let value = span.attributes.iter().find(|(name, _)| *name == attribute);
    let Some((_, Value::Int(number))) = value else { panic!("{attribute}: {span:?}") };
    *number
}

#[test]
fn each_job_is_a_span_below_its_thread() {
    let traces = Traces { level: TraceLevel::Job, ..Traces::default() };
    let telemetry = init(&Config { traces, ..Config::default() }).unwrap();
    let fake = Fake::new(id(0, 0), &token_state(40));
    let live = LivePolicies::new(policies("none", "always", 5));
    let workers = start(&fake, &small(2), &live);
    let work;
    {
        let _root = info_span!(target: "tandem_executor", "on_new_payload").entered();
        let begin = Begin::new(id(1, 1), id(0, 0).hash);
        let mut session = workers.begin(begin).unwrap();
        session.update(Arc::new(StateUpdate { accounts: vec![token(40)] }));
        let roots = session.roots().unwrap();
        work = roots.work;
    }
    workers.stop();
    let spans: Vec<_> = telemetry.ring().traces(1).into_iter().flatten().collect();
    let named = |name: &str| {
        let named = spans.iter().filter(|span| span.name == name);
        named.map(|span| &**span).collect::<Vec<_>>()
    };
    let (threads, jobs) = (named("proof worker"), named("proof job"));
    // 41 keys in 7 jobs, no more than 8 for two threads, and the tops of the 15 untouched shards in
    // 3.
    assert_eq!(jobs.len(), 10);
    // The lane has exactly the times of the workers, and the executor is told the same.
    let busy = |names: &[&str]| {
        let spans = names.iter().flat_map(|name| named(name));
        union_of_intervals(spans.flat_map(|span| span.busy.clone()).collect())
    };
    let lane = busy(&["state root, while executing", "state root, after execution"]);
    assert_eq!(lane, busy(&["storage worker", "account worker", "proof worker"]));
    assert_eq!(lane, work);
    let owner = named("storage worker");
    assert_eq!(owner.len(), 1);
    assert_eq!((number(owner[0], "targets"), number(owner[0], "jobs")), (56, 10));
    let time = |attribute| number(owner[0], attribute);
    assert!(time("proof.first_ready_us") <= time("proof.first_taken_us"));
    assert!(time("proof.gap_p50_us") <= time("proof.gap_max_us"));
    assert_eq!(named("account worker").len(), 1);
    assert!((1..=2).contains(&threads.len()), "{}", threads.len());
    assert!(threads.iter().all(|thread| !thread.busy.is_empty()));
    for thread in threads {
        let own: Vec<_> = jobs.iter().filter(|job| job.parent_id == thread.span_id).collect();
        assert_eq!(number(thread, "jobs"), own.len() as i64);
        let targets: i64 = own.iter().map(|job| number(job, "targets")).sum();
        assert_eq!(number(thread, "targets"), targets);
        assert!(own.iter().all(|job| number(job, "walks") == 1 && number(job, "worker") == 0));
        assert!(own.iter().all(|job| job.start_ns >= thread.start_ns));
        assert!(own.iter().all(|job| job.end_ns <= thread.end_ns));
    }
}
