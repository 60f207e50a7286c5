use crate::{
    BLOB_BYTES, CELLS, Commitment, Error, Proof, Setup, find_bad, point,
    setup::{blob_of, check_elements},
};
use c_kzg::{Blob, Bytes48, Cell, CkzgError, KzgSettings};
use std::{iter, ops::Range};

/// Blob together with the commitment and proofs claimed for it.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Blob to verify.
    pub blob: &'a [u8; BLOB_BYTES],
    /// Commitment that the blob is claimed to belong to.
    pub commitment: &'a Commitment,
    /// Proofs of that claim.
    pub proofs: Proofs<'a>,
}

/// Proofs in one of the two forms.
#[derive(Clone, Copy, Debug)]
pub enum Proofs<'a> {
    /// Proof of the whole blob (EIP-4844).
    Blob(&'a Proof),
    /// Proof of each cell (EIP-7594).
    Cells(&'a [Proof; CELLS]),
}

impl<'a> Item<'a> {
    /// Creates an item from parts of any length. A single proof is taken as the proof of the whole
    /// blob.
    ///
    /// # Errors
    /// [`Error::BlobLength`], [`Error::ProofCount`].
    pub fn new(
        blob: &'a [u8],
        commitment: &'a Commitment,
        proofs: &'a [Proof],
    ) -> Result<Self, Error> {
        let blob = blob.try_into().map_err(|_| Error::BlobLength { got: blob.len() })?;
        let proofs = match proofs {
            [proof] => Proofs::Blob(proof),
            proofs => Proofs::Cells(
                proofs
                    .try_into()
                    .map_err(|_| Error::ProofCount { expected: CELLS, got: proofs.len() })?,
            ),
        };
        Ok(Self { blob, commitment, proofs })
    }

    /// Checks the points and names the first malformed one.
    fn check_points(&self) -> Result<(), Error> {
        point::check(self.commitment).map_err(Error::Commitment)?;
        let proofs = match &self.proofs {
            Proofs::Blob(proof) => std::slice::from_ref(*proof),
            Proofs::Cells(proofs) => proofs.as_slice(),
        };
        for (proof, bytes) in proofs.iter().enumerate() {
            point::check(bytes).map_err(|fault| Error::Proof { proof, fault })?;
        }
        Ok(())
    }
}

/// Results of a verification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Results in the order of the items.
    pub results: Vec<Result<(), Error>>,
    /// Number of batch verifications performed.
    pub batches: u32,
}

/// Verifies items as [`Verifier::verify`] does, with memory that is freed afterwards.
pub fn verify(setup: Setup, items: &[Item<'_>]) -> Report {
    Verifier::new(setup).verify(items)
}

/// Verifies one batch after another and keeps the memory in between. The library needs the blobs of
/// a batch contiguous, which takes megabytes.
pub struct Verifier {
    settings: &'static KzgSettings,
    batch: Batch,
}

impl Verifier {
    /// Creates a verifier that holds no memory yet.
    pub fn new(setup: Setup) -> Self {
        Self { settings: setup.settings(), batch: Batch::default() }
    }

    /// Verifies items together: all items of one form make one batch (EIP-4844,
    /// `verify_blob_kzg_proof_batch`; EIP-7594, `verify_cell_kzg_proof_batch` over all cells). A
    /// batch costs about two thirds of verifying each item alone. Bad items are found and do not
    /// affect the others.
    pub fn verify(&mut self, items: &[Item<'_>]) -> Report {
        let mut report = Report { results: vec![Ok(()); items.len()], batches: 0 };
        let mut places = [Vec::new(), Vec::new()];
        for (place, item) in items.iter().enumerate() {
            match check_elements(item.blob) {
                Ok(()) => places[usize::from(matches!(item.proofs, Proofs::Cells(_)))].push(place),
                Err(error) => report.results[place] = Err(error),
            }
        }
        for places in places.iter().filter(|places| !places.is_empty()) {
            let items: Vec<_> = places.iter().map(|&place| items[place]).collect();
            let (results, batches) = verify_form(self.settings, &mut self.batch, &items);
            report.batches += batches;
            for (&place, result) in places.iter().zip(results) {
                report.results[place] = result;
            }
        }
        report
    }

    /// Frees the memory until the next verification.
    pub fn rest(&mut self) {
        self.batch = Batch::default();
    }
}

/// Verifies items of one form whose field elements are canonical.
fn verify_form(
    settings: &KzgSettings,
    batch: &mut Batch,
    items: &[Item<'_>],
) -> (Vec<Result<(), Error>>, u32) {
    if let Err(error) = batch.fill(settings, items) {
        return (vec![Err(error.into()); items.len()], 0);
    }
    let whole = 0..items.len();
    let mut results = vec![Ok(()); items.len()];
    let mut batches = 1;
    let first = batch.holds(settings, whole.clone());
    let runs = match &first {
        Ok(true) => return (results, batches),
        Ok(false) => vec![whole.clone()],
        Err(c_kzg::Error::CError(CkzgError::C_KZG_BADARGS)) => {
            for (item, result) in items.iter().zip(&mut results) {
                *result = item.check_points();
            }
            runs_of_good(&results)
        }
        Err(error) => return (vec![Err(Error::Library(error.to_string())); items.len()], batches),
    };

    let mut broken = None;
    let mut known = first.ok();
    for run in runs {
        let bad = find_bad(run, |range| {
            // The whole batch was verified already.
            if let Some(holds) = known.take() {
                return holds;
            }
            batches += 1;
            batch.holds(settings, range).unwrap_or_else(|error| {
                broken = Some(Error::Library(error.to_string()));
                false
            })
        });
        for place in bad {
            results[place] = Err(Error::ProofInvalid);
        }
    }
    if let Some(error) = broken {
        // Items judged invalid while the library failed may be valid.
        for result in results.iter_mut().filter(|result| **result == Err(Error::ProofInvalid)) {
            *result = Err(error.clone());
        }
    }
    (results, batches)
}

/// Returns the longest ranges without a bad result.
fn runs_of_good(results: &[Result<(), Error>]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for (place, result) in results.iter().enumerate() {
        if result.is_err() {
            runs.push(start..place);
            start = place + 1;
        }
    }
    runs.push(start..results.len());
    runs.retain(|run| !run.is_empty());
    runs
}

/// Items in the library's format, contiguous, so that every range is a slice.
#[derive(Default)]
struct Batch {
    cell_form: bool,
    commitments: Vec<Bytes48>,
    proofs: Vec<Bytes48>,
    /// In blob form: the blobs of the items, possibly followed by blobs of an earlier batch. In
    /// cell form: the blob whose cells were computed last.
    blobs: Vec<Blob>,
    /// Cells of all items, in cell form only.
    cells: Vec<Cell>,
    indices: Vec<u64>,
}

impl Batch {
    /// Replaces the current items. The first item determines the form of all. Computes the cells of
    /// the blobs in cell form.
    fn fill(&mut self, settings: &KzgSettings, items: &[Item<'_>]) -> Result<(), c_kzg::Error> {
        self.cell_form = matches!(items.first().map(|item| item.proofs), Some(Proofs::Cells(_)));
        self.commitments.clear();
        self.proofs.clear();
        self.cells.clear();
        self.indices.clear();
        for (place, item) in items.iter().enumerate() {
            match item.proofs {
                Proofs::Blob(proof) => {
                    self.put_blob(place, item.blob);
                    self.commitments.push(Bytes48::new(*item.commitment));
                    self.proofs.push(Bytes48::new(*proof));
                }
                Proofs::Cells(proofs) => {
                    self.put_blob(0, item.blob);
                    let commitment = Bytes48::new(*item.commitment);
                    self.commitments.extend(iter::repeat_n(commitment, CELLS));
                    self.proofs.extend(proofs.iter().map(|&proof| Bytes48::new(proof)));
                    self.cells.extend_from_slice(&settings.compute_cells(&self.blobs[0])?[..]);
                    self.indices.extend(0..CELLS as u64);
                }
            }
        }
        Ok(())
    }

    /// Copies a blob to its place, which is at most one past the last blob.
    fn put_blob(&mut self, place: usize, blob: &[u8; BLOB_BYTES]) {
        match self.blobs.get_mut(place) {
            Some(room) => **room = *blob,
            None => self.blobs.push(blob_of(blob)),
        }
    }

    /// Returns whether all items in the range are valid.
    fn holds(&self, settings: &KzgSettings, range: Range<usize>) -> Result<bool, c_kzg::Error> {
        if self.cell_form {
            let range = range.start * CELLS..range.end * CELLS;
            return settings.verify_cell_kzg_proof_batch(
                &self.commitments[range.clone()],
                &self.indices[range.clone()],
                &self.cells[range.clone()],
                &self.proofs[range],
            );
        }
        settings.verify_blob_kzg_proof_batch(
            &self.blobs[range.clone()],
            &self.commitments[range.clone()],
            &self.proofs[range],
        )
    }
}
