//! Access lists that drive their block (EIP-7928): what is read beforehand, and the values with which
//! the state root begins.
//!
//! ```text
//!  engine ── list ─► prewarm threads execute ──────────────────────────┐
//!    │       │                                                        ▼
//!    │       └─► last values ─► workers write and hash them      commits in order, compares
//!    │       └─► all keys ────► one read for all, in pieces           │
//!    └── equal to the execution's list and changes? ◄─────────────────┘
//! ```
//!
//! Nothing here decides whether a block is valid. Results are committed in the block's order only if
//! their reads hold ([`crate::ahead::speculate`]), and the execution's own list is compared with the
//! header. A root of listed values counts only if the execution changes exactly those.

use crate::{
    ahead::speculate::TRANSACTIONS_MIN,
    error::Error,
    metrics as names,
    state::{
        listed::{CODES_MAX, ListedState},
        parent::{CODES_PIECE, PIECE, ParentState, StateKey, StateValue, read_each},
    },
};
use metrics::counter;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tandem_chain::Block;
use tandem_policy::AccessLists;
use tandem_primitives::EMPTY_CODE_HASH;
use tandem_proto::multiproof::StateUpdate;
use tracing::{Span, debug, field::Empty, info_span};

/// Maximum number of accounts, and of slots, read ahead for a block. The block reads others for itself.
const KEYS_MAX: usize = 65_536;

/// Number of changed accounts and slots that any block may have.
const CHANGES_MIN: u64 = 1_024;
/// Gas of a block for each further one. Every change costs more than that.
const CHANGE_GAS: u64 = 5_000;

/// List that drives its block.
#[derive(Clone)]
pub struct Listed {
    /// Values of the list.
    pub state: Arc<ListedState>,
    parent: Arc<dyn ParentState>,
    /// Whether everything is read before the execution.
    is_read_ahead: bool,
    stopped: Arc<AtomicBool>,
}

impl Listed {
    /// Returns whether a block with this policy has a list that may drive it.
    pub fn is_wanted(block: &Block, policy: AccessLists) -> bool {
        policy == AccessLists::Followed
            && block.access_list.is_some()
            && block.transactions.len() >= TRANSACTIONS_MIN
    }

    /// Takes the values from the block's list, whose form was checked. Returns `None` for a block
    /// without a list, and for a list with more changes than the block's gas pays for. Such a list
    /// is wrong, and its changes are not worth reading.
    pub fn of(block: &Block, parent: Arc<dyn ParentState>) -> Option<Self> {
        let list = block.access_list.as_ref()?;
        let changes = CHANGES_MIN + block.header.gas_used.div_ceil(CHANGE_GAS);
        if list.changed() > changes {
            counter!(names::ACCESS_LISTS, "outcome" => "too_long").increment(1);
            return None;
        }
        let state = ListedState::of(list)?;
        let (is_read_ahead, stopped) = (false, Arc::default());
        Some(Self { state: Arc::new(state), parent, is_read_ahead, stopped })
    }

    /// Has everything read that the list names and memory lacks.
    #[must_use]
    pub fn reading_ahead(self) -> Self {
        Self { is_read_ahead: true, ..self }
    }

    /// Reads what is to be read ahead: at once if a call takes long, and beside the execution
    /// otherwise. This is only advice.
    pub fn read_ahead(&self) {
        if !self.is_read_ahead {
            return;
        }
        if self.parent.is_far() {
            self.read_all(|| self.read_far());
            return;
        }
        let (listed, parent) = (self.clone(), Span::current());
        rayon::spawn(move || {
            let _entered = parent.entered();
            listed.read_all(|| listed.try_read_all());
        });
    }

    fn read_all(&self, read: impl FnOnce() -> Result<[usize; 3], Error>) {
        let span = info_span!("read_ahead", accounts = Empty, slots = Empty, codes = Empty);
        let _entered = span.enter();
        match read() {
            Ok(counts) => {
                for (kind, count) in ["accounts", "slots", "codes"].into_iter().zip(counts) {
                    span.record(kind, count);
                    counter!(names::READ_AHEAD, "kind" => kind).increment(count as u64);
                }
            }
            Err(error) => debug!(%error, "not all of the list read ahead"),
        }
    }

    /// Reads everything by its place in the list, unless the list is too long.
    fn read_far(&self) -> Result<[usize; 3], Error> {
        if self.state.key_count() > KEYS_MAX {
            return self.try_read_all();
        }
        // A failure was logged. It comes up again when a transaction needs the value.
        self.state.read_slots(&*self.parent);
        Ok(self.state.missed())
    }

    /// Returns the numbers of accounts, slots and codes that were read.
    fn try_read_all(&self) -> Result<[usize; 3], Error> {
        let accounts = self.state.accounts().map(|account| StateKey::Account(account.hash));
        let slots = self.state.accounts().flat_map(|account| {
            account.slot_hashes().map(|slot| StateKey::Slot(account.hash, slot))
        });
        let accounts = self.read(accounts.take(KEYS_MAX), PIECE)?;
        let slots = self.read(slots.take(KEYS_MAX), PIECE)?;
        let codes = self.state.accounts().take(KEYS_MAX).filter_map(|account| {
            match self.parent.in_memory(&StateKey::Account(account.hash)) {
                Ok(Some(StateValue::Account(Some(account)))) => Some(account.code_hash),
                _ => None,
            }
        });
        let codes = codes.filter(|hash| *hash != EMPTY_CODE_HASH).map(StateKey::Code);
        let codes = self.read(codes.take(CODES_MAX), CODES_PIECE)?;
        Ok([accounts, slots, codes])
    }

    /// Reads those of the keys that are not in memory, in calls of several. Returns their number.
    fn read(&self, keys: impl Iterator<Item = StateKey>, piece: usize) -> Result<usize, Error> {
        let keys = keys.take_while(|_| !self.stopped.load(Relaxed)).map(|key| ((), key));
        read_each(&*self.parent, keys, piece, |(), _| ())
    }

    /// Returns the changes of the whole block as the list has them, in ascending order of accounts
    /// and slots.
    ///
    /// # Errors
    /// Same as [`crate::state::StateReader::account`].
    pub fn last_values(&self) -> Result<StateUpdate, Error> {
        let changed = self.state.accounts().filter(|account| account.has_changes());
        self.read(changed.map(|account| StateKey::Account(account.hash)), PIECE)?;
        let mut accounts = self.state.last_values(|hash| self.parent.account(hash))?;
        accounts.sort_unstable_by_key(|update| update.address_hash);
        for update in &mut accounts {
            update.slots.sort_unstable_by_key(|slot| slot.key);
        }
        Ok(StateUpdate { accounts })
    }

    /// Stops reading: the block's execution has ended.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }
}
