//! Finished span, as the recorder hands it to the ring and to the exporter.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Service name of spans of library crates without a parent to inherit a service from.
pub(crate) const DEFAULT_SERVICE: &str = "tandem";

/// Returns the service of a span, from its target (by default the module path that contains it).
///
/// * `Some(Some(name))`: the crate of a service, e.g. `tandem_storage_writer::rpc` →
///   `storage-writer`.
/// * `Some(None)`: another crate of the project, whose spans appear under their parent's service.
/// * `None`: a foreign crate, whose spans are not recorded.
pub fn service_of_target(target: &str) -> Option<Option<&'static str>> {
    let krate = target.split("::").next().unwrap_or(target);
    if krate == DEFAULT_SERVICE {
        return Some(None);
    }
    let name = krate.strip_prefix("tandem_")?;
    // A call's span on the side of its caller names the service that is called.
    Some(match name.strip_suffix("_client").unwrap_or(name) {
        // JSON-RPC is the executor's alone.
        "executor" | "http" => Some("executor"),
        "storage_writer" => Some("storage-writer"),
        "multiproof_workers" => Some("multiproof-workers"),
        "discovery" => Some("discovery"),
        "peer_sessions" => Some("peer-sessions"),
        "peer_table" => Some("peer-table"),
        "tx_pool" => Some("tx-pool"),
        "blob_validator" => Some("blob-validator"),
        "tx_executor" => Some("tx-executor"),
        _ => None,
    })
}

/// Returns the current time in nanoseconds since the Unix epoch, the clock of all span and busy
/// times.
pub fn unix_nanos() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Value of a span attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text. Also unsigned integers that do not fit an `i64`.
    Str(String),
    /// Signed integer, the only integer type of OTLP.
    Int(i64),
    /// Floating point number.
    Float(f64),
    /// Truth value.
    Bool(bool),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or_else(|_| Self::Str(value.to_string()), Self::Int)
    }
}

/// Span that is related without being the parent, e.g. one of many requests served by one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Trace of the linked span.
    pub trace_id: u128,
    /// Id of the linked span.
    pub span_id: u64,
}

/// Role of a span in a call between processes, with its numbers in OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Part of the work of one service.
    #[default]
    Internal = 1,
    /// Work that answers a call of another process.
    Server = 2,
    /// Wait for the answer of another process.
    Client = 3,
}

impl Kind {
    /// Returns the kind of this name, as the field `otel.kind` gives it. Other names are internal.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "server" => Self::Server,
            "client" => Self::Client,
            _ => Self::Internal,
        }
    }
}

/// Thread that a span was made on, or worked on when it has busy intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Number of the thread, counted by this crate from 1 in the order of first use.
    pub id: u64,
    /// Name of the thread, `unnamed` if it has none.
    pub name: Arc<str>,
}

impl Thread {
    /// Returns the calling thread. The name is copied once per thread.
    pub(crate) fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static CURRENT: OnceCell<Thread> = const { OnceCell::new() };
        }
        let make = || Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: Arc::from(std::thread::current().name().unwrap_or("unnamed")),
        };
        // A span may close while the thread's locals are being torn down.
        CURRENT.try_with(|cell| cell.get_or_init(make).clone()).unwrap_or_else(|_| make())
    }
}

/// Finished span. All times are nanoseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanRecord {
    /// Trace that the span belongs to, never 0.
    pub trace_id: u128,
    /// Id of the span, never 0, unique in its trace.
    pub span_id: u64,
    /// Parent span, 0 for the root of a trace.
    pub parent_id: u64,
    /// Whether another process gave the parent with a `traceparent`.
    pub parent_is_remote: bool,
    /// `service.name`, e.g. `storage-writer`.
    pub service: &'static str,
    /// Static span name, e.g. `payload processor`.
    pub name: &'static str,
    /// Role of the span in a call, from its field `otel.kind`.
    pub kind: Kind,
    /// Reason of its failure, from its field `otel.status_description`. `None` leaves the status
    /// unset.
    pub error: Option<Box<str>>,
    /// Start of the span.
    pub start_ns: u64,
    /// End of the span, not before `start_ns`.
    pub end_ns: u64,
    /// Fields of the span, in the order of first recording.
    pub attributes: Vec<(&'static str, Value)>,
    /// Thread that the span was made or worked on.
    pub thread: Thread,
    /// Intervals in which the span really worked, `(start, end)`. Empty means busy all the time.
    pub busy: Vec<(u64, u64)>,
    /// Related spans of this or other traces.
    pub links: Vec<Link>,
}

impl SpanRecord {
    /// Returns the approximate memory of the record in bytes, the unit of the ring's limit.
    pub fn size_bytes(&self) -> usize {
        let text: usize = self
            .attributes
            .iter()
            .map(|(_, value)| match value {
                Value::Str(text) => text.capacity(),
                _ => 0,
            })
            .sum();
        size_of::<Self>()
            + self.attributes.capacity() * size_of::<(&'static str, Value)>()
            + text
            + self.busy.capacity() * size_of::<(u64, u64)>()
            + self.links.capacity() * size_of::<Link>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_comes_from_the_crate_of_the_target() {
        assert_eq!(service_of_target("tandem_executor"), Some(Some("executor")));
        assert_eq!(
            service_of_target("tandem_storage_writer::rpc::commit"),
            Some(Some("storage-writer"))
        );
        assert_eq!(
            service_of_target("tandem_multiproof_workers::shard"),
            Some(Some("multiproof-workers"))
        );
        assert_eq!(service_of_target("tandem_http::server"), Some(Some("executor")));
        assert_eq!(service_of_target("tandem_store"), Some(None));
        assert_eq!(service_of_target("tandem::node"), Some(None));
        assert_eq!(service_of_target("hyper::proto::h1"), None);
        assert_eq!(service_of_target("tandemonium"), None);
    }

    #[test]
    fn unsigned_attribute_beyond_i64_becomes_text() {
        assert_eq!(Value::from(7u64), Value::Int(7));
        assert_eq!(Value::from(u64::MAX), Value::Str(u64::MAX.to_string()));
    }
}
