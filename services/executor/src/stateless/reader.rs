//! The parent's state, read from a witness.

use super::Gaps;
use crate::{error::Error, state::StateReader};
use alloy_primitives::map::B256Map;
use revm::state::Bytecode;
use std::cell::{Cell, RefCell};
use tandem_primitives::{Account, B256, Bytes, EMPTY_TRIE_ROOT, U256};
use tandem_trie::{NodePlace, Witness, WitnessError};

/// How often something was read that the block had not read or written before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Accounts, those included that do not exist.
    pub accounts: u64,
    /// Storage slots, those included that are not set.
    pub slots: u64,
    /// Contracts' code.
    pub codes: u64,
}

/// A state of which a witness holds some nodes, and codes by hash.
pub struct WitnessReader<'a> {
    witness: &'a Witness,
    state_root: B256,
    codes: &'a B256Map<Bytes>,
    /// Of the accounts read so far.
    storage_roots: RefCell<B256Map<B256>>,
    /// Analyzed, so that each is only once.
    analyzed: RefCell<B256Map<Bytecode>>,
    reads: Cell<Reads>,
    gaps: Gaps,
    assumed: RefCell<Vec<NodePlace>>,
}

impl<'a> WitnessReader<'a> {
    pub fn new(
        witness: &'a Witness,
        state_root: B256,
        codes: &'a B256Map<Bytes>,
        gaps: Gaps,
    ) -> Self {
        let (storage_roots, analyzed) = (RefCell::default(), RefCell::default());
        let (reads, assumed) = (Cell::default(), RefCell::default());
        Self { witness, state_root, codes, storage_roots, analyzed, reads, gaps, assumed }
    }

    /// The nodes for want of which accounts were taken not to exist.
    pub fn take_assumed(&self) -> Vec<NodePlace> {
        self.assumed.take()
    }

    /// What was read so far.
    pub fn reads(&self) -> Reads {
        self.reads.get()
    }

    fn count(&self, add: impl FnOnce(&mut Reads)) {
        let mut reads = self.reads.get();
        add(&mut reads);
        self.reads.set(reads);
    }

    /// The account with its storage root, which is kept.
    fn read_account(&self, address_hash: &B256) -> Result<(Option<Account>, B256), Error> {
        let found = match (self.witness.account(self.state_root, address_hash), self.gaps) {
            (Err(WitnessError::Missing(place)), Gaps::AssumeAbsent) => {
                self.assumed.borrow_mut().push(place);
                None
            }
            (found, _) => found?,
        };
        let (account, root) =
            found.map_or((None, EMPTY_TRIE_ROOT), |(account, root)| (Some(account), root));
        self.storage_roots.borrow_mut().insert(*address_hash, root);
        Ok((account, root))
    }
}

impl StateReader for WitnessReader<'_> {
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error> {
        self.count(|reads| reads.accounts += 1);
        Ok(self.read_account(address_hash)?.0)
    }

    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error> {
        self.count(|reads| reads.slots += 1);
        let known = self.storage_roots.borrow().get(address_hash).copied();
        let root = match known {
            Some(root) => root,
            None => self.read_account(address_hash)?.1,
        };
        Ok(self.witness.slot(address_hash, root, slot)?)
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        if let Some(code) = self.analyzed.borrow().get(code_hash) {
            return Ok(code.clone());
        }
        self.count(|reads| reads.codes += 1);
        let code = self.codes.get(code_hash).ok_or(Error::MissingCode(*code_hash))?;
        let code = Bytecode::new_raw(code.clone());
        self.analyzed.borrow_mut().insert(*code_hash, code.clone());
        Ok(code)
    }
}
