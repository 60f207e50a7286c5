//! Runs the conformance vectors of c-kzg-4844. A vector runs through this crate's own code where it
//! covers the function, otherwise through the linked library.
//!
//! A vector is a small YAML file with `input` and `output`; `output: null` means that the call must
//! fail. <https://github.com/ethereum/c-kzg-4844/tree/main/tests>
//! must fail. <https://github.com/ethereum/c-kzg-4844/tree/main/tests>

mod yaml;

use crate::{
    BLOB_BYTES, CELLS, Commitment, Error, Item, Setup, find_bad, setup::canonical, verify,
};
use c_kzg::{Bytes32, Bytes48, Cell};
use yaml::Value;

/// Functions that have vectors.
pub const FUNCTIONS: [&str; 12] = [
    "blob_to_kzg_commitment",
    "compute_blob_kzg_proof",
    "compute_cells",
    "compute_cells_and_kzg_proofs",
    "compute_challenge",
    "compute_kzg_proof",
    "compute_verify_cell_kzg_proof_batch_challenge",
    "recover_cells_and_kzg_proofs",
    "verify_blob_kzg_proof",
    "verify_blob_kzg_proof_batch",
    "verify_cell_kzg_proof_batch",
    "verify_kzg_proof",
];

/// Outcome of a vector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The answer is the one that the vector expects.
    Passed,
    /// The answer is a different one; the text describes it.
    Failed(String),
    /// The vector was not run; the text gives the reason.
    Skipped(&'static str),
}

/// Answer of a call, `None` when it failed.
type Answer = Option<Value>;

/// Runs one vector. `suite` is the name of its folder, such as `verify_blob_kzg_proof`; `text` is
/// the content of its `data.yaml`.
pub fn run(setup: Setup, suite: &str, text: &str) -> Outcome {
    let Some(vector) = yaml::parse(text) else {
        return Outcome::Failed("the vector is not YAML of the expected form".to_owned());
    };
    let (Some(input), Some(expected)) = (vector.get("input"), vector.get("output")) else {
        return Outcome::Failed("the vector has no input or output".to_owned());
    };
    let answer = match suite {
        "blob_to_kzg_commitment" => commitment(setup, input),
        "compute_blob_kzg_proof" => blob_proof(setup, input),
        "compute_cells" => cells(setup, input),
        "compute_cells_and_kzg_proofs" => cells_and_proofs(setup, input),
        "verify_blob_kzg_proof" => verify_one(setup, input),
        "verify_blob_kzg_proof_batch" => verify_many(setup, input),
        "verify_cell_kzg_proof_batch" => verify_cells(setup, input),
        "compute_kzg_proof" => point_proof(setup, input),
        "verify_kzg_proof" => verify_point(setup, input),
        "recover_cells_and_kzg_proofs" => recover(setup, input),
        "compute_challenge" | "compute_verify_cell_kzg_proof_batch_challenge" => {
            return Outcome::Skipped("the library does not export the challenge");
        }
        _ => return Outcome::Skipped("unknown suite"),
    };
    let answer = answer.unwrap_or(Value::Null);
    if answer == *expected {
        return Outcome::Passed;
    }
    Outcome::Failed(format!("expected {}, got {}", expected.summary(), answer.summary()))
}

fn point(value: &Value) -> Option<[u8; 48]> {
    value.bytes()?.try_into().ok()
}

fn points(value: &Value) -> Option<Vec<[u8; 48]>> {
    value.list()?.iter().map(point).collect()
}

fn bytes48(points: &[[u8; 48]]) -> Vec<Bytes48> {
    points.iter().map(|&point| Bytes48::new(point)).collect()
}

fn library_blob(value: &Value) -> Option<c_kzg::Blob> {
    Some(crate::setup::blob_of(canonical(value.bytes()?).ok()?))
}

fn library_cells(value: &Value) -> Option<Vec<Cell>> {
    value.list()?.iter().map(|cell| Cell::from_bytes(cell.bytes()?).ok()).collect()
}

fn all<T: AsRef<[u8]>>(items: &[T]) -> Value {
    Value::List(items.iter().map(|item| Value::Bytes(item.as_ref().to_vec())).collect())
}

fn commitment(setup: Setup, input: &Value) -> Answer {
    let commitment = setup.commit(input.get("blob")?.bytes()?).ok()?;
    Some(Value::Bytes(commitment.to_vec()))
}

fn blob_proof(setup: Setup, input: &Value) -> Answer {
    let commitment = point(input.get("commitment")?)?;
    let proof = setup.prove_blob(input.get("blob")?.bytes()?, &commitment).ok()?;
    Some(Value::Bytes(proof.to_vec()))
}

fn cells(setup: Setup, input: &Value) -> Answer {
    Some(all(&setup.cells(input.get("blob")?.bytes()?).ok()?))
}

fn cells_and_proofs(setup: Setup, input: &Value) -> Answer {
    let (cells, proofs) = setup.prove_cells(input.get("blob")?.bytes()?).ok()?;
    Some(Value::List(vec![all(&cells), all(&proofs)]))
}

/// Returns the answer in the form of the vectors: false for a refusal, none for malformed input.
fn holds(results: &[Result<(), Error>]) -> Answer {
    let invalid = |result: &Result<(), Error>| *result == Err(Error::ProofInvalid);
    let malformed = results.iter().any(|result| result.is_err() && !invalid(result));
    (!malformed).then(|| Value::Bool(!results.iter().any(invalid)))
}

fn verify_one(setup: Setup, input: &Value) -> Answer {
    let commitment = point(input.get("commitment")?)?;
    let proofs = [point(input.get("proof")?)?];
    let item = Item::new(input.get("blob")?.bytes()?, &commitment, &proofs).ok()?;
    holds(&verify(setup, &[item]).results)
}

fn verify_many(setup: Setup, input: &Value) -> Answer {
    let blobs = input.get("blobs")?.list()?;
    let commitments: Vec<Commitment> = points(input.get("commitments")?)?;
    let proofs = points(input.get("proofs")?)?;
    if blobs.len() != commitments.len() || blobs.len() != proofs.len() {
        return None;
    }
    let mut items = Vec::with_capacity(blobs.len());
    for ((blob, commitment), proof) in blobs.iter().zip(&commitments).zip(&proofs) {
        items.push(Item::new(blob.bytes()?, commitment, std::slice::from_ref(proof)).ok()?);
    }
    let report = verify(setup, &items);
    // The batch must give the same verdicts as each item verified alone.
    let alone = |place| verify(setup, &items[place..][..1]).results[0].is_ok();
    let bad = find_bad(0..items.len(), |range| range.into_iter().all(alone));
    let found: Vec<_> = (0..items.len()).filter(|&place| report.results[place].is_err()).collect();
    if bad == found { holds(&report.results) } else { Some(Value::List(Vec::new())) }
}

/// Runs vectors of single cells. This crate verifies whole blobs, with the same library call.
fn verify_cells(setup: Setup, input: &Value) -> Answer {
    let commitments = bytes48(&points(input.get("commitments")?)?);
    let proofs = bytes48(&points(input.get("proofs")?)?);
    let indices = input.get("cell_indices")?.numbers()?;
    let cells = library_cells(input.get("cells")?)?;
    let settings = setup.settings();
    settings
        .verify_cell_kzg_proof_batch(&commitments, &indices, &cells, &proofs)
        .ok()
        .map(Value::Bool)
}

fn point_proof(setup: Setup, input: &Value) -> Answer {
    let blob = library_blob(input.get("blob")?)?;
    let z = Bytes32::from_bytes(input.get("z")?.bytes()?).ok()?;
    let (proof, y) = setup.settings().compute_kzg_proof(&blob, &z).ok()?;
    Some(Value::List(vec![
        Value::Bytes(proof.to_bytes().into_inner().to_vec()),
        Value::Bytes(y.as_ref().to_vec()),
    ]))
}

fn verify_point(setup: Setup, input: &Value) -> Answer {
    let field = |name| Bytes32::from_bytes(input.get(name)?.bytes()?).ok();
    let point = |name| Some(Bytes48::new(point(input.get(name)?)?));
    setup
        .settings()
        .verify_kzg_proof(&point("commitment")?, &field("z")?, &field("y")?, &point("proof")?)
        .ok()
        .map(Value::Bool)
}

fn recover(setup: Setup, input: &Value) -> Answer {
    let indices = input.get("cell_indices")?.numbers()?;
    let cells = library_cells(input.get("cells")?)?;
    let (cells, proofs) = setup.settings().recover_cells_and_kzg_proofs(&indices, &cells).ok()?;
    let cells: Vec<_> = cells.iter().map(Cell::to_bytes).collect();
    let proofs: Vec<_> = proofs.iter().map(|proof| proof.to_bytes().into_inner()).collect();
    debug_assert!(cells.len() == CELLS && cells.as_flattened().len() == 2 * BLOB_BYTES);
    Some(Value::List(vec![all(&cells), all(&proofs)]))
}
