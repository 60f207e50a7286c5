//! Global setup. It can be done once per process, so this file has one test.
#![allow(clippy::unwrap_used)]

use tandem_telemetry::{Config, Error, init};
use tracing::level_filters::LevelFilter;
use tracing::{debug_span, info, info_span};

#[test]
fn init_installs_everything_once() {
    let telemetry = init(&Config::default()).unwrap();
    assert_eq!(LevelFilter::current(), LevelFilter::INFO, "debug! costs one comparison");
    std::thread::spawn(|| {
        let _stage = info_span!(target: "tandem_executor", "on_new_payload").entered();
        let _job = debug_span!(target: "tandem_executor", "transaction").entered();
        let _foreign = info_span!(target: "hyper", "connection").entered();
        info!(block.number = 7, "this line goes to standard error");
        metrics::histogram!("tandem_executor_new_payload_seconds").record(0.001);
    })
    .join()
    .unwrap();
    let spans: Vec<&str> =
        telemetry.ring().traces(10).iter().flatten().map(|span| span.name).collect();
    assert_eq!(spans, ["on_new_payload"]);
    assert!(telemetry.traces_json(1).contains("on_new_payload"));
    assert!(telemetry.render_metrics().contains("tandem_executor_new_payload_seconds_bucket"));
    assert!(matches!(init(&Config::default()), Err(Error::AlreadyInstalled { .. })));
    telemetry.shutdown();
}
