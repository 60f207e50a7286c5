//! blob-validator: every blob verified once, by content.
//!
//! A sidecar comes in one of two forms ([`Form`]); the caller says which one the fork at the head
//! demands ([`Rule`]), because this service does not follow the chain. What is wrong with a sidecar
//! is a [`Verdict`]; an [`Error`] means that there is none.

use std::{pin::Pin, sync::Arc, time::Duration};
use tandem_primitives::{B256, Bytes};

/// Bytes of a blob: 4096 field elements of 32 bytes (EIP-4844).
pub const BLOB_BYTES: usize = 131_072;

/// Cells of an extended blob, and proofs of a blob in [`Form::CellProofs`] (EIP-7594).
pub const CELLS: usize = 128;

/// A commitment to a blob: a compressed point of BLS12-381's G1, not checked.
pub type Commitment = [u8; 48];

/// A proof: a compressed point of BLS12-381's G1, not checked.
pub type Proof = [u8; 48];

/// What the proofs of a sidecar prove.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// EIP-4844: one proof for each blob.
    BlobProofs,
    /// EIP-7594, wrapper version 1: one proof for each of a blob's [`CELLS`].
    CellProofs,
}

impl Form {
    /// Proofs that belong to one blob.
    pub fn proofs_per_blob(self) -> usize {
        match self {
            Self::BlobProofs => 1,
            Self::CellProofs => CELLS,
        }
    }
}

/// What the fork at the head demands of a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The form: [`Form::CellProofs`] from Osaka on (EIP-7594).
    pub form: Form,
    /// Most blobs in one transaction: 6 from Osaka on (EIP-7594), before that as many as in a block.
    pub blobs_max: u32,
}

/// The sidecar of one blob transaction as it came: nothing about it is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bundle {
    /// The form it came in.
    pub form: Form,
    /// The blobs, [`BLOB_BYTES`] each if they are valid.
    pub blobs: Vec<Bytes>,
    /// One for each blob.
    pub commitments: Vec<Commitment>,
    /// [`Form::proofs_per_blob`] for each blob, in the order of the blobs and cells.
    pub proofs: Vec<Proof>,
    /// As the transaction names the blobs, one for each.
    pub versioned_hashes: Vec<B256>,
    /// What it is measured by.
    pub rule: Rule,
}

/// Whether a sidecar is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every blob belongs to its commitment, and every commitment to its versioned hash.
    Valid,
    /// Something is wrong; of several faults the one of the first blob.
    Invalid(Refusal),
}

/// Why a sidecar is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Position of the blob, `None` where the sidecar as a whole is refused.
    pub blob: Option<u32>,
    /// What is wrong.
    pub reason: Reason,
}

/// A list of a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Part {
    /// [`Bundle::commitments`].
    #[error("commitments")]
    Commitments,
    /// [`Bundle::proofs`].
    #[error("proofs")]
    Proofs,
    /// [`Bundle::versioned_hashes`].
    #[error("versioned hashes")]
    VersionedHashes,
}

/// What is wrong with a point of the curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PointFault {
    /// Its bytes encode no coordinate.
    #[error("is no encoding of a point")]
    Encoding,
    /// No point has this coordinate.
    #[error("is not on the curve")]
    NotOnCurve,
    /// It is on the curve and outside G1.
    #[error("is not in the subgroup")]
    NotInSubgroup,
}

/// What is wrong with a sidecar, or with one blob of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// A blob transaction has at least one blob (EIP-4844).
    #[error("no blobs")]
    NoBlobs,
    /// More blobs than the rule allows.
    #[error("{got} blobs are more than {max}")]
    TooManyBlobs {
        /// The limit.
        max: u32,
        /// Blobs there are.
        got: u32,
    },
    /// The lists do not fit together.
    #[error("expected {expected} {part}, got {got}")]
    Count {
        /// Which list.
        part: Part,
        /// Items there should be.
        expected: u32,
        /// Items there are.
        got: u32,
    },
    /// The fork demands the other form.
    #[error("expected {expected:?}, got {got:?}")]
    WrongForm {
        /// The form that the rule demands.
        expected: Form,
        /// The form it came in.
        got: Form,
    },
    /// A blob has [`BLOB_BYTES`].
    #[error("the blob has {got} bytes")]
    BlobLength {
        /// Bytes it has.
        got: u64,
    },
    /// The commitment does not hash to the versioned hash.
    #[error("the commitment does not belong to the versioned hash")]
    VersionedHash,
    /// A field element is not below the modulus.
    #[error("field element {element} is not canonical")]
    NotCanonical {
        /// Its position, 0 to 4095.
        element: u32,
    },
    /// The commitment is no point of G1.
    #[error("the commitment {0}")]
    Commitment(PointFault),
    /// A proof is no point of G1.
    #[error("proof {proof} {fault}")]
    Proof {
        /// Its position among the proofs of the blob.
        proof: u32,
        /// What is wrong with it.
        fault: PointFault,
    },
    /// Blob, commitment and proofs are well-formed and do not belong together.
    #[error("the proof is not valid")]
    ProofInvalid,
}

/// Why there is no verdict.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The queue is full, and nothing of the request was taken.
    #[error("overloaded, retry after {retry_after:?}")]
    Overloaded {
        /// When to try again at the earliest.
        retry_after: Duration,
    },
    /// There was no verdict in time.
    #[error("no verdict before the deadline")]
    DeadlineExceeded,
    /// The KZG library failed, which says nothing about the blobs.
    #[error("kzg library: {0}")]
    Library(String),
    /// The service is stopping or cannot be reached.
    #[error("blob-validator is not available: {0}")]
    Unavailable(String),
}

/// Answer of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An answer to wait for.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A validated blob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredBlob {
    /// [`BLOB_BYTES`].
    pub blob: Bytes,
    /// Its commitment.
    pub commitment: Commitment,
    /// `None` when it never came in [`Form::BlobProofs`].
    pub proof: Option<Proof>,
    /// [`CELLS`] of them; `None` when it never came in [`Form::CellProofs`].
    pub cell_proofs: Option<Box<[Proof]>>,
}

/// The blobs of one sidecar by their content: enough to know a valid one again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The form it came in.
    pub form: Form,
    /// One for each blob: a hash over all that its verdict depends on, the blob's bytes included.
    pub keys: Vec<B256>,
    /// As the transaction names the blobs, one for each key.
    pub versioned_hashes: Vec<B256>,
}

/// What the service has done since it started, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Whether the trusted setup is loaded; requests wait until it is.
    pub ready: bool,
    /// Blobs verified.
    pub verified: u64,
    /// Calls of the KZG library's batch verification.
    pub batches: u64,
    /// Blobs that shared the verification of another request.
    pub shared: u64,
    /// Blobs whose verdict was known.
    pub hits: u64,
    /// Requests refused because a queue was full.
    pub overloaded: u64,
    /// Requests without a verdict in time.
    pub expired: u64,
    /// Requests whose caller went away before a thread took their blobs.
    pub abandoned: u64,
    /// Blobs that wait for a thread.
    pub queued: u64,
    /// Verdicts remembered.
    pub verdicts: u64,
    /// Validated blobs kept.
    pub stored_blobs: u64,
    /// Bytes that they occupy, about.
    pub stored_bytes: u64,
}

/// The calls of blob-validator.
pub trait BlobApi: Send + Sync + 'static {
    /// Verifies a sidecar; the answer is there after `timeout` at the latest. To be awaited in async
    /// code: neither the call nor the future does any work of note on the caller's thread. Dropping
    /// the future gives up the request: what nobody else waits for is not verified any more.
    ///
    /// # Errors
    /// [`Error`]; the future's.
    fn validate(&self, bundle: Arc<Bundle>, timeout: Duration) -> Pending<Verdict>;

    /// The same for a thread that may wait; never in async code.
    ///
    /// # Errors
    /// [`Error`].
    fn validate_blocking(&self, bundle: Arc<Bundle>, timeout: Duration) -> Result<Verdict>;

    /// Refuses a sidecar of so many blobs before it is read, where the queue has no room for them;
    /// `None` where it may come. Never waits, so any thread may call it.
    fn refuse(&self, blobs: usize) -> Option<Error>;

    /// Whether all blobs of this content are known to be valid and are kept, as after
    /// [`Verdict::Valid`]. `false` says nothing about them. Nothing is verified.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; the future's.
    fn recall(&self, content: Content) -> Pending<bool>;

    /// Blobs of valid sidecars by versioned hash, `None` where there is none (any more). In the
    /// order of the request.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; the future's.
    fn get_blobs(&self, versioned_hashes: &[B256]) -> Pending<Vec<Option<Arc<StoredBlob>>>>;

    /// These blobs are in a block: they need not be kept any longer. Never waits, so any thread may
    /// call it. It is advice: lost on its way, the blobs leave with age.
    fn forget(&self, versioned_hashes: &[B256]);

    /// What the service has done and holds.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; the future's.
    fn status(&self) -> Pending<Status>;
}
