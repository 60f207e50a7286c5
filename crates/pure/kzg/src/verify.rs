use crate::{
    BLOB_BYTES, CELLS, Commitment, Error, Proof, Setup, find_bad, point,
    setup::{blob_of, check_elements},
};
use c_kzg::{Blob, Bytes48, Cell, CkzgError, KzgSettings};
use std::{iter, ops::Range};

/// A blob with what is claimed about it.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The blob.
    pub blob: &'a [u8; BLOB_BYTES],
    /// What it is claimed to belong to.
    pub commitment: &'a Commitment,
    /// The proofs of that.
    pub proofs: Proofs<'a>,
}

/// Proofs in one of the two forms.
#[derive(Clone, Copy, Debug)]
pub enum Proofs<'a> {
    /// Of the whole blob (EIP-4844).
    Blob(&'a Proof),
    /// Of each cell (EIP-7594).
    Cells(&'a [Proof; CELLS]),
}

impl<'a> Item<'a> {
    /// An item of parts of any length. One proof is that of the blob.
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

    /// Names the malformed point, if there is one.
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

/// What became of some items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// In the order of the items.
    pub results: Vec<Result<(), Error>>,
    /// Batch verifications that it took.
    pub batches: u32,
}

/// Verifies items as [`Verifier::verify`] does, with memory for this once.
pub fn verify(setup: Setup, items: &[Item<'_>]) -> Report {
    Verifier::new(setup).verify(items)
}

/// Verifies batch after batch, and keeps the memory in between: the library wants the blobs of a
/// batch one behind the other, which takes megabytes.
pub struct Verifier {
    settings: &'static KzgSettings,
    batch: Batch,
}

impl Verifier {
    /// One that has no memory yet.
    pub fn new(setup: Setup) -> Self {
        Self { settings: setup.settings(), batch: Batch::default() }
    }

    /// Verifies items together: as many as there are of one form in one batch, which costs about
    /// two thirds of verifying each by itself (EIP-4844, `verify_blob_kzg_proof_batch`; EIP-7594,
    /// `verify_cell_kzg_proof_batch` over all cells). Bad ones are found and do not harm the others.
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

    /// Gives the memory back until there is something to verify again.
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
            // The whole was tried already.
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
        // What a failing library called invalid may be valid.
        for result in results.iter_mut().filter(|result| **result == Err(Error::ProofInvalid)) {
            *result = Err(error.clone());
        }
    }
    (results, batches)
}

/// The longest ranges without a bad result.
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

/// Items as the library takes them, one behind the other, so that every range is a slice.
#[derive(Default)]
struct Batch {
    cell_form: bool,
    commitments: Vec<Bytes48>,
    proofs: Vec<Bytes48>,
    /// The blobs of items in blob form, and maybe some of an earlier batch behind them; of items in
    /// cell form, the one whose cells were computed last.
    blobs: Vec<Blob>,
    /// Of items in cell form.
    cells: Vec<Cell>,
    indices: Vec<u64>,
}

impl Batch {
    /// Takes these items in place of all others. The first says which form all have. Computes the
    /// cells of blobs whose proofs are of cells.
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

    /// Copies a blob to where it belongs, at most one behind the last.
    fn put_blob(&mut self, place: usize, blob: &[u8; BLOB_BYTES]) {
        match self.blobs.get_mut(place) {
            Some(room) => **room = *blob,
            None => self.blobs.push(blob_of(blob)),
        }
    }

    /// Whether all items in the range are valid.
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
