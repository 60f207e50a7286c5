//! Parts of the flat state that replace what is there. Many at once go past log and memtables, as sorted
//! files of the lowest level.

use crate::Error;
use tandem_primitives::{B256, Bytes, U256};
use tandem_proto::snap::{DownloadedAccount, StatePart};
use tandem_store::{
    Batch, Cursor, Durability, Store, Table,
    tables::{Accounts, Code, Slots},
};
use tandem_trie::key_after;

/// Size in bytes at which a batch is written.
const BATCH_BYTES: usize = 4 << 20;

/// Size of parts that are best put at once ([`StatePart::byte_len`]). Its accounts and its slots become a file each. Every worker of a
/// download holds so much.
pub const PUT_BYTES: usize = 8 << 20;

/// Size of parts from which on they become files. A file, with its syncs, takes longer than a small batch.
const FILES_BYTES: usize = 2 << 20;

/// Puts parts. Returns what is left to write, in one batch with the progress.
///
/// # Errors
/// [`Error`] of the database.
pub fn put<'s>(store: &'s Store, parts: &[StatePart]) -> Result<Batch<'s>, Error> {
    let bytes: usize = parts.iter().map(StatePart::byte_len).sum();
    let sorted = (bytes >= FILES_BYTES).then(|| Sorted::of(parts)).flatten();
    if let Some(sorted) = sorted {
        sorted.put(store)?;
        return Ok(store.batch());
    }
    let mut batch = store.batch();
    for part in parts {
        put_in_batch(store, &mut batch, part)?;
        write_if_full(store, &mut batch)?;
    }
    Ok(batch)
}

/// Writes a batch that is large, and begins another one.
///
/// # Errors
/// [`Error`] of the database.
pub fn write_if_full<'s>(store: &'s Store, batch: &mut Batch<'s>) -> Result<(), Error> {
    if batch.byte_len() < BATCH_BYTES {
        return Ok(());
    }
    let full = std::mem::replace(batch, store.batch());
    Ok(store.write(full, Durability::Process)?)
}

/// Accounts between two keys.
type AccountRange<'p> = (&'p B256, &'p B256, &'p [DownloadedAccount]);
/// Slots of an owner between two keys.
type SlotRange<'p> = (&'p B256, &'p B256, &'p B256, &'p [(B256, U256)]);

/// Parts in the order of their keys.
struct Sorted<'p> {
    accounts: Vec<AccountRange<'p>>,
    slots: Vec<SlotRange<'p>>,
    codes: Vec<&'p (B256, Bytes)>,
}

impl<'p> Sorted<'p> {
    /// Sorts parts. Returns `None` if two of them overlap, so that the order in which they came matters.
    fn of(parts: &'p [StatePart]) -> Option<Self> {
        let mut sorted = Self { accounts: Vec::new(), slots: Vec::new(), codes: Vec::new() };
        for part in parts {
            match part {
                StatePart::Accounts { first, last, accounts } => {
                    sorted.accounts.push((first, last, accounts));
                }
                StatePart::Slots { owner, first, last, slots } => {
                    sorted.slots.push((owner, first, last, slots));
                }
                StatePart::Codes(codes) => sorted.codes.extend(codes),
            }
        }
        sorted.accounts.sort_unstable_by_key(|(first, ..)| *first);
        sorted.slots.sort_unstable_by_key(|(owner, first, ..)| (*owner, *first));
        let apart = sorted.accounts.windows(2).all(|pair| pair[0].1 < pair[1].0)
            && sorted.slots.windows(2).all(|pair| {
                let ((owner, _, last, _), (next_owner, next, ..)) = (pair[0], pair[1]);
                (owner, last) < (next_owner, next)
            });
        apart.then_some(sorted)
    }

    /// Deletes what the parts leave out, and adds files of what they have.
    fn put(&self, store: &Store) -> Result<(), Error> {
        let mut batch = store.batch();
        for code in &self.codes {
            batch.put::<Code>(code.0, &code.1);
            write_if_full(store, &mut batch)?;
        }
        let view = store.view();
        let begin = self.slots.first().map(|(owner, ..)| owner.as_slice());
        // The cursor stands behind the last range if nothing is there yet, so no range costs a look.
        let mut old = view.range::<Slots>(begin.unwrap_or_default(), None);
        for (owner, first, last, slots) in &self.slots {
            delete_other_slots(&mut old, &mut batch, owner, [first, last], slots)?;
            write_if_full(store, &mut batch)?;
        }
        for (first, last, accounts) in &self.accounts {
            delete_other_accounts(store, &mut batch, first, last, accounts)?;
            write_if_full(store, &mut batch)?;
        }
        store.write(batch, Durability::Process)?;
        let mut run = store.sorted_run::<Slots>();
        for (owner, _, _, slots) in &self.slots {
            for (slot, value) in *slots {
                run.put((**owner, *slot), *value)?;
            }
        }
        run.finish()?;
        let mut run = store.sorted_run::<Accounts>();
        for account in self.accounts.iter().flat_map(|(.., accounts)| *accounts) {
            run.put(account.key, &account.account)?;
        }
        Ok(run.finish()?)
    }
}

/// Replaces a part of the flat state.
fn put_in_batch(store: &Store, batch: &mut Batch<'_>, part: &StatePart) -> Result<(), Error> {
    match part {
        StatePart::Accounts { first, last, accounts } => {
            delete_other_accounts(store, batch, first, last, accounts)?;
            for account in accounts {
                batch.put::<Accounts>(account.key, &account.account);
            }
            Ok(())
        }
        StatePart::Slots { owner, first, last, slots } => {
            let (view, begin) = (store.view(), [owner.as_slice(), first.as_slice()].concat());
            let mut old = view.range::<Slots>(&begin, None);
            delete_other_slots(&mut old, batch, owner, [first, last], slots)?;
            for (slot, value) in slots {
                batch.put::<Slots>((*owner, *slot), *value);
            }
            Ok(())
        }
        StatePart::Codes(codes) => {
            for (hash, code) in codes {
                batch.put::<Code>(*hash, code);
            }
            Ok(())
        }
    }
}

/// Deletes the accounts between two keys that are not these, and the slots of those that have none.
fn delete_other_accounts(
    store: &Store,
    batch: &mut Batch<'_>,
    first: &B256,
    last: &B256,
    accounts: &[DownloadedAccount],
) -> Result<(), Error> {
    let new = accounts.iter().map(|account| account.key.to_vec());
    let view = store.view();
    let mut old = view.range::<Accounts>(first.as_slice(), None);
    delete_others(&mut old, batch, first.as_slice(), last.as_slice(), new)?;
    let owners = accounts.iter().filter(|it| it.has_storage).map(|it| it.key);
    delete_other_storage(store, batch, first, last, owners)
}

/// Deletes the slots of an owner between two keys that are not these. The cursor is as for [`delete_others`].
fn delete_other_slots(
    old: &mut Cursor<'_, Slots>,
    batch: &mut Batch<'_>,
    owner: &B256,
    [first, last]: [&B256; 2],
    slots: &[(B256, U256)],
) -> Result<(), Error> {
    let key = |slot: &B256| [owner.as_slice(), slot.as_slice()].concat();
    let new = slots.iter().map(|(slot, _)| key(slot));
    delete_others(old, batch, &key(first), &key(last), new)
}

/// Deletes the records between two keys, both included, other than the new ones, whose keys rise. No record is between the
/// first key and a cursor that is above it.
fn delete_others<T: Table>(
    old: &mut Cursor<'_, T>,
    batch: &mut Batch<'_>,
    first: &[u8],
    last: &[u8],
    new: impl Iterator<Item = Vec<u8>>,
) -> Result<(), Error> {
    if old.entry()?.is_some_and(|(key, _)| key < first) {
        old.seek(first);
    }
    let mut new = new.peekable();
    while let Some((key, _)) = old.entry()?.filter(|(key, _)| *key <= last) {
        while new.next_if(|new| new.as_slice() < key).is_some() {}
        if new.peek().is_none_or(|new| new.as_slice() != key) {
            batch.delete_raw::<T>(key);
        }
        old.advance();
    }
    Ok(())
}

/// Deletes slots of accounts between two keys, both included, other than these, whose keys rise.
fn delete_other_storage(
    store: &Store,
    batch: &mut Batch<'_>,
    first: &B256,
    last: &B256,
    owners: impl Iterator<Item = B256>,
) -> Result<(), Error> {
    let view = store.view();
    let mut old = view.range::<Slots>(first.as_slice(), None);
    let mut owners = owners.peekable();
    while let Some((key, _)) = old.entry()? {
        let Some((owner, _)) = key.split_first_chunk::<32>() else {
            return Err(Error::Damaged("malformed slot key".to_owned()));
        };
        let owner = B256::from(owner);
        if owner > *last {
            break;
        }
        while owners.next_if(|other| *other < owner).is_some() {}
        if owners.peek() != Some(&owner) {
            batch.delete_raw::<Slots>(key);
            old.advance();
            continue;
        }
        // The slots of this account were replaced by themselves.
        let Some(next) = key_after(&owner) else { break };
        old.seek(next.as_slice());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff_check::tests::records;
    use std::collections::BTreeSet;
    use tandem_primitives::{Account, EMPTY_CODE_HASH};
    use tandem_store::Options;
    use tandem_testkit::world::Random;

    fn key(n: u64) -> B256 {
        B256::right_padding_from(&(n << 8).to_be_bytes())
    }

    fn account(n: u64) -> Account {
        Account { nonce: n, balance: U256::ZERO, code_hash: EMPTY_CODE_HASH }
    }

    /// Returns some of the numbers between two, both included.
    fn some(first: u64, last: u64, random: &mut Random) -> Vec<u64> {
        (first..=last).filter(|_| random.one_in(2)).collect()
    }

    /// Cuts the numbers up to 99 into ranges, some of which are left out.
    fn ranges(random: &mut Random) -> Vec<(u64, u64)> {
        let cuts: BTreeSet<u64> = (0..random.below(6)).map(|_| 1 + random.below(98)).collect();
        let firsts: Vec<u64> = [0].into_iter().chain(cuts).collect();
        let lasts = firsts.iter().skip(1).map(|first| first - 1).chain([99]);
        firsts.iter().copied().zip(lasts).filter(|_| !random.one_in(4)).collect()
    }

    fn slots(owner: u64, (first, last): (u64, u64), random: &mut Random) -> StatePart {
        let numbers = some(first, last, random).into_iter();
        let slots = numbers.map(|n| (key(n), U256::from(random.next()) + U256::ONE)).collect();
        StatePart::Slots { owner: key(owner), first: key(first), last: key(last), slots }
    }

    /// Parts that do not overlap, in any order. An account with a part of slots has storage.
    fn parts(random: &mut Random) -> Vec<StatePart> {
        let owners = some(0, 99, random);
        let mut parts = Vec::new();
        for (first, last) in ranges(random) {
            let accounts = some(first, last, random).into_iter().map(|n| DownloadedAccount {
                key: key(n),
                account: account(random.next()),
                has_storage: owners.contains(&n),
            });
            let (accounts, first, last) = (accounts.collect(), key(first), key(last));
            parts.push(StatePart::Accounts { first, last, accounts });
        }
        let gone = |owner: &u64| {
            parts.iter().any(|part| match part {
                StatePart::Accounts { first, last, accounts } => {
                    (first..=last).contains(&&key(*owner))
                        && !accounts.iter().any(|it| it.key == key(*owner))
                }
                _ => false,
            })
        };
        let owners: Vec<u64> = owners.into_iter().filter(|owner| !gone(owner)).collect();
        for owner in owners {
            let ranges = ranges(random);
            parts.extend(ranges.into_iter().map(|range| slots(owner, range, random)));
        }
        for at in (1..parts.len()).rev() {
            parts.swap(at, random.below(at as u64 + 1) as usize);
        }
        parts
    }

    #[test]
    fn parts_in_the_order_of_their_keys_become_what_they_become_one_by_one() {
        for seed in 1..200 {
            let random = &mut Random(seed);
            let [one_by_one, at_once] = [Store::in_memory(), Store::in_memory()];
            for _ in 0..4 {
                let parts = parts(random);
                Sorted::of(&parts).expect("no part overlaps").put(&at_once).unwrap();
                for part in &parts {
                    let mut batch = one_by_one.batch();
                    put_in_batch(&one_by_one, &mut batch, part).unwrap();
                    one_by_one.write(batch, Durability::Process).unwrap();
                }
                assert_eq!(records::<Accounts>(&at_once), records::<Accounts>(&one_by_one));
                assert_eq!(records::<Slots>(&at_once), records::<Slots>(&one_by_one), "{seed}");
            }
        }
    }

    #[test]
    fn parts_that_overlap_keep_their_order() {
        let random = &mut Random(3);
        for (one, other) in [((0, 50), (50, 99)), ((0, 99), (7, 7))] {
            let parts = [slots(1, one, random), slots(1, other, random)];
            assert!(Sorted::of(&parts).is_none());
        }
        let parts = [slots(1, (0, 50), random), slots(1, (51, 99), random)];
        assert!(Sorted::of(&parts).is_some());
    }

    /// A second time, the files replace what the first ones have.
    #[test]
    fn many_parts_become_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let store = Store::create(&path, &Options::default()).unwrap();
        for round in 1..3 {
            let slot = |n: u64| (key(n), U256::from(n + round));
            let slots: Vec<_> = (0..40_000).map(|n| slot(n * round)).collect();
            let (owner, first, last) = (key(5), B256::ZERO, B256::repeat_byte(0xff));
            let parts = [StatePart::Slots { owner, first, last, slots: slots.clone() }];
            assert!(put(&store, &parts).unwrap().is_empty(), "nothing is left to write");
            let view = store.view();
            assert_eq!(records::<Slots>(&store).len(), slots.len());
            for (slot, value) in slots {
                assert_eq!(view.get::<Slots>((owner, slot)).unwrap(), Some(value));
            }
        }
    }
}
