use std::io;
use std::path::PathBuf;

/// Reason why a secret file or a token was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The secret file cannot be read or created.
    #[error("JWT secret file {path}: {error}")]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The secret is not a regular file, whose end can be read.
    #[error("JWT secret file {path}: expected a regular file, found {found}")]
    SecretKind {
        /// The file.
        path: PathBuf,
        /// Kind of file that was found.
        found: &'static str,
    },
    /// The secret file does not hold 64 hex digits, with or without a leading `0x`.
    #[error("JWT secret file {path}: expected 32 bytes as 64 hex digits, found {found}")]
    SecretFormat {
        /// The file.
        path: PathBuf,
        /// Fault in its content, without the content itself.
        found: String,
    },
    /// The token is not three base64url parts with a JSON header and JSON claims.
    #[error("malformed token")]
    Malformed,
    /// The header names an algorithm other than HS256, or demands an extension.
    #[error("token is not signed with HS256")]
    Algorithm,
    /// The signature does not match the secret.
    #[error("signature is invalid")]
    Signature,
    /// The claims have no `iat`.
    #[error("missing issued-at")]
    MissingIssuedAt,
    /// `iat` lies further in the past than the tolerance, or `exp` has passed.
    #[error("stale token")]
    Stale,
    /// `iat` or `nbf` lies further in the future than the tolerance.
    #[error("future token")]
    Future,
}
