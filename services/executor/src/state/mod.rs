//! State during the execution of one block: its reads and writes so far, over its parent's state.

mod ahead;
pub mod cache;
pub mod code;
pub mod flush;
pub mod layers;
pub mod listed;
pub mod parent;
pub mod past;
pub mod published;
mod read_times;
pub mod reads;
pub mod recent;
pub mod view;

use crate::{
    block::{access_list::AccessListBuilder, collision::StorageOccupancy},
    error::Error,
    state::{flush::Flusher, listed::ListedState, published::Position},
};
use ahead::Publisher;
use alloy_primitives::map::{AddressMap, B256Map, HashMap};
use revm::{
    Database, DatabaseCommit,
    state::{Account as EvmAccount, AccountInfo, Bytecode},
};
use std::{collections::hash_map::Entry as MapEntry, fmt, sync::Arc};
use tandem_policy::TransitionFlush;
use tandem_primitives::{
    Account, AccountUpdate, Address, B256, EMPTY_CODE_HASH, SlotUpdate, StateDiff, U256, keccak256,
};
use tandem_proto::multiproof::{ProofSession, StateUpdate};

/// State that a block executes on: the cluster's state, or a partial trie. All keys are hashed.
pub trait StateReader {
    /// Returns an account by `keccak256(address)`, or `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    fn account(&self, address_hash: &B256) -> Result<Option<Account>, Error>;

    /// Returns a storage slot by `keccak256(address)` and `keccak256(slot)`, zero if it is not set.
    ///
    /// # Errors
    /// Same as [`StateReader::account`].
    fn slot(&self, address_hash: &B256, slot: &B256) -> Result<U256, Error>;

    /// Returns whether any storage slot is set. Called for accounts that have neither code nor
    /// nonce (EIP-7610).
    ///
    /// # Errors
    /// Same as [`StateReader::account`].
    fn has_storage(&self, address_hash: &B256) -> Result<bool, Error>;

    /// Returns code by its hash.
    ///
    /// # Errors
    /// Same as [`StateReader::account`], and an error if the code is missing.
    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error>;
}

/// Returns the account that a commit leaves, or `None` if it is gone.
pub fn state_after(evm: &EvmAccount) -> Option<Account> {
    // Before EIP-161 a touched empty account exists: revm marks it as created.
    let gone = evm.is_selfdestructed() || (evm.is_empty() && !evm.is_created());
    (!gone).then_some(Account {
        nonce: evm.info.nonce,
        balance: evm.info.balance,
        code_hash: evm.info.code_hash,
    })
}

/// Converts an account for the EVM; its code must be read separately.
pub fn evm_info(account: Account) -> AccountInfo {
    AccountInfo {
        balance: account.balance,
        nonce: account.nonce,
        code_hash: account.code_hash,
        account_id: None,
        code: (account.code_hash == EMPTY_CODE_HASH).then(Bytecode::default),
    }
}

/// Hash of the block at a height, for the BLOCKHASH instruction.
pub type BlockHashes<'a> = Box<dyn Fn(u64) -> Result<B256, Error> + 'a>;

/// Database of the EVM for one block. Every commit (a transaction, a system call, the withdrawals)
/// goes to the workers as one update, unless the policy merges several transactions.
pub struct BlockState<'a, R> {
    reader: &'a R,
    block_hashes: BlockHashes<'a>,
    flusher: Option<Flusher<'a>>,
    accounts: AddressMap<Entry>,
    codes: B256Map<Bytecode>,
    /// Updates since the last step, if they are kept.
    steps: Option<Vec<AccountUpdate>>,
    /// Accesses so far, if the fork wants a list of them.
    accesses: Option<AccessListBuilder>,
    publisher: Option<Publisher>,
    /// Changes of the whole block that the workers got beforehand.
    foretold: Option<Arc<StateUpdate>>,
    /// Access list whose values are those of the transactions, which were not committed.
    followed: Option<Followed>,
    error: Option<Error>,
}

/// Access list, and the position before which its values hold.
struct Followed(Arc<ListedState>, Position);

impl Followed {
    fn account(&self, address: &Address, before: Option<Account>) -> Option<Account> {
        let listed = self.0.get(address);
        listed.and_then(|listed| listed.account_before(self.1, before)).unwrap_or(before)
    }

    fn slot(&self, address: &Address, key: &U256) -> Option<U256> {
        self.0.get(address)?.slot_before(key, self.1)
    }
}

struct Entry {
    hash: B256,
    account: Option<Account>,
    /// Whether the block wrote to the account.
    changed: bool,
    /// Whether the account's storage below the block is void.
    wiped: bool,
    slots: HashMap<U256, Slot>,
}

struct Slot {
    hash: B256,
    value: U256,
    changed: bool,
}

impl<R> fmt::Debug for BlockState<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockState").field("accounts", &self.accounts.len()).finish_non_exhaustive()
    }
}

impl<'a, R: StateReader> BlockState<'a, R> {
    /// Creates the state for a block on top of `reader`. Without a session (calls, tests) no root
    /// is computed.
    pub fn new(
        reader: &'a R,
        block_hashes: BlockHashes<'a>,
        session: Option<&'a mut dyn ProofSession>,
    ) -> Self {
        let (accounts, codes) = (AddressMap::default(), B256Map::default());
        let flusher = session.map(Flusher::new);
        Self {
            reader,
            block_hashes,
            flusher,
            accounts,
            codes,
            steps: None,
            accesses: None,
            publisher: None,
            foretold: None,
            followed: None,
            error: None,
        }
    }

    /// Returns the state with another flush policy.
    #[must_use]
    pub fn flushed_by(mut self, policy: TransitionFlush) -> Self {
        self.flusher = self.flusher.map(|flusher| flusher.with_policy(policy));
        self
    }

    /// Notes that a transaction was committed, and sends the held-back changes if due.
    pub fn end_transaction(&mut self, gas_used: u64) {
        if let Some(flusher) = &mut self.flusher {
            flusher.end_transaction(gas_used);
        }
    }

    /// Sends the workers the changes of the whole block, as its access list has them. The commits are
    /// not sent then, so the changes must be compared with [`BlockState::into_diff`].
    pub fn foretell(&mut self, update: StateUpdate) {
        if let Some(flusher) = self.flusher.take() {
            let update = Arc::new(update);
            flusher.send_all(update.clone());
            self.foretold = Some(update);
        }
    }

    /// Returns the changes that [`BlockState::foretell`] sent, if it did.
    pub fn foretold(&self) -> Option<&Arc<StateUpdate>> {
        self.foretold.as_ref()
    }

    /// Takes the values that the list has before this position for those of the block, without
    /// commits. Later commits must lead to the changes that [`BlockState::foretell`] sent.
    pub fn follow(&mut self, listed: Arc<ListedState>, position: Position) {
        let followed = Followed(listed, position);
        for (address, entry) in &mut self.accounts {
            entry.account = followed.account(address, entry.account);
            for (key, slot) in &mut entry.slots {
                slot.value = followed.slot(address, key).unwrap_or(slot.value);
            }
        }
        self.followed = Some(followed);
    }

    /// Returns whether a commit has removed an account.
    pub fn has_wiped(&self) -> bool {
        self.accounts.values().any(|entry| entry.wiped)
    }

    /// Forgets all commits, and the list that was followed.
    pub fn restart(&mut self) {
        self.accounts.clear();
        self.codes.clear();
        self.followed = None;
        if self.accesses.take().is_some() {
            self.list_accesses();
        }
    }

    /// Sends the changes held back.
    pub fn flush(&mut self) {
        if let Some(flusher) = &mut self.flusher {
            flusher.flush();
        }
    }

    /// Keeps updates from now on, for [`BlockState::take_step`].
    pub fn keep_steps(&mut self) {
        self.steps.get_or_insert_default();
    }

    /// Returns the commits since the last call, or `None` if they are not kept.
    pub fn take_step(&mut self) -> Option<Arc<StateUpdate>> {
        let accounts = std::mem::take(self.steps.as_mut()?);
        Some(Arc::new(StateUpdate { accounts }))
    }

    /// Lists the accesses of all commits from now on, for [`BlockState::take_accesses`].
    pub fn list_accesses(&mut self) {
        self.accesses.get_or_insert_default();
    }

    /// Returns the list of accesses, for additions. `None` if none is kept.
    pub fn accesses(&mut self) -> Option<&mut AccessListBuilder> {
        self.accesses.as_mut()
    }

    /// Returns the list of accesses and ends it. `None` if none is kept.
    pub fn take_accesses(&mut self) -> Option<AccessListBuilder> {
        self.accesses.take()
    }

    /// Returns the read error that stopped the EVM, if any.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Returns everything that the block changed.
    pub fn into_diff(self) -> StateDiff {
        if let (Some(list), Some(foretold)) = (&self.followed, &self.foretold) {
            return StateDiff { accounts: foretold.accounts.clone(), codes: list.0.codes() };
        }
        let mut accounts: Vec<AccountUpdate> = self
            .accounts
            .into_values()
            .filter(|entry| entry.changed)
            .map(|entry| {
                let changed = entry.slots.into_values().filter(|slot| slot.changed);
                let mut slots: Vec<_> =
                    changed.map(|slot| SlotUpdate { key: slot.hash, value: slot.value }).collect();
                slots.sort_unstable_by_key(|slot| slot.key);
                let (account, wiped) = (entry.account, entry.wiped);
                AccountUpdate { address_hash: entry.hash, account, wiped, slots }
            })
            .collect();
        accounts.sort_unstable_by_key(|update| update.address_hash);
        let mut codes: Vec<_> =
            self.codes.into_iter().map(|(hash, code)| (hash, code.original_bytes())).collect();
        codes.sort_unstable_by_key(|(hash, _)| *hash);
        StateDiff { accounts, codes }
    }

    fn entry(&mut self, address: Address) -> Result<&mut Entry, Error> {
        match self.accounts.entry(address) {
            MapEntry::Occupied(entry) => Ok(entry.into_mut()),
            MapEntry::Vacant(vacant) => {
                let hash = keccak256(address);
                let account = self.reader.account(&hash).inspect_err(|error| {
                    self.error.get_or_insert_with(|| error.clone());
                })?;
                let followed = self.followed.as_ref();
                let account = followed.map_or(account, |list| list.account(&address, account));
                let slots = HashMap::default();
                Ok(vacant.insert(Entry { hash, account, changed: false, wiped: false, slots }))
            }
        }
    }

    /// Writes one account of a commit. Returns `None` if nothing changed.
    fn commit_account(
        &mut self,
        address: Address,
        evm: EvmAccount,
    ) -> Result<Option<AccountUpdate>, Error> {
        if !evm.is_touched() {
            return Ok(None);
        }
        let after = state_after(&evm);
        let gone = after.is_none();
        if let (Some(after), Some(code)) = (after, evm.info.code.clone())
            && after.code_hash != EMPTY_CODE_HASH
            && self.entry(address)?.account.map(|before| before.code_hash) != Some(after.code_hash)
        {
            if let Some(publisher) = &self.publisher {
                publisher.place().0.add_code(after.code_hash, code.clone());
            }
            self.codes.insert(after.code_hash, code);
        }
        let entry = self.entry(address)?;
        let mut update = AccountUpdate {
            address_hash: entry.hash,
            account: after,
            wiped: false,
            slots: Vec::new(),
        };
        if gone {
            // The account was absent and still is: nothing happened.
            if entry.account.is_none() {
                return Ok(None);
            }
            update.wiped = true;
            entry.wiped = true;
            entry.slots.clear();
        } else {
            for (key, value) in evm.changed_storage_slots() {
                let value = value.present_value();
                match entry.slots.entry(*key) {
                    MapEntry::Occupied(slot) if slot.get().value == value => {}
                    MapEntry::Occupied(mut slot) => {
                        let slot = slot.get_mut();
                        (slot.value, slot.changed) = (value, true);
                        update.slots.push(SlotUpdate { key: slot.hash, value });
                    }
                    MapEntry::Vacant(vacant) => {
                        let hash = keccak256(key.to_be_bytes::<32>());
                        vacant.insert(Slot { hash, value, changed: true });
                        update.slots.push(SlotUpdate { key: hash, value });
                    }
                }
            }
            if update.slots.is_empty() && entry.account == after {
                return Ok(None);
            }
        }
        (entry.account, entry.changed) = (after, true);
        if let Some(publisher) = &self.publisher {
            let (published, position) = publisher.place();
            let slots = evm.changed_storage_slots();
            let slots = slots.map(|(key, slot)| (*key, slot.present_value()));
            published.write(position, address, after, update.wiped, slots);
        }
        Ok(Some(update))
    }
}

impl<R: StateReader> Database for BlockState<'_, R> {
    type Error = Error;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Error> {
        let account = self.entry(address)?.account;
        Ok(account.map(evm_info))
    }

    fn code_by_hash(&mut self, code_hash: B256) -> Result<Bytecode, Error> {
        if code_hash == EMPTY_CODE_HASH {
            return Ok(Bytecode::default());
        }
        let listed = self.followed.as_ref().and_then(|list| list.0.code(&code_hash));
        if let Some(code) = self.codes.get(&code_hash).or(listed) {
            return Ok(code.clone());
        }
        self.reader.code(&code_hash).inspect_err(|error| {
            self.error.get_or_insert_with(|| error.clone());
        })
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, Error> {
        let reader = self.reader;
        let listed = self.followed.as_ref().and_then(|list| list.slot(&address, &index));
        let entry = self.entry(address)?;
        if let Some(slot) = entry.slots.get(&index) {
            return Ok(slot.value);
        }
        if entry.wiped || entry.account.is_none() {
            return Ok(U256::ZERO);
        }
        let hash = keccak256(index.to_be_bytes::<32>());
        match listed.map_or_else(|| reader.slot(&entry.hash, &hash), Ok) {
            Ok(value) => {
                entry.slots.insert(index, Slot { hash, value, changed: false });
                Ok(value)
            }
            Err(error) => {
                self.error.get_or_insert_with(|| error.clone());
                Err(error)
            }
        }
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Error> {
        (self.block_hashes)(number).inspect_err(|error| {
            self.error.get_or_insert_with(|| error.clone());
        })
    }
}

impl<R: StateReader> StorageOccupancy for BlockState<'_, R> {
    fn has_storage(&mut self, address: Address) -> Result<bool, Error> {
        let reader = self.reader;
        let entry = self.entry(address)?;
        if entry.account.is_none() || entry.wiped {
            return Ok(false);
        }
        if entry.slots.values().any(|slot| !slot.value.is_zero()) {
            return Ok(true);
        }
        reader.has_storage(&entry.hash).inspect_err(|error| {
            self.error.get_or_insert_with(|| error.clone());
        })
    }
}

impl<R: StateReader> DatabaseCommit for BlockState<'_, R> {
    fn commit(&mut self, changes: AddressMap<EvmAccount>) {
        if let Some(accesses) = &mut self.accesses {
            accesses.add(&changes);
        }
        let mut update = StateUpdate { accounts: Vec::with_capacity(changes.len()) };
        for (address, account) in changes {
            // `self.error` keeps the error, which ends the block.
            if let Ok(Some(change)) = self.commit_account(address, account) {
                update.accounts.push(change);
            }
        }
        if let Some(steps) = &mut self.steps {
            steps.extend_from_slice(&update.accounts);
        }
        if let Some(flusher) = &mut self.flusher {
            flusher.push(update);
        }
    }
}
