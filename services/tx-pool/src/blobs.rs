//! Blobs that pooled transactions name. blob-validator holds them; it is told which are needed no
//! longer.

use crate::{
    included::{Included, settled},
    pool::{Pooled, SidecarRef},
};
use alloy_consensus::Transaction as _;
use std::{collections::HashMap, sync::Arc};
use tandem_admission::{
    StoredParts, Submitted, WithoutBlobs, decode, encode_network_form, encode_without_blobs,
};
use tandem_chain::Wrapper;
use tandem_kzg::{select_cells, versioned_hash};
use tandem_primitives::{B256, BlockId, BlockNumber, Bytes};
use tandem_proto::blob_validator::{
    BLOB_BYTES, CELL_BYTES, CellSet, Commitment, Form, Proof, StoredBlob,
};

/// Transactions with blobs in the pool, and in blocks that a reorg may still remove.
#[derive(Default)]
pub(crate) struct BlobReferences {
    /// Number of transactions that name each blob.
    named: HashMap<B256, usize>,
    /// Transactions that left the pool with a block that is not final, and its number.
    in_blocks: HashMap<B256, (BlockNumber, Arc<Pooled>)>,
    /// Contents of the blocks that are not final.
    pub included: Included,
}

impl BlobReferences {
    /// Notes that a transaction came into the pool.
    pub fn hold(&mut self, tx: &Pooled) {
        for hash in hashes(tx) {
            *self.named.entry(*hash).or_default() += 1;
        }
    }

    /// Notes that a transaction left for good. Returns the blobs that no other one names.
    #[must_use]
    pub fn release(&mut self, tx: &Pooled) -> Vec<B256> {
        let mut left = Vec::new();
        for hash in hashes(tx) {
            let Some(count) = self.named.get_mut(hash) else { continue };
            *count -= 1;
            if *count == 0 {
                self.named.remove(hash);
                left.push(*hash);
            }
        }
        left
    }

    /// Notes that a held transaction is in a block with this number, so that its blobs stay until
    /// the block is final.
    pub fn set_aside(&mut self, block: BlockNumber, tx: Arc<Pooled>) {
        self.in_blocks.insert(tx.hash, (block, tx));
    }

    /// Returns whether a transaction is in a block that is not final.
    pub fn is_set_aside(&self, hash: &B256) -> bool {
        self.in_blocks.contains_key(hash)
    }

    /// Returns a transaction whose block left the chain, which stays held.
    pub fn take_back(&mut self, hash: &B256) -> Option<Arc<Pooled>> {
        self.in_blocks.remove(hash).map(|(_, tx)| tx)
    }

    /// Follows the head. Returns the blobs of blocks that became final which no pooled transaction
    /// names. They include blobs of transactions that were never here: another client of
    /// blob-validator may have had them validated.
    #[must_use]
    pub fn follow(&mut self, head: BlockId, finalized: Option<BlockNumber>) -> Vec<B256> {
        let contents = self.included.follow(head, finalized);
        let mut left: Vec<_> = contents.into_iter().flat_map(|contents| contents.blobs).collect();
        if let Some(settled) = settled(head.number, finalized) {
            let is_final = |_: &B256, (block, _): &mut (BlockNumber, _)| *block <= settled;
            let gone: Vec<_> = self.in_blocks.extract_if(is_final).collect();
            gone.iter().for_each(|(_, (_, tx))| left.extend(self.release(tx)));
        }
        self.unnamed(left)
    }

    /// Returns those of the blobs that no transaction names.
    pub fn unnamed(&self, mut blobs: Vec<B256>) -> Vec<B256> {
        blobs.retain(|hash| !self.named.contains_key(hash));
        blobs.sort_unstable();
        blobs.dedup();
        blobs
    }
}

fn hashes(tx: &Pooled) -> &[B256] {
    tx.sidecar.as_ref().map_or(&[], |sidecar| &sidecar.versioned_hashes)
}

/// Returns the form that blob-validator calls the wrapper's.
pub(crate) fn form_of(wrapper: Wrapper) -> Form {
    match wrapper {
        Wrapper::BlobProofs => Form::BlobProofs,
        Wrapper::CellProofs => Form::CellProofs,
    }
}

/// Returns a transaction in its network form, with its blobs or with an empty list of them. Returns
/// `None` if one of its blobs is not there with the proofs of that form.
pub(crate) fn network_form(
    tx: &Pooled,
    sidecar: &SidecarRef,
    blobs: &[Option<Arc<StoredBlob>>],
    with_blobs: bool,
) -> Option<Bytes> {
    let part = |stored: &'_ Option<Arc<StoredBlob>>| -> Option<(Bytes, Commitment, Vec<Proof>)> {
        let stored = stored.as_ref()?;
        let proofs = match sidecar.wrapper {
            Wrapper::BlobProofs => vec![stored.proof?],
            Wrapper::CellProofs => stored.cell_proofs.as_ref()?.to_vec(),
        };
        Some((stored.blob.clone(), stored.commitment, proofs))
    };
    if blobs.len() != sidecar.versioned_hashes.len() {
        return None;
    }
    let parts = blobs.iter().map(part).collect::<Option<Vec<_>>>()?;
    let parts: Vec<StoredParts<'_>> = parts
        .iter()
        .map(|(blob, commitment, proofs)| (&blob[..], commitment, &proofs[..]))
        .collect();
    let encode = if with_blobs { encode_network_form } else { encode_without_blobs };
    Some(encode(&tx.raw, sidecar.wrapper, &parts))
}

/// Returns cells of blobs: that with the first index of each blob, then that with the second one of each,
/// and so on. Returns `None` if one of the blobs is not there.
pub(crate) fn cells_of(blobs: &[Option<Arc<StoredBlob>>], cells: CellSet) -> Option<Vec<Bytes>> {
    let indices: Vec<usize> = cells.iter().collect();
    let select = |stored: &Option<Arc<StoredBlob>>| {
        let cells = select_cells(&stored.as_ref()?.blob, &indices).ok()?;
        Some(Bytes::from(cells))
    };
    let of_blobs = blobs.iter().map(select).collect::<Option<Vec<_>>>()?;
    let cell = |index: usize| {
        let range = index * CELL_BYTES..(index + 1) * CELL_BYTES;
        of_blobs.iter().map(move |cells| cells.slice(range.clone()))
    };
    Some((0..indices.len()).flat_map(cell).collect())
}

/// Returns whether the commitments of a transaction without its blobs are those that it names.
pub(crate) fn has_own_commitments(without: &WithoutBlobs<'_>) -> bool {
    let Ok(Submitted { transaction, sidecar: Some(sidecar), .. }) = decode(&without.with(&[]))
    else {
        return false;
    };
    let named = transaction.blob_versioned_hashes().unwrap_or_default();
    let hashes = sidecar.commitments.iter().map(versioned_hash);
    hashes.eq(named.iter().copied())
}

/// Returns blobs, one after another, from [`CellSet::BLOB`] of them in the order of [`cells_of`]. Returns
/// `None` if there are more or fewer cells than those.
pub(crate) fn blobs_of(cells: &[Bytes], blobs: usize) -> Option<Vec<u8>> {
    let of_each = BLOB_BYTES / CELL_BYTES;
    if cells.len() != blobs * of_each || cells.iter().any(|cell| cell.len() != CELL_BYTES) {
        return None;
    }
    let mut all = Vec::with_capacity(blobs * BLOB_BYTES);
    for blob in 0..blobs {
        for index in 0..of_each {
            all.extend_from_slice(&cells[index * blobs + blob]);
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::included::Contents;
    use tandem_admission::Fees;
    use tandem_primitives::{Address, U256};

    fn tx(byte: u8, blobs: &[u8]) -> Arc<Pooled> {
        Arc::new(Pooled {
            hash: B256::repeat_byte(byte),
            sender: Address::repeat_byte(byte),
            nonce: 0,
            kind: 3,
            gas: 1,
            fees: Fees { tip: 1, cap: 1, blob_cap: Some(1) },
            cost: U256::ZERO,
            raw: Bytes::new(),
            network_bytes: 0,
            sidecar: Some(SidecarRef {
                wrapper: Wrapper::CellProofs,
                versioned_hashes: blobs.iter().copied().map(B256::repeat_byte).collect(),
                bytes: 0,
            }),
            authorities: Vec::new(),
        })
    }

    fn blobs(bytes: &[u8]) -> Vec<B256> {
        bytes.iter().copied().map(B256::repeat_byte).collect()
    }

    #[test]
    fn a_blob_is_needed_as_long_as_a_transaction_names_it() {
        let mut references = BlobReferences::default();
        let (one, other) = (tx(1, &[7, 8]), tx(2, &[8, 9]));
        references.hold(&one);
        references.hold(&other);
        assert_eq!(references.release(&one), blobs(&[7]));
        assert_eq!(references.unnamed(blobs(&[9, 7, 8, 6, 7])), blobs(&[6, 7]));
        assert_eq!(references.release(&other), blobs(&[8, 9]));
    }

    #[test]
    fn blobs_in_blocks_stay_until_the_block_is_final() {
        let mut references = BlobReferences::default();
        let id = |number| BlockId::new(number, B256::with_last_byte(number as u8));
        let (one, other) = (tx(1, &[7]), tx(2, &[7, 8]));
        for (number, tx) in [(1, &one), (2, &other)] {
            references.hold(tx);
            references.set_aside(number, tx.clone());
            let Some(sidecar) = &tx.sidecar else { continue };
            let blobs = [&sidecar.versioned_hashes[..], &blobs(&[tx.hash[0] + 50])].concat();
            let contents = Contents { transactions: vec![tx.hash], blobs };
            references.included.note(id(number), id(number - 1).hash, contents);
        }
        assert!(references.is_set_aside(&one.hash));
        assert_eq!(references.follow(id(2), Some(1)), blobs(&[51]), "the other one names 7");
        assert!(!references.is_set_aside(&one.hash));
        assert_eq!(references.take_back(&other.hash).as_ref(), Some(&other));
        assert_eq!(references.follow(id(2), Some(2)), blobs(&[52]), "it is pooled again");
        assert_eq!(references.release(&other), blobs(&[7, 8]));
    }

    /// Cells leave in the order of their indices, with all blobs at each, and become the blobs again.
    #[test]
    fn cells_go_out_index_by_index_and_come_back_as_blobs() {
        let stored = |first: u8| {
            let mut blob = vec![0; BLOB_BYTES];
            blob.chunks_mut(CELL_BYTES).enumerate().for_each(|(index, cell)| {
                cell[1..3].copy_from_slice(&[first, index as u8]);
            });
            let (commitment, proof) = ([0; 48], None);
            let stored = StoredBlob { blob: blob.into(), commitment, proof, cell_proofs: None };
            Some(Arc::new(stored))
        };
        let all = [stored(1), stored(2), stored(3)];
        let names = |cells: &[Bytes]| -> Vec<[u8; 2]> {
            cells.iter().map(|cell| [cell[1], cell[2]]).collect()
        };
        let two = CellSet([0b0100_0010, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let cells = cells_of(&all, two).unwrap();
        assert_eq!(names(&cells), [[1, 1], [2, 1], [3, 1], [1, 6], [2, 6], [3, 6]]);
        let whole = cells_of(&all, CellSet::BLOB).unwrap();
        let blobs: Vec<u8> = all.iter().flatten().flat_map(|it| it.blob.to_vec()).collect();
        assert_eq!(blobs_of(&whole, 3), Some(blobs));
        for (cells, blobs) in [(&whole[1..], 3), (&whole[..], 2), (&[], 1)] {
            assert_eq!(blobs_of(cells, blobs), None);
        }
        assert_eq!(cells_of(&all, CellSet::ALL).unwrap().len(), 3 * 128);
        assert_eq!(cells_of(&[stored(1), None], two), None);
    }
}
