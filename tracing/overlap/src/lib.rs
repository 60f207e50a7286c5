//! Analysis of whether execution and state-root work overlap: from traces to numbers and pictures.
//!
//! ```text
//! bytes ──read──► Input { spans, problems } ──analyze──► Report ──render──► text | JSON | HTML
//! reader ──read_from──► Input, Input, … ──Analyzer──► Report
//! Report, Report ──compare──► Comparison ──render──► text | JSON
//! ```
//!
//! The crate uses no files, no network, no clock and no environment. Callers bring bytes
//! ([`read()`]), or a reader if the bytes do not fit into memory ([`read_from`], [`Analyzer`]).
//! They write the result themselves. A damaged file gives the answer that its readable part
//! supports, marked [`Report::partial`], with the reasons in words.
//!
//! # The measure
//!
//! A payload is one span with the name of the root, by default `on_new_payload`. All of its figures
//! are clipped to that span:
//!
//! * `A`: union of the busy intervals of the payload side (`payload processor`),
//! * `B`: union of the busy intervals of the proof side (`state root, …`, `storage worker`, …),
//! * `overlap = |A∩B| / min(|A|, |B|)`: 1 when the shorter side hides behind the longer one
//!   entirely,
//! * `wall`: from the first to the last instant at which either side is busy,
//! * `serialization = (wall − max(|A|,|B|)) / min(|A|,|B|)`, clamped to 0..1: 1 when one side waits
//!   for the whole of the other,
//! * `tail`: from the end of `A`, the last transaction, to the end of `await_state_root`. If there
//!   is no such span, to the end of `B`,
//! * what it is [`Worth`]: the overlap to expect by chance, the part of the possible gain that was
//!   reached, and the time that overlapping saved and could still save. The [`Verdict`] rests on the
//!   gain and on the tail.
//!
//! Container spans mislead: a worker span that starts with the block and ends with the root always
//! "overlaps". Busy intervals are therefore used if a span carries them. The figure computed from
//! whole spans is given beside it as the *container overlap*.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aggregate;
mod analyze;
mod analyzer;
mod clocks;
mod compare;
mod critical_path;
mod doubt;
mod filter;
mod intervals;
mod listed;
mod model;
mod notes;
mod payloads;
mod read;
mod render;
mod report;
mod select;
pub mod stats;
mod what_if;
mod worth;

pub use aggregate::Options;
pub use analyze::{PayloadReport, Step, TailUntil};
pub use analyzer::{Analyzer, WINDOW_SPANS};
pub use clocks::{Clock, Skew};
pub use compare::{Change, Comparison, Figure, Slower, compare};
pub use doubt::Doubt;
pub use filter::Filter;
pub use intervals::Intervals;
pub use model::{Attribute, Input, Kind, Link, Problems, Span, SpanId, TraceId};
pub use read::{MAX_BYTES, read, read_from};
pub use render::{comparison_json, comparison_text, html, json, text};
pub use report::{Distribution, QueueGap, Report, Summary, Totals, analyze, analyze_with};
pub use select::{Busy, Pattern, Preset, Selection, Side};
pub use tandem_verdict::{Thresholds, Verdict};
pub use what_if::StageGain;
pub use worth::Worth;
