use crate::text;

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

text::words!(
    ReceiptsRoot,
    "receipts_root",
    Incremental => "incremental",
    AtEnd => "at-end",
    Background => "background"
);

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
