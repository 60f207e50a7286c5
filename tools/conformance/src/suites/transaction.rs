//! `TransactionTests` of ethereum/tests: bytes, and for each fork the transaction they encode or
//! the reason why they are invalid. A case is one transaction under one fork.
//!
//! The bytes travel as the only transaction of a payload through every check of a payload:
//! decoding, the rules of the body, and the sender. Then follows revm's validation that needs no
//! state, with the environment that the executor gives it. The fixtures do not cover balance and
//! nonce of the sender.

use super::support::{bytes, case, is_json, lies_in, read_cases, same, skipped};
use crate::{Case, Suite};
use alloy_evm::{
    EvmEnv, FromRecoveredTx as _,
    eth::EthEvmBuilder,
    revm::{
        context::{ContextSetters as _, TxEnv},
        context_interface::result::{EVMError, InvalidTransaction},
        database::EmptyDB,
        handler::{Handler as _, MainnetHandler},
    },
};
use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::json;
use std::{collections::BTreeMap, convert::Infallible, fmt, path::Path, sync::Arc};
use tandem_admission::broken_rule;
use tandem_chain::{
    Block, BlockError, ChainSpec, Fork, Payload, PayloadSidecar, TransactionRule, recover_senders,
    take_item, validate_body,
};
use tandem_primitives::{Address, B256, Bytes, U256};

const NAME: &str = "transaction";

/// Forks whose rules Tandem has, in order, each with the field that activates it in a genesis.
const FORKS: [(&str, Option<&str>); 6] = [
    ("Paris", None),
    ("Shanghai", Some("shanghaiTime")),
    ("Cancun", Some("cancunTime")),
    ("Prague", Some("pragueTime")),
    ("Osaka", Some("osakaTime")),
    ("Amsterdam", Some("amsterdamTime")),
];

/// RLP of an empty list.
const EMPTY_LIST: [u8; 1] = [0xc0];

/// The networks before the merge, as fixtures name them.
const BEFORE_PARIS: [&str; 12] = [
    "Frontier",
    "Homestead",
    "EIP150",
    "EIP158",
    "Byzantium",
    "Constantinople",
    "ConstantinopleFix",
    "Istanbul",
    "Berlin",
    "London",
    "ArrowGlacier",
    "GrayGlacier",
];

/// Suite of folders named `TransactionTests`.
pub struct Transactions;

impl Suite for Transactions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        lies_in(path, "TransactionTests") && is_json(path)
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let mut cases = Vec::new();
        for (name, fixture) in read_cases::<Fixture>(path)? {
            let raw: Arc<str> = fixture.txbytes.into();
            for (fork, expected) in fixture.result {
                cases.push(one(&name, fork, raw.clone(), expected));
            }
        }
        Ok(cases)
    }
}

#[derive(Deserialize)]
struct Fixture {
    txbytes: String,
    result: BTreeMap<String, Expected>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expected {
    hash: Option<B256>,
    sender: Option<Address>,
    intrinsic_gas: Option<U256>,
    exception: Option<String>,
}

fn one(name: &str, fork: String, raw: Arc<str>, expected: Expected) -> Case {
    let name = format!("{name}/{fork}");
    if BEFORE_PARIS.contains(&fork.as_str()) {
        return skipped(NAME, fork, name, "fork before Paris");
    }
    if expected.exception.is_none() && has_wide_fee(&raw) {
        let reason = "fee over 128 bits, more than all ether for any gas: alloy and revm hold 128";
        return skipped(NAME, fork, name, reason);
    }
    let Some(at) = FORKS.iter().position(|(known, _)| *known == fork) else {
        return skipped(NAME, fork, name, "fork that Tandem does not have");
    };
    case(NAME, fork, name, move || check(&raw, at, &expected))
}

/// Returns whether a fee of the transaction has more than 128 bits. The fixtures call such a
/// transaction valid as long as its product with the gas limit fits into 256 bits.
fn has_wide_fee(raw: &str) -> bool {
    let raw = bytes(raw).unwrap_or_default();
    let (mut rlp, fees) = match raw.first() {
        Some(1) => (&raw[1..], 2..3),
        Some(2..=4) => (&raw[1..], 2..4),
        _ => (&raw[..], 1..2),
    };
    let Ok((_, mut fields)) = take_item(&mut rlp) else { return false };
    for at in 0..fees.end {
        let Ok((_, field)) = take_item(&mut fields) else { return false };
        if fees.contains(&at) && field.len() > 16 {
            return true;
        }
    }
    false
}

fn check(raw: &str, fork: usize, expected: &Expected) -> anyhow::Result<()> {
    let raw = Bytes::from(bytes(raw)?);
    let got = validate(&spec(fork)?, raw);
    match (&expected.exception, got) {
        (None, Ok(valid)) => {
            same("hash", Some(valid.hash), expected.hash)?;
            same("sender", Some(valid.sender), expected.sender)?;
            same("intrinsic gas", Some(U256::from(valid.intrinsic_gas)), expected.intrinsic_gas)
        }
        (None, Err(fault)) => bail!("refused: {fault}"),
        (Some(exception), Ok(_)) => bail!("taken, want {exception}"),
        (Some(exception), Err(fault)) => {
            let kind =
                fault.kind().with_context(|| format!("{fault}: no kind is known for that"))?;
            let wanted = kinds(exception)?;
            ensure!(wanted.contains(&kind), "{kind}: {fault}, want {exception}");
            match (fault, expected.intrinsic_gas) {
                (
                    Fault::Evm(InvalidTransaction::CallGasCostMoreThanGasLimit {
                        initial_gas, ..
                    }),
                    Some(gas),
                ) => same("intrinsic gas", U256::from(initial_gas), gas),
                _ => Ok(()),
            }
        }
    }
}

/// Returns the specification of a chain with the fixtures' chain id, at this fork from the start.
fn spec(fork: usize) -> anyhow::Result<ChainSpec> {
    let mut config = json!({
        "chainId": 1,
        "terminalTotalDifficulty": 0,
        "depositContractAddress": "0x00000000219ab540356cbb839cbe05303d7705fa",
    });
    for field in FORKS[..=fork].iter().filter_map(|(_, field)| *field) {
        config[field] = json!(0);
    }
    let genesis =
        json!({ "config": config, "difficulty": "0x0", "gasLimit": "0x1c9c380", "alloc": {} });
    ChainSpec::from_genesis_json(&genesis.to_string()).context("make a genesis")
}

struct Valid {
    hash: B256,
    sender: Address,
    intrinsic_gas: u64,
}

/// Reason why a transaction is invalid.
#[derive(Debug)]
enum Fault {
    Block(BlockError),
    Evm(InvalidTransaction),
    /// A fault that no rule of transactions covers.
    Other(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(error) => error.fmt(f),
            Self::Evm(error) => error.fmt(f),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<BlockError> for Fault {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

impl From<EVMError<Infallible>> for Fault {
    fn from(error: EVMError<Infallible>) -> Self {
        match error {
            EVMError::Transaction(invalid) => Self::Evm(invalid),
            other => Self::Other(other.to_string()),
        }
    }
}

fn validate(spec: &ChainSpec, raw: Bytes) -> Result<Valid, Fault> {
    let block = block(spec, raw)?;
    validate_body(spec, &block)?;
    let senders = recover_senders(&block)?;
    let ([transaction], [sender]) = (&block.transactions[..], &senders[..]) else {
        return Err(Fault::Other("not one transaction".to_owned()));
    };
    let (rules, blob_params) = (spec.rules(&block.header), spec.blob_params_of(&block.header));
    let env = EvmEnv::for_eth_block(&block.header, rules, spec.chain_id(), blob_params);
    let mut evm = EthEvmBuilder::new(EmptyDB::new(), env).build().into_inner();
    evm.ctx.set_tx(TxEnv::from_recovered_tx(transaction, *sender));
    let handler = MainnetHandler::<_, EVMError<Infallible>, _>::default();
    handler.validate_env(&mut evm)?;
    let gas = handler.validate_initial_tx_gas(&mut evm)?;
    Ok(Valid { hash: *transaction.hash(), sender: *sender, intrinsic_gas: gas.initial_total_gas() })
}

/// Builds the block of a payload with this transaction, with room for any gas limit and without a
/// base fee.
fn block(spec: &ChainSpec, raw: Bytes) -> Result<Block, BlockError> {
    let fork = spec.fork_at(0);
    let since = |first| (fork >= first).then_some(());
    let mut payload = Payload {
        parent_hash: B256::ZERO,
        fee_recipient: Address::ZERO,
        state_root: B256::ZERO,
        receipts_root: B256::ZERO,
        logs_bloom: Default::default(),
        prev_randao: B256::ZERO,
        block_number: 1,
        gas_limit: u64::MAX,
        gas_used: 0,
        timestamp: 0,
        extra_data: Bytes::new(),
        base_fee_per_gas: U256::ZERO,
        block_hash: B256::ZERO,
        transactions: vec![raw],
        withdrawals: since(Fork::Shanghai).map(|()| Vec::new()),
        blob_gas_used: since(Fork::Cancun).map(|()| 0),
        excess_blob_gas: since(Fork::Cancun).map(|()| 0),
        block_access_list: since(Fork::Amsterdam).map(|()| EMPTY_LIST.into()),
        slot_number: since(Fork::Amsterdam).map(|()| 0),
    };
    let sidecar = PayloadSidecar {
        versioned_hashes: None,
        parent_beacon_block_root: since(Fork::Cancun).map(|()| B256::ZERO),
        execution_requests: since(Fork::Prague).map(|()| Vec::new()),
    };
    // The first answer names the hash that the payload should have claimed.
    match Block::from_payload(payload.clone(), &sidecar) {
        Err(BlockError::BlockHash { want, .. }) => payload.block_hash = want,
        other => return other,
    }
    Block::from_payload(payload, &sidecar)
}

impl Fault {
    /// Returns the kind that the Engine API would name.
    fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Block(error) => Some(error.kind()),
            Self::Evm(invalid) => match broken_rule(invalid) {
                TransactionRule::Other => None,
                rule => Some(rule.kind()),
            },
            Self::Other(_) => None,
        }
    }
}

/// Returns the kinds that match an exception of the fixtures; `A|B` is either.
fn kinds(exceptions: &str) -> anyhow::Result<Vec<&'static str>> {
    let mut kinds = Vec::new();
    for exception in exceptions.split('|') {
        let name = exception.trim().trim_start_matches("TransactionException.");
        let any: &[_] = match name {
            name if name.starts_with("RLP_") => &["transaction_encoding"],
            // Numbers that exceed their width, which for fees is 256 bits.
            "ADDRESS_TOO_SHORT" | "ADDRESS_TOO_LONG" | "GASLIMIT_OVERFLOW" | "VALUE_OVERFLOW"
            | "NONCE_OVERFLOW" | "GASPRICE_OVERFLOW" | "PRIORITY_OVERFLOW" => {
                &["transaction_encoding"]
            }
            "GASLIMIT_PRICE_PRODUCT_OVERFLOW" => &["cost_overflow"],
            "PRIORITY_GREATER_THAN_MAX_FEE_PER_GAS" | "PRIORITY_GREATER_THAN_MAX_FEE_PER_GAS_2" => {
                &["tip_above_fee_cap"]
            }
            // From 0x80 on, a first byte is not a type.
            "TYPE_NOT_SUPPORTED" => &["unknown_type", "transaction_type", "transaction_encoding"],
            // Numbers over 256 bits are not turned into a signature.
            "INVALID_SIGNATURE_VRS" => &["signature", "transaction_encoding"],
            "EC_RECOVERY_FAIL" => &["signature"],
            // A `v` that encodes no chain is found during decoding.
            "INVALID_CHAINID" => &["chain_id", "transaction_encoding"],
            "INTRINSIC_GAS_TOO_LOW" => &["intrinsic_gas"],
            "INTRINSIC_GAS_BELOW_FLOOR_GAS_COST" => &["floor_gas"],
            "GAS_LIMIT_EXCEEDS_MAXIMUM" => &["transaction_gas_limit"],
            "NONCE_TOO_BIG" | "NONCE_IS_MAX" => &["nonce_max"],
            "INITCODE_SIZE_EXCEEDED" => &["initcode_size"],
            "TYPE_1_TX_PRE_FORK" | "TYPE_2_TX_PRE_FORK" | "TYPE_3_TX_PRE_FORK"
            | "TYPE_4_TX_PRE_FORK" => &["transaction_type"],
            "TYPE_3_TX_ZERO_BLOBS" => &["no_blobs"],
            "TYPE_3_TX_BLOB_COUNT_EXCEEDED" => &["transaction_blobs"],
            "TYPE_3_TX_INVALID_BLOB_VERSIONED_HASH" => &["blob_version"],
            "TYPE_3_TX_CONTRACT_CREATION" | "TYPE_4_TX_CONTRACT_CREATION" => &["type_creates"],
            "TYPE_4_EMPTY_AUTHORIZATION_LIST" => &["no_authorizations"],
            unknown => return Err(anyhow!("no kind is known for the exception {unknown}")),
        };
        kinds.extend_from_slice(any);
    }
    Ok(kinds)
}
