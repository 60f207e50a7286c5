//! Cases on which clients and fixtures differ, and why.

use super::NotValid;

/// A case a line, with tabs between: its name; the gas that revm uses for the block where the
/// fixture says another amount; and what geth 1.17.8 uses (`-` for what was not measured). The two
/// differ by what an SSTORE costs: to revm the new account has no slots, to geth the old ones.
const EIP7610: &str = include_str!("../../../fixtures/eip7610.txt");

/// Why a case may end with this error, `None` when it may not: only a block that should be valid,
/// and was refused for the very gas that executing the creation takes, is such a disagreement. The
/// two formats have the same cases under names that differ in the format's word.
pub fn reason(name: &str, error: &anyhow::Error) -> Option<&'static str> {
    let name = name.replace("-blockchain_test_engine", "-blockchain_test");
    let mut known = EIP7610.lines().filter_map(|line| line.split_once('\t'));
    let (_, amounts) = known.find(|(known, _)| *known == name)?;
    let (gas, _of_geth) = amounts.split_once('\t')?;
    let NotValid(status) = error.downcast_ref()?;
    let said = status.validation_error.as_deref()?.strip_prefix("gas_used: gas used is ")?;
    let (used, _) = said.split_once(',')?;
    (status.status == "INVALID" && (gas == "-" || gas == used)).then_some(
        "EIP-7610: creation at an address with storage, but neither code nor nonce; \
         geth, reth and revm disagree with the fixture too",
    )
}

#[cfg(test)]
mod tests {
    use super::{super::PayloadStatus, *};
    use anyhow::Context as _;

    /// Measured: 85114.
    const LISTED: &str = "create2collisionStorageParis_d0g0v0_Cancun";
    /// Not measured.
    const ANY_GAS: &str = "InitCollisionParis_d0g0v0_Cancun";

    fn refused(status: &str, reason: &str) -> anyhow::Error {
        let error = NotValid(PayloadStatus {
            status: status.to_owned(),
            latest_valid_hash: None,
            validation_error: Some(reason.to_owned()),
        });
        Err::<(), _>(error).context("payload 0").unwrap_err()
    }

    #[test]
    fn only_the_gas_of_the_creation_is_a_disagreement() {
        let known = "gas_used: gas used is 85114, not 395080";
        let other = "gas_used: gas used is 85115, not 395080";
        assert!(reason(LISTED, &refused("INVALID", known)).is_some());
        assert!(reason(ANY_GAS, &refused("INVALID", other)).is_some());
        for (name, error) in [
            (LISTED, refused("INVALID", other)),
            (LISTED, refused("INVALID", "state_root: gas used is 85114, not 395080")),
            (ANY_GAS, refused("INVALID", "receipts_root: receipts root is 0x, not 0x")),
            (LISTED, refused("SYNCING", known)),
            (LISTED, anyhow::anyhow!(known)),
            ("create2collisionStorageParis_d0g0v0_Prague", refused("INVALID", known)),
        ] {
            assert_eq!(reason(name, &error), None, "{name}: {error:#}");
        }
    }

    #[test]
    fn every_line_of_the_list_is_a_name_and_two_amounts() {
        for line in EIP7610.lines() {
            let fields: Vec<_> = line.split('\t').collect();
            let [name, revm, geth] = fields[..] else { panic!("{line}") };
            let is_amount = |gas: &str| gas == "-" || gas.parse::<u64>().is_ok();
            assert!(!name.is_empty() && is_amount(revm) && is_amount(geth), "{line}");
        }
    }
}
