/// Reason why 48 bytes are not a valid point of G1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PointFault {
    /// The 48 bytes do not encode a coordinate: a flag is wrong, or the number is not below the
    /// modulus.
    #[error("is not the encoding of a point")]
    Encoding,
    /// No point of the curve has this coordinate.
    #[error("is not on the curve")]
    NotOnCurve,
    /// The point is on the curve but outside the group G1.
    #[error("is not in the subgroup")]
    NotInSubgroup,
}

/// Reason why a blob is refused or could not be verified.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The blob does not have [`BLOB_BYTES`](crate::BLOB_BYTES) bytes.
    #[error("the blob has {got} bytes")]
    BlobLength {
        /// Number of bytes received.
        got: usize,
    },
    /// The number of proofs is wrong: a blob has one proof, or one for each of its
    /// [`CELLS`](crate::CELLS).
    #[error("expected {expected} proofs, got {got}")]
    ProofCount {
        /// Expected number of proofs.
        expected: usize,
        /// Number of proofs received.
        got: usize,
    },
    /// A field element is not below the modulus of the scalar field (EIP-4844,
    /// `bytes_to_bls_field`).
    #[error("field element {element} is not canonical")]
    NotCanonical {
        /// Position of the field element in the blob, from 0.
        element: usize,
    },
    /// The commitment is not a point of G1.
    #[error("the commitment {0}")]
    Commitment(PointFault),
    /// A proof is not a point of G1.
    #[error("proof {proof} {fault}")]
    Proof {
        /// Position of the proof among the proofs of the blob, from 0.
        proof: usize,
        /// Reason why the point is invalid.
        fault: PointFault,
    },
    /// Blob, commitment and proofs are well-formed but do not belong together.
    #[error("the proof is not valid")]
    ProofInvalid,
    /// The library refused well-formed arguments or ran out of memory. This error says nothing
    /// about the blob.
    #[error("kzg library: {0}")]
    Library(String),
}

impl From<c_kzg::Error> for Error {
    fn from(error: c_kzg::Error) -> Self {
        Self::Library(error.to_string())
    }
}
