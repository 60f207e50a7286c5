//! Limit on the bytes of admitted sidecars: each is held, with all its blobs, until its answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tandem_proto::blob_validator::Bundle;

/// Counter of the admitted bytes. Clones share the count.
#[derive(Clone)]
pub struct Gate {
    inside: Arc<AtomicUsize>,
    max: usize,
}

/// Admission of one sidecar; it ends on drop.
pub struct Admission {
    inside: Arc<AtomicUsize>,
    bytes: usize,
}

impl Gate {
    /// Makes a gate that admits at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { inside: Arc::default(), max }
    }

    /// Admits a sidecar; returns `None` if there is no room.
    pub fn admit(&self, bundle: &Bundle) -> Option<Admission> {
        let points = (bundle.commitments.len() + bundle.proofs.len()) * 48;
        let blobs: usize = bundle.blobs.iter().map(|blob| blob.len()).sum();
        self.admit_bytes(blobs + points)
    }

    /// Admits bytes; returns `None` if there is no room.
    pub fn admit_bytes(&self, bytes: usize) -> Option<Admission> {
        // Relaxed suffices: the count publishes no other data.
        let order = Ordering::Relaxed;
        let room = |inside: usize| inside.checked_add(bytes).filter(|&sum| sum <= self.max);
        self.inside.fetch_update(order, order, room).ok()?;
        Some(Admission { inside: self.inside.clone(), bytes })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.inside.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_proto::blob_validator::{Form, Rule};

    fn bundle(bytes: usize) -> Bundle {
        let form = Form::BlobProofs;
        Bundle {
            form,
            blobs: vec![vec![0; bytes - 96].into()],
            commitments: vec![[0; 48]],
            proofs: vec![[0; 48]],
            versioned_hashes: vec![],
            rule: Rule { form, blobs_max: 1 },
        }
    }

    #[test]
    fn a_sidecar_takes_its_room_until_it_is_answered() {
        let gate = Gate::new(1000);
        let first = gate.admit(&bundle(600)).unwrap();
        assert!(gate.admit(&bundle(401)).is_none());
        let second = gate.admit(&bundle(400)).unwrap();
        drop(first);
        assert!(gate.admit(&bundle(600)).is_some());
        drop(second);
        assert!(gate.admit(&bundle(1000)).is_some(), "all of it is free again");
    }
}
