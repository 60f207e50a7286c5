/// Error in a setting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// No policy has this name.
    #[error("unknown policy `{key}`; expected one of `{}`", crate::Policies::KEYS.join("`, `"))]
    Key {
        /// Name received.
        key: String,
    },
    /// The policy does not have such a value.
    #[error("invalid value `{value}` for `{key}`; expected {expected}")]
    Value {
        /// Name of the policy.
        key: &'static str,
        /// Value received.
        value: String,
        /// Values allowed.
        expected: &'static str,
    },
    /// The text is not of the form `KEY=VALUE`.
    #[error("`{text}` is not of the form KEY=VALUE")]
    Assignment {
        /// Text received.
        text: String,
    },
}

/// Maximum length of the quote from a wrong text in an error, in characters.
const QUOTED_MAX: usize = 60;

/// Returns the beginning of a text from outside.
pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_MAX).collect()
}

impl Error {
    pub(crate) fn value(key: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Value { key, value: quoted(value), expected }
    }
}
