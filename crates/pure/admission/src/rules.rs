//! Rules of a single transaction: without a state, and on its sender's account.

use crate::{Fees, Refused, Submitted, cost, rank::BLOB_PRICE_MIN};
use alloy_consensus::{Header, Transaction as _, transaction::SignerRecoverable};
use alloy_eips::eip4844::kzg_to_versioned_hash;
use alloy_evm::{EvmEnv, FromRecoveredTx, eth::EthEvmBuilder};
use alloy_primitives::{Address, B256, U256};
use revm::{
    context::{
        ContextSetters, TxEnv,
        result::{EVMError, InvalidTransaction},
    },
    database_interface::EmptyDB,
    handler::{EthFrame, Handler, MainnetHandler},
};
use tandem_chain::{
    BlockError, ChainSpec, Point, Transaction, TransactionRule, validate_transaction,
};

/// Maximum bytes of a transaction without its blobs: go-ethereum's `txMaxSize`. Blocks may contain
/// longer transactions.
pub const TRANSACTION_BYTES_MAX: usize = 128 << 10;

/// Code of an account, as far as it matters for sending.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Code {
    /// None.
    #[default]
    None,
    /// Delegation to the code of another account (EIP-7702).
    Delegated,
    /// Code of a contract, which cannot send (EIP-3607).
    Contract,
}

/// Account of a sender at the head.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SenderAccount {
    /// Nonce of the next transaction.
    pub nonce: u64,
    /// Balance, in wei.
    pub balance: U256,
    /// Code.
    pub code: Code,
}

/// Checks a transaction against the fork of the head, without any state, and returns its sender.
/// Takes the time of a signature. `tip_min` is the least payment besides the base fee, in wei.
///
/// # Errors
/// [`Refused`].
pub fn check(
    spec: &ChainSpec,
    head: &Header,
    submitted: &Submitted,
    tip_min: u128,
) -> Result<Address, Refused> {
    let (transaction, got) = (&submitted.transaction, submitted.raw.len());
    if got > TRANSACTION_BYTES_MAX {
        return Err(Refused::Oversized { got, max: TRANSACTION_BYTES_MAX });
    }
    let tip = Fees::of(transaction).tip;
    if tip < tip_min {
        return Err(Refused::TipTooLow { tip, min: tip_min });
    }
    validate_transaction(spec, head, transaction).map_err(Refused::Rule)?;
    let (rules, blob_params) = (spec.rules(head), spec.blob_params_of(head));
    let mut env = EvmEnv::for_eth_block(head, rules, spec.chain_id(), blob_params);
    // The next block's prices are unknown, and may fall.
    env.cfg_env.disable_base_fee = true;
    if let Some(blob) = &mut env.block_env.blob_excess_gas_and_price {
        blob.blob_gasprice = BLOB_PRICE_MIN;
    }
    // No rule here reads the database.
    let mut evm = EthEvmBuilder::new(EmptyDB::default(), env).build().into_inner();
    let handler = MainnetHandler::<_, EVMError<_>, EthFrame>::default();
    evm.ctx.set_tx(TxEnv::from_recovered_tx(transaction, Address::ZERO));
    handler.validate_env(&mut evm).map_err(refusal)?;
    let invalid = |_| Refused::Rule(BlockError::Signature { index: 0 });
    let sender = transaction.recover_signer().map_err(invalid)?;
    // From Amsterdam on, a transfer to the sender itself costs less (EIP-2780).
    evm.ctx.tx.caller = sender;
    handler.validate_initial_tx_gas(&mut evm).map_err(refusal)?;
    if let Some(sidecar) = &submitted.sidecar {
        check_commitments(transaction, &sidecar.commitments)?;
    }
    Ok(sender)
}

/// Checks that the commitments are those that the transaction names. It costs a hash for each, so
/// it comes before rules of the pool, and says who sent a sidecar that is none.
fn check_commitments(transaction: &Transaction, commitments: &[Point]) -> Result<(), Refused> {
    let hashes = transaction.blob_versioned_hashes().unwrap_or_default();
    let (got, want) = (commitments.len(), hashes.len());
    if got != want {
        return Err(Refused::Commitments { got, want });
    }
    let differs = |(commitment, hash): (&Point, &B256)| kzg_to_versioned_hash(commitment) != *hash;
    match commitments.iter().zip(hashes).position(differs) {
        Some(blob) => Err(Refused::VersionedHash { blob }),
        None => Ok(()),
    }
}

/// Checks a transaction against its sender's account.
///
/// # Errors
/// [`Refused::NonceTooLow`], [`Refused::SenderHasCode`], [`Refused::InsufficientFunds`].
pub fn check_account(transaction: &Transaction, account: &SenderAccount) -> Result<(), Refused> {
    let (nonce, next) = (transaction.nonce(), account.nonce);
    if nonce < next {
        return Err(Refused::NonceTooLow { next, nonce });
    }
    if account.code == Code::Contract {
        return Err(Refused::SenderHasCode);
    }
    let (cost, balance) = (cost(transaction), account.balance);
    if cost > balance {
        return Err(Refused::InsufficientFunds { balance, cost });
    }
    Ok(())
}

fn refusal<E: std::fmt::Display>(error: EVMError<E>) -> Refused {
    let reason = error.to_string();
    let rule = match &error {
        EVMError::Transaction(invalid) => broken_rule(invalid),
        _ => TransactionRule::Other,
    };
    Refused::Execution { rule, reason }
}

/// Returns the broken rule for revm's reason.
pub fn broken_rule(invalid: &InvalidTransaction) -> TransactionRule {
    match invalid {
        InvalidTransaction::NonceTooLow { .. } => TransactionRule::NonceTooLow,
        InvalidTransaction::NonceTooHigh { .. } => TransactionRule::NonceTooHigh,
        InvalidTransaction::NonceOverflowInTransaction => TransactionRule::NonceMax,
        InvalidTransaction::RejectCallerWithCode => TransactionRule::SenderHasCode,
        InvalidTransaction::LackOfFundForMaxFee { .. } => TransactionRule::InsufficientFunds,
        InvalidTransaction::OverflowPaymentInTransaction => TransactionRule::CostOverflow,
        InvalidTransaction::GasPriceLessThanBasefee => TransactionRule::FeeCapBelowBaseFee,
        InvalidTransaction::PriorityFeeGreaterThanMaxFee => TransactionRule::TipAboveFeeCap,
        InvalidTransaction::BlobGasPriceGreaterThanMax { .. } => TransactionRule::BlobFeeCapTooLow,
        InvalidTransaction::CallGasCostMoreThanGasLimit { .. } => TransactionRule::IntrinsicGas,
        InvalidTransaction::GasFloorMoreThanGasLimit { .. } => TransactionRule::FloorGas,
        InvalidTransaction::CreateInitCodeSizeLimit => TransactionRule::InitcodeSize,
        InvalidTransaction::CallerGasLimitMoreThanBlock => TransactionRule::BlockGasLeft,
        _ => TransactionRule::Other,
    }
}

#[cfg(test)]
mod tests;
