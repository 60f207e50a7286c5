use std::{io, path::PathBuf};

/// Reason why there is no bus over NATS. An unreachable server is not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of servers is empty.
    #[error("no address of a NATS server is given")]
    NoServer,
    /// An address is invalid.
    #[error("invalid address `{server}` of a NATS server: {reason}")]
    Server {
        /// Text given as the address.
        server: String,
        /// Fault in it.
        reason: String,
    },
    /// An address holds a password: addresses get into logs and process lists, passwords must not.
    #[error(
        "the address of a NATS server holds a user or password: set `user` and `password_file`"
    )]
    PasswordInAddress,
    /// Two options make sense only together.
    #[error("`{given}` needs `{missing}` beside it")]
    Incomplete {
        /// The option that is there.
        given: &'static str,
        /// The option that is missing.
        missing: &'static str,
    },
    /// Two options exclude each other.
    #[error("`nkey_seed_file` and `user` exclude each other; set one of them")]
    TwoLogins,
    /// A file cannot be read.
    #[error("read {option} {path}: {error}")]
    File {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file has the wrong content.
    #[error("{option} {path}: expected {expected}, found {found}")]
    Content {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Expected content.
        expected: &'static str,
        /// Fault in the content, without the content itself.
        found: &'static str,
    },
}
