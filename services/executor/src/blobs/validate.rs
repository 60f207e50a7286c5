//! Validation of a blob transaction without its blobs.

use super::{error::SendError, pool::Entry, rank::Market};
use crate::{
    block::{evm::evm_env, execute::broken_rule},
    chain::{BlockTag, Chain},
    error::Error,
    state::{BlockState, StateReader},
};
use alloy_consensus::{Header, Transaction as _, transaction::SignerRecoverable};
use alloy_evm::{FromRecoveredTx, eth::EthEvmBuilder};
use revm::{
    context::{ContextSetters, TxEnv, result::EVMError},
    handler::{EthFrame, Handler, MainnetHandler},
};
use std::sync::Arc;
use tandem_chain::{
    BLOB_BYTES, BlockError, ChainSpec, Fork, NetworkForm, Sidecar, Transaction, Wrapper,
    validate_transaction,
};
use tandem_primitives::{Account, Address, U256, keccak256};
use tandem_proto::{
    blob_validator::{Bundle, CELLS, Form, Rule},
    limits::BLOBS_PER_BUNDLE_MAX,
};

/// Maximum bytes of a transaction without its blobs. This is a local limit: blocks may contain
/// longer transactions.
pub const TRANSACTION_BYTES_MAX: usize = 128 << 10;

/// Minimum price of blob gas, in wei (EIP-4844, `MIN_BASE_FEE_PER_BLOB_GAS`).
const BLOB_PRICE_MIN: u128 = 1;

/// Transaction that is valid provided its blobs are, and these blobs.
#[derive(Debug)]
pub struct Candidate {
    pub entry: Entry,
    /// Sender's account at the head.
    pub account: Account,
    /// Prices at the head.
    pub market: Market,
    pub bundle: Arc<Bundle>,
}

/// Checks a transaction against the fork and the state at the head. Applies every rule of execution
/// except those about the fees of a future block. The pool checks the nonce. Reads the state, so it
/// may wait for the database.
///
/// # Errors
/// [`SendError`].
pub fn validate(chain: &Chain, form: NetworkForm) -> Result<Candidate, SendError> {
    let NetworkForm { transaction, raw, sidecar } = form;
    if raw.len() > TRANSACTION_BYTES_MAX {
        return Err(SendError::Oversized { got: raw.len(), max: TRANSACTION_BYTES_MAX });
    }
    let (head, header) = chain.header(BlockTag::Latest)?.ok_or(Error::UnknownBlock)?;
    validate_transaction(&chain.spec, &header, &transaction).map_err(SendError::Rule)?;
    let invalid = |_| SendError::Rule(BlockError::Signature { index: 0 });
    let sender = transaction.recover_signer().map_err(invalid)?;
    let (_, view) = chain.view(BlockTag::Hash(head.hash))?;
    let account = view.account(&keccak256(sender))?.unwrap_or_default();
    check_execution(chain, &header, &view, &transaction, sender)?;
    let versioned_hashes = transaction.blob_versioned_hashes().unwrap_or_default().to_vec();
    let entry = Entry {
        hash: *transaction.hash(),
        sender,
        nonce: transaction.nonce(),
        fees: [
            transaction.max_priority_fee_per_gas().unwrap_or_default(),
            transaction.max_fee_per_gas(),
            transaction.max_fee_per_blob_gas().unwrap_or_default(),
        ],
        cost: cost(&transaction),
        wrapper: sidecar.wrapper,
        versioned_hashes: versioned_hashes.clone(),
        sidecar_bytes: sidecar.blobs.len() * BLOB_BYTES
            + (sidecar.commitments.len() + sidecar.proofs.len()) * 48,
    };
    let Sidecar { wrapper, blobs, commitments, proofs } = sidecar;
    let bundle = Bundle {
        form: form_of(wrapper),
        blobs,
        commitments,
        proofs,
        versioned_hashes,
        rule: rule(chain, &header),
    };
    let market = market(&chain.spec, &header);
    Ok(Candidate { entry, account, market, bundle: Arc::new(bundle) })
}

fn market(spec: &ChainSpec, head: &Header) -> Market {
    let blob_fee = spec.blob_params_of(head).and_then(|params| head.blob_fee(params));
    Market {
        base_fee: head.base_fee_per_gas.unwrap_or_default().into(),
        blob_fee: blob_fee.unwrap_or(BLOB_PRICE_MIN),
    }
}

/// Returns the bytes of the largest network form that any fork of this chain allows. Returns 0 on a
/// chain without blobs.
pub fn network_form_bytes_max(spec: &ChainSpec) -> usize {
    let of_fork = |time: u64| {
        let blobs = spec.blob_params_at(time).map_or(0, |params| params.max_blobs_per_tx);
        let blobs = usize::try_from(blobs)
            .map_or(BLOBS_PER_BUNDLE_MAX, |blobs| blobs.min(BLOBS_PER_BUNDLE_MAX));
        let proofs = if spec.fork_at(time) >= Fork::Osaka { CELLS } else { 1 };
        network_form_bytes(blobs, proofs)
    };
    let times = spec.fork_points().times;
    times.into_iter().map(of_fork).max().unwrap_or(0)
}

/// Returns the bytes of the largest network form that any chain allows.
pub fn any_network_form_bytes_max() -> usize {
    network_form_bytes(BLOBS_PER_BUNDLE_MAX, CELLS)
}

/// Returns the maximum bytes of a network form with `blobs` blobs and `proofs` proofs for each.
fn network_form_bytes(blobs: usize, proofs: usize) -> usize {
    // Headers of lists and strings, and the version.
    const HEADER_BYTES: usize = 4;
    const POINT_BYTES: usize = 1 + 48;
    let sidecar = blobs * (HEADER_BYTES + BLOB_BYTES + (1 + proofs) * POINT_BYTES);
    if sidecar == 0 { 0 } else { TRANSACTION_BYTES_MAX + sidecar + 8 * HEADER_BYTES }
}

fn form_of(wrapper: Wrapper) -> Form {
    match wrapper {
        Wrapper::BlobProofs => Form::BlobProofs,
        Wrapper::CellProofs => Form::CellProofs,
    }
}

/// Returns the sidecar rules of the fork at the head.
fn rule(chain: &Chain, head: &Header) -> Rule {
    let cells = chain.spec.fork_of(head) >= Fork::Osaka;
    let max = chain.spec.blob_params_of(head).map_or(0, |params| params.max_blobs_per_tx);
    Rule {
        form: if cells { Form::CellProofs } else { Form::BlobProofs },
        blobs_max: u32::try_from(max).unwrap_or(u32::MAX),
    }
}

/// Returns the maximum cost of a transaction for its sender. Saturates at a value above any
/// balance.
fn cost(transaction: &Transaction) -> U256 {
    let gas = U256::from(transaction.gas_limit()) * U256::from(transaction.max_fee_per_gas());
    let blob_gas = transaction.blob_gas_used().unwrap_or_default();
    let blob_fee = transaction.max_fee_per_blob_gas().unwrap_or_default();
    let blobs = U256::from(blob_gas) * U256::from(blob_fee);
    gas.saturating_add(blobs).saturating_add(transaction.value())
}

/// Asks the EVM whether it would begin to execute the transaction on the head's state. Checks gas,
/// fees, balance, and the sender's code.
fn check_execution<R: StateReader>(
    chain: &Chain,
    header: &Header,
    view: &R,
    transaction: &Transaction,
    sender: Address,
) -> Result<(), SendError> {
    let mut env = evm_env(&chain.spec, header);
    env.cfg_env.disable_nonce_check = true;
    // The next block's prices are unknown, and may fall.
    env.cfg_env.disable_base_fee = true;
    if let Some(blob) = &mut env.block_env.blob_excess_gas_and_price {
        blob.blob_gasprice = BLOB_PRICE_MIN;
    }
    // Unused, because the transaction does not run.
    let hashes = Box::new(|_| Err(Error::UnknownBlock));
    let mut state = BlockState::new(view, hashes, None);
    let mut evm = EthEvmBuilder::new(&mut state, env).build().into_inner();
    evm.ctx.set_tx(TxEnv::from_recovered_tx(transaction, sender));
    let result = MainnetHandler::<_, EVMError<_>, EthFrame>::default().validate(&mut evm);
    drop(evm);
    if let Some(error) = state.take_error() {
        return Err(error.into());
    }
    match result {
        Ok(_) => Ok(()),
        Err(EVMError::Transaction(error)) => {
            Err(SendError::Execution { rule: broken_rule(&error), reason: error.to_string() })
        }
        Err(error) => Err(Error::Evm(error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_rlp::Encodable;

    fn spec(max: u64, osaka: bool) -> ChainSpec {
        let osaka = if osaka { r#""pragueTime": 5, "osakaTime": 9,"# } else { "" };
        let genesis = format!(
            r#"{{"config": {{"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0,
            "shanghaiTime": 0, "cancunTime": 3, {osaka} "blobSchedule": {{"cancun": {{"target": 1,
            "max": {max}, "baseFeeUpdateFraction": 3338477}}}}}},
            "gasLimit": "0x1000000", "difficulty": "0x0"}}"#
        );
        ChainSpec::from_genesis_json(&genesis).unwrap()
    }

    /// Returns the bytes of the form with this many blobs and a transaction of maximum length.
    fn form_len(blobs: usize, proofs: usize) -> usize {
        let list = |len: usize| {
            alloy_rlp::Header { list: true, payload_length: len }.length_with_payload()
        };
        let string = |len: usize| vec![1_u8; len].as_slice().length();
        let lists = list(blobs * string(BLOB_BYTES))
            + list(blobs * string(48))
            + list(blobs * proofs * string(48));
        1 + list(TRANSACTION_BYTES_MAX + 1 + lists)
    }

    #[test]
    fn the_largest_form_that_any_fork_allows_fits() {
        for (max, osaka, largest) in [
            (3, false, form_len(3, 1)),
            (21, false, form_len(21, 1)),
            // Osaka allows 6, with more proofs; an earlier fork may allow more blobs.
            (1, true, form_len(6, CELLS).max(form_len(9, 1))),
            (30, true, form_len(30, 1)),
            // Beyond the capacity of one message between services.
            (1_000, false, form_len(BLOBS_PER_BUNDLE_MAX, 1)),
        ] {
            let bytes = network_form_bytes_max(&spec(max, osaka));
            assert!((largest..largest + 1024).contains(&bytes), "{max}: {bytes}, not {largest}");
        }
        let genesis = r#"{"config": {"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0},
            "gasLimit": "0x1000000", "difficulty": "0x0"}"#;
        let without = ChainSpec::from_genesis_json(genesis).unwrap();
        assert_eq!(network_form_bytes_max(&without), 0);
    }
}
