//! Outcomes of execution ahead: results, their numbers, and the time that the engine waits for one.

use super::job::{AheadEvm, position};
use crate::{
    block::evm::Unrewarded,
    error::Error,
    state::{
        listed::{
            ListedState,
            agreement::{Agreement, Reward},
        },
        reads::Reads,
    },
};
use alloy_evm::Evm as _;
use revm::context::{TxEnv, result::EVMError};
use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};
use tandem_proto::tx_executor::LoadedAccount;

/// Maximum time the engine waits for a transaction running elsewhere. Execution on outdated values
/// can run to the gas limit, although the real transaction is short.
const WAIT_MAX: Duration = Duration::from_millis(4);
/// Gas charged as waste for a transaction that the engine waited for in vain.
const WAIT_MAX_GAS: u64 = 4_000_000;
/// Same as [`WAIT_MAX`] in rounds, where the transaction waits for reads that the engine would wait
/// for as well.
const ROUNDS_WAIT_MAX: Duration = Duration::from_millis(20);
/// Same as [`WAIT_MAX_GAS`] in rounds. A few waits in vain end the waiting in this block.
const ROUNDS_WAIT_MAX_GAS: u64 = 500_000;
/// Same as [`WAIT_MAX`] if a transaction is executed on the values of an access list. Such values
/// are not outdated.
const LISTED_WAIT_MAX: Duration = Duration::from_millis(100);

/// Result of a transaction executed ahead of its turn.
pub struct Speculation {
    /// Outcome if its reads still hold.
    pub outcome: Unrewarded,
    /// Reads of the execution.
    pub reads: Reads,
    /// Time that the execution took.
    pub took: Duration,
    /// Number of the tx-executor that executed it, `None` for a thread of this process.
    pub executed_by: Option<usize>,
    /// Parts that the result confirms of the access list that drives the block, if it agrees with it.
    pub agreement: Option<Agreement>,
    /// State as a tx-executor sent it, if the result agrees. State and reads above are then empty, until
    /// [`complete`](crate::machines::complete) makes them of this.
    pub loaded: Option<Vec<LoadedAccount>>,
}

/// Executes a transaction ahead of its turn. Returns `None` if its reads cannot be compared.
///
/// # Errors
/// The error of the EVM: the transaction is invalid on these values, or one cannot be read.
pub fn speculate(
    evm: &mut AheadEvm<'_>,
    index: usize,
    environment: TxEnv,
) -> Result<Option<Speculation>, EVMError<Error>> {
    evm.database().begin(position(index));
    let began = Instant::now();
    let outcome = evm.transact_unrewarded(environment)?;
    let took = began.elapsed();
    let reads = evm.database().take_reads();
    let is_comparable = !reads.met_storage;
    let (executed_by, agreement, loaded) = (None, None, None);
    let done = Speculation { outcome, reads, took, executed_by, agreement, loaded };
    Ok(is_comparable.then_some(done))
}

/// Returns what a result confirms of the list on which it was made, `None` if it differs from the list.
pub fn agreement(
    listed: &ListedState,
    index: usize,
    done: &Speculation,
    evm: &mut AheadEvm<'_>,
) -> Option<Agreement> {
    let beneficiary = evm.block().beneficiary;
    let reward = match done.outcome.reward {
        Some(amount) => {
            let before = evm.database().account_before(beneficiary).ok()?;
            Some(Reward { beneficiary, amount, before })
        }
        None => None,
    };
    listed.agreement(position(index), &done.outcome.result.state, reward)
}

/// Numbers of a block's transactions by outcome.
#[derive(Default)]
pub struct Counts {
    /// Transactions executed ahead of their turn.
    pub speculated: AtomicU64,
    /// Transactions with results committed unchanged.
    pub committed: AtomicU64,
    /// Transactions with results that no longer held.
    pub conflicts: AtomicU64,
}

impl Counts {
    /// Takes over the numbers of the same block so far.
    pub fn take_from(&self, former: &Self) {
        for (own, former) in [
            (&self.speculated, &former.speculated),
            (&self.committed, &former.committed),
            (&self.conflicts, &former.conflicts),
        ] {
            own.store(former.load(SeqCst), SeqCst);
        }
    }
}

/// Least time that the engine waits for a transaction at a tx-executor.
const LEASED_WAIT_MIN: Duration = Duration::from_millis(2);
/// Time in ns that the engine waits for each gas of it: about as long as it would execute.
const LEASED_WAIT_PER_GAS: u64 = 2;

/// Returns the time that a tx-executor gets for a transaction besides what it needs at its usual pace.
/// A transaction has about that time here too, so one that is late costs at most twice its own time.
pub fn longest_lease(gas_limit: u64) -> Duration {
    let execution = Duration::from_nanos(gas_limit.saturating_mul(LEASED_WAIT_PER_GAS));
    execution.clamp(LEASED_WAIT_MIN, LISTED_WAIT_MAX)
}

/// Returns the time that the engine waits for a transaction, and the gas that a wait in vain counts as.
pub fn longest_wait(is_listed: bool, in_rounds: bool) -> (Duration, u64) {
    match (is_listed, in_rounds) {
        (true, _) => (LISTED_WAIT_MAX, WAIT_MAX_GAS),
        (false, true) => (ROUNDS_WAIT_MAX, ROUNDS_WAIT_MAX_GAS),
        (false, false) => (WAIT_MAX, WAIT_MAX_GAS),
    }
}
