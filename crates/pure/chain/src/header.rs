use crate::{BlockError, ChainSpec, Fork, HeaderField, is_merged, premerge};
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header, constants::MAXIMUM_EXTRA_DATA_SIZE};
use alloy_eips::{
    eip1559::{BaseFeeParams, INITIAL_BASE_FEE},
    eip7840::BlobParams,
};
use alloy_primitives::U256;

/// Divisor of the parent's gas limit: the gas limit changes by less than this fraction.
pub(crate) const GAS_LIMIT_DIVISOR: u64 = 1024;
/// Ratio of gas limit to gas target from London on (EIP-1559).
const ELASTICITY_MULTIPLIER: u64 = 2;
pub(crate) const GAS_LIMIT_MIN: u64 = 5_000;
pub(crate) const GAS_LIMIT_MAX: u64 = i64::MAX as u64;

/// Checks a header against its parent: every rule of its fork that needs neither the body nor the
/// state. Exceptions are the seal of proof of work, and the end of proof of work
/// ([`crate::check_terminal`]). Sources: execution-specs `validate_header` of each fork, EIP-1559,
/// 3675, 4844, 4788, 4895, 7685, 7691, 7840, 7843, 7892, 7918, 7928.
///
/// # Errors
/// The first broken rule.
pub fn validate_header(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
) -> Result<(), BlockError> {
    // Proof of work cannot return after the merge.
    if !is_merged(header) && !is_merged(parent) {
        return premerge::validate_header(spec, header, parent);
    }
    check_parent_hash(header, parent)?;
    check_number(header, parent)?;
    check_timestamp(spec, header, parent)?;
    check_gas_limit(spec, header, parent)?;
    check_gas_used(header)?;
    check_extra_data(header)?;
    check_merged(header)?;
    let fork = spec.fork_at(header.timestamp);
    check_fields(header, fork)?;
    check_base_fee(header, parent)?;
    match spec.blob_params_at(header.timestamp) {
        Some(params) => check_blob_gas(header, parent, &params),
        None => Ok(()),
    }
}

pub(crate) fn check_parent_hash(header: &Header, parent: &Header) -> Result<(), BlockError> {
    let want = parent.hash_slow();
    if header.parent_hash != want {
        return Err(BlockError::ParentHash { got: header.parent_hash, want });
    }
    Ok(())
}

pub(crate) fn check_number(header: &Header, parent: &Header) -> Result<(), BlockError> {
    let want = parent.number.saturating_add(1);
    if header.number != want {
        return Err(BlockError::Number { got: header.number, want });
    }
    Ok(())
}

pub(crate) fn check_timestamp(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
) -> Result<(), BlockError> {
    if header.timestamp <= parent.timestamp {
        return Err(BlockError::Timestamp { got: header.timestamp, parent: parent.timestamp });
    }
    match spec.unsupported_fork() {
        Some(fork) if fork.time <= header.timestamp => {
            Err(BlockError::UnsupportedFork { fork: fork.name.clone(), time: fork.time })
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_gas_limit(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
) -> Result<(), BlockError> {
    let got = header.gas_limit;
    // The first block of London may double the limit, so that the target stays the same (EIP-1559).
    let first_of_london = !is_merged(parent)
        && spec.fork_of(parent) < Fork::London
        && spec.fork_of(header) >= Fork::London;
    let elasticity = if first_of_london { ELASTICITY_MULTIPLIER } else { 1 };
    let parent_limit = parent.gas_limit.saturating_mul(elasticity);
    if got > GAS_LIMIT_MAX {
        return Err(BlockError::GasLimitTooHigh { got });
    }
    if got < GAS_LIMIT_MIN {
        return Err(BlockError::GasLimitTooLow { got });
    }
    if got.abs_diff(parent_limit) >= parent_limit / GAS_LIMIT_DIVISOR {
        return Err(BlockError::GasLimitChange { got, parent: parent_limit });
    }
    Ok(())
}

pub(crate) fn check_gas_used(header: &Header) -> Result<(), BlockError> {
    if header.gas_used > header.gas_limit {
        return Err(BlockError::GasUsedOverLimit { got: header.gas_used, limit: header.gas_limit });
    }
    Ok(())
}

pub(crate) fn check_extra_data(header: &Header) -> Result<(), BlockError> {
    match header.extra_data.len() {
        0..=MAXIMUM_EXTRA_DATA_SIZE => Ok(()),
        got => Err(BlockError::ExtraDataTooLong { got }),
    }
}

/// Checks the fields that proof of stake fixes (EIP-3675).
fn check_merged(header: &Header) -> Result<(), BlockError> {
    if !header.difficulty.is_zero() {
        return Err(BlockError::Difficulty { got: header.difficulty });
    }
    if !header.nonce.is_zero() {
        return Err(BlockError::Nonce { got: header.nonce.into() });
    }
    if header.ommers_hash != EMPTY_OMMER_ROOT_HASH {
        return Err(BlockError::OmmersHash { got: header.ommers_hash });
    }
    Ok(())
}

/// Checks that a header has exactly the fields of its fork. Each fork adds fields.
pub(crate) fn check_fields(header: &Header, fork: Fork) -> Result<(), BlockError> {
    let fields = [
        (HeaderField::BaseFeePerGas, Fork::London, header.base_fee_per_gas.is_some()),
        (HeaderField::WithdrawalsRoot, Fork::Shanghai, header.withdrawals_root.is_some()),
        (HeaderField::BlobGasUsed, Fork::Cancun, header.blob_gas_used.is_some()),
        (HeaderField::ExcessBlobGas, Fork::Cancun, header.excess_blob_gas.is_some()),
        (
            HeaderField::ParentBeaconBlockRoot,
            Fork::Cancun,
            header.parent_beacon_block_root.is_some(),
        ),
        (HeaderField::RequestsHash, Fork::Prague, header.requests_hash.is_some()),
        (
            HeaderField::BlockAccessListHash,
            Fork::Amsterdam,
            header.block_access_list_hash.is_some(),
        ),
        (HeaderField::SlotNumber, Fork::Amsterdam, header.slot_number.is_some()),
    ];
    for (field, since, present) in fields {
        match fork >= since {
            true if !present => return Err(BlockError::MissingField { field, fork }),
            false if present => return Err(BlockError::UnexpectedField { field, fork }),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the base fee of a block on this parent, in wei (EIP-1559).
pub(crate) fn next_base_fee(parent: &Header) -> u64 {
    // A parent without a base fee is from before London: the price starts here.
    parent.next_block_base_fee(BaseFeeParams::ethereum()).unwrap_or(INITIAL_BASE_FEE)
}

pub(crate) fn check_base_fee(header: &Header, parent: &Header) -> Result<(), BlockError> {
    let want = next_base_fee(parent);
    let got = header.base_fee_per_gas.unwrap_or(0);
    if got != want {
        return Err(BlockError::BaseFee { got: U256::from(got), want: U256::from(want) });
    }
    Ok(())
}

/// Returns the excess blob gas of a block on this parent, by the parameters of the block's own fork
/// (EIP-4844, 7691, 7918).
pub(crate) fn next_excess_blob_gas(parent: &Header, params: &BlobParams) -> u64 {
    // Before Osaka the base cost is 0, so the reserve price of EIP-7918 never applies.
    params.next_block_excess_blob_gas_osaka(
        parent.excess_blob_gas.unwrap_or(0),
        parent.blob_gas_used.unwrap_or(0),
        parent.base_fee_per_gas.unwrap_or(0),
    )
}

fn check_blob_gas(header: &Header, parent: &Header, params: &BlobParams) -> Result<(), BlockError> {
    let (used, limit) = (header.blob_gas_used.unwrap_or(0), params.max_blob_gas_per_block());
    if used > limit {
        return Err(BlockError::BlobGasOverLimit { got: used, limit });
    }
    let want = next_excess_blob_gas(parent, params);
    let got = header.excess_blob_gas.unwrap_or(0);
    if got != want {
        return Err(BlockError::ExcessBlobGas { got, want });
    }
    Ok(())
}
