use crate::text;

/// Way in which a block's values reach the executor that are not in its memory.
///
/// It matters where a call of storage-writer takes long: in another process, or with a state on a
/// disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StateReads {
    /// Each value is read when the EVM asks for it.
    OneByOne,
    /// Values that the block names, and those that its calls are expected to read, are read before
    /// it executes. Others are read when the EVM asks for them.
    Foretold,
    /// As [`StateReads::Foretold`]. Besides, all transactions are in flight at once, and what they
    /// wait for is read in one call.
    #[default]
    Rounds,
}

text::words!(
    StateReads,
    "reads",
    OneByOne => "one-by-one",
    Foretold => "foretold",
    Rounds => "rounds"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [StateReads::OneByOne, StateReads::Foretold, StateReads::Rounds] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "all".parse::<StateReads>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `all` for `reads`; expected `one-by-one`, `foretold` or `rounds`"
        );
    }
}
