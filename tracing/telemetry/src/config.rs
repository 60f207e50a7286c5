//! Settings of telemetry. The caller reads the environment and the command line, not this crate.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::process::AskAllocator;
use crate::resource::Resource;
use crate::sampling::Sampling;

/// Format of log lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One readable line per event, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Level of detail of recorded spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceLevel {
    /// No spans: span macros cost a cached check.
    Off,
    /// Stages of a payload (`info_span!` and above): tens of spans per block.
    #[default]
    Stage,
    /// Also individual proof jobs (`debug_span!`, `trace_span!`): up to thousands per block.
    Job,
}

impl TraceLevel {
    /// Returns the most verbose `tracing` level that is recorded.
    pub(crate) fn level_filter(self) -> tracing::level_filters::LevelFilter {
        use tracing::level_filters::LevelFilter;
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Stage => LevelFilter::INFO,
            Self::Job => LevelFilter::TRACE,
        }
    }
}

/// Settings of traces, as in a configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// Level of detail of recorded spans.
    pub level: TraceLevel,
    /// Selection of exported traces.
    pub sampling: Sampling,
    /// Maximum size in bytes of spans held until their payload is known to be slow or not, under
    /// [`Sampling::Slow`]. Beyond it the oldest trace is given up and counted.
    pub held_bytes_max: usize,
}

impl Default for Traces {
    fn default() -> Self {
        Self { level: TraceLevel::Stage, sampling: Sampling::Always, held_bytes_max: 32 << 20 }
    }
}

/// Settings of [`crate::init`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Log filter in the syntax of `RUST_LOG`, e.g. `info,tandem_executor=debug`.
    pub log_filter: String,
    /// OTLP/gRPC endpoint, e.g. `http://127.0.0.1:4317` or `https://…`. Spans are exported only if
    /// it is given.
    pub otlp_endpoint: Option<String>,
    /// Certificates (PEM) of the authority that vouches for an `https://…` endpoint, instead of the
    /// system's.
    pub otlp_ca: Option<PathBuf>,
    /// Settings of recorded spans and exported traces.
    pub traces: Traces,
    /// Identity of this process.
    pub resource: Resource,
    /// Maximum number of finished spans that wait for export. Further spans are dropped and
    /// counted.
    pub export_queue_spans: usize,
    /// Maximum number of traces kept in memory for `tandem overlap`. The least recently active
    /// trace is evicted first.
    pub ring_traces_max: usize,
    /// Maximum size in bytes of all kept traces together. One trace may take a quarter of it.
    pub ring_bytes_max: usize,
    /// Function that queries the allocator of this process, for metrics.
    pub allocator: Option<AskAllocator>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
            otlp_endpoint: None,
            otlp_ca: None,
            traces: Traces::default(),
            resource: Resource::default(),
            export_queue_spans: 16_384,
            ring_traces_max: 256,
            ring_bytes_max: 64 << 20,
            allocator: None,
        }
    }
}
