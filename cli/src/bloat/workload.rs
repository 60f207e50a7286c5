//! Transactions that read and write random slots of a state.

use crate::spam::Wallet;
use alloy_consensus::{TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Bytes, TxKind, U256};
use rand::{Rng, rngs::StdRng};
use tandem_bloat::{Plan, Step, calldata};

/// Highest fee for each gas, in wei.
const FEE_MAX: u128 = 1_000_000_000_000;

/// Fee for the beneficiary for each gas, in wei.
const TIP: u128 = 1_000_000_000;

/// Upper bounds of the gas of a transaction without data, of a byte of data (EIP-7623), and of each
/// kind of step with a call of its contract (EIP-2929, EIP-2200), all cold.
const TRANSACTION_GAS: u64 = 21_000;
const DATA_BYTE_GAS: u64 = 40;
const READ_GAS: u64 = 2_100 + 2_600 + 600;
const ADD_GAS: u64 = 5_000 + 2_600 + 700;
const BALANCE_GAS: u64 = 2_600 + 300;

/// Most gas of a transaction (EIP-7825).
pub const GAS_MAX: u64 = 1 << 24;

/// Steps of every transaction. Each slot is a random one of all slots of the state, so large contracts
/// are called more often; each call is one of the contract alone.
#[derive(clap::Args, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// Slots that each transaction reads
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=500))]
    pub reads: u16,
    /// Slots that each transaction writes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=500))]
    pub writes: u16,
    /// Accounts whose balance each transaction reads
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=500))]
    pub balances: u16,
}

impl Workload {
    /// Returns the gas that a transaction needs at most.
    pub fn gas(&self) -> u64 {
        let [reads, writes, balances] = [self.reads, self.writes, self.balances].map(u64::from);
        let words = 2 * (reads + writes) + balances;
        let data = words * 32 * DATA_BYTE_GAS;
        TRANSACTION_GAS + data + reads * READ_GAS + writes * ADD_GAS + balances * BALANCE_GAS
    }

    /// Returns a transaction that has all its steps taken by the largest contract, or through it.
    pub fn transaction(
        &self,
        plan: &Plan,
        wallet: &Wallet,
        nonce: u64,
        chain_id: u64,
        rng: &mut StdRng,
    ) -> Bytes {
        let mut steps = Vec::new();
        for number in 0..self.reads + self.writes {
            let (contract, slot) = plan.slot_at(rng.random_range(0..plan.slots()));
            let step = if number < self.reads { Step::Read(slot) } else { Step::Add(slot) };
            steps.push(Step::Call(plan.address(contract), vec![step]));
        }
        for _ in 0..self.balances {
            steps.push(Step::Balance(plan.address(rng.random_range(0..plan.accounts()))));
        }
        let transaction = TxEip1559 {
            chain_id,
            nonce,
            gas_limit: self.gas(),
            max_fee_per_gas: FEE_MAX,
            max_priority_fee_per_gas: TIP,
            to: TxKind::Call(plan.address(0)),
            value: U256::ZERO,
            input: calldata(&steps).into(),
            ..TxEip1559::default()
        };
        let envelope: TxEnvelope = wallet.sign(transaction).into();
        envelope.encoded_2718().into()
    }
}
