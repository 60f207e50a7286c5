//! EVM database for transactions that are executed ahead of their turn. It records their reads.

use super::{
    listed::{ListedAccount, ListedState},
    published::{Position, Published},
};
use crate::{
    block::collision::StorageOccupancy,
    error::Error,
    state::{StateReader, parent::ParentState},
};
use alloy_primitives::map::{AddressMap, HashMap};
use revm::{
    Database,
    state::{AccountInfo, Bytecode},
};
use std::{collections::hash_map::Entry as MapEntry, fmt, sync::Arc};
use tandem_primitives::{Account, Address, B256, EMPTY_CODE_HASH, U256, keccak256};

/// Hashes of blocks by their height, for any thread.
pub type SharedBlockHashes = Arc<dyn Fn(u64) -> Result<B256, Error> + Send + Sync>;

/// Sources of all reads ahead of turns in one block.
pub struct Sources {
    /// Writes of the block so far.
    pub published: Published,
    /// Values that the block's access list names. If there are any, they take the place of the
    /// writes.
    pub listed: Option<Arc<ListedState>>,
    /// State of the parent.
    pub parent: Arc<dyn ParentState>,
    /// Block hashes for the BLOCKHASH instruction.
    pub block_hashes: SharedBlockHashes,
}

impl Sources {
    /// Returns the list and its values of an account, if it names the account.
    fn listed(&self, address: &Address) -> Option<(&ListedState, &ListedAccount)> {
        let state = self.listed.as_deref()?;
        Some((state, state.get(address)?))
    }
}

/// Origin of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The parent's state, with the hash of the key. The block has the same value, unless it wrote
    /// to the key.
    Parent(B256),
    /// The block's published writes, which may have changed since.
    Block,
}

/// Account that was read.
#[derive(Clone, Copy, Debug)]
pub struct AccountRead {
    pub address: Address,
    pub account: Option<Account>,
    pub source: Source,
}

/// Slot that was read.
#[derive(Clone, Copy, Debug)]
pub struct SlotRead {
    pub address: Address,
    pub key: U256,
    pub value: U256,
    pub source: Source,
}

/// All inputs of a result besides the transaction and the block's environment. Code is excluded,
/// because its hash is in the account. Block hashes are excluded too.
#[derive(Default, Debug)]
pub struct Reads {
    /// Accounts, each read before its slots.
    pub accounts: Vec<AccountRead>,
    pub slots: Vec<SlotRead>,
    /// Whether a creation met storage in the parent's state (EIP-7610), which the block may have
    /// wiped since. The values above do not show this, and it is too rare for a comparison: the
    /// result is not used.
    pub met_storage: bool,
}

impl Reads {
    /// Returns `keccak256(address)`, which was computed already if the account came from the parent.
    pub fn hash_of(&self, address: &Address) -> B256 {
        let read = self.accounts.iter().find(|read| read.address == *address);
        match read.map(|read| read.source) {
            Some(Source::Parent(hash)) => hash,
            _ => keccak256(address),
        }
    }
}

/// Database of one execution environment. `R` reads the parent's state.
pub struct Recorder<R> {
    sources: Arc<Sources>,
    reader: R,
    position: Position,
    reads: Reads,
    /// Values read of the parent's state so far.
    parent: AddressMap<Known>,
}

struct Known {
    hash: B256,
    account: Option<Account>,
    slots: HashMap<U256, (B256, U256)>,
}

impl<R: StateReader> Recorder<R> {
    pub fn new(sources: Arc<Sources>, reader: R) -> Self {
        let (reads, parent) = (Reads::default(), AddressMap::default());
        Self { sources, reader, position: 0, reads, parent }
    }

    /// Begins the reads of a transaction at this position.
    pub fn begin(&mut self, position: Position) {
        self.position = position;
        self.reads = Reads::default();
    }

    /// Returns the reads since the beginning.
    pub fn take_reads(&mut self) -> Reads {
        std::mem::take(&mut self.reads)
    }

    /// Returns an account as the transaction begins with it. This is no read of the transaction.
    ///
    /// # Errors
    /// Same as [`StateReader::account`].
    pub fn account_before(&mut self, address: Address) -> Result<Option<Account>, Error> {
        Ok(self.account(address)?.0)
    }

    /// Forgets the values of the parent's state.
    pub fn forget(&mut self) {
        self.parent.clear();
    }

    fn account(&mut self, address: Address) -> Result<(Option<Account>, Source), Error> {
        if self.sources.listed.is_some() {
            let listed = self.sources.listed(&address);
            let (hash, parent) = parent_account(&mut self.parent, &self.reader, address, listed)?;
            let written = listed.and_then(|(_, it)| it.account_before(self.position, parent));
            return Ok(match written {
                Some(account) => (account, Source::Block),
                None => (parent, Source::Parent(hash)),
            });
        }
        if let Some(account) = self.sources.published.account(&address, self.position) {
            return Ok((account, Source::Block));
        }
        let known = known(&mut self.parent, &self.reader, address, None)?;
        Ok((known.account, Source::Parent(known.hash)))
    }

    fn slot(&mut self, address: Address, key: U256) -> Result<(U256, Source), Error> {
        let listed = self.sources.listed(&address);
        let written = match &self.sources.listed {
            Some(_) => listed.and_then(|(_, account)| account.slot_before(&key, self.position)),
            None => self.sources.published.slot(&address, &key, self.position),
        };
        if let Some(value) = written {
            return Ok((value, Source::Block));
        }
        if let Some((state, account)) = listed
            && let Some(parent) = state.parent_account(account)
            && let Some((hash, value)) = state.parent_slot(account, &key)
        {
            return Ok(match parent {
                Some(_) => (value, Source::Parent(hash)),
                None => (U256::ZERO, Source::Block),
            });
        }
        let listed = listed.map(|(_, account)| account);
        let known = known(&mut self.parent, &self.reader, address, listed)?;
        if known.account.is_none() {
            return Ok((U256::ZERO, Source::Block));
        }
        let (hash, value) = match known.slots.entry(key) {
            MapEntry::Occupied(slot) => *slot.get(),
            MapEntry::Vacant(vacant) => {
                let hash = listed.and_then(|listed| listed.slot_hash(&key));
                let hash = hash.unwrap_or_else(|| keccak256(key.to_be_bytes::<32>()));
                *vacant.insert((hash, self.reader.slot(&known.hash, &hash)?))
            }
        };
        Ok((value, Source::Parent(hash)))
    }
}

/// Returns an account of the parent's state, with the hash of its address: from the list if its
/// values were read.
fn parent_account(
    parent: &mut AddressMap<Known>,
    reader: &impl StateReader,
    address: Address,
    listed: Option<(&ListedState, &ListedAccount)>,
) -> Result<(B256, Option<Account>), Error> {
    if let Some((state, listed)) = listed
        && let Some(account) = state.parent_account(listed)
    {
        return Ok((listed.hash, account));
    }
    let known = known(parent, reader, address, listed.map(|(_, listed)| listed))?;
    Ok((known.hash, known.account))
}

fn known<'a>(
    parent: &'a mut AddressMap<Known>,
    reader: &impl StateReader,
    address: Address,
    listed: Option<&ListedAccount>,
) -> Result<&'a mut Known, Error> {
    match parent.entry(address) {
        MapEntry::Occupied(known) => Ok(known.into_mut()),
        MapEntry::Vacant(vacant) => {
            let hash = listed.map_or_else(|| keccak256(address), |listed| listed.hash);
            let account = reader.account(&hash)?;
            Ok(vacant.insert(Known { hash, account, slots: HashMap::default() }))
        }
    }
}

impl<R: StateReader> StorageOccupancy for Recorder<R> {
    /// The block cannot add storage to an account without it in the parent's state, because the
    /// account has no nonce.
    fn has_storage(&mut self, address: Address) -> Result<bool, Error> {
        let listed = self.sources.listed(&address);
        let (hash, account) = parent_account(&mut self.parent, &self.reader, address, listed)?;
        let has_storage = account.is_some() && self.reader.has_storage(&hash)?;
        self.reads.met_storage |= has_storage;
        Ok(has_storage)
    }
}

impl<R> fmt::Debug for Recorder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("position", &self.position).finish_non_exhaustive()
    }
}

impl<R: StateReader> Database for Recorder<R> {
    type Error = Error;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Error> {
        let (account, source) = self.account(address)?;
        self.reads.accounts.push(AccountRead { address, account, source });
        Ok(account.map(crate::state::evm_info))
    }

    fn code_by_hash(&mut self, code_hash: B256) -> Result<Bytecode, Error> {
        if code_hash == EMPTY_CODE_HASH {
            return Ok(Bytecode::default());
        }
        let listed = self.sources.listed.as_ref().and_then(|listed| listed.code(&code_hash));
        match listed.cloned().or_else(|| self.sources.published.code(&code_hash)) {
            Some(code) => Ok(code),
            None => self.reader.code(&code_hash),
        }
    }

    fn storage(&mut self, address: Address, key: U256) -> Result<U256, Error> {
        let (value, source) = self.slot(address, key)?;
        self.reads.slots.push(SlotRead { address, key, value, source });
        Ok(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Error> {
        (self.sources.block_hashes)(number)
    }
}
