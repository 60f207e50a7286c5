/// What is wrong with a point of the curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PointFault {
    /// Its 48 bytes encode no coordinate: a flag is wrong, or the number is not below the modulus.
    #[error("is no encoding of a point")]
    Encoding,
    /// No point of the curve has this coordinate.
    #[error("is not on the curve")]
    NotOnCurve,
    /// It is a point of the curve outside the group G1.
    #[error("is not in the subgroup")]
    NotInSubgroup,
}

/// Why a blob is refused, or could not be verified.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A blob has [`BLOB_BYTES`](crate::BLOB_BYTES).
    #[error("the blob has {got} bytes")]
    BlobLength {
        /// Bytes it has.
        got: usize,
    },
    /// A blob has one proof, or one for each of its [`CELLS`](crate::CELLS).
    #[error("expected {expected} proofs, got {got}")]
    ProofCount {
        /// Proofs there should be.
        expected: usize,
        /// Proofs there are.
        got: usize,
    },
    /// A field element is not below the modulus of the scalar field (EIP-4844,
    /// `bytes_to_bls_field`).
    #[error("field element {element} is not canonical")]
    NotCanonical {
        /// Its position in the blob, from 0.
        element: usize,
    },
    /// The commitment is no point of G1.
    #[error("the commitment {0}")]
    Commitment(PointFault),
    /// A proof is no point of G1.
    #[error("proof {proof} {fault}")]
    Proof {
        /// Its position among the proofs of the blob, from 0.
        proof: usize,
        /// What is wrong with it.
        fault: PointFault,
    },
    /// Blob, commitment and proofs are well-formed and do not belong together.
    #[error("the proof is not valid")]
    ProofInvalid,
    /// The library refused well-formed arguments or ran out of memory. It says nothing about the
    /// blob.
    #[error("kzg library: {0}")]
    Library(String),
}

impl From<c_kzg::Error> for Error {
    fn from(error: c_kzg::Error) -> Self {
        Self::Library(error.to_string())
    }
}
