//! Reasons why the figures of a payload carry no verdict.

use std::fmt;

use serde::Serialize;

use crate::model::{Attribute, Span};

/// Number of events that an exporter dropped, as formats without such a field carry it
/// (OpenTelemetry's mapping to other formats).
pub(crate) const DROPPED_EVENTS: &str = "otel.dropped_events_count";
/// Part of the shorter side beyond which joined gaps are a doubt.
const JOINED_MAX: f64 = 0.10;

/// Reason why the figures of a payload carry no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// Events of a side's spans were dropped, so that busy intervals are missing.
    DroppedEvents,
    /// Gaps between busy intervals were joined, and make up a tenth of the shorter side or more.
    JoinedGaps,
    /// Work of the workers was not recorded, so that they count for their whole length.
    WholeSpans,
    /// The payload says that its workers were busy for longer than their spans are: some were lost.
    LostWorkers,
    /// Some spans were timed by a clock that differs and was not corrected.
    Clocks,
}

impl Doubt {
    /// All doubts.
    pub(crate) const ALL: [Self; 5] =
        [Self::DroppedEvents, Self::JoinedGaps, Self::WholeSpans, Self::LostWorkers, Self::Clocks];
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DroppedEvents => "events were dropped, and busy intervals with them",
            Self::JoinedGaps => "joined gaps are a tenth of the shorter side or more",
            Self::WholeSpans => {
                "what workers did was not recorded, so they count for their whole length"
            }
            Self::LostWorkers => "spans of workers were lost",
            Self::Clocks => "spans were timed by clocks that differ",
        })
    }
}

/// Returns the doubts that follow from the spans of the two sides. `joined_ns` is the length of the
/// gaps that were joined, `shorter_ns` that of the shorter side.
pub(crate) fn doubts<'s>(
    sides: impl Iterator<Item = &'s Span>,
    joined_ns: u64,
    shorter_ns: u64,
) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    if sides.into_iter().any(has_dropped_events) {
        doubts.push(Doubt::DroppedEvents);
    }
    if joined_ns > 0 && joined_ns as f64 >= shorter_ns as f64 * JOINED_MAX {
        doubts.push(Doubt::JoinedGaps);
    }
    doubts
}

fn has_dropped_events(span: &Span) -> bool {
    span.attribute(DROPPED_EVENTS).and_then(Attribute::as_u64).is_some_and(|count| count > 0)
}

/// Returns the length of the gaps between a span's busy intervals that were joined, as its exact
/// busy time tells.
pub(crate) fn joined_ns(span: &Span) -> u64 {
    let Some(exact) = span.attribute("busy.total_ns").and_then(Attribute::as_u64) else { return 0 };
    let intervals: u64 = span.busy.iter().map(|(start, end)| end.saturating_sub(*start)).sum();
    intervals.saturating_sub(exact)
}
