//! Telemetry: spans, logs and metrics of all services, and the only access to OpenTelemetry.
//!
//! Services use the ordinary [`tracing`] macros and never name this crate's back ends:
//!
//! ```text
//! info_span!("payload processor", block.number = n)
//!        │
//!        ▼
//! RecordLayer ── finished span ──► SpanRecord ──┬──► Ring       (recent traces, in memory)
//!                                               └──► Sampler    (whole traces, or none of them)
//!                                                          ▼
//!                                                    ExportQueue (bounded, drops are counted)
//!                                                          │ one background thread
//!                                                          ▼
//!                                              one OTLP exporter per service.name
//! ```
//!
//! One process may hold all services, and each must appear under its own `service.name`. An
//! OpenTelemetry tracer provider has one resource, hence one service name, so spans are not made
//! through a provider. The [recorder](Recorder) derives the service from the crate that contains
//! the span ([`service_of_target`]), and every service gets its own exporter.
//!
//! The span names, their attributes and the meaning of busy intervals are in the span catalogue,
//! `tracing/README.md`.
//!
//! **Overload rule:** recording never waits. The ring evicts whole traces, and the export queue
//! drops spans. Both count their losses ([`Ring::dropped_spans`], [`Telemetry::export_stats`]).
//! Spans that wait for a slow verdict are bounded too. Spans given up there are counted with the
//! spans that [`Sampling`] leaves out.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod busy;
mod config;
mod context;
mod error;
mod export;
mod export_queue;
mod otlp_json;
mod process;
mod record;
mod recorder;
mod redact;
mod resource;
mod ring;
mod sampler;
mod sampling;
mod telemetry;

pub use busy::{BusyGuard, BusyIntervals, BusyLog, thread_cpu_ns, union_of_intervals, waiting};
pub use config::{Config, LogFormat, TraceLevel, Traces};
pub use context::{SpanContext, add_link, mark_ready, set_remote_parent, set_times, traceparent};
pub use error::Error;
pub use export_queue::ExportStats;
pub use process::{Allocator, AskAllocator, publish_ready};
pub use record::{Kind, Link, SpanRecord, Thread, Value, service_of_target, unix_nanos};
pub use recorder::Recorder;
pub use redact::redacted;
pub use resource::Resource;
pub use ring::Ring;
pub use sampling::{NoSampling, Sampling};
pub use telemetry::{Telemetry, describe_metrics, init};
