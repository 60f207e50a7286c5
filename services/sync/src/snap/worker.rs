//! Download of one part of the key space: range after range of accounts, each with slots and codes.

use super::{
    ask::{Asker, Stale},
    check::{self, AccountRange, FoundAccount, SlotRange},
    progress::{Progress, last_key},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tandem_primitives::{B256, EMPTY_CODE_HASH, EMPTY_TRIE_ROOT, U256};
use tandem_proto::{
    snap::{DownloadedAccount, StatePart, StateRequest},
    storage::{self, StateDownloads},
};
use tandem_trie::key_after;
use tokio::{sync::Mutex, task::spawn_blocking};

/// Size of an answer that is asked for.
const ANSWER_BYTES: u64 = 512 << 10;
/// Accounts whose slots are asked for at once.
const STORAGES_AT_ONCE: usize = 256;
/// Codes that are asked for at once. Most answers with so many have their full size.
const CODES_AT_ONCE: usize = 64;
/// Requests of one part that are under way for slots, and for parts of one large storage.
const UNDER_WAY_MAX: usize = 4;
/// Pieces into which the rest of a large storage is cut.
const PIECES: u8 = 8;

/// Reason why a worker ends early.
pub enum Stop {
    Stale,
    Failed(storage::Error),
}

impl From<Stale> for Stop {
    fn from(_: Stale) -> Self {
        Self::Stale
    }
}

/// Worker of one part of the key space.
pub struct Worker {
    pub asker: Arc<Asker>,
    pub downloads: Arc<dyn StateDownloads>,
    pub progress: Arc<Progress>,
    pub root: B256,
    pub part: usize,
    /// Parts that wait to be written.
    held: Mutex<Held>,
}

/// Parts that are written together: the database makes one file of many, without work for it later.
#[derive(Default)]
struct Held {
    parts: Vec<StatePart>,
    bytes: usize,
    /// Key at which the worker goes on after the last whole range of these, `None` inside if that was the last of its part.
    next: Option<Option<B256>>,
}

impl Worker {
    pub fn new(
        asker: Arc<Asker>,
        downloads: Arc<dyn StateDownloads>,
        progress: Arc<Progress>,
        root: B256,
        part: usize,
    ) -> Self {
        Self { asker, downloads, progress, root, part, held: Mutex::default() }
    }

    /// Downloads the rest of the part. [`Self::flush`] has to follow.
    pub async fn run(&self) -> Result<(), Stop> {
        let end = last_key(self.part);
        let mut next = self.progress.next(self.part);
        while let Some(start) = next {
            let AccountRange { mut accounts, more } = self.accounts(start, end).await?;
            let last = accounts.last().map(|(key, ..)| *key);
            // The last account may lie behind the part, where another worker gets it.
            accounts.retain(|(key, ..)| *key <= end);
            next = last.filter(|last| more && *last < end).and_then(|last| key_after(&last));
            self.range(start, next, accounts).await?;
        }
        Ok(())
    }

    /// Holds parts until there are enough to be written. `next` is where the worker goes on, if they complete a range.
    async fn hold(&self, parts: Vec<StatePart>, next: Option<Option<B256>>) -> Result<(), Stop> {
        let mut held = self.held.lock().await;
        held.bytes += parts.iter().map(StatePart::byte_len).sum::<usize>();
        held.parts.extend(parts);
        held.next = next.or(held.next);
        match held.bytes >= self.downloads.put_bytes() {
            true => self.put(&mut held).await,
            false => Ok(()),
        }
    }

    /// Writes what is held, that of a range which is not whole included.
    pub async fn flush(&self) -> Result<(), Stop> {
        self.put(&mut *self.held.lock().await).await
    }

    async fn put(&self, held: &mut Held) -> Result<(), Stop> {
        let Held { parts, next, .. } = std::mem::take(held);
        if parts.is_empty() {
            return Ok(());
        }
        self.write(parts, next).await?;
        if let Some(next) = next {
            self.progress.advance(self.part, next);
        }
        Ok(())
    }

    async fn accounts(&self, start: B256, limit: B256) -> Result<AccountRange, Stop> {
        let root = self.root;
        let request = StateRequest::Accounts { root, start, limit, bytes: ANSWER_BYTES };
        let check = move |items| check::accounts(root, start, items);
        Ok(self.asker.ask("accounts", request, check).await?)
    }

    /// Downloads slots and codes of the accounts of a range.
    async fn range(
        &self,
        first: B256,
        next: Option<B256>,
        accounts: Vec<FoundAccount>,
    ) -> Result<(), Stop> {
        let storages: Vec<_> = accounts
            .iter()
            .filter(|(_, _, root)| *root != EMPTY_TRIE_ROOT)
            .map(|(key, _, root)| (*key, *root))
            .collect();
        let storages = stream::iter(storages.chunks(STORAGES_AT_ONCE).map(<[_]>::to_vec))
            .map(|some| self.storages(some))
            .buffer_unordered(UNDER_WAY_MAX)
            .try_collect::<()>();
        tokio::try_join!(storages, self.codes_of(&accounts))?;
        let count = accounts.len() as u64;
        let last = match next {
            Some(next) => before(&next),
            None => last_key(self.part),
        };
        self.hold(vec![accounts_part(first, last, accounts)], Some(next)).await?;
        self.progress.accounts.fetch_add(count, Relaxed);
        Ok(())
    }

    /// Writes parts, together with the progress if it changes.
    pub async fn write(
        &self,
        parts: Vec<StatePart>,
        next: Option<Option<B256>>,
    ) -> Result<(), Stop> {
        let next = next.unwrap_or_else(|| self.progress.next(self.part));
        let noted = self.progress.with(self.part, next);
        self.blocking(move |downloads| downloads.put_state(&parts, &noted)).await
    }

    /// Makes a call to the database on a thread that may wait.
    pub async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn StateDownloads) -> storage::Result<T> + Send + 'static,
    ) -> Result<T, Stop> {
        blocking(&self.downloads, call).await
    }

    /// Downloads the storage of accounts, given with its roots.
    async fn storages(&self, mut wanted: Vec<(B256, B256)>) -> Result<(), Stop> {
        while !wanted.is_empty() {
            let ranges = self.slots(wanted.clone(), B256::ZERO).await?;
            let cut = ranges.last().and_then(|range| {
                let from = key_after(&range.slots.last()?.0)?;
                range.more.then_some((range.owner, from))
            });
            let root = wanted.drain(..ranges.len()).next_back().map(|(_, root)| root);
            self.hold_slots(ranges.into_iter().map(|range| (B256::ZERO, range))).await?;
            if let (Some((owner, from)), Some(root)) = (cut, root) {
                self.large_storage(owner, root, from).await?;
            }
        }
        Ok(())
    }

    async fn slots(&self, wanted: Vec<(B256, B256)>, start: B256) -> Result<Vec<SlotRange>, Stop> {
        let accounts = wanted.iter().map(|(owner, _)| *owner).collect();
        let (root, limit) = (self.root, B256::repeat_byte(0xff));
        let request = StateRequest::Slots { root, accounts, start, limit, bytes: ANSWER_BYTES };
        let check = move |items| check::slots(&wanted, start, items);
        Ok(self.asker.ask("slots", request, check).await?)
    }

    async fn hold_slots(
        &self,
        ranges: impl Iterator<Item = (B256, SlotRange)>,
    ) -> Result<(), Stop> {
        let mut count = 0;
        let part = |(first, range): (B256, SlotRange)| {
            let SlotRange { owner, slots, more } = range;
            count += slots.len() as u64;
            let last = slots.last().filter(|_| more).map(|(key, _)| *key);
            let last = last.unwrap_or(B256::repeat_byte(0xff));
            StatePart::Slots { owner, first, last, slots }
        };
        let parts = ranges.map(part).collect();
        self.hold(parts, None).await?;
        self.progress.slots.fetch_add(count, Relaxed);
        Ok(())
    }

    /// Downloads the slots of one account from a key on, in pieces at the same time.
    async fn large_storage(&self, owner: B256, root: B256, from: B256) -> Result<(), Stop> {
        let cuts = pieces(from);
        stream::iter(cuts)
            .map(|(first, last)| self.piece(owner, root, first, last))
            .buffer_unordered(UNDER_WAY_MAX)
            .try_collect::<()>()
            .await
    }

    async fn piece(&self, owner: B256, root: B256, first: B256, last: B256) -> Result<(), Stop> {
        let mut start = Some(first);
        while let Some(first) = start.filter(|start| *start <= last) {
            let range = self.slots(vec![(owner, root)], first).await?.pop();
            let Some(mut range) = range else { break };
            let end = range.slots.last().map(|(key, _)| *key);
            range.slots.retain(|(key, _)| *key <= last);
            let goes_on = range.more && end.is_some_and(|end| end < last);
            start = end.filter(|_| goes_on).and_then(|end| key_after(&end));
            let upto = if goes_on { end.unwrap_or(last) } else { last };
            self.hold_piece(owner, first, upto, range.slots).await?;
        }
        Ok(())
    }

    async fn hold_piece(
        &self,
        owner: B256,
        first: B256,
        last: B256,
        slots: Vec<(B256, U256)>,
    ) -> Result<(), Stop> {
        let count = slots.len() as u64;
        self.hold(vec![StatePart::Slots { owner, first, last, slots }], None).await?;
        self.progress.slots.fetch_add(count, Relaxed);
        Ok(())
    }

    /// Downloads the codes of accounts that are not there.
    pub async fn codes_of(&self, accounts: &[FoundAccount]) -> Result<(), Stop> {
        let hashes: BTreeSet<B256> = accounts
            .iter()
            .map(|(_, account, _)| account.code_hash)
            .filter(|hash| *hash != EMPTY_CODE_HASH)
            .collect();
        if hashes.is_empty() {
            return Ok(());
        }
        let hashes: Vec<B256> = hashes.into_iter().collect();
        let lacking = self.blocking(move |downloads| downloads.lacking_codes(&hashes)).await?;
        stream::iter(lacking.chunks(CODES_AT_ONCE).map(<[_]>::to_vec))
            .map(|some| self.codes(some))
            .buffer_unordered(UNDER_WAY_MAX)
            .try_collect::<()>()
            .await
    }

    /// Downloads codes, whose hashes rise.
    async fn codes(&self, mut wanted: Vec<B256>) -> Result<(), Stop> {
        while !wanted.is_empty() {
            let asked = wanted.clone();
            let request = StateRequest::Codes { hashes: wanted.clone(), bytes: ANSWER_BYTES };
            let check = move |items| check::codes(&asked, items);
            let found = self.asker.ask("codes", request, check).await?;
            wanted.retain(|hash| !found.contains_key(hash));
            let count = found.len() as u64;
            self.write(vec![StatePart::Codes(found.into_iter().collect())], None).await?;
            self.progress.codes.fetch_add(count, Relaxed);
        }
        Ok(())
    }
}

/// Makes a call to the database on a thread that may wait.
pub async fn blocking<T: Send + 'static>(
    downloads: &Arc<dyn StateDownloads>,
    call: impl FnOnce(&dyn StateDownloads) -> storage::Result<T> + Send + 'static,
) -> Result<T, Stop> {
    let downloads = downloads.clone();
    let ended = || storage::Error::Unavailable("the thread of a call has ended".to_owned());
    let answer = spawn_blocking(move || call(&*downloads)).await;
    answer.unwrap_or_else(|_| Err(ended())).map_err(Stop::Failed)
}

/// Returns what replaces the accounts between two keys.
pub fn accounts_part(first: B256, last: B256, accounts: Vec<FoundAccount>) -> StatePart {
    let account = |(key, account, root): FoundAccount| DownloadedAccount {
        key,
        account,
        has_storage: root != EMPTY_TRIE_ROOT,
    };
    StatePart::Accounts { first, last, accounts: accounts.into_iter().map(account).collect() }
}

/// Cuts the keys from this one on into pieces of one size.
fn pieces(from: B256) -> Vec<(B256, B256)> {
    let begin = U256::from_be_bytes(from.0);
    let size = (U256::MAX - begin) / U256::from(PIECES);
    let key = |number: U256| B256::from(number.to_be_bytes::<32>());
    (0..PIECES)
        .map(|at| {
            let first = begin + size * U256::from(at);
            let next = begin + size * U256::from(at + 1);
            let last = if at + 1 == PIECES { U256::MAX } else { next.saturating_sub(U256::ONE) };
            (key(first), key(last))
        })
        .filter(|(first, last)| first <= last)
        .collect()
}

/// Returns the key before this one, which is not the first.
fn before(key: &B256) -> B256 {
    let number = U256::from_be_bytes(key.0);
    B256::from(number.saturating_sub(U256::ONE).to_be_bytes::<32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_rest_of_the_keys_once() {
        let last = B256::repeat_byte(0xff);
        for from in [B256::ZERO, B256::repeat_byte(0x77), before(&last), last] {
            let pieces = pieces(from);
            assert_eq!(pieces.first().unwrap().0, from);
            assert_eq!(pieces.last().unwrap().1, last);
            for pair in pieces.windows(2) {
                assert_eq!(key_after(&pair[0].1), Some(pair[1].0));
            }
        }
    }
}
