//! Did execution and state-root work really overlap? Traces in, numbers and pictures out.
//!
//! ```text
//! bytes ──read──► Input { spans, problems } ──analyze──► Report ──render──► text | JSON | HTML
//! ```
//!
//! No I/O, no clock and no environment: callers bring bytes ([`read()`]) and write what comes back.
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

mod analyze;
mod critical_path;
mod intervals;
mod model;
mod payloads;
mod read;
mod render;
mod report;
mod select;

pub use analyze::{PayloadReport, Step, TailUntil};
pub use intervals::Intervals;
pub use model::{Attribute, Input, Link, Problems, Span, SpanId, TraceId};
pub use read::{MAX_BYTES, read};
pub use render::{html, json, text};
pub use report::{Distribution, QueueGap, Report, Skew, Summary, Thresholds, Verdict, analyze};
pub use select::{Busy, Pattern, Preset, Selection, Side};
