//! The database of a plan, shard by shard.

use crate::{
    Base, Plan,
    base::Entry,
    code::{CODE, code_hash},
};
use anyhow::Context;
use parking_lot::Mutex;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::{
    path::Path,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tandem_primitives::{B256, Bytes, Shard};
use tandem_storage_writer::{Error, Initialized, ShardLoad, Sorter, StateAt, StateLoad, load_plan};
use tandem_trie::hash_batch;

/// Bytes of the hashed addresses of one shard that are sorted in memory.
const ACCOUNT_SORT_BYTES: usize = 4 << 20;

/// Bytes of the hashed slots of one contract that are sorted in memory.
const SLOT_SORT_BYTES: usize = 32 << 20;

/// Keys that are hashed at once.
const BATCH: u64 = 1024;

/// Slots whose hashes are computed once: most contracts have no others.
const COMMON_SLOTS: u64 = 1 << 16;

/// Records between two progress reports.
const REPORT_EVERY: u64 = 1 << 14;

/// Memory that a load takes however large the state is, about, in bytes: hashed addresses, hashes of
/// common slots, caches and memtables of the database, and the program itself.
pub const MEMORY_BYTES: u64 = 16 * ACCOUNT_SORT_BYTES as u64 + (160 << 20);

/// Memory that each thread takes in addition, about, in bytes: a contract's hashed slots, the nodes of
/// two tries, and four files that are being written.
pub const MEMORY_BYTES_PER_THREAD: u64 = SLOT_SORT_BYTES as u64 + 2 * (32 << 20) + 4 * (8 << 20);

/// Version of what a plan means. It rises when equal plans would lead to other states.
const VERSION: u32 = 1;

/// Plan of a load, as the database has it.
#[derive(Serialize, Deserialize)]
struct Recorded {
    version: u32,
    #[serde(flatten)]
    plan: Plan,
    base: B256,
    /// Missing in what earlier versions made.
    #[serde(default, skip_serializing_if = "is_genesis")]
    at: StateAt,
}

fn is_genesis(at: &StateAt) -> bool {
    *at == StateAt::Genesis
}

impl Plan {
    /// Returns the plan by which the database of a data directory was made, which no process may have
    /// open.
    ///
    /// # Errors
    /// Returns an error if it was made otherwise, or cannot be opened.
    pub fn of_database(datadir: &Path) -> anyhow::Result<Self> {
        let recorded = load_plan(datadir)?
            .with_context(|| format!("{} was not made by `tandem bloat`", datadir.display()))?;
        let recorded: Recorded = serde_json::from_str(&recorded)
            .with_context(|| format!("{}: plan of its state", datadir.display()))?;
        anyhow::ensure!(
            recorded.version == VERSION,
            "{} was made by another version of `tandem bloat`: make it again",
            datadir.display()
        );
        Ok(recorded.plan)
    }
}

/// Makes the database of a plan in a data directory that has none, or goes on with one that was not
/// finished. `at` is the block whose state it is. Shards are loaded on as many threads as rayon has. `progress` gets the work done so far and
/// the whole work, in records; a record counts when it is written, and again when its trie is built.
///
/// # Errors
/// Returns an error if the directory has a database or a part of another plan's, or if writing fails.
pub fn load(
    plan: &Plan,
    base: &Base,
    at: StateAt,
    datadir: &Path,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> anyhow::Result<Initialized> {
    let recorded = Recorded { version: VERSION, plan: *plan, base: base.digest(), at };
    let load = StateLoad::open(datadir, &serde_json::to_string(&recorded)?)?;
    let (accounts, slots) = base.counts();
    let records = plan.accounts() + plan.slots() + accounts + slots;
    let missing: Vec<Shard> = Shard::all().filter(|shard| load.loaded(*shard).is_none()).collect();
    let loaded: u64 = Shard::all()
        .filter_map(|shard| load.loaded(shard))
        .map(|(accounts, slots)| accounts + slots)
        .sum();
    let work = Work { done: AtomicU64::new(2 * loaded), total: 2 * records, progress };
    work.add(0);
    load.put_codes(base.codes())?;
    load.put_codes(&[(code_hash(), Bytes::from_static(&CODE))])?;
    let sorted = sort_accounts(plan, &load, &missing)?;
    missing
        .into_par_iter()
        .zip(sorted)
        .try_for_each(|(shard, accounts)| load_shard(plan, base, &load, shard, accounts, &work))?;
    Ok(load.finish(&base.json, at)?)
}

/// Work of a load.
struct Work<'p> {
    done: AtomicU64,
    total: u64,
    progress: &'p (dyn Fn(u64, u64) + Sync),
}

impl Work<'_> {
    fn add(&self, records: u64) {
        let done = self.done.fetch_add(records, Relaxed) + records;
        (self.progress)(done, self.total);
    }
}

/// Returns the accounts of each of these shards, to be sorted: hashed addresses with numbers.
fn sort_accounts(plan: &Plan, load: &StateLoad, shards: &[Shard]) -> anyhow::Result<Vec<Sorter>> {
    let mut sorters: Vec<Sorter> = shards.iter().map(|_| load.sorter(ACCOUNT_SORT_BYTES)).collect();
    let mut place = [None; Shard::COUNT];
    for (at, shard) in shards.iter().enumerate() {
        place[shard.index()] = Some(at);
    }
    if shards.is_empty() {
        return Ok(sorters);
    }
    hash_all(
        plan.accounts(),
        |number| plan.address(number),
        |number, hash| match place[Shard::of(&hash).index()] {
            Some(at) => Ok(sorters[at].push(hash.as_slice(), &number.to_be_bytes())?),
            None => Ok(()),
        },
    )?;
    Ok(sorters)
}

/// Passes the hashes of the keys with numbers below `count` to `sink`.
fn hash_all<K: AsRef<[u8]>>(
    count: u64,
    key: impl Fn(u64) -> K,
    mut sink: impl FnMut(u64, B256) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut bytes, mut ends, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = 0;
    while first < count {
        let end = count.min(first + BATCH);
        bytes.clear();
        ends.clear();
        hashes.clear();
        for number in first..end {
            bytes.extend_from_slice(key(number).as_ref());
            ends.push(bytes.len() as u32);
        }
        hash_batch(&bytes, &ends, &mut hashes);
        for (number, hash) in (first..end).zip(&hashes) {
            sink(number, *hash)?;
        }
        first = end;
    }
    Ok(())
}

/// Hashes of the slots below [`COMMON_SLOTS`].
static COMMON: LazyLock<Vec<B256>> = LazyLock::new(|| {
    let numbers: Vec<u64> = (0..COMMON_SLOTS).collect();
    numbers.iter().map(|number| tandem_primitives::keccak256(Plan::slot(*number))).collect()
});

/// Passes the hashed slots with numbers below `count` to a sorter.
fn sort_slots(count: u64, sorter: &mut Sorter) -> Result<(), Error> {
    let common = count.min(COMMON_SLOTS);
    for (number, hash) in (0..common).zip(COMMON.iter()) {
        sorter.push(hash.as_slice(), &number.to_be_bytes())?;
    }
    hash_all(
        count - common,
        |number| Plan::slot(common + number),
        |number, hash| Ok(sorter.push(hash.as_slice(), &(common + number).to_be_bytes())?),
    )
}

/// Writes a shard and builds its tries.
fn load_shard(
    plan: &Plan,
    base: &Base,
    load: &StateLoad,
    shard: Shard,
    mut accounts: Sorter,
    work: &Work<'_>,
) -> Result<(), Error> {
    let mut writer = load.shard(shard)?;
    let mut slots = load.sorter(SLOT_SORT_BYTES);
    let mut others = base.of_shard(shard).peekable();
    let (mut written, mut counted) = (0, 0);
    let mut report = |records: u64| {
        counted += records;
        written += records;
        if counted >= REPORT_EVERY {
            work.add(std::mem::take(&mut counted));
        }
    };
    accounts.drain(|hash, number| {
        let (hash, number) = (B256::from_slice(hash), read_number(number));
        while let Some((hash, entry)) = others.next_if(|(other, _)| **other < hash) {
            report(put_entry(&mut writer, *hash, entry)?);
        }
        writer.account(hash, &plan.account(number))?;
        report(1);
        let count = plan.slots_of(number);
        if count == 0 {
            return Ok(());
        }
        sort_slots(count, &mut slots)?;
        slots.drain(|slot, at| {
            report(1);
            writer.slot(hash, B256::from_slice(slot), plan.value(number, read_number(at)))
        })
    })?;
    for (hash, entry) in others {
        report(put_entry(&mut writer, *hash, entry)?);
    }
    work.add(counted);
    build_tries(writer, written, work)
}

fn put_entry(writer: &mut ShardLoad<'_>, hash: B256, entry: &Entry) -> Result<u64, Error> {
    writer.account(hash, &entry.account)?;
    for (slot, value) in &entry.slots {
        writer.slot(hash, *slot, *value)?;
    }
    Ok(1 + entry.slots.len() as u64)
}

/// Builds the tries of a shard that has this many records. All of them take the same time on average, so
/// the share of the accounts is taken for that of the work.
fn build_tries(writer: ShardLoad<'_>, records: u64, work: &Work<'_>) -> Result<(), Error> {
    let total = writer.accounts().max(1);
    let reported = Mutex::new(0);
    writer.finish(|accounts| {
        let done = (u128::from(records) * u128::from(accounts) / u128::from(total)) as u64;
        let mut reported = reported.lock();
        if done - *reported >= REPORT_EVERY {
            work.add(done - *reported);
            *reported = done;
        }
    })?;
    work.add(records - reported.into_inner());
    Ok(())
}

fn read_number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
