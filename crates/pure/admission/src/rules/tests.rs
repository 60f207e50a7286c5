use super::*;
use crate::decode;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::{eip2718::Encodable2718, eip7702::Authorization};
use alloy_primitives::{Bytes, Signature, TxKind, U256};
use proptest::prelude::*;

const GAS_LIMIT: u64 = 30_000_000;

fn spec() -> ChainSpec {
    let genesis = r#"{"config": {"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0,
        "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "blobSchedule": {"cancun":
        {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477}, "prague":
        {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716}}},
        "gasLimit": "0x1c9c380", "difficulty": "0x0"}"#;
    ChainSpec::from_genesis_json(genesis).unwrap()
}

fn head() -> Header {
    Header {
        number: 1,
        gas_limit: GAS_LIMIT,
        base_fee_per_gas: Some(1_000_000_000),
        excess_blob_gas: Some(0),
        blob_gas_used: Some(0),
        ..Header::default()
    }
}

/// Returns a transaction with a signature that recovers to some account.
fn signed<T: SignableTransaction<Signature>>(transaction: T) -> Submitted
where
    Transaction: From<alloy_consensus::Signed<T>>,
{
    let transaction: Transaction =
        transaction.into_signed(Signature::new(U256::ONE, U256::from(6), true)).into();
    decode(&Bytes::from(transaction.encoded_2718())).unwrap()
}

fn transfer() -> TxEip1559 {
    TxEip1559 {
        chain_id: 7,
        gas_limit: 21_000,
        max_fee_per_gas: 10,
        max_priority_fee_per_gas: 1,
        to: TxKind::Call(Address::repeat_byte(1)),
        ..TxEip1559::default()
    }
}

fn kind(transaction: TxEip1559) -> Result<Address, &'static str> {
    check(&spec(), &head(), &signed(transaction), 1).map_err(|refused| refused.kind())
}

#[test]
fn every_rule_without_a_state_is_checked() {
    assert!(kind(transfer()).is_ok(), "a fee cap below the base fee may do later");
    let refused = |change: &dyn Fn(&mut TxEip1559)| {
        let mut transaction = transfer();
        change(&mut transaction);
        kind(transaction).unwrap_err()
    };
    assert_eq!(refused(&|tx| tx.chain_id = 8), "chain_id");
    assert_eq!(refused(&|tx| tx.gas_limit = 20_999), "intrinsic_gas");
    assert_eq!(refused(&|tx| tx.gas_limit = GAS_LIMIT + 1), "block_gas_left");
    assert_eq!(refused(&|tx| tx.max_priority_fee_per_gas = 11), "tip_above_fee_cap");
    assert_eq!(refused(&|tx| tx.max_priority_fee_per_gas = 0), "tip_too_low");
    assert_eq!(refused(&|tx| tx.nonce = u64::MAX), "nonce_max");
    assert_eq!(refused(&|tx| tx.input = vec![1; 1000].into()), "intrinsic_gas");
    // 21,000 and 16 gas a byte are paid, but not the floor of 40 (EIP-7623).
    let data = |tx: &mut TxEip1559| (tx.input, tx.gas_limit) = (vec![1; 1000].into(), 40_000);
    assert_eq!(refused(&data), "floor_gas");
    let code = |tx: &mut TxEip1559| {
        (tx.to, tx.input) = (TxKind::Create, vec![0; 49_153].into());
        tx.gas_limit = 10_000_000;
    };
    assert_eq!(refused(&code), "initcode_size");
    let long = |tx: &mut TxEip1559| {
        (tx.input, tx.gas_limit) = (vec![0; TRANSACTION_BYTES_MAX].into(), GAS_LIMIT);
    };
    assert_eq!(refused(&long), "oversized");
}

#[test]
fn a_legacy_transaction_pays_its_price_as_tip() {
    let price = |gas_price| TxLegacy { gas_price, gas_limit: 30_000, ..TxLegacy::default() };
    let checked = |price| check(&spec(), &head(), &signed(price), 5);
    let refused = checked(price(4)).unwrap_err();
    assert_eq!(refused, Refused::TipTooLow { tip: 4, min: 5 });
    // Without an input, but as a creation it takes 53,000.
    assert_eq!(checked(price(5)).unwrap_err().kind(), "intrinsic_gas");
}

#[test]
fn setting_code_needs_an_authorization() {
    let mut transaction = TxEip7702 {
        chain_id: 7,
        gas_limit: 100_000,
        max_fee_per_gas: 10,
        max_priority_fee_per_gas: 1,
        ..TxEip7702::default()
    };
    let checked = |tx: &TxEip7702| check(&spec(), &head(), &signed(tx.clone()), 1);
    assert_eq!(checked(&transaction).unwrap_err().kind(), "no_authorizations");
    let authorization =
        Authorization { chain_id: U256::from(7), address: Address::repeat_byte(2), nonce: 0 };
    let signature = Signature::new(U256::ONE, U256::from(6), false);
    transaction.authorization_list.push(authorization.into_signed(signature));
    checked(&transaction).unwrap();
    assert_eq!(crate::authorities(&signed(transaction).transaction).len(), 1);
}

#[test]
fn a_sidecar_has_the_commitments_that_the_transaction_names() {
    let commitments = [[1; 48], [2; 48]];
    let transaction = TxEip4844 {
        chain_id: 7,
        gas_limit: 21_000,
        max_fee_per_gas: 10,
        max_priority_fee_per_gas: 1,
        max_fee_per_blob_gas: 1,
        blob_versioned_hashes: commitments.iter().map(|it| kzg_to_versioned_hash(it)).collect(),
        ..TxEip4844::default()
    };
    let signature = Signature::new(U256::ONE, U256::from(6), true);
    let transaction = Transaction::from(transaction.into_signed(signature));
    let checked = |commitments: &[[u8; 48]]| {
        let (blob, proof) = (vec![0; tandem_chain::BLOB_BYTES], [[3; 48]]);
        let parts: Vec<_> = commitments.iter().map(|it| (&blob[..], it, &proof[..])).collect();
        let wrapper = tandem_chain::Wrapper::BlobProofs;
        let bytes = crate::encode_network_form(&transaction.encoded_2718(), wrapper, &parts);
        check(&spec(), &head(), &decode(&bytes).unwrap(), 1).map(drop)
    };
    assert_eq!(checked(&commitments), Ok(()));
    let [one, other] = commitments;
    assert_eq!(checked(&[one]), Err(Refused::Commitments { got: 1, want: 2 }));
    assert_eq!(checked(&[one, one]), Err(Refused::VersionedHash { blob: 1 }));
    assert_eq!(checked(&[other, one]), Err(Refused::VersionedHash { blob: 0 }));
}

#[test]
fn the_sender_must_be_able_to_send_and_pay() {
    let transaction =
        signed(TxEip1559 { nonce: 3, value: U256::from(5), ..transfer() }).transaction;
    let cost = U256::from(21_000 * 10 + 5);
    let account = SenderAccount { nonce: 3, balance: cost, code: Code::None };
    let checked = |change: SenderAccount| check_account(&transaction, &change);
    assert_eq!(checked(account), Ok(()));
    assert_eq!(checked(SenderAccount { nonce: 2, ..account }), Ok(()));
    assert_eq!(checked(SenderAccount { code: Code::Delegated, ..account }), Ok(()));
    let late = checked(SenderAccount { nonce: 4, ..account });
    assert_eq!(late, Err(Refused::NonceTooLow { next: 4, nonce: 3 }));
    let contract = checked(SenderAccount { code: Code::Contract, ..account });
    assert_eq!(contract, Err(Refused::SenderHasCode));
    let balance = cost - U256::from(1);
    let poor = checked(SenderAccount { balance, ..account });
    assert_eq!(poor, Err(Refused::InsufficientFunds { balance, cost }));
}

proptest! {
    /// The gas that is needed grows with the data, and exactly that much is enough.
    #[test]
    fn more_gas_never_makes_a_transaction_worse(input in 0..3_000_usize, gas in 20_000..200_000_u64) {
        let with = |gas_limit| {
            kind(TxEip1559 { gas_limit, input: vec![1; input].into(), ..transfer() }).is_ok()
        };
        // Floor of EIP-7623 for bytes that are not zero: 40 each.
        prop_assert_eq!(with(gas), gas >= 21_000 + 40 * input as u64);
    }
}
