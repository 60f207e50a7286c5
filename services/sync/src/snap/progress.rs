//! Progress of a download: how far each part of the key space is.

use serde::{Deserialize, Serialize};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tandem_primitives::{B256, BlockId};
use tandem_proto::sync::StateProgress;

/// Number of parts of the key space, which are downloaded at the same time: one for each shard.
pub const PARTS: usize = 16;

/// Progress that survives a restart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    number: u64,
    hash: B256,
    root: B256,
    /// Next key of each part, `None` for one that is done.
    next: Vec<Option<B256>>,
}

/// Progress of the download of a pivot's state.
#[derive(Debug)]
pub struct Progress {
    record: Mutex<Record>,
    /// Numbers of written accounts, slots, and codes.
    pub accounts: AtomicU64,
    pub slots: AtomicU64,
    pub codes: AtomicU64,
}

impl Progress {
    /// Progress at the begin of a download.
    pub fn begin(pivot: BlockId, root: B256) -> Self {
        let next = (0..PARTS).map(|part| Some(first_key(part))).collect();
        Self::of(Record { number: pivot.number, hash: pivot.hash, root, next })
    }

    /// Progress towards another pivot: what is done stays.
    pub fn moved(&self, pivot: BlockId, root: B256) -> Self {
        let next = self.record().next.clone();
        let moved = Self::of(Record { number: pivot.number, hash: pivot.hash, root, next });
        for (new, old) in [
            (&moved.accounts, &self.accounts),
            (&moved.slots, &self.slots),
            (&moved.codes, &self.codes),
        ] {
            new.store(old.load(Relaxed), Relaxed);
        }
        moved
    }

    /// Reads what a download noted before a restart, `None` if it noted nothing of use.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let record: Record = serde_json::from_slice(bytes).ok()?;
        (record.next.len() == PARTS).then(|| Self::of(record))
    }

    fn of(record: Record) -> Self {
        let [accounts, slots, codes] = Default::default();
        Self { record: Mutex::new(record), accounts, slots, codes }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pivot.
    pub fn pivot(&self) -> BlockId {
        let record = self.record();
        BlockId::new(record.number, record.hash)
    }

    /// Returns the root of the pivot's state.
    pub fn root(&self) -> B256 {
        self.record().root
    }

    /// Returns whether any range is done.
    pub fn has_ranges(&self) -> bool {
        let record = self.record();
        record.next.iter().enumerate().any(|(part, next)| *next != Some(first_key(part)))
    }

    /// Returns the next key of a part, `None` when the part is done.
    pub fn next(&self, part: usize) -> Option<B256> {
        self.record().next[part]
    }

    /// Returns what is to be written together with a range, after which a part goes on at `next`.
    pub fn with(&self, part: usize, next: Option<B256>) -> Vec<u8> {
        let mut record = self.record().clone();
        record.next[part] = next;
        // A record of hashes and numbers can always be written as JSON.
        serde_json::to_vec(&record).unwrap_or_default()
    }

    /// Returns what is to be written together with changes that make what is done a part of this block's
    /// state.
    pub fn noted_at(&self, pivot: BlockId, root: B256) -> Vec<u8> {
        let next = self.record().next.clone();
        let record = Record { number: pivot.number, hash: pivot.hash, root, next };
        serde_json::to_vec(&record).unwrap_or_default()
    }

    /// Notes that a range is written.
    pub fn advance(&self, part: usize, next: Option<B256>) {
        self.record().next[part] = next;
    }

    /// Returns what people see.
    pub fn shown(&self) -> StateProgress {
        StateProgress {
            permille: self.permille(),
            accounts: self.accounts.load(Relaxed),
            slots: self.slots.load(Relaxed),
            codes: self.codes.load(Relaxed),
        }
    }

    /// Returns the done share of the key space, in thousandths.
    fn permille(&self) -> u64 {
        let record = self.record();
        let done = record.next.iter().enumerate().map(|(part, next)| match next {
            None => 0x1000,
            Some(key) => {
                u64::from(u16::from_be_bytes([key[0], key[1]]).saturating_sub((part as u16) << 12))
            }
        });
        done.sum::<u64>() * 1000 / 0x1_0000
    }
}

/// Returns the first key of a part.
pub fn first_key(part: usize) -> B256 {
    B256::right_padding_from(&[(part as u8) << 4])
}

/// Returns the last key of a part.
pub fn last_key(part: usize) -> B256 {
    let mut key = B256::repeat_byte(0xff);
    key[0] = (part as u8) << 4 | 0x0f;
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_a_restart() {
        let pivot = BlockId::new(7, B256::repeat_byte(7));
        let progress = Progress::begin(pivot, B256::repeat_byte(8));
        let written = progress.with(3, Some(B256::repeat_byte(0x38)));
        progress.advance(5, None);
        let read = Progress::read(&written).unwrap();
        assert_eq!((read.pivot(), read.root()), (pivot, B256::repeat_byte(8)));
        assert_eq!(read.next(3), Some(B256::repeat_byte(0x38)));
        assert_eq!(read.next(5), Some(first_key(5)));
        assert_eq!(progress.next(5), None);
        assert!(Progress::read(b"").is_none());
        assert!(Progress::read(br#"{"number":1}"#).is_none());
    }

    #[test]
    fn parts_cover_the_key_space_once() {
        assert_eq!(first_key(0), B256::ZERO);
        assert_eq!(last_key(PARTS - 1), B256::repeat_byte(0xff));
        for part in 1..PARTS {
            assert_eq!(tandem_trie::key_after(&last_key(part - 1)), Some(first_key(part)));
        }
    }

    #[test]
    fn the_done_share_is_that_of_all_parts() {
        let progress = Progress::begin(BlockId::default(), B256::ZERO);
        assert_eq!(progress.permille(), 0);
        (0..8).for_each(|part| progress.advance(part, None));
        assert_eq!(progress.permille(), 500);
        progress.advance(8, Some(B256::right_padding_from(&[0x88])));
        assert_eq!(progress.permille(), 531);
    }
}
