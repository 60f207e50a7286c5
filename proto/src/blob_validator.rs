//! Contract of blob-validator, which verifies every blob once, by content.
//!
//! A sidecar has one of two forms ([`Form`]). The caller states which one the fork at the head
//! requires ([`Rule`]), because this service does not follow the chain. A [`Verdict`] says whether
//! a sidecar is valid; an [`Error`] means that there is no verdict.

use std::{pin::Pin, sync::Arc, time::Duration};
use tandem_primitives::{B256, Bytes};

/// Number of bytes in a blob: 4096 field elements of 32 bytes (EIP-4844).
pub const BLOB_BYTES: usize = 131_072;

/// Number of cells in an extended blob, and of proofs of a blob in [`Form::CellProofs`] (EIP-7594).
pub const CELLS: usize = 128;

/// Number of bytes in a cell (EIP-7594).
pub const CELL_BYTES: usize = 2048;

/// Set of the cells of a blob, with a bit for each: bit `i % 8` of byte `i / 8` stands for cell `i`, as in
/// SSZ and in eth/72 (EIP-8070).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CellSet(pub [u8; CELLS / 8]);

impl CellSet {
    /// The cells that are the blob itself. The others extend it.
    pub const BLOB: Self = {
        let mut bits = [0; CELLS / 8];
        let mut byte = 0;
        while byte < BLOB_BYTES / CELL_BYTES / 8 {
            bits[byte] = u8::MAX;
            byte += 1;
        }
        Self(bits)
    };

    /// All cells of an extended blob.
    pub const ALL: Self = Self([u8::MAX; CELLS / 8]);

    /// Returns the indices of the cells, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..CELLS).filter(move |index| self.0[index / 8] >> (index % 8) & 1 == 1)
    }

    /// Returns the number of cells.
    pub fn len(self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Returns whether there is no cell.
    pub fn is_empty(self) -> bool {
        self.0 == [0; CELLS / 8]
    }

    /// Returns whether all cells of `other` are in this set.
    pub fn has_all(self, other: Self) -> bool {
        self.0.iter().zip(other.0).all(|(own, other)| own & other == other)
    }
}

/// Commitment to a blob: a compressed point of BLS12-381's G1, unchecked.
pub type Commitment = [u8; 48];

/// Proof: a compressed point of BLS12-381's G1, unchecked.
pub type Proof = [u8; 48];

/// Form of the proofs in a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// EIP-4844: one proof for each blob.
    BlobProofs,
    /// EIP-7594, wrapper version 1: one proof for each of a blob's [`CELLS`].
    CellProofs,
}

impl Form {
    /// Returns the number of proofs that belong to one blob.
    pub fn proofs_per_blob(self) -> usize {
        match self {
            Self::BlobProofs => 1,
            Self::CellProofs => CELLS,
        }
    }
}

/// Requirements of the fork at the head for a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Required form: [`Form::CellProofs`] from Osaka on (EIP-7594).
    pub form: Form,
    /// Maximum number of blobs in one transaction: 6 from Osaka on (EIP-7594), before that the
    /// limit of a block.
    pub blobs_max: u32,
}

/// Sidecar of one blob transaction as received: nothing in it is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bundle {
    /// Form of the sidecar.
    pub form: Form,
    /// Blobs, of [`BLOB_BYTES`] each if they are valid.
    pub blobs: Vec<Bytes>,
    /// Commitments, one for each blob.
    pub commitments: Vec<Commitment>,
    /// Proofs, [`Form::proofs_per_blob`] for each blob, in the order of the blobs and cells.
    pub proofs: Vec<Proof>,
    /// Versioned hashes from the transaction, one for each blob.
    pub versioned_hashes: Vec<B256>,
    /// Rule that the sidecar must meet.
    pub rule: Rule,
}

/// Judgment of a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every blob belongs to its commitment, and every commitment to its versioned hash.
    Valid,
    /// The sidecar is invalid, for this reason. With several faults, the fault of the first blob
    /// counts.
    Invalid(Refusal),
}

/// Reason for refusing a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Position of the blob, `None` when the sidecar as a whole is refused.
    pub blob: Option<u32>,
    /// Fault that was found.
    pub reason: Reason,
}

/// List of a sidecar.
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

/// Fault of a point of the curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PointFault {
    /// The bytes do not encode a coordinate.
    #[error("is not the encoding of a point")]
    Encoding,
    /// No point has this coordinate.
    #[error("is not on the curve")]
    NotOnCurve,
    /// The point is on the curve but outside G1.
    #[error("is not in the subgroup")]
    NotInSubgroup,
}

/// Fault of a sidecar, or of one blob in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// The transaction has no blobs; it needs at least one (EIP-4844).
    #[error("no blobs")]
    NoBlobs,
    /// The sidecar has more blobs than the rule allows.
    #[error("{got} blobs are more than {max}")]
    TooManyBlobs {
        /// Maximum number of blobs.
        max: u32,
        /// Number of blobs received.
        got: u32,
    },
    /// The lengths of the lists do not match.
    #[error("expected {expected} {part}, got {got}")]
    Count {
        /// List with the wrong length.
        part: Part,
        /// Expected number of items.
        expected: u32,
        /// Number of items received.
        got: u32,
    },
    /// The fork requires the other form.
    #[error("expected {expected:?}, got {got:?}")]
    WrongForm {
        /// Form that the rule requires.
        expected: Form,
        /// Form of the sidecar.
        got: Form,
    },
    /// The blob does not have [`BLOB_BYTES`] bytes.
    #[error("the blob has {got} bytes")]
    BlobLength {
        /// Number of bytes received.
        got: u64,
    },
    /// The commitment does not hash to the versioned hash.
    #[error("the commitment does not belong to the versioned hash")]
    VersionedHash,
    /// A field element is not below the modulus.
    #[error("field element {element} is not canonical")]
    NotCanonical {
        /// Position of the field element, 0 to 4095.
        element: u32,
    },
    /// The commitment is not a point of G1.
    #[error("the commitment {0}")]
    Commitment(PointFault),
    /// A proof is not a point of G1.
    #[error("proof {proof} {fault}")]
    Proof {
        /// Position of the proof among the proofs of the blob.
        proof: u32,
        /// Fault of the point.
        fault: PointFault,
    },
    /// Blob, commitment and proofs are well-formed but do not belong together.
    #[error("the proof is not valid")]
    ProofInvalid,
}

/// Reason why there is no verdict.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The queue is full, and no part of the request was accepted.
    #[error("overloaded, retry after {retry_after:?}")]
    Overloaded {
        /// Minimum time to wait before a retry.
        retry_after: Duration,
    },
    /// The deadline passed without a verdict.
    #[error("no verdict before the deadline")]
    DeadlineExceeded,
    /// The KZG library failed. This error says nothing about the blobs.
    #[error("kzg library: {0}")]
    Library(String),
    /// The service is stopping or unreachable.
    #[error("blob-validator is not available: {0}")]
    Unavailable(String),
}

/// Answer to every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Future answer to a call.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Validated blob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredBlob {
    /// Blob of [`BLOB_BYTES`].
    pub blob: Bytes,
    /// Commitment to the blob.
    pub commitment: Commitment,
    /// Proof of the whole blob, `None` when the blob never arrived in [`Form::BlobProofs`].
    pub proof: Option<Proof>,
    /// Proofs of the [`CELLS`] cells, `None` when the blob never arrived in [`Form::CellProofs`].
    pub cell_proofs: Option<Box<[Proof]>>,
}

/// Content of one sidecar by its keys: enough to recognize a valid one again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// Form of the sidecar.
    pub form: Form,
    /// Keys, one for each blob: a hash over everything that its verdict depends on, including the
    /// bytes of the blob.
    pub keys: Vec<B256>,
    /// Versioned hashes from the transaction, one for each key.
    pub versioned_hashes: Vec<B256>,
}

/// Counters of the service since it started, and what it holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Whether the trusted setup is loaded; requests wait until it is.
    pub ready: bool,
    /// Number of blobs verified.
    pub verified: u64,
    /// Number of calls to the KZG library's batch verification.
    pub batches: u64,
    /// Number of blobs that shared the verification of another request.
    pub shared: u64,
    /// Number of blobs with a known verdict.
    pub hits: u64,
    /// Number of requests refused because a queue was full.
    pub overloaded: u64,
    /// Number of requests that missed their deadline.
    pub expired: u64,
    /// Number of requests whose caller went away before a thread took their blobs.
    pub abandoned: u64,
    /// Number of blobs that wait for a thread.
    pub queued: u64,
    /// Number of remembered verdicts.
    pub verdicts: u64,
    /// Number of validated blobs kept.
    pub stored_blobs: u64,
    /// Approximate number of bytes that the kept blobs occupy.
    pub stored_bytes: u64,
}

/// Calls of blob-validator.
pub trait BlobApi: Send + Sync + 'static {
    /// Verifies a sidecar. The answer arrives after `timeout` at the latest. Await it in async
    /// code: neither the call nor the future does significant work on the caller's thread. Dropping
    /// the future gives up the request. Blobs that no other request waits for are then not
    /// verified.
    ///
    /// # Errors
    /// [`Error`], from the future.
    fn validate(&self, bundle: Arc<Bundle>, timeout: Duration) -> Pending<Verdict>;

    /// Refuses a sidecar of `blobs` blobs before it is read, if the queue has no room for them.
    /// Returns `None` when the sidecar may be sent. Never blocks, so any thread may call it.
    fn refuse(&self, blobs: usize) -> Option<Error>;

    /// Returns whether all blobs of this content are known to be valid and are kept, as after
    /// [`Verdict::Valid`]. `false` says nothing about them. This call verifies nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`], from the future.
    fn recall(&self, content: Content) -> Pending<bool>;

    /// Returns blobs of valid sidecars by versioned hash, in the order of the request. `None`
    /// stands for a blob that is not kept (any more).
    ///
    /// # Errors
    /// [`Error::Unavailable`], from the future.
    fn get_blobs(&self, versioned_hashes: &[B256]) -> Pending<Vec<Option<Arc<StoredBlob>>>>;

    /// Reports that these blobs are in a block, so they need not be kept any longer. Never blocks,
    /// so any thread may call it. The call is advisory: if it is lost, the blobs are evicted by
    /// age.
    fn forget(&self, versioned_hashes: &[B256]);

    /// Returns the counters of the service and what it holds.
    ///
    /// # Errors
    /// [`Error::Unavailable`], from the future.
    fn status(&self) -> Pending<Status>;
}
