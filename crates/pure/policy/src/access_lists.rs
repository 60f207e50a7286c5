use crate::text;

/// Use of a payload's block-level access list (EIP-7928). In either way the list is compared with
/// the one that execution gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessLists {
    /// The list is compared at the end, and nothing else. For comparisons of speed.
    Checked,
    /// The list drives the block as well. Its keys are read beforehand, its transactions are
    /// executed on its values, and the state root starts from its final values.
    #[default]
    Followed,
}

text::words!(AccessLists, "access_lists", Checked => "checked", Followed => "followed");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [AccessLists::Checked, AccessLists::Followed] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "off".parse::<AccessLists>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `off` for `access_lists`; expected `checked` or `followed`"
        );
    }
}
