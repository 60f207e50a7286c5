use std::{io, path::PathBuf};

/// Why there is no bus over NATS. That no server answers is none of them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of servers is empty.
    #[error("no address of a NATS server")]
    NoServer,
    /// Not an address.
    #[error("`{server}` is no address of a NATS server: {reason}")]
    Server {
        /// What stood there.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Addresses get into logs and lists of processes, passwords must not.
    #[error(
        "the address of a NATS server holds a user or password: set `user` and `password_file`"
    )]
    PasswordInAddress,
    /// Two options make sense together only.
    #[error("`{given}` needs `{missing}` beside it")]
    Incomplete {
        /// The option that is there.
        given: &'static str,
        /// The option that is not.
        missing: &'static str,
    },
    /// Two options exclude each other.
    #[error("`nkey_seed_file` and `user` are two ways to log in, want one")]
    TwoLogins,
    /// A file cannot be read.
    #[error("read {option} {path}: {error}")]
    File {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// A file holds something else.
    #[error("{option} {path}: expected {expected}, found {found}")]
    Content {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong, without the content.
        found: &'static str,
    },
}
