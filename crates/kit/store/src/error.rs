use std::path::PathBuf;

/// Why the store cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no database at this place.
    #[error("no database in {0}: run `tandem init` first")]
    Missing(PathBuf),
    /// There is something at this place, but it is not ours.
    #[error("{path} holds no Tandem database: {reason}")]
    Foreign {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another process has the database open.
    #[error("the database in {0} is in use by another process")]
    Locked(PathBuf),
    /// The database was written by a newer Tandem.
    #[error(
        "the database in {path} has schema version {found}, this Tandem reads up to {supported}: \
         use a newer Tandem"
    )]
    NewerSchema {
        /// Where.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The newest version that this build reads.
        supported: u32,
    },
    /// A record cannot be decoded.
    #[error("malformed record in table {table}, key 0x{key}")]
    Malformed {
        /// The table.
        table: &'static str,
        /// The record's key in hexadecimal.
        key: String,
    },
    /// RocksDB refused or failed.
    #[error("database: {0}")]
    Database(String),
    /// The file system refused or failed.
    #[error("{context} {path}: {source}", path = path.display())]
    Io {
        /// What was being done.
        context: &'static str,
        /// To what.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether it says that what is stored is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            // Which kind of error RocksDB means is in its text alone.
            Self::Database(text) => text.starts_with("Corruption"),
            _ => false,
        }
    }
}

impl From<rocksdb::Error> for Error {
    fn from(error: rocksdb::Error) -> Self {
        Self::Database(error.into_string())
    }
}
