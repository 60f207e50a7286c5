//! Mapping from the fixtures' names of broken rules to ours.

use anyhow::{Context as _, ensure};

/// Kind of a block whose parent is not known: no rule is broken, and the answer is SYNCING.
pub const UNKNOWN_PARENT: &str = "unknown_parent";

/// Returns our kinds ([`tandem_chain::BlockError::kind`]) for an exception of execution-specs,
/// `None` if it is not known. The names are those of `TransactionException` and `BlockException` in
/// execution-specs (`execution_testing/exceptions`).
fn kinds(exception: &str) -> Option<&'static [&'static str]> {
    let (class, name) = exception.split_once('.')?;
    match class {
        "TransactionException" => transaction_kinds(name),
        "BlockException" => block_kinds(name),
        _ => None,
    }
}

fn transaction_kinds(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "TYPE_NOT_SUPPORTED" => &["unknown_type", "transaction_type"],
        "SENDER_NOT_EOA" => &["sender_has_code"],
        "NONCE_MISMATCH_TOO_HIGH" => &["nonce_too_high"],
        "NONCE_MISMATCH_TOO_LOW" => &["nonce_too_low"],
        "NONCE_IS_MAX" | "NONCE_TOO_BIG" => &["nonce_max"],
        "GASLIMIT_PRICE_PRODUCT_OVERFLOW" => &["cost_overflow"],
        "INVALID_SIGNATURE_VRS" | "EC_RECOVERY_FAIL" => &["signature"],
        "INVALID_CHAINID" => &["chain_id"],
        // Fees of 256 bits or more exceed any balance.
        "INSUFFICIENT_ACCOUNT_FUNDS" => &["insufficient_funds", "cost_overflow"],
        "INSUFFICIENT_MAX_FEE_PER_GAS" => &["fee_cap_below_base_fee"],
        "PRIORITY_GREATER_THAN_MAX_FEE_PER_GAS" | "PRIORITY_GREATER_THAN_MAX_FEE_PER_GAS_2" => {
            &["tip_above_fee_cap"]
        }
        "INSUFFICIENT_MAX_FEE_PER_BLOB_GAS" => &["blob_fee_cap_too_low"],
        // A limit may be below both this and the floor, where the floor is the higher one (EIP-7976).
        "INTRINSIC_GAS_TOO_LOW" => &["intrinsic_gas", "floor_gas"],
        "INTRINSIC_GAS_BELOW_FLOOR_GAS_COST" => &["floor_gas"],
        "INITCODE_SIZE_EXCEEDED" => &["initcode_size"],
        "TYPE_1_TX_PRE_FORK"
        | "TYPE_2_TX_PRE_FORK"
        | "TYPE_3_TX_PRE_FORK"
        | "TYPE_4_TX_PRE_FORK"
        | "TYPE_3_TX_ZERO_BLOBS_PRE_FORK" => &["transaction_type"],
        "TYPE_3_TX_INVALID_BLOB_VERSIONED_HASH" => &["blob_version"],
        "TYPE_3_TX_WITH_FULL_BLOBS" => &["blobs_attached"],
        // Before Osaka a transaction's limit is the block's, and the header's limit is checked
        // first.
        "TYPE_3_TX_BLOB_COUNT_EXCEEDED" => &["transaction_blobs", "blob_gas_over_limit"],
        "TYPE_3_TX_CONTRACT_CREATION" | "TYPE_4_TX_CONTRACT_CREATION" => &["type_creates"],
        "TYPE_3_TX_MAX_BLOB_GAS_ALLOWANCE_EXCEEDED" => &["blob_gas_over_limit"],
        "TYPE_3_TX_ZERO_BLOBS" => &["no_blobs"],
        "TYPE_4_EMPTY_AUTHORIZATION_LIST" => &["no_authorizations"],
        "GAS_ALLOWANCE_EXCEEDED" => &["block_gas_left"],
        "GAS_LIMIT_EXCEEDS_MAXIMUM" => &["transaction_gas_limit"],
        "ADDRESS_TOO_SHORT"
        | "ADDRESS_TOO_LONG"
        | "NONCE_OVERFLOW"
        | "GASLIMIT_OVERFLOW"
        | "VALUE_OVERFLOW"
        | "GASPRICE_OVERFLOW"
        | "PRIORITY_OVERFLOW"
        | "TYPE_4_INVALID_AUTHORITY_SIGNATURE"
        | "TYPE_4_INVALID_AUTHORITY_SIGNATURE_S_TOO_HIGH"
        | "TYPE_4_INVALID_AUTHORIZATION_FORMAT" => &["transaction_encoding"],
        name if is_encoding(name) => &["transaction_encoding", "rlp"],
        _ => return None,
    })
}

/// Returns whether an exception of transactions is about its encoding. There are some thirty of
/// them, one per field, and the decoder does not distinguish them.
fn is_encoding(name: &str) -> bool {
    const FAMILIES: [&str; 4] = ["RLP_ERROR_", "RLP_INVALID_", "RLP_LEADING_ZEROS_", "RLP_TOO_"];
    FAMILIES.iter().any(|family| name.starts_with(family))
}

fn block_kinds(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "EXTRA_DATA_TOO_BIG" => &["extra_data_too_long"],
        "GASLIMIT_TOO_BIG" => &["gas_limit_too_high"],
        "INVALID_BLOCK_NUMBER" => &["number"],
        "INVALID_BLOCK_TIMESTAMP_OLDER_THAN_PARENT" => &["timestamp"],
        "UNKNOWN_PARENT" | "UNKNOWN_PARENT_ZERO" => &[UNKNOWN_PARENT],
        // Above the terminal block any difficulty is invalid, whichever rule finds it.
        "INVALID_DIFFICULTY" => &["difficulty", "terminal_passed"],
        "IMPORT_IMPOSSIBLE_DIFFICULTY_OVER_PARIS" => &["difficulty"],
        "INVALID_LOG_BLOOM" => &["logs_bloom"],
        "INVALID_STATE_ROOT" => &["state_root"],
        "INVALID_RECEIPTS_ROOT" => &["receipts_root"],
        "INVALID_TRANSACTIONS_ROOT" => &["transactions_root"],
        // Ommers need it too.
        "EXTRA_DATA_INVALID_DAO" => &["dao_extra_data", "ommer_header"],
        "TOO_MANY_UNCLES" => &["ommer_count"],
        "UNCLE_IN_CHAIN" | "UNCLE_IS_BROTHER" => &["ommer_repeated"],
        "UNCLE_IS_ANCESTOR" => &["ommer_ancestor"],
        "UNCLE_PARENT_INCORRECT" | "UNCLE_UNKNOWN_PARENT" => &["ommer_parent"],
        "IMPORT_IMPOSSIBLE_PARIS_WRONG_POS" => &["terminal_not_reached"],
        "IMPORT_IMPOSSIBLE_PARIS_WRONG_POW" => &["terminal_passed"],
        // A header of the older fork on a parent that demands the newer one, and the reverse.
        "IMPORT_IMPOSSIBLE_LEGACY" | "IMPORT_IMPOSSIBLE_LEGACY_WRONG_PARENT" => &["missing_field"],
        "IMPORT_IMPOSSIBLE_LONDON_WRONG_PARENT" => &["unexpected_field"],
        "INVALID_UNCLES_HASH" => &["ommers_hash"],
        "IMPORT_IMPOSSIBLE_UNCLES_OVER_PARIS" => &["ommers", "ommers_hash"],
        "INVALID_GASLIMIT" => &["gas_limit_change", "gas_limit_too_low"],
        "INVALID_BASEFEE_PER_GAS" => &["base_fee", "base_fee_too_high"],
        "INVALID_GAS_USED" => &["gas_used"],
        "INVALID_GAS_USED_ABOVE_LIMIT" => &["gas_used_over_limit"],
        // The gas of the header or, as it is spent, of the transactions.
        "GAS_USED_OVERFLOW" => &["gas_used_over_limit", "block_gas_left"],
        "INVALID_WITHDRAWALS_ROOT" => &["withdrawals_root"],
        // The body of the older fork, under a header of either.
        "IMPORT_IMPOSSIBLE_PARIS_OVER_SHANGHAI" => &["missing_field", "withdrawals_root"],
        // RLP has no field names: if a field in the middle is missing, the next ones do not decode.
        // An access list out of order is of a wrong format too.
        "INCORRECT_BLOCK_FORMAT" => {
            &["missing_field", "unexpected_field", "rlp", "access_list_form"]
        }
        "IMPORT_IMPOSSIBLE_SHANGHAI" => &["unexpected_field"],
        "BLOB_GAS_USED_ABOVE_LIMIT" => &["blob_gas_over_limit"],
        "INCORRECT_BLOB_GAS_USED" => &["blob_gas_used"],
        "INCORRECT_EXCESS_BLOB_GAS" => &["excess_blob_gas"],
        "INVALID_VERSIONED_HASHES" => &["versioned_hashes"],
        // A header with withdrawals over a body without.
        "RLP_WITHDRAWALS_NOT_READ" => &["rlp", "withdrawals_root"],
        "RLP_STRUCTURES_ENCODING" | "RLP_INVALID_FIELD_OVERFLOW_64" | "RLP_INVALID_ADDRESS" => {
            &["rlp", "transaction_encoding"]
        }
        "RLP_BLOCK_LIMIT_EXCEEDED" => &["block_too_large"],
        "INVALID_REQUESTS" => &["requests_hash"],
        "SYSTEM_CONTRACT_EMPTY" => &["system_contract_missing"],
        "SYSTEM_CONTRACT_CALL_FAILED" => &["system_call"],
        "INVALID_BLOCK_HASH" => &["block_hash"],
        "INVALID_DEPOSIT_EVENT_LAYOUT" => &["deposit_layout"],
        "INVALID_BLOCK_ACCESS_LIST" => {
            &["access_list_encoding", "access_list_form", "access_list_index", "access_list"]
        }
        "INVALID_BAL_HASH" => &["access_list"],
        "BLOCK_ACCESS_LIST_GAS_LIMIT_EXCEEDED" => &["access_list_too_long"],
        _ => return None,
    })
}

/// Rules that a case may break beside the expected one if it was filled with other gas prices or
/// gas limits than it was written for.
const REPRICED: [&str; 2] = ["intrinsic_gas", "access_list_too_long"];

/// How the reason of an invalid payload is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reasons {
    /// It is the expected one.
    Exact,
    /// It is the expected one, or one that other gas prices bring ([`REPRICED`]).
    Repriced,
    /// It is not compared, because the payload may break several rules at once.
    Any,
}

/// Checks the Engine API's error as [`check`] does, by the way of the case.
///
/// # Errors
/// As for [`check`].
pub fn check_by(reasons: Reasons, expected: &str, validation_error: &str) -> anyhow::Result<()> {
    let kind = validation_error.split(':').next().unwrap_or_default();
    match reasons {
        Reasons::Any => Ok(()),
        Reasons::Repriced if REPRICED.contains(&kind) => Ok(()),
        _ => check(expected, validation_error),
    }
}

/// Checks that the Engine API's error is one of the expected exceptions (`A|B`: either).
///
/// # Errors
/// If the error is of another kind, or an exception's name is not known.
pub fn check(expected: &str, validation_error: &str) -> anyhow::Result<()> {
    let kind = validation_error.split(':').next().unwrap_or_default();
    let mut found = false;
    for exception in expected.split('|') {
        let kinds = kinds(exception).with_context(|| format!("{exception} has no kind here"))?;
        found |= kinds.contains(&kind);
    }
    ensure!(found, "refused as {validation_error:?}, expected {expected}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_a_case_decides_what_counts() {
        let expected = "TransactionException.SENDER_NOT_EOA";
        for (reasons, error, good) in [
            (Reasons::Exact, "sender_has_code: text", true),
            (Reasons::Exact, "intrinsic_gas: text", false),
            (Reasons::Repriced, "sender_has_code: text", true),
            (Reasons::Repriced, "intrinsic_gas: text", true),
            (Reasons::Repriced, "nonce_max: text", false),
            (Reasons::Any, "nonce_max: text", true),
        ] {
            assert_eq!(check_by(reasons, expected, error).is_ok(), good, "{reasons:?} {error}");
        }
    }

    #[test]
    fn one_of_the_alternatives_is_enough_but_all_must_be_known() {
        let low = "intrinsic_gas: text: more";
        assert!(check("TransactionException.INTRINSIC_GAS_TOO_LOW", low).is_ok());
        assert!(
            check(
                "BlockException.INVALID_BLOCK_HASH|TransactionException.INTRINSIC_GAS_TOO_LOW",
                low
            )
            .is_ok()
        );
        for wrong in [
            "BlockException.INVALID_BLOCK_HASH",
            "TransactionException.INTRINSIC_GAS_TOO_LOW|TransactionException.NEW",
            "BlockException.INTRINSIC_GAS_TOO_LOW",
            "INTRINSIC_GAS_TOO_LOW",
            "TransactionException.RLP_NEW",
            "",
        ] {
            assert!(check(wrong, low).is_err(), "{wrong}");
        }
    }
}
