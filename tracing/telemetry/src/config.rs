//! Settings of telemetry. The caller reads the environment and the command line; this crate does not.

/// How log lines are written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One readable line per event, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Which spans are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TraceLevel {
    /// None: span macros cost a cached check.
    Off,
    /// Stages of a payload (`info_span!` and above): tens of spans per block.
    #[default]
    Stage,
    /// Also single proof jobs (`debug_span!`, `trace_span!`): up to thousands per block.
    Job,
}

impl TraceLevel {
    /// The most verbose `tracing` level that is recorded.
    pub(crate) fn level_filter(self) -> tracing::level_filters::LevelFilter {
        use tracing::level_filters::LevelFilter;
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Stage => LevelFilter::INFO,
            Self::Job => LevelFilter::TRACE,
        }
    }
}

/// Settings of [`crate::init`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Text or JSON log lines.
    pub log_format: LogFormat,
    /// Log filter in the syntax of `RUST_LOG`, e.g. `info,tandem_executor=debug`.
    pub log_filter: String,
    /// Which spans are recorded.
    pub trace_level: TraceLevel,
    /// OTLP/gRPC endpoint, e.g. `http://127.0.0.1:4317`; spans are exported only if it is given.
    pub otlp_endpoint: Option<String>,
    /// Finished spans that may wait for export; more are dropped and counted.
    pub export_queue_spans: usize,
    /// Traces kept in memory for `tandem overlap`; the least recently active goes first.
    pub ring_traces_max: usize,
    /// Bytes all kept traces may take together. One trace may take a quarter of it.
    pub ring_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
            trace_level: TraceLevel::Stage,
            otlp_endpoint: None,
            export_queue_spans: 16_384,
            ring_traces_max: 256,
            ring_bytes_max: 64 << 20,
        }
    }
}
