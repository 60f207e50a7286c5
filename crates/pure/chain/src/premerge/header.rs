use super::{PreMergeRule, next_difficulty};
use crate::{
    BlockError, ChainSpec,
    header::{check_base_fee, check_extra_data, check_fields, check_gas_limit, check_lineage},
};
use alloy_consensus::Header;

/// Extra data of the first ten blocks of the DAO fork (EIP-779).
const DAO_EXTRA_DATA: &[u8] = b"dao-hard-fork";
const DAO_EXTRA_RANGE: u64 = 10;

/// Checks a header of proof of work against its parent, also of proof of work: every rule but the
/// seal's. Source: execution-specs `validate_header` of each fork up to Gray Glacier, EIP-779.
///
/// # Errors
/// The first rule broken.
pub(crate) fn validate_header(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
) -> Result<(), BlockError> {
    check_lineage(spec, header, parent)?;
    check_gas_limit(spec, header, parent)?;
    check_extra_data(header)?;
    check_fields(header, spec.fork_of(header))?;
    if header.base_fee_per_gas.is_some() {
        check_base_fee(header, parent)?;
    }
    let want = next_difficulty(spec, parent, header.timestamp);
    if header.difficulty != want {
        return Err(PreMergeRule::Difficulty { got: header.difficulty, want }.into());
    }
    check_dao_fork(spec, header)
}

/// For ten blocks each side of the DAO fork has a mark that the other must not have.
fn check_dao_fork(spec: &ChainSpec, header: &Header) -> Result<(), BlockError> {
    let Some(fork) = spec.dao_fork() else { return Ok(()) };
    let in_range = header.number.checked_sub(fork.block).is_some_and(|past| past < DAO_EXTRA_RANGE);
    if in_range && (header.extra_data.as_ref() == DAO_EXTRA_DATA) != fork.support {
        return Err(PreMergeRule::DaoExtraData.into());
    }
    Ok(())
}
