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
use tandem_telemetry::{Config, SpanRecord, TraceLevel, Traces, Value, init};
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
    {
        let _root = info_span!(target: "tandem_executor", "on_new_payload").entered();
        let begin = Begin::new(id(1, 1), id(0, 0).hash);
        let mut session = workers.begin(begin).unwrap();
        session.update(Arc::new(StateUpdate { accounts: vec![token(40)] }));
        session.roots().unwrap();
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
