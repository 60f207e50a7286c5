use crate::{Error, text};
use std::{fmt, str::FromStr};

/// Time and place of computing the root of a block's receipts and their bloom filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReceiptsRoot {
    /// After each transaction, on the executing thread.
    #[default]
    Incremental,
    /// After the last transaction, on all cores, while the workers hash.
    AtEnd,
    /// On a separate thread, while later transactions execute.
    Background,
}

impl ReceiptsRoot {
    const KEY: &'static str = "receipts_root";
    const EXPECTED: &'static str = "`incremental`, `at-end` or `background`";
}

impl fmt::Display for ReceiptsRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Incremental => "incremental",
            Self::AtEnd => "at-end",
            Self::Background => "background",
        })
    }
}

impl FromStr for ReceiptsRoot {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        [Self::Incremental, Self::AtEnd, Self::Background]
            .into_iter()
            .find(|policy| policy.to_string() == value)
            .ok_or_else(|| Error::value(Self::KEY, value, Self::EXPECTED))
    }
}

text::serde_as_text!(ReceiptsRoot);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [ReceiptsRoot::Incremental, ReceiptsRoot::AtEnd, ReceiptsRoot::Background] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "now".parse::<ReceiptsRoot>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `now` for `receipts_root`; expected `incremental`, `at-end` or `background`"
        );
    }
}
