//! State after a block for callers of JSON-RPC: through the layers of the recent blocks, or from history.

use crate::{
    error::Error,
    state::{StateReader, code, recent::Recent, view::StateView},
};
use revm::state::Bytecode;
use std::sync::Arc;
use tandem_primitives::{Account, B256, BlockId, U256};
use tandem_proto::storage::{HistoryReads, ReadState, StateValues};

/// State after a block.
pub enum BlockView {
    /// The block is in the layers, or is the base. History takes over, if there is any, once the base has
    /// moved past the block.
    Recent(Box<StateView>, Option<PastView>),
    /// The block is below the base.
    Past(PastView),
}

impl BlockView {
    /// Reads from the layers, or from history if the layers do not lead to the block any more.
    fn read<T>(
        &self,
        recent: impl FnOnce(&StateView) -> Result<T, Error>,
        past: impl FnOnce(&PastView) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self {
            Self::Past(history) => past(history),
            Self::Recent(view, history) => match (recent(view), history) {
                (Err(moved @ Error::BaseMoved { .. }), Some(history)) => match past(history) {
                    Err(Error::StateUnavailable { .. }) => Err(moved),
                    answer => answer,
                },
                (answer, _) => answer,
            },
        }
    }

    /// Returns accounts, in the same order. Those that are not in memory are read in one call.
    ///
    /// # Errors
    /// Same as [`StateReader`].
    pub fn accounts(&self, hashes: &[B256]) -> Result<Vec<Option<Account>>, Error> {
        self.read(|view| view.accounts(hashes), |past| past.accounts(hashes))
    }
}

/// Errors: those of [`StateView`], and [`Error::StateUnavailable`] if history no longer has the state.
impl StateReader for BlockView {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        self.read(|view| view.account(address_hash), |past| past.account(address_hash))
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        self.read(|view| view.slot(address_hash, slot), |past| past.slot(address_hash, slot))
    }

    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error> {
        self.read(|view| view.has_storage(address_hash), |past| past.has_storage(address_hash))
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        self.read(|view| view.code(code_hash), |past| past.code(code_hash))
    }
}

/// State after a block of the base's chain, from history.
pub struct PastView {
    /// The block.
    pub block: BlockId,
    /// Source of the values.
    pub history: Arc<dyn HistoryReads>,
    /// Has the cache of codes.
    pub cached: Arc<Recent>,
}

impl PastView {
    fn gone(&self) -> Error {
        match self.history.kept_states() {
            Ok(kept) => {
                let oldest = kept.map_or(self.block.number, |kept| kept.oldest);
                Error::StateUnavailable { block: self.block, oldest }
            }
            Err(error) => error.into(),
        }
    }

    fn values(&self, request: &ReadState) -> Result<StateValues, Error> {
        self.history.read_state_after(self.block, request)?.ok_or_else(|| self.gone())
    }

    fn accounts(&self, hashes: &[B256]) -> Result<Vec<Option<Account>>, Error> {
        let request = ReadState { accounts: hashes.to_vec(), ..ReadState::default() };
        Ok(self.values(&request)?.accounts)
    }
}

impl StateReader for PastView {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        Ok(self.accounts(&[*address_hash])?.first().copied().flatten())
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        let request = ReadState { slots: vec![(*address_hash, *slot)], ..ReadState::default() };
        Ok(self.values(&request)?.slots.first().copied().unwrap_or_default())
    }

    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error> {
        let found = self.history.has_storage_after(self.block, *address_hash)?;
        found.ok_or_else(|| self.gone())
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        if let Some(code) = self.cached.cache().code(code_hash) {
            return Ok(code);
        }
        let request = ReadState { codes: vec![*code_hash], ..ReadState::default() };
        let code = self.values(&request)?.codes.into_iter().next().flatten();
        // The cache is for the needs of blocks.
        Ok(code::analyze(code.ok_or(Error::MissingCode(*code_hash))?))
    }
}
