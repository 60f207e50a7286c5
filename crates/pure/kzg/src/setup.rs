use crate::{BLOB_BYTES, CELL_BYTES, Commitment, Error, Proof};
use c_kzg::{Blob, Bytes48, KzgSettings};
use std::sync::OnceLock;

/// Size of the tables for faster proofs. Verification uses no tables, and at 8 they take 96 MiB.
const PRECOMPUTE: u64 = 0;

static LOADED: OnceLock<Setup> = OnceLock::new();

/// Trusted setup of Ethereum's KZG ceremony, which is part of the library. This is a handle: one
/// copy of the setup serves the whole process.
#[derive(Clone, Copy)]
pub struct Setup {
    settings: &'static KzgSettings,
}

/// Cells of an extended blob, with one proof for each.
pub type CellsAndProofs = (Vec<[u8; CELL_BYTES]>, Vec<Proof>);

impl Setup {
    /// Returns the setup. The first call decodes it, which takes over a second of CPU time.
    /// Concurrent calls wait for it.
    pub fn load() -> Self {
        *LOADED.get_or_init(|| Self { settings: c_kzg::ethereum_kzg_settings(PRECOMPUTE) })
    }

    /// Returns the setup if it is already loaded.
    pub fn loaded() -> Option<Self> {
        LOADED.get().copied()
    }

    /// Computes the commitment to a blob (EIP-4844, `blob_to_kzg_commitment`). Takes tens of
    /// milliseconds.
    ///
    /// # Errors
    /// [`Error::BlobLength`], [`Error::NotCanonical`].
    pub fn commit(self, blob: &[u8]) -> Result<Commitment, Error> {
        let commitment = self.settings.blob_to_kzg_commitment(&blob_of(canonical(blob)?))?;
        Ok(commitment.to_bytes().into_inner())
    }

    /// Computes the proof that a blob belongs to its commitment (EIP-4844,
    /// `compute_blob_kzg_proof`). Does not check that it does. Takes tens of milliseconds.
    ///
    /// # Errors
    /// [`Error::BlobLength`], [`Error::NotCanonical`], [`Error::Commitment`].
    pub fn prove_blob(self, blob: &[u8], commitment: &Commitment) -> Result<Proof, Error> {
        let blob = blob_of(canonical(blob)?);
        crate::point::check(commitment).map_err(Error::Commitment)?;
        let proof = self.settings.compute_blob_kzg_proof(&blob, &Bytes48::new(*commitment))?;
        Ok(proof.to_bytes().into_inner())
    }

    /// Computes the cells of the extended blob (EIP-7594, `compute_cells`).
    ///
    /// # Errors
    /// [`Error::BlobLength`], [`Error::NotCanonical`].
    pub fn cells(self, blob: &[u8]) -> Result<Vec<[u8; CELL_BYTES]>, Error> {
        let cells = self.settings.compute_cells(&blob_of(canonical(blob)?))?;
        Ok(cells.iter().map(c_kzg::Cell::to_bytes).collect())
    }

    /// Computes the cells with their proofs (EIP-7594, `compute_cells_and_kzg_proofs`). Takes
    /// hundreds of milliseconds.
    ///
    /// # Errors
    /// [`Error::BlobLength`], [`Error::NotCanonical`].
    pub fn prove_cells(self, blob: &[u8]) -> Result<CellsAndProofs, Error> {
        let (cells, proofs) =
            self.settings.compute_cells_and_kzg_proofs(&blob_of(canonical(blob)?))?;
        let cells = cells.iter().map(c_kzg::Cell::to_bytes).collect();
        Ok((cells, proofs.iter().map(|proof| proof.to_bytes().into_inner()).collect()))
    }

    pub(crate) fn settings(self) -> &'static KzgSettings {
        self.settings
    }
}

/// Returns cells of a blob with these indices, one after another. The first half of all cells is the
/// blob itself. Only the others are computed, which takes milliseconds, and loads the setup.
///
/// # Errors
/// [`Error::BlobLength`], [`Error::NotCanonical`].
///
/// # Panics
/// If an index is not below [`CELLS`](crate::CELLS).
pub fn select_cells(blob: &[u8], indices: &[usize]) -> Result<Vec<u8>, Error> {
    let (own, _) = canonical(blob)?.as_chunks::<CELL_BYTES>();
    let extended = match indices.iter().any(|index| *index >= own.len()) {
        true => Setup::load().cells(blob)?,
        false => Vec::new(),
    };
    let mut cells = Vec::with_capacity(indices.len() * CELL_BYTES);
    for &index in indices {
        cells.extend_from_slice(own.get(index).unwrap_or_else(|| &extended[index]));
    }
    Ok(cells)
}

pub(crate) fn blob_of(bytes: &[u8; BLOB_BYTES]) -> Blob {
    Blob::new(*bytes)
}

/// Modulus of the scalar field of BLS12-381, big-endian (EIP-4844, `BLS_MODULUS`).
const MODULUS: [u8; 32] = [
    0x73, 0xed, 0xa7, 0x53, 0x29, 0x9d, 0x7d, 0x48, 0x33, 0x39, 0xd8, 0x08, 0x09, 0xa1, 0xd8, 0x05,
    0x53, 0xbd, 0xa4, 0x02, 0xff, 0xfe, 0x5b, 0xfe, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x01,
];

/// Returns the bytes as a blob after checking that all field elements are below the modulus.
pub(crate) fn canonical(blob: &[u8]) -> Result<&[u8; BLOB_BYTES], Error> {
    let blob: &[u8; BLOB_BYTES] =
        blob.try_into().map_err(|_| Error::BlobLength { got: blob.len() })?;
    check_elements(blob).map(|()| blob)
}

/// Checks that all field elements are below the modulus.
pub(crate) fn check_elements(blob: &[u8; BLOB_BYTES]) -> Result<(), Error> {
    let (elements, _) = blob.as_chunks::<32>();
    match elements.iter().position(|element| !is_below_modulus(element)) {
        Some(element) => Err(Error::NotCanonical { element }),
        None => Ok(()),
    }
}

fn is_below_modulus(element: &[u8; 32]) -> bool {
    // The first eight bytes decide for nearly all elements, without a function call. Calls for all
    // 4096 elements took a fiftieth of the time of verifying the blob.
    match (element.first_chunk(), MODULUS.first_chunk()) {
        (Some(&first), Some(&of_modulus))
            if u64::from_be_bytes(first) != u64::from_be_bytes(of_modulus) =>
        {
            u64::from_be_bytes(first) < u64::from_be_bytes(of_modulus)
        }
        _ => *element < MODULUS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_canonical_below_the_modulus() {
        let mut blob = vec![0; BLOB_BYTES];
        let mut largest = MODULUS;
        largest[31] = 0;
        blob[BLOB_BYTES - 32..].copy_from_slice(&largest);
        assert!(canonical(&blob).is_ok());
        blob[BLOB_BYTES - 32..].copy_from_slice(&MODULUS);
        assert_eq!(canonical(&blob), Err(Error::NotCanonical { element: 4095 }));
        blob[..32].copy_from_slice(&[0xff; 32]);
        assert_eq!(canonical(&blob), Err(Error::NotCanonical { element: 0 }));
        // Every byte can be the first one that differs.
        for place in 0..32 {
            let (mut below, mut above) = (MODULUS, MODULUS);
            for later in place + 1..32 {
                (below[later], above[later]) = (0xff, 0);
            }
            if MODULUS[place] > 0 {
                below[place] -= 1;
                assert!(is_below_modulus(&below), "{place}");
            }
            if MODULUS[place] < 0xff {
                above[place] += 1;
                assert!(!is_below_modulus(&above), "{place}");
            }
        }
    }
}
