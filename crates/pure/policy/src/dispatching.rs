use crate::{Error, text};
use std::{fmt, str::FromStr};

/// Whether a worker takes further messages while the paths of a batch are being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dispatching {
    /// Messages are taken meanwhile.
    #[default]
    Streaming,
    /// No message is taken until the last path is there. For comparisons: a published pipeline did
    /// so, and lost its parallelism where batches were large.
    Blocking,
}

impl Dispatching {
    const KEY: &'static str = "dispatch";
    const EXPECTED: &'static str = "`streaming` or `blocking`";
}

impl fmt::Display for Dispatching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Streaming => "streaming",
            Self::Blocking => "blocking",
        })
    }
}

impl FromStr for Dispatching {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        [Self::Streaming, Self::Blocking]
            .into_iter()
            .find(|policy| policy.to_string() == value)
            .ok_or_else(|| Error::value(Self::KEY, value, Self::EXPECTED))
    }
}

text::serde_as_text!(Dispatching);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [Dispatching::Streaming, Dispatching::Blocking] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "wait".parse::<Dispatching>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `wait` for `dispatch`; expected `streaming` or `blocking`"
        );
    }
}
