//! Checks of a sidecar without KZG, and its parts as the KZG crate takes them.

use tandem_kzg::{Error, Item, content_key, versioned_hash};
use tandem_primitives::B256;
use tandem_proto::blob_validator::{BLOB_BYTES, Bundle, Part, Proof, Reason, Refusal};

/// Checks counts, form, lengths and versioned hashes. The cheap rules come first, and the rules of
/// the whole sidecar before those of single blobs.
pub fn check(bundle: &Bundle) -> Result<(), Refusal> {
    let whole = |reason| Err(Refusal { blob: None, reason });
    let (blobs, rule) = (bundle.blobs.len(), bundle.rule);
    if blobs == 0 {
        return whole(Reason::NoBlobs);
    }
    if bundle.form != rule.form {
        return whole(Reason::WrongForm { expected: rule.form, got: bundle.form });
    }
    if blobs > rule.blobs_max as usize {
        return whole(Reason::TooManyBlobs { max: rule.blobs_max, got: saturating_u32(blobs) });
    }
    let counts = [
        (Part::Commitments, blobs, bundle.commitments.len()),
        (Part::Proofs, blobs * bundle.form.proofs_per_blob(), bundle.proofs.len()),
        (Part::VersionedHashes, blobs, bundle.versioned_hashes.len()),
    ];
    for (part, expected, got) in counts {
        if got != expected {
            let (expected, got) = (saturating_u32(expected), saturating_u32(got));
            return whole(Reason::Count { part, expected, got });
        }
    }
    for (index, blob) in bundle.blobs.iter().enumerate() {
        let refused = |reason| Err(Refusal { blob: Some(saturating_u32(index)), reason });
        if blob.len() != BLOB_BYTES {
            return refused(Reason::BlobLength { got: blob.len() as u64 });
        }
        if versioned_hash(&bundle.commitments[index]) != bundle.versioned_hashes[index] {
            return refused(Reason::VersionedHash);
        }
    }
    Ok(())
}

fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the proofs of one blob.
pub fn proofs(bundle: &Bundle, index: usize) -> Option<&[Proof]> {
    let each = bundle.form.proofs_per_blob();
    bundle.proofs.get(index * each..(index + 1) * each)
}

/// Returns one blob of a sidecar that passed [`check`].
pub fn item(bundle: &Bundle, index: usize) -> Result<Item<'_>, Error> {
    let blob = bundle.blobs.get(index).ok_or(Error::BlobLength { got: 0 })?;
    let commitment = bundle.commitments.get(index).ok_or(Error::BlobLength { got: 0 })?;
    Item::new(blob, commitment, proofs(bundle, index).unwrap_or_default())
}

/// Returns the content keys of a sidecar that passed [`check`]. Takes tens of microseconds per
/// blob.
pub fn keys(bundle: &Bundle) -> Result<Vec<B256>, Error> {
    (0..bundle.blobs.len()).map(|index| Ok(content_key(&item(bundle, index)?))).collect()
}
