//! Blocks whose results agree with their access list (EIP-7928): nothing is committed one by one.
//!
//! A result that agrees leaves what the list has, so the changes of the block are the list's last
//! values, which the workers have already. Results are kept all the same until the whole list is
//! confirmed. If one thing differs, what was kept is committed in the block's order, and the block goes
//! on as without this.

use super::execute::{Executor, Failure, begin_accesses, close, open, system_call};
use crate::{
    ahead::speculate::{Speculation, position},
    machines::loaded_state,
    state::{
        BlockState, StateReader,
        listed::{
            ListedState,
            agreement::{Agreement, Confirmed},
        },
        reads::Sources,
    },
};
use alloy_evm::{
    Evm as _,
    block::{BlockExecutionResult, BlockExecutor as _},
};
use alloy_primitives::U256;
use revm::{DatabaseCommit as _, state::EvmState};
use std::sync::Arc;
use tandem_chain::{Block, ChainSpec, Receipt};
use tandem_proto::tx_executor::LoadedAccount;

/// Results of a block so far, all of which agree with its list.
pub struct Followed {
    listed: Arc<ListedState>,
    /// Sources of the results' reads.
    sources: Arc<Sources>,
    confirmed: Confirmed,
    kept: Vec<Kept>,
}

/// Changes of one transaction, and the fee that they do not include.
struct Kept {
    state: EvmState,
    /// State as a tx-executor sent it. The state above is empty then.
    loaded: Option<Vec<LoadedAccount>>,
    reward: Option<U256>,
}

impl Followed {
    /// Creates the record of a block that begins. `None` if the list's last values were not sent to
    /// the workers, or have an account that is gone, which no result can agree with.
    pub fn begin<R: StateReader>(
        sources: &Arc<Sources>,
        state: &BlockState<'_, R>,
    ) -> Option<Self> {
        let listed = sources.listed.clone()?;
        let is_gone = state.foretold()?.accounts.iter().any(|update| update.wiped);
        let (sources, confirmed) = (sources.clone(), Confirmed::new(&listed));
        (!is_gone).then_some(Self { listed, sources, confirmed, kept: Vec::new() })
    }

    /// Keeps the result of the next transaction, which agrees, and leaves it without changes and fee.
    pub fn keep(&mut self, agreement: &Agreement, done: &mut Speculation) {
        self.confirmed.add(agreement);
        let state = std::mem::take(&mut done.outcome.result.state);
        let (loaded, reward) = (done.loaded.take(), done.outcome.reward.take());
        self.kept.push(Kept { state, loaded, reward });
    }

    /// Takes the list's values for those that the transactions leave, so that what follows the last
    /// one reads them.
    pub fn end_transactions<R: StateReader>(&self, state: &mut BlockState<'_, R>) {
        state.follow(self.listed.clone(), position(self.kept.len()));
    }

    /// Returns whether all of the list is confirmed, now that the block has ended. Everything but the
    /// transactions has been committed.
    pub fn is_confirmed<R: StateReader>(&mut self, state: &mut BlockState<'_, R>) -> bool {
        let accesses = state.accesses().and_then(|accesses| self.listed.agreement_with(accesses));
        let Some(agreement) = accesses else { return false };
        self.confirmed.add(&agreement);
        self.confirmed.is_all(&self.listed) && !state.has_wiped()
    }

    /// Commits what was kept, in the block's order.
    ///
    /// # Errors
    /// [`Failure::Internal`] if a value cannot be read.
    pub fn commit<R: StateReader>(
        self,
        executor: &mut Executor<'_, '_, '_, R>,
    ) -> Result<(), Failure> {
        let beneficiary = executor.evm().block().beneficiary;
        for (index, Kept { mut state, loaded, reward }) in self.kept.into_iter().enumerate() {
            begin_accesses(executor, index + 1);
            if let Some(loaded) = loaded {
                (state, _) =
                    loaded_state(loaded, index, &self.sources).map_err(Failure::Internal)?;
            }
            let block = executor.evm_mut().db_mut();
            if let Some(reward) = reward {
                block.reward(&mut state, beneficiary, reward).map_err(Failure::Internal)?;
            }
            block.commit(state);
        }
        Ok(())
    }

    /// Begins the block again, whose list is not confirmed, and commits everything. Gas and receipts
    /// stay.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn repeat<R: StateReader>(
        self,
        spec: &ChainSpec,
        block: &Block,
        state: &mut BlockState<'_, R>,
        first: BlockExecutionResult<Receipt>,
    ) -> Result<BlockExecutionResult<Receipt>, Failure> {
        state.restart();
        let (header, withdrawals) = (&block.header, block.withdrawals.as_deref());
        let mut executor = open(spec, header, &block.ommers, withdrawals, state);
        executor.apply_pre_execution_changes().map_err(system_call)?;
        self.commit(&mut executor)?;
        executor.receipts = first.receipts;
        let last = close(executor, spec, spec.fork_of(header), withdrawals)?;
        let BlockExecutionResult { gas_used, blob_gas_used, .. } = first;
        Ok(BlockExecutionResult { gas_used, blob_gas_used, ..last })
    }
}
