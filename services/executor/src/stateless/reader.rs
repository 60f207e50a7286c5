//! State of the parent, read from a witness.

use super::{AssumedAbsent, Gaps};
use crate::{error::Error, state::StateReader};
use alloy_primitives::map::B256Map;
use revm::state::Bytecode;
use std::cell::{Cell, RefCell};
use tandem_primitives::{Account, B256, EMPTY_TRIE_ROOT, U256};
use tandem_trie::{Witness, WitnessError};

/// Numbers of reads. An account or slot counts only if the block had not read or written it before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Accounts, including non-existent ones.
    pub accounts: u64,
    /// Storage slots, including unset ones.
    pub slots: u64,
    /// Codes of contracts.
    pub codes: u64,
}

/// State of which a witness holds some nodes, and codes by hash.
pub struct WitnessReader<'a> {
    witness: &'a Witness,
    state_root: B256,
    codes: &'a B256Map<Bytecode>,
    /// Storage roots of the accounts read so far.
    storage_roots: RefCell<B256Map<B256>>,
    reads: Cell<Reads>,
    gaps: Gaps,
    assumed: RefCell<Vec<AssumedAbsent>>,
}

impl<'a> WitnessReader<'a> {
    pub fn new(
        witness: &'a Witness,
        state_root: B256,
        codes: &'a B256Map<Bytecode>,
        gaps: Gaps,
    ) -> Self {
        let (storage_roots, assumed) = (RefCell::default(), RefCell::default());
        let reads = Cell::default();
        Self { witness, state_root, codes, storage_roots, reads, gaps, assumed }
    }

    /// Returns the accounts that were assumed absent.
    pub fn take_assumed(&self) -> Vec<AssumedAbsent> {
        self.assumed.take()
    }

    /// Returns the number of reads so far.
    pub fn reads(&self) -> Reads {
        self.reads.get()
    }

    fn count(&self, add: impl FnOnce(&mut Reads)) {
        let mut reads = self.reads.get();
        add(&mut reads);
        self.reads.set(reads);
    }

    fn storage_root(&self, address_hash: &B256) -> Result<B256, Error> {
        let known = self.storage_roots.borrow().get(address_hash).copied();
        known.map_or_else(|| Ok(self.read_account(address_hash)?.1), Ok)
    }

    /// Reads the account with its storage root, which is cached.
    fn read_account(&self, address_hash: &B256) -> Result<(Option<Account>, B256), Error> {
        let found = match (self.witness.account(self.state_root, address_hash), self.gaps) {
            (Err(WitnessError::Missing(node)), Gaps::AssumeAbsent) => {
                let assumed = AssumedAbsent { address_hash: *address_hash, node };
                self.assumed.borrow_mut().push(assumed);
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
        let root = self.storage_root(address_hash)?;
        Ok(self.witness.slot(address_hash, root, slot)?)
    }

    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error> {
        Ok(self.storage_root(address_hash)? != EMPTY_TRIE_ROOT)
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        self.count(|reads| reads.codes += 1);
        self.codes.get(code_hash).cloned().ok_or(Error::MissingCode(*code_hash))
    }
}
