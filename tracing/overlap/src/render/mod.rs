//! The report as text, JSON and HTML.

mod html;
mod text;

pub use html::html;
pub use text::text;

use crate::report::Report;

/// The report as pretty-printed JSON; the fields are those of [`Report`] and are documented in
/// `tracing/README.md`.
pub fn json(report: &Report) -> String {
    // Maps with non-string keys and failing `Serialize` impls are what could fail; there are none.
    serde_json::to_string_pretty(report).unwrap_or_default()
}
