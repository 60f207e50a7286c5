//! Did execution and state-root work really overlap? Traces in, numbers and pictures out.
//!
//! ```text
//! bytes ──read──► Input { spans, problems } ──analyze──► Report ──render──► text | JSON | HTML
//! reader ──read_from──► Input, Input, … ──Analyzer──► Report
//! Report, Report ──compare──► Comparison ──render──► text | JSON
//! ```
//!
//! No files, no network, no clock and no environment: callers bring bytes ([`read()`]), or a reader
//! where there are too many of them to hold ([`read_from`], [`Analyzer`]), and write what comes back.
//! A damaged file gives the answer that its readable part supports, marked [`Report::partial`], with
//! the reasons in words.
//!
//! # The measure
//!
//! For one payload (one span named like the root, by default `on_new_payload`), everything clipped
//! to that span:
//!
//! * `A`: union of the busy intervals of the payload side (`payload processor`),
//! * `B`: union of the busy intervals of the proof side (`storage worker`, `account worker`),
//! * `overlap = |A∩B| / min(|A|, |B|)`: 1 when the shorter side hides behind the longer one entirely,
//! * `wall`: from the first to the last instant at which either side is busy,
//! * `serialization = (wall − max(|A|,|B|)) / min(|A|,|B|)`, clamped to 0..1: 1 when one side waits
//!   for the whole of the other,
//! * `tail`: from the end of `A`, the last transaction, to the end of `await_state_root`, or to the
//!   end of `B` where there is no such span.
//!
//! A container span lies: a worker span that starts with the block and ends with the root always
//! "overlaps". So busy intervals are used where a span carries them, and the figure computed from
//! whole spans is given beside it as the *container overlap*.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aggregate;
mod analyze;
mod analyzer;
mod clocks;
mod compare;
mod critical_path;
mod filter;
mod intervals;
mod model;
mod notes;
mod payloads;
mod read;
mod render;
mod report;
mod select;
pub mod stats;

pub use aggregate::Options;
pub use analyze::{PayloadReport, Step, TailUntil};
pub use analyzer::{Analyzer, WINDOW_SPANS};
pub use clocks::{Clock, Skew};
pub use compare::{Change, Comparison, Figure, Slower, compare};
pub use filter::Filter;
pub use intervals::Intervals;
pub use model::{Attribute, Input, Kind, Link, Problems, Span, SpanId, TraceId};
pub use read::{MAX_BYTES, read, read_from};
pub use render::{comparison_json, comparison_text, html, json, text};
pub use report::{
    Distribution, QueueGap, Report, Summary, Thresholds, Totals, Verdict, analyze, analyze_with,
};
pub use select::{Busy, Pattern, Preset, Selection, Side};
