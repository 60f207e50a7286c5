//! Transactions whose fees do not fit 128 bits.
//!
//! In the specification a fee is any number: such a transaction is decoded and then refused,
//! because no account can pay it. Here fees have 128 bits, so it does not decode. This module finds
//! the rule that the specification names.

use crate::{
    TransactionRule,
    codec::{exact_list, list_header, take_item},
    transaction::decode_transaction,
};
use alloy_consensus::Transaction as _;
use alloy_eips::eip4844::DATA_GAS_PER_BLOB;
use alloy_primitives::U256;
use alloy_rlp::Decodable as _;

/// Positions of the fees among a transaction's fields.
struct Fields {
    /// Priority fee, if the type has one.
    tip: Option<usize>,
    /// Gas price, or the maximum price of gas.
    cap: usize,
    /// Maximum price of blob gas, if the type has one.
    blob_cap: Option<usize>,
}

impl Fields {
    fn of(first_byte: u8) -> Option<Self> {
        Some(match first_byte {
            0x01 => Self { tip: None, cap: 2, blob_cap: None },
            0x02 | 0x04 => Self { tip: Some(2), cap: 3, blob_cap: None },
            0x03 => Self { tip: Some(2), cap: 3, blob_cap: Some(9) },
            0xc0.. => Self { tip: None, cap: 1, blob_cap: None },
            _ => return None,
        })
    }
}

/// Returns the rule broken by a transaction that does not decode because of its fees. Returns
/// `None` when there are other reasons as well, or a fee has more than 256 bits.
pub(crate) fn broken_rule(raw: &[u8]) -> Option<TransactionRule> {
    let first_byte = *raw.first()?;
    let fields = Fields::of(first_byte)?;
    let is_typed = first_byte < 0x80;
    let mut rest = exact_list(if is_typed { &raw[1..] } else { raw }).ok()?;
    let mut items = Vec::new();
    while !rest.is_empty() {
        let start = rest;
        take_item(&mut rest).ok()?;
        items.push(&start[..start.len() - rest.len()]);
    }
    let mut is_large = false;
    let mut take_fee = |place: usize| {
        let item = items.get_mut(place)?;
        let fee = U256::decode(&mut &**item).ok()?;
        if fee > U256::from(u128::MAX) {
            is_large = true;
            // Replaced by zero, so that the rest can be decoded.
            *item = &[alloy_rlp::EMPTY_STRING_CODE];
        }
        Some(fee)
    };
    let cap = take_fee(fields.cap)?;
    let tip = fields.tip.map_or(Some(U256::ZERO), &mut take_fee)?;
    let blob_cap = fields.blob_cap.map_or(Some(U256::ZERO), &mut take_fee)?;
    if !is_large {
        return None;
    }
    let payload = items.concat();
    let mut without = Vec::with_capacity(raw.len());
    without.extend(is_typed.then_some(first_byte));
    list_header(payload.len()).encode(&mut without);
    without.extend_from_slice(&payload);
    let transaction = decode_transaction(&without).ok()?;
    if tip > cap {
        return Some(TransactionRule::TipAboveFeeCap);
    }
    let blob_gas = transaction.blob_count().unwrap_or(0).saturating_mul(DATA_GAS_PER_BLOB);
    let cost = cap
        .checked_mul(U256::from(transaction.gas_limit()))
        .zip(blob_cap.checked_mul(U256::from(blob_gas)))
        .and_then(|(gas, blobs)| gas.checked_add(blobs)?.checked_add(transaction.value()));
    // The EVM, which knows the balance, would compare the nonce first. It is not asked here.
    Some(cost.map_or(TransactionRule::CostOverflow, |_| TransactionRule::InsufficientFunds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{
        EthereumTxEnvelope, SignableTransaction as _, TxEip1559, TxEip4844, TxLegacy,
    };
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{B256, Signature, TxKind};

    /// Returns the transaction with other fees, each replacing the fee of that value.
    fn with_fees(raw: &[u8], fees: &[(u64, U256)]) -> Vec<u8> {
        let is_typed = raw[0] < 0x80;
        let mut rest = exact_list(&raw[usize::from(is_typed)..]).unwrap();
        let mut payload = Vec::new();
        while !rest.is_empty() {
            let start = rest;
            take_item(&mut rest).unwrap();
            let item = &start[..start.len() - rest.len()];
            let number = U256::decode(&mut &*item).unwrap_or_default();
            match fees.iter().find(|(old, _)| U256::from(*old) == number) {
                Some((_, new)) => alloy_rlp::Encodable::encode(new, &mut payload),
                None => payload.extend_from_slice(item),
            }
        }
        let mut other = Vec::new();
        other.extend(is_typed.then_some(raw[0]));
        list_header(payload.len()).encode(&mut other);
        other.extend(payload);
        other
    }

    const TIP: u64 = 0x1111;
    const CAP: u64 = 0x2222;
    const BLOB_CAP: u64 = 0x3333;

    fn signature() -> Signature {
        Signature::new(U256::from(5), U256::from(7), false)
    }

    fn legacy() -> Vec<u8> {
        let to = TxKind::Call(Default::default());
        let gas_price = CAP.into();
        let transaction = TxLegacy { gas_price, gas_limit: 21_000, to, ..TxLegacy::default() };
        EthereumTxEnvelope::<TxEip4844>::from(transaction.into_signed(signature())).encoded_2718()
    }

    fn dynamic() -> Vec<u8> {
        let transaction = TxEip1559 {
            max_priority_fee_per_gas: TIP.into(),
            max_fee_per_gas: CAP.into(),
            gas_limit: 21_000,
            ..TxEip1559::default()
        };
        EthereumTxEnvelope::<TxEip4844>::from(transaction.into_signed(signature())).encoded_2718()
    }

    fn blobs() -> Vec<u8> {
        let transaction = TxEip4844 {
            max_priority_fee_per_gas: TIP.into(),
            max_fee_per_gas: CAP.into(),
            max_fee_per_blob_gas: BLOB_CAP.into(),
            blob_versioned_hashes: vec![B256::with_last_byte(1)],
            gas_limit: 21_000,
            ..TxEip4844::default()
        };
        EthereumTxEnvelope::<TxEip4844>::from(transaction.into_signed(signature())).encoded_2718()
    }

    #[test]
    fn fees_above_128_bits_break_the_rule_that_the_specification_names() {
        let large = U256::from(1) << 128;
        let largest = U256::MAX;
        let funds = Some(TransactionRule::InsufficientFunds);
        let overflow = Some(TransactionRule::CostOverflow);
        let tip_above = Some(TransactionRule::TipAboveFeeCap);
        for (raw, fees, rule) in [
            (legacy(), vec![(CAP, large)], funds),
            (legacy(), vec![(CAP, largest)], overflow),
            (dynamic(), vec![(CAP, large)], funds),
            (dynamic(), vec![(CAP, large), (TIP, large)], funds),
            (dynamic(), vec![(TIP, large)], tip_above),
            (dynamic(), vec![(TIP, largest), (CAP, large)], tip_above),
            (blobs(), vec![(BLOB_CAP, large)], funds),
            (blobs(), vec![(BLOB_CAP, largest)], overflow),
            // These decode, so there is no broken rule.
            (legacy(), vec![(CAP, large - U256::from(1))], None),
            (dynamic(), vec![], None),
        ] {
            let raw = with_fees(&raw, &fees);
            assert_eq!(decode_transaction(&raw).is_ok(), rule.is_none(), "{fees:?}");
            assert_eq!(broken_rule(&raw), rule, "{fees:?}");
        }
    }

    #[test]
    fn other_faults_come_first() {
        let large = [(CAP, U256::from(1) << 128)];
        let raw = with_fees(&legacy(), &large);
        assert_eq!(broken_rule(&raw[..raw.len() - 1]), None);
        // A gas limit of over 64 bits does not decode either.
        let both = [large[0], (21_000, U256::from(1) << 100)];
        assert_eq!(broken_rule(&with_fees(&legacy(), &both)), None);
        for no_transaction in [&[][..], &[2], &[2, 0xc0], &[0xc0], &[5, 0xc1, 0x80], &[0x80]] {
            assert_eq!(broken_rule(no_transaction), None, "{no_transaction:?}");
        }
    }
}
