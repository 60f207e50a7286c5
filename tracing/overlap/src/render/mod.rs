//! Rendering of the report as text, JSON and HTML, and of a comparison as text and JSON.

mod compare;
mod html;
mod text;

pub use compare::comparison_text;
pub use html::html;
pub use text::text;

use crate::compare::Comparison;
use crate::report::Report;

/// Returns the report as pretty-printed JSON. The fields are those of [`Report`] and are documented
/// in `tracing/README.md`.
pub fn json(report: &Report) -> String {
    // Only maps with non-string keys and failing `Serialize` impls could fail. There are none.
    serde_json::to_string_pretty(report).unwrap_or_default()
}

/// Returns the comparison as pretty-printed JSON. The fields are those of [`Comparison`] and are
/// documented in `tracing/README.md`.
pub fn comparison_json(comparison: &Comparison) -> String {
    // This cannot fail either.
    serde_json::to_string_pretty(comparison).unwrap_or_default()
}
