//! Processors on which workers may run while a block is open. The test finds threads by their
//! names, so it is a test of its own.
#![cfg(target_os = "linux")]
#![allow(dead_code, clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/token.rs"]
mod token;

use fake::Fake;
use std::{fs, sync::Arc};
use tandem_multiproof_workers::Config;
use tandem_policy::LivePolicies;
use tandem_proto::multiproof::{Begin, ProofApi, StateUpdate};
use token::{id, small, start, token, token_state};

/// Returns the processors on which a thread may run, in the kernel's notation.
fn allowed(thread: &str) -> String {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

/// Returns the newest worker's thread: one that has ended may still be seen for a moment.
fn worker() -> String {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
    let is_worker = |thread: &String| {
        let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
        name.is_ok_and(|name| name.trim() == "proof-worker-0")
    };
    names.filter(is_worker).max_by_key(|thread| thread.parse::<u32>().unwrap()).unwrap()
}

#[test]
fn a_worker_leaves_the_engine_its_processor_until_it_is_waited_for() {
    let all = allowed(&std::process::id().to_string());
    for keep_off_engine in [true, false] {
        let fake = Fake::new(id(0, 0), &token_state(40));
        let config = Config { keep_off_engine, ..small(1) };
        let workers = start(&fake, &config, &LivePolicies::default());
        // The worker's thread runs, once it has answered.
        let begin = |number| workers.begin(Begin::new(id(number, 1), id(0, 0).hash)).unwrap();
        begin(1).roots().unwrap();
        let worker = worker();
        let is_kept_off =
            keep_off_engine && std::thread::available_parallelism().unwrap().get() > 1;
        assert_eq!(allowed(&worker), all);

        let mut session = begin(2);
        assert_eq!(allowed(&worker) != all, is_kept_off);
        session.update(Arc::new(StateUpdate { accounts: vec![token(40)] }));
        session.finish();
        assert_eq!(allowed(&worker), all, "the engine waits");
        session.roots().unwrap();

        let session = begin(3);
        assert_eq!(allowed(&worker) != all, is_kept_off);
        drop(session);
        assert_eq!(allowed(&worker), all, "the block is given up");
        workers.stop();
    }
}
