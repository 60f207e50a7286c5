//! History: what the flat state was before each of the last blocks of the base.
//!
//! A block that enters the base leaves a record for each account and slot that it changes: the value
//! before the block, under the key and the block. So the value of a key after block N is that in the first
//! record of a block above N, and the value in the base if there is no such record.
//!
//! **Spans.** The keys of the records begin with a part of the chain, a span of some thousand blocks. A
//! read seeks once in each span from N on. Spans that are too old go whole: their files are removed, and
//! nothing is read or written for it. A compaction of young spans does not touch old ones.
//!
//! **One state.** Records are written in the batch that moves the base up, and removed in the batch that
//! moves it back. A read takes position, records and flat state from one snapshot of the database.
//! Only the removal of spans takes records from snapshots. It is counted before it begins, and a read
//! that meets it starts again.

use crate::{Config, Error, apply::wipes, meta, metrics, service::StorageWriter};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use tandem_primitives::{Account, AccountUpdate, B256, BlockId, BlockNumber, U256};
use tandem_proto::storage::{self, HistoryReads, KeptStates, ReadState, StateValues};
use tandem_store::{
    Batch, Cursor, Durability, Store, Table, View,
    tables::{AccountHistory, Accounts, Canonical, Code, HistoryPlace, SlotHistory, Slots},
};
use tracing::info;

/// Blocks of the longest span: a place has 16 bits.
const SPAN_BLOCKS_MAX: u64 = 1 << 16;

/// Length of the part of a key that says which block's record it is.
const OFFSET_BYTES: usize = size_of::<u16>();

/// Rules by which history is kept.
#[derive(Debug)]
pub struct History {
    /// Blocks below the base whose states can be read; 0 for none.
    blocks_max: u64,
    span_blocks: u64,
    /// Number of removals of spans that have begun.
    removals: AtomicU64,
}

impl History {
    /// Prepares a database for the settings. History begins at the base if there is none that fits, and
    /// all of it goes if none is wanted.
    ///
    /// # Errors
    /// When the database fails.
    pub fn open(store: &Store, config: &Config) -> Result<Self, Error> {
        let history = Self {
            blocks_max: config.history_blocks,
            span_blocks: config.history_span_blocks.clamp(1, SPAN_BLOCKS_MAX),
            removals: AtomicU64::new(0),
        };
        let (base, found) = (meta::base(&store.view())?, meta::history(&store.view())?);
        match found {
            _ if !history.is_kept() => {
                if found.is_some() {
                    info!("history is removed, because it is switched off");
                }
                history.remove_all(store)?;
            }
            Some((oldest, span)) if span == history.span_blocks && oldest <= base.number => {
                // An earlier process may have died on the way.
                history.remove_below(store, oldest)?;
            }
            _ => history.begin(store, base.number)?,
        }
        Ok(history)
    }

    fn is_kept(&self) -> bool {
        self.blocks_max > 0
    }

    fn place(&self, number: BlockNumber) -> HistoryPlace {
        // A span has no more blocks than an offset can count.
        HistoryPlace { span: number / self.span_blocks, offset: (number % self.span_blocks) as u16 }
    }

    /// Forgets all history, and begins anew at the base.
    ///
    /// # Errors
    /// When the database fails.
    pub fn begin(&self, store: &Store, base: BlockNumber) -> Result<(), Error> {
        if !self.is_kept() {
            return Ok(());
        }
        self.remove_all(store)?;
        let mut batch = store.batch();
        meta::put_history(&mut batch, base, self.span_blocks);
        store.write(batch, Durability::Disk)?;
        ::metrics::gauge!(metrics::HISTORY_OLDEST_BLOCK).set(base as f64);
        Ok(())
    }

    /// Adds the records of a block that enters the base. `before` has the values before it, as
    /// [`crate::apply::undo`] returns them.
    pub fn add(
        &self,
        batch: &mut Batch<'_>,
        number: BlockNumber,
        updates: &[AccountUpdate],
        before: &[AccountUpdate],
    ) {
        if !self.is_kept() {
            return;
        }
        let (place, bytes) = (self.place(number), batch.byte_len());
        for_each_change(before, updates, |address, change| match change {
            Change::Account(account) => batch.put::<AccountHistory>((address, place), account),
            Change::Slot(slot, value) => batch.put::<SlotHistory>((address, slot, place), value),
        });
        let added = batch.byte_len() - bytes;
        ::metrics::histogram!(metrics::HISTORY_BLOCK_BYTES).record(added as f64);
    }

    /// Removes the records of a block that leaves the base. `after` has the values after it.
    pub fn take_back(
        &self,
        batch: &mut Batch<'_>,
        number: BlockNumber,
        before: &[AccountUpdate],
        after: &[AccountUpdate],
    ) {
        if !self.is_kept() {
            return;
        }
        let place = self.place(number);
        for_each_change(before, after, |address, change| match change {
            Change::Account(_) => batch.delete::<AccountHistory>((address, place)),
            Change::Slot(slot, _) => batch.delete::<SlotHistory>((address, slot, place)),
        });
    }

    /// Notes in the batch that the base steps back to this height. History begins there if it began
    /// above.
    ///
    /// # Errors
    /// When the database fails.
    pub fn step_back(
        &self,
        batch: &mut Batch<'_>,
        view: &View<'_>,
        base: BlockNumber,
    ) -> Result<(), Error> {
        if meta::history(view)?.is_some_and(|(oldest, _)| oldest > base) {
            meta::put_history(batch, base, self.span_blocks);
        }
        Ok(())
    }

    /// Removes the spans that no state within the limit needs, now that the base is at this height.
    ///
    /// # Errors
    /// When the database fails. The next call goes on.
    pub fn prune(&self, store: &Store, base: BlockNumber) -> Result<(), Error> {
        if !self.is_kept() {
            return Ok(());
        }
        let Some((noted, _)) = meta::history(&store.view())? else { return Ok(()) };
        let oldest = noted.max(base.saturating_sub(self.blocks_max));
        ::metrics::gauge!(metrics::HISTORY_OLDEST_BLOCK).set(oldest as f64);
        // The state after the oldest block needs the records of the blocks above it.
        let first = self.place(oldest + 1).span;
        if first <= self.place(noted + 1).span {
            return Ok(());
        }
        let oldest = first * self.span_blocks - 1;
        // On the disk before the files go, so that no restart trusts what is gone.
        let mut batch = store.batch();
        meta::put_history(&mut batch, oldest, self.span_blocks);
        store.write(batch, Durability::Disk)?;
        self.remove_below(store, oldest)?;
        info!(oldest, "old history removed");
        Ok(())
    }

    /// Removes the records of the spans in which no block is above `oldest`.
    fn remove_below(&self, store: &Store, oldest: BlockNumber) -> Result<(), Error> {
        let Some(last) = self.place(oldest + 1).span.checked_sub(1) else { return Ok(()) };
        self.remove(store, &0u64.to_be_bytes(), &last.to_be_bytes())
    }

    /// Removes all records, and before them the one that says that they are whole.
    fn remove_all(&self, store: &Store) -> Result<(), Error> {
        if meta::history(&store.view())?.is_some() {
            let mut batch = store.batch();
            meta::delete_history(&mut batch);
            store.write(batch, Durability::Disk)?;
        }
        self.remove(store, &[], &[])
    }

    fn remove(&self, store: &Store, first: &[u8], last: &[u8]) -> Result<(), Error> {
        self.removals.fetch_add(1, Release);
        store.forget::<AccountHistory>(first, last)?;
        store.forget::<SlotHistory>(first, last)?;
        Ok(())
    }

    /// Reads a state with `read`, `None` if the state after this block is not kept.
    fn read<T>(
        &self,
        store: &Store,
        block: BlockId,
        read: impl Fn(&PastState<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        loop {
            let removals = self.removals.load(Acquire);
            let view = store.snapshot();
            let Some(kept) = self.kept(&view)? else { return Ok(None) };
            if !(kept.oldest..=kept.newest).contains(&block.number)
                || view.get::<Canonical>(block.number)? != Some(block.hash)
            {
                return Ok(None);
            }
            let first = self.place(block.number + 1);
            let end = self.place(kept.newest);
            let value = read(&PastState { view: &view, block, first, last_span: end.span })?;
            if self.removals.load(Acquire) == removals {
                return Ok(Some(value));
            }
        }
    }

    fn kept(&self, view: &View<'_>) -> Result<Option<KeptStates>, Error> {
        let Some((oldest, _)) = meta::history(view)? else { return Ok(None) };
        let newest = meta::base(view)?.number;
        let oldest = oldest.max(newest.saturating_sub(self.blocks_max));
        Ok(Some(KeptStates { oldest, newest, blocks_max: self.blocks_max }))
    }
}

/// Change that a block made, with the value before it.
enum Change<'a> {
    Account(Option<&'a Account>),
    Slot(B256, U256),
}

/// Calls `look` for each account and slot that a block changed. The lists have the same accounts.
fn for_each_change<'a>(
    before: &'a [AccountUpdate],
    after: &[AccountUpdate],
    mut look: impl FnMut(B256, Change<'a>),
) {
    for (before, after) in before.iter().zip(after) {
        let address = before.address_hash;
        // Most contracts change in their slots only.
        if before.account != after.account {
            look(address, Change::Account(before.account.as_ref()));
        }
        for slot in &before.slots {
            look(address, Change::Slot(slot.key, slot.value));
        }
        if !wipes(after) {
            continue;
        }
        // The values before have the slots of the wiped storage. Others were set after the wipe.
        for slot in after.slots.iter().filter(|slot| !slot.value.is_zero()) {
            if before.slots.binary_search_by_key(&slot.key, |known| known.key).is_err() {
                look(address, Change::Slot(slot.key, U256::ZERO));
            }
        }
    }
}

/// State after a block of the base's chain, in a snapshot of the database.
struct PastState<'a> {
    view: &'a View<'a>,
    block: BlockId,
    /// Place of the first block above it.
    first: HistoryPlace,
    /// Span of the base.
    last_span: u64,
}

impl PastState<'_> {
    fn records<T: Table>(&self) -> Records<'_, T> {
        let (first, last_span) = (self.first, self.last_span);
        Records { cursor: self.view.prefix_cursor::<T>(), first, last_span, key: Vec::new() }
    }

    fn values(&self, request: &ReadState) -> Result<StateValues, Error> {
        let mut records = self.records::<AccountHistory>();
        let find = |address: &B256| records.find(|place| (*address, place));
        let found = request.accounts.iter().map(find).collect::<Result<Vec<_>, Error>>()?;
        let unchanged = request.accounts.iter().zip(&found).filter(|(_, found)| found.is_none());
        let base = self.view.multi_get::<Accounts>(unchanged.map(|(address, _)| *address))?;
        let mut base = base.into_iter();
        let account = |found: Option<Option<Account>>| found.or_else(|| base.next()).flatten();
        let accounts = found.into_iter().map(account).collect();

        let mut records = self.records::<SlotHistory>();
        let find = |(address, slot): &(B256, B256)| records.find(|place| (*address, *slot, place));
        let found = request.slots.iter().map(find).collect::<Result<Vec<_>, Error>>()?;
        let unchanged = request.slots.iter().zip(&found).filter(|(_, found)| found.is_none());
        let base = self.view.multi_get::<Slots>(unchanged.map(|(key, _)| *key))?;
        let mut base = base.into_iter();
        let slot =
            |found: Option<U256>| found.or_else(|| base.next().flatten()).unwrap_or_default();
        let slots = found.into_iter().map(slot).collect();

        let codes = self.view.multi_get::<Code>(request.codes.iter().copied())?;
        Ok(StateValues { base: self.block, accounts, slots, codes })
    }

    /// Returns whether an account without code and nonce has storage.
    ///
    /// No code runs for such an account. So its slots were all set together when it was created, and go
    /// together, which makes one slot of each source enough.
    fn has_storage(&self, address: B256) -> Result<bool, Error> {
        let is_set = |key: &[u8]| {
            let slot = key.first_chunk().map(|slot| B256::from(*slot));
            let slot = slot.ok_or_else(|| Error::Damaged("malformed slot key".to_owned()))?;
            let request = ReadState { slots: vec![(address, slot)], ..ReadState::default() };
            Ok::<_, Error>(self.values(&request)?.slots.iter().any(|value| !value.is_zero()))
        };
        let now = self.view.cursor::<Slots>(address.as_slice());
        if let Some((key, _)) = now.entry()?
            && is_set(&key[32..])?
        {
            return Ok(true);
        }
        for span in self.first.span..=self.last_span {
            let prefix = [&span.to_be_bytes(), address.as_slice()].concat();
            let records = self.view.cursor::<SlotHistory>(&prefix);
            if let Some((key, _)) = records.entry()?
                && is_set(&key[prefix.len()..])?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Records of one table, from some place on.
struct Records<'a, T: Table> {
    cursor: Cursor<'a, T>,
    first: HistoryPlace,
    last_span: u64,
    key: Vec<u8>,
}

impl<T: Table> Records<'_, T> {
    /// Returns the value in the first record of something, `None` if there is no record. `key` returns its
    /// key at a place.
    fn find<'k>(
        &mut self,
        key: impl Fn(HistoryPlace) -> T::Key<'k>,
    ) -> Result<Option<T::Read>, Error> {
        let mut place = self.first;
        while place.span <= self.last_span {
            self.key.clear();
            T::encode_key(key(place), &mut self.key);
            self.cursor.seek(&self.key);
            let prefix = &self.key[..self.key.len() - OFFSET_BYTES];
            if self.cursor.entry()?.is_some_and(|(found, _)| found.starts_with(prefix)) {
                return Ok(self.cursor.value()?);
            }
            place = HistoryPlace { span: place.span + 1, offset: 0 };
        }
        Ok(None)
    }
}

impl HistoryReads for StorageWriter {
    fn kept_states(&self) -> storage::Result<Option<KeptStates>> {
        self.shared.needs_state()?;
        Ok(self.shared.history.kept(&self.shared.store.snapshot())?)
    }

    fn read_state_after(
        &self,
        block: BlockId,
        request: &ReadState,
    ) -> storage::Result<Option<StateValues>> {
        self.shared.needs_state()?;
        let started = std::time::Instant::now();
        let read = |state: &PastState<'_>| state.values(request);
        let values = self.shared.history.read(&self.shared.store, block, read)?;
        ::metrics::histogram!(metrics::READ_HISTORY_SECONDS).record(started.elapsed());
        Ok(values)
    }

    fn has_storage_after(
        &self,
        block: BlockId,
        address_hash: B256,
    ) -> storage::Result<Option<bool>> {
        self.shared.needs_state()?;
        let read = |state: &PastState<'_>| state.has_storage(address_hash);
        Ok(self.shared.history.read(&self.shared.store, block, read)?)
    }
}
