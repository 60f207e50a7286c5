//! Shares which traces are to be kept between processes.

use tandem_bus::Bus;
use tandem_proto::{
    event::{TRACES_SLOW, TracesSlow},
    limits::SLOW_TRACES_MAX,
};
use tandem_telemetry::Telemetry;
use tracing::debug;

/// Publishes on the bus which traces were slow here, and keeps those that other processes report as
/// slow. Thus either all processes export the spans of a payload, or none. Returns at once unless
/// slow traces are the ones to export. Ends with the bus.
///
/// Without a bus server, other processes are not told. They then hold their spans in vain until
/// newer spans replace them.
pub async fn share_slow_traces(bus: Bus, telemetry: Telemetry) {
    let Some(mut slow) = telemetry.slow_traces() else { return };
    let mut heard = bus.subscribe(TRACES_SLOW);
    let mut trace_ids = Vec::new();
    loop {
        tokio::select! {
            // Never returns 0: telemetry holds the other end.
            _ = slow.recv_many(&mut trace_ids, SLOW_TRACES_MAX) => {
                let event = TracesSlow { trace_ids: std::mem::take(&mut trace_ids) };
                bus.publish(TRACES_SLOW, event.encode());
            }
            payload = heard.next() => {
                let Some(payload) = payload else { return };
                match TracesSlow::decode(&payload) {
                    Some(event) => {
                        event.trace_ids.into_iter().for_each(|id| telemetry.keep_trace(id));
                    }
                    None => debug!(subject = TRACES_SLOW, "malformed event"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tandem_telemetry::{Config, Sampling, SpanContext, Traces, set_remote_parent};
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt;

    /// Telemetry of a process whose spans are counted but reach no receiver.
    fn process() -> Telemetry {
        let traces = Traces { sampling: Sampling::Slow(Duration::ZERO), ..Traces::default() };
        // Port 1 of the loopback interface answers with a reset.
        let otlp_endpoint = Some("http://127.0.0.1:1".to_owned());
        Telemetry::detached(&Config { traces, otlp_endpoint, ..Config::default() }).unwrap()
    }

    fn span(telemetry: &Telemetry, name: &str, trace_id: u128) {
        let subscriber = tracing_subscriber::registry().with(telemetry.layer());
        tracing::subscriber::with_default(subscriber, || {
            let span = match name {
                "on_new_payload" => info_span!(target: "tandem_executor", "on_new_payload"),
                _ => info_span!(target: "tandem_storage_writer", "commit_block"),
            };
            assert!(set_remote_parent(&span, &SpanContext { trace_id, span_id: 1 }.to_string()));
        });
    }

    #[tokio::test]
    async fn what_was_slow_in_one_process_is_exported_by_the_other() {
        let bus = Bus::default();
        let (executor, writer) = (process(), process());
        let shared = [&executor, &writer]
            .map(|process| tokio::spawn(share_slow_traces(bus.clone(), process.clone())));
        for trace in [1, 2] {
            span(&writer, "commit_block", trace);
        }
        // Both subscribe before anything is published.
        tokio::task::yield_now().await;
        span(&executor, "on_new_payload", 2);
        let failed = || writer.export_stats().failed;
        // A span that is not chosen never reaches the queue to the dead receiver.
        let exported = async {
            while writer.export_stats().queued == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), exported).await.unwrap();
        tokio::task::spawn_blocking({
            let (executor, writer) = (executor.clone(), writer.clone());
            move || [executor, writer].iter().for_each(Telemetry::shutdown)
        })
        .await
        .unwrap();
        assert_eq!((executor.export_stats().failed, failed()), (1, 1), "trace 1 waits in vain");
        shared.iter().for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn where_all_traces_are_exported_nobody_is_told() {
        let telemetry = Telemetry::detached(&Config::default()).unwrap();
        share_slow_traces(Bus::default(), telemetry).await;
    }
}
