use super::{PreMergeRule, next_difficulty};
use crate::{
    BlockError, ChainSpec, Fork,
    header::{
        check_base_fee, check_extra_data, check_fields, check_gas_limit, check_gas_used,
        check_number, check_parent_hash, check_timestamp,
    },
};
use alloy_consensus::Header;

/// Extra data of the first ten blocks of the DAO fork (EIP-779).
const DAO_EXTRA_DATA: &[u8] = b"dao-hard-fork";
const DAO_EXTRA_RANGE: u64 = 10;

/// Checks a header of proof of work against its parent, also of proof of work. Covers every rule
/// except those of the seal, in the order of the specification. Source: execution-specs
/// `validate_header` of each fork up to Gray Glacier, EIP-779.
///
/// # Errors
/// The first broken rule.
pub(crate) fn validate_header(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
) -> Result<(), BlockError> {
    let fork = spec.fork_of(header);
    if fork < Fork::London && header.base_fee_per_gas.is_some() {
        // The specification cannot decode such a header. The tests of the transition to London name
        // the gas limit first where it is wrong as well.
        check_gas_limit(spec, header, parent)?;
    }
    check_fields(header, fork)?;
    check_gas_used(header)?;
    if fork >= Fork::London {
        check_gas_limit(spec, header, parent)?;
        check_base_fee(header, parent)?;
    }
    check_timestamp(spec, header, parent)?;
    check_number(header, parent)?;
    if fork < Fork::London {
        check_gas_limit(spec, header, parent)?;
    }
    check_extra_data(header)?;
    let want = next_difficulty(spec, parent, header.timestamp);
    if header.difficulty != want {
        return Err(PreMergeRule::Difficulty { got: header.difficulty, want }.into());
    }
    check_parent_hash(header, parent)?;
    check_dao_fork(spec, header)
}

/// Checks the mark of the DAO fork: for ten blocks, one side must have it and the other must not.
fn check_dao_fork(spec: &ChainSpec, header: &Header) -> Result<(), BlockError> {
    let Some(fork) = spec.dao_fork() else { return Ok(()) };
    let in_range = header.number.checked_sub(fork.block).is_some_and(|past| past < DAO_EXTRA_RANGE);
    if in_range && (header.extra_data.as_ref() == DAO_EXTRA_DATA) != fork.support {
        return Err(PreMergeRule::DaoExtraData.into());
    }
    Ok(())
}
