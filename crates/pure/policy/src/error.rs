/// A setting that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// No policy has this name.
    #[error("unknown policy `{key}`, want one of {}", crate::Policies::KEYS.join(", "))]
    Key {
        /// What stood there.
        key: String,
    },
    /// The policy has no such value.
    #[error("`{value}` is no value of {key}, want {want}")]
    Value {
        /// The policy.
        key: &'static str,
        /// What stood there.
        value: String,
        /// What may stand there.
        want: &'static str,
    },
    /// No `KEY=VALUE`.
    #[error("`{text}` is not of the form KEY=VALUE")]
    Assignment {
        /// What stood there.
        text: String,
    },
}

/// Longest part of a wrong text that an error repeats, in characters.
const QUOTED_MAX: usize = 60;

/// The beginning of a text from outside.
pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_MAX).collect()
}

impl Error {
    pub(crate) fn value(key: &'static str, value: &str, want: &'static str) -> Self {
        Self::Value { key, value: quoted(value), want }
    }
}
