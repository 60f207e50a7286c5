use proptest::prelude::*;
use std::time::Duration;
use tandem_membership::Heartbeat;
use tandem_proto::{
    convert::ConvertError,
    event::{TracesSlow, WorkerAlive},
    wire::event::v1 as event,
};

fn heartbeat() -> Heartbeat {
    Heartbeat {
        id: "worker-0".parse().unwrap(),
        incarnation: 1_700_000_000_000,
        sequence: 3,
        endpoint: "http://10.0.0.7:9601".to_owned(),
        interval: Duration::from_secs(1),
        leaving: false,
    }
}

proptest! {
    #[test]
    fn heartbeats_survive(
        id in "[!-~]{1,64}", incarnation: u64, sequence: u64, endpoint in "[a-z:/.]{1,256}",
        interval in 10u64..=60_000, leaving: bool,
    ) {
        let (id, interval) = (id.parse().unwrap(), Duration::from_millis(interval));
        let event =
            WorkerAlive(Heartbeat { id, incarnation, sequence, endpoint, interval, leaving });
        prop_assert_eq!(WorkerAlive::decode(&event.encode()), Some(event));
    }
}

#[test]
fn slow_traces_survive_and_malformed_ones_name_the_field() {
    for trace_ids in [vec![], vec![u128::MAX, 1], (1..=64).collect()] {
        let event = TracesSlow { trace_ids };
        assert_eq!(TracesSlow::decode(&event.encode()), Some(event));
    }
    for (trace_ids, reason) in [
        (vec![1u8; 15], "traces_slow.trace_ids: "),
        (vec![1; 65 * 16], "traces_slow.trace_ids: "),
        ([[1; 16], [0; 16]].concat(), "traces_slow.trace_ids[1]: "),
    ] {
        let wire = event::TracesSlow { trace_ids: trace_ids.into() };
        let error: Result<TracesSlow, ConvertError> = wire.try_into();
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn malformed_heartbeats_name_the_field() {
    let refused = |spoil: fn(&mut event::WorkerAlive)| {
        let mut wire = event::WorkerAlive::from(&WorkerAlive(heartbeat()));
        spoil(&mut wire);
        let error: Result<WorkerAlive, ConvertError> = wire.try_into();
        error.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let name = "worker_alive.id: is not 1 to 64 characters of visible ASCII";
    let expect = [
        (refused(|_| ()), ""),
        (refused(|w| w.id.clear()), name),
        (refused(|w| w.id.push(' ')), name),
        (refused(|w| w.id = "w".repeat(65)), name),
        (refused(|w| w.endpoint.clear()), "worker_alive.endpoint: 0 is not in 1..=256"),
        (refused(|w| w.endpoint = "e".repeat(257)), "worker_alive.endpoint: 257 is not in 1..=256"),
        (refused(|w| w.interval_ms = 9), "worker_alive.interval_ms: 9 is not in 10..=60000"),
        (
            refused(|w| w.interval_ms = 60_001),
            "worker_alive.interval_ms: 60001 is not in 10..=60000",
        ),
    ];
    for (got, want) in expect {
        assert_eq!(got, want);
    }
}
