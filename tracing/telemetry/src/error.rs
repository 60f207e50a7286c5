//! Errors of the setup of telemetry. Nothing can fail afterwards: a recorder that cannot deliver
//! drops and counts.

/// Reason why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log filter is not a list of `target=level` directives.
    #[error("parse log filter {filter:?}: {reason}")]
    LogFilter {
        /// The filter as given.
        filter: String,
        /// Message of the parser.
        reason: String,
    },
    /// A resource attribute is not of the form `key=value`.
    #[error("resource attribute {attribute:?}: expected key=value, percent-encoded")]
    Resource {
        /// Invalid attribute.
        attribute: String,
    },
    /// A global log subscriber or metrics recorder exists already.
    #[error("install the global {what}: {reason}")]
    AlreadyInstalled {
        /// `subscriber` or `metrics recorder`.
        what: &'static str,
        /// Message of the installer.
        reason: String,
    },
    /// The histogram buckets were refused.
    #[error("set up metrics: {0}")]
    Metrics(String),
    /// The background thread did not start.
    #[error("start the telemetry thread: {0}")]
    Thread(#[from] std::io::Error),
}
