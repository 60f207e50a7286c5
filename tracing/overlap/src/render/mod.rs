//! The report as text, JSON and HTML; a comparison as text and JSON.

mod compare;
mod html;
mod text;

pub use compare::comparison_text;
pub use html::html;
pub use text::text;

use crate::compare::Comparison;
use crate::report::Report;

/// The report as pretty-printed JSON; the fields are those of [`Report`] and are documented in
/// `tracing/README.md`.
pub fn json(report: &Report) -> String {
    // Maps with non-string keys and failing `Serialize` impls are what could fail; there are none.
    serde_json::to_string_pretty(report).unwrap_or_default()
}

/// The comparison as pretty-printed JSON; the fields are those of [`Comparison`] and are documented
/// in `tracing/README.md`.
pub fn comparison_json(comparison: &Comparison) -> String {
    // As above.
    serde_json::to_string_pretty(comparison).unwrap_or_default()
}
