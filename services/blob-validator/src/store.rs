//! Validated blobs by versioned hash, bounded by bytes and age.

use lru::LruCache;
use std::{
    hash::RandomState,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_blob_validator_client::bundle;
use tandem_primitives::{B256, Bytes};
use tandem_proto::blob_validator::{Bundle, Form, StoredBlob};

/// Approximate bytes of an entry beside blob and proofs.
const ENTRY_BYTES: usize = 512;

/// Store of blobs. The one validated longest ago is evicted first.
pub struct Store {
    /// Entries in the order of their last validation; reading one does not move it.
    blobs: LruCache<B256, Entry, RandomState>,
    bytes: usize,
    bytes_max: usize,
    age_max: Duration,
}

struct Entry {
    stored: Arc<StoredBlob>,
    validated: Instant,
}

/// Blobs of a valid sidecar, ready to be kept.
pub type Blobs = Vec<(B256, StoredBlob)>;

/// Copies the blobs of a valid sidecar at the positions `missing`. The received blobs share a
/// buffer with the rest of their message, and would keep all of it alive.
pub fn blobs(bundle: &Bundle, missing: &[usize]) -> Blobs {
    let mut blobs = Vec::with_capacity(missing.len());
    for &index in missing {
        let parts = (bundle.blobs.get(index), bundle.commitments.get(index));
        let (Some(blob), Some(&commitment)) = parts else { continue };
        let Some(hash) = bundle.versioned_hashes.get(index) else { continue };
        let proofs = bundle::proofs(bundle, index).unwrap_or_default();
        let (proof, cell_proofs) = match bundle.form {
            Form::BlobProofs => (proofs.first().copied(), None),
            Form::CellProofs => (None, Some(proofs.into())),
        };
        let blob = Bytes::copy_from_slice(blob);
        blobs.push((*hash, StoredBlob { blob, commitment, proof, cell_proofs }));
    }
    blobs
}

fn bytes(stored: &StoredBlob) -> usize {
    ENTRY_BYTES
        + stored.blob.len()
        + stored.cell_proofs.as_ref().map_or(0, |proofs| proofs.len() * 48)
}

impl Store {
    /// Makes a store for blobs of at most `bytes_max` together, each for `age_max`.
    pub fn new(bytes_max: usize, age_max: Duration) -> Self {
        let blobs = LruCache::unbounded_with_hasher(RandomState::new());
        Self { blobs, bytes: 0, bytes_max, age_max }
    }

    /// Records that blobs were found valid. Returns the positions of those that are missing, or
    /// lack their proofs in this form.
    pub fn touch(&mut self, now: Instant, form: Form, versioned_hashes: &[B256]) -> Vec<usize> {
        self.expire(now);
        let mut missing = Vec::new();
        for (index, hash) in versioned_hashes.iter().enumerate() {
            match self.blobs.peek_mut(hash) {
                Some(entry) if has_form(&entry.stored, form) => {
                    entry.validated = now;
                    self.blobs.promote(hash);
                }
                _ => missing.push(index),
            }
        }
        missing
    }

    /// Keeps blobs. Existing proofs of the other form stay with them: one versioned hash means one
    /// commitment, hence one blob.
    pub fn insert(&mut self, now: Instant, blobs: Blobs) {
        for (hash, mut stored) in blobs {
            if let Some(entry) = self.remove(&hash) {
                stored.proof = stored.proof.or(entry.stored.proof);
                let known = &entry.stored.cell_proofs;
                stored.cell_proofs = stored.cell_proofs.or_else(|| known.clone());
            }
            self.bytes += bytes(&stored);
            self.blobs.put(hash, Entry { stored: Arc::new(stored), validated: now });
        }
        self.expire(now);
        while self.bytes > self.bytes_max {
            self.evict();
        }
    }

    /// Returns the blobs in the order of the hashes, `None` for missing ones.
    pub fn get(&mut self, now: Instant, hashes: &[B256]) -> Vec<Option<Arc<StoredBlob>>> {
        self.expire(now);
        hashes.iter().map(|hash| self.blobs.peek(hash).map(|entry| entry.stored.clone())).collect()
    }

    /// Drops blobs that will not be requested again.
    pub fn forget(&mut self, hashes: &[B256]) {
        for hash in hashes {
            self.remove(hash);
        }
    }

    /// Returns the number of blobs held.
    pub fn len(&self) -> usize {
        self.blobs.len()
    }

    /// Returns approximately how many bytes they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, hash: &B256) -> Option<Entry> {
        let entry = self.blobs.pop(hash)?;
        self.bytes -= bytes(&entry.stored);
        Some(entry)
    }

    /// Removes the blob that was validated longest ago.
    fn evict(&mut self) {
        if let Some((_, entry)) = self.blobs.pop_lru() {
            self.bytes -= bytes(&entry.stored);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((_, oldest)) = self.blobs.peek_lru()
            && now.saturating_duration_since(oldest.validated) >= self.age_max
        {
            self.evict();
        }
    }
}

fn has_form(stored: &StoredBlob, form: Form) -> bool {
    match form {
        Form::BlobProofs => stored.proof.is_some(),
        Form::CellProofs => stored.cell_proofs.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_proto::blob_validator::{CELLS, Rule};

    /// Makes a sidecar of one blob, all of whose bytes are `byte`; nothing about it is valid.
    fn bundle(byte: u8, form: Form) -> Bundle {
        Bundle {
            form,
            blobs: vec![vec![byte; 1000].into()],
            commitments: vec![[byte; 48]],
            proofs: vec![[byte; 48]; form.proofs_per_blob()],
            versioned_hashes: vec![hash(byte)],
            rule: Rule { form, blobs_max: 1 },
        }
    }

    fn hash(byte: u8) -> B256 {
        B256::repeat_byte(byte)
    }

    fn keep(store: &mut Store, now: Instant, bundle: &Bundle) {
        let missing = store.touch(now, bundle.form, &bundle.versioned_hashes);
        store.insert(now, blobs(bundle, &missing));
    }

    #[test]
    fn proofs_of_both_forms_come_together_under_one_hash() {
        let (mut store, now) = (Store::new(1 << 20, Duration::from_secs(60)), Instant::now());
        keep(&mut store, now, &bundle(1, Form::BlobProofs));
        assert_eq!(store.touch(now, Form::CellProofs, &[hash(1)]), [0]);
        keep(&mut store, now, &bundle(1, Form::CellProofs));
        let found = store.get(now, &[hash(1), hash(2)]);
        let stored = found[0].as_ref().unwrap();
        assert_eq!(
            (stored.proof, stored.cell_proofs.as_ref().unwrap().len()),
            (Some([1; 48]), CELLS)
        );
        assert!(found[1].is_none());
        assert_eq!((store.len(), store.bytes()), (1, ENTRY_BYTES + 1000 + CELLS * 48));
        store.forget(&[hash(1), hash(1), hash(3)]);
        assert_eq!((store.len(), store.bytes()), (0, 0));
    }

    #[test]
    fn the_bytes_stay_bounded_and_the_oldest_leaves() {
        let max = 3 * (ENTRY_BYTES + 1000);
        let (mut store, now) = (Store::new(max, Duration::from_secs(60)), Instant::now());
        for byte in 0..100 {
            keep(&mut store, now, &bundle(byte, Form::BlobProofs));
            keep(&mut store, now, &bundle(0, Form::BlobProofs));
            assert!(store.bytes() <= max);
        }
        let found = store.get(now, &[hash(0), hash(99), hash(98), hash(97)]);
        let there: Vec<_> = found.iter().map(Option::is_some).collect();
        assert_eq!(there, [true, true, true, false], "what is validated again is young again");
    }

    #[test]
    fn a_blob_leaves_with_age() {
        let (mut store, now) = (Store::new(1 << 20, Duration::from_secs(60)), Instant::now());
        keep(&mut store, now, &bundle(1, Form::BlobProofs));
        keep(&mut store, now + Duration::from_secs(30), &bundle(2, Form::BlobProofs));
        let found = store.get(now + Duration::from_secs(60), &[hash(1), hash(2)]);
        assert!(found[0].is_none() && found[1].is_some());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn a_kept_blob_does_not_keep_the_message_it_came_in() {
        let message = bytes_of(1 << 20);
        let mut sidecar = bundle(1, Form::BlobProofs);
        sidecar.blobs = vec![message.slice(0..1000)];
        let kept = blobs(&sidecar, &[0]);
        drop(sidecar);
        assert!(message.is_unique(), "nobody else holds the message");
        assert_eq!(kept[0].1.blob.len(), 1000);
    }

    fn bytes_of(length: usize) -> Bytes {
        vec![7; length].into()
    }
}
