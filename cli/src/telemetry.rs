//! Logs and traces of the commands that run services.

use anyhow::Context;
use clap::ValueEnum;
use std::{fs, path::PathBuf};
use tandem_telemetry::{Allocator, LogFormat, Resource, Sampling, Telemetry, TraceLevel, Traces};

/// Options of logs and traces, shared by the commands that run services.
#[derive(clap::Args)]
pub struct TelemetryArgs {
    /// Format of log lines
    #[arg(long = "log.format", value_enum, default_value_t = Format::Text)]
    log_format: Format,
    /// Which log lines are written, in the syntax of RUST_LOG
    #[arg(long = "log.filter", value_name = "FILTER", env = "RUST_LOG")]
    log_filter: Option<String>,
    /// Which spans are recorded [default: stage]
    #[arg(long = "trace.level", value_enum)]
    trace_level: Option<Level>,
    /// Receiver of traces (OTLP over gRPC), such as http://127.0.0.1:4317, or https://… for an
    /// encrypted connection. The variable OTEL_EXPORTER_OTLP_HEADERS has headers to send along,
    /// such as authorization=Bearer%20TOKEN
    #[arg(
        long = "otlp.endpoint",
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true
    )]
    otlp_endpoint: Option<String>,
    /// Certificates (PEM) of the authority that vouches for an https://… endpoint [default: those
    /// of the system]
    #[arg(long = "otlp.ca", value_name = "FILE", env = "OTEL_EXPORTER_OTLP_CERTIFICATE")]
    otlp_ca: Option<PathBuf>,
    /// Which traces are exported: always, ratio{SHARE}, or slow{MILLISECONDS} for payloads that
    /// took this long or longer; shells need quotes around braces [default: always]
    #[arg(long = "trace.sampling", value_name = "WHICH")]
    sampling: Option<Sampling>,
    /// Further attributes of this process in exported traces: KEY=VALUE, several with commas
    /// between them, percent-encoded. host.name and service.instance.id are known
    #[arg(long = "otlp.resource", value_name = "ATTRIBUTES", env = "OTEL_RESOURCE_ATTRIBUTES")]
    resource: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
enum Level {
    /// No spans
    Off,
    /// The stages of a block
    Stage,
    /// Single transactions and proof jobs too
    Job,
}

impl TelemetryArgs {
    /// Overrides the configuration by the flags that were given.
    pub fn apply(&self, traces: &mut Traces) {
        if let Some(level) = self.trace_level {
            traces.level = match level {
                Level::Off => TraceLevel::Off,
                Level::Stage => TraceLevel::Stage,
                Level::Job => TraceLevel::Job,
            };
        }
        if let Some(sampling) = self.sampling {
            traces.sampling = sampling;
        }
    }

    /// Starts logs, traces and metrics of this process. Needs a running reactor.
    pub fn start(self, default_filter: &str, traces: &Traces) -> anyhow::Result<Telemetry> {
        let resource = Resource::of_host(&host_name())
            .with_text(self.resource.as_deref().unwrap_or_default())
            .context("OTEL_RESOURCE_ATTRIBUTES, or --otlp.resource")?;
        let config = tandem_telemetry::Config {
            log_format: match self.log_format {
                Format::Text => LogFormat::Text,
                Format::Json => LogFormat::Json,
            },
            log_filter: self.log_filter.unwrap_or_else(|| default_filter.to_owned()),
            otlp_endpoint: self.otlp_endpoint,
            otlp_ca: self.otlp_ca,
            traces: traces.clone(),
            resource,
            allocator: Some(ask_jemalloc),
            ..tandem_telemetry::Config::default()
        };
        tandem_telemetry::init(&config).context("start telemetry")
    }
}

/// Returns the memory statistics of jemalloc, which is the allocator of RocksDB too.
fn ask_jemalloc() -> Option<Allocator> {
    use tikv_jemalloc_ctl::{epoch, stats};
    // The statistics are those of the last advance.
    epoch::advance().ok()?;
    Some(Allocator {
        allocated: stats::allocated::read().ok()? as u64,
        active: stats::active::read().ok()? as u64,
        metadata: stats::metadata::read().ok()? as u64,
        resident: stats::resident::read().ok()? as u64,
        mapped: stats::mapped::read().ok()? as u64,
        retained: stats::retained::read().ok()? as u64,
    })
}

/// Returns the host's name from the kernel, or an empty text if it cannot be read.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
