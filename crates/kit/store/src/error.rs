use std::path::PathBuf;

/// Reason why the store cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no database at this path.
    #[error("no database in {0}: run `tandem init` first")]
    Missing(PathBuf),
    /// The path holds something other than a Tandem database.
    #[error("{path} holds no Tandem database: {reason}")]
    Foreign {
        /// Path of the directory.
        path: PathBuf,
        /// Fault that was found.
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
        /// Path of the directory.
        path: PathBuf,
        /// Version that was found.
        found: u32,
        /// Newest version that this build reads.
        supported: u32,
    },
    /// A directory of the database's files is not there, or not its own.
    #[error("{directory} has files of the database in {path}, but {reason}")]
    Directory {
        /// Folder of the database.
        path: PathBuf,
        /// The directory.
        directory: PathBuf,
        /// Fault that was found.
        reason: String,
    },
    /// The state cannot be spread over directories as it was asked for.
    #[error("the state of {path} cannot be spread: {reason}")]
    Spread {
        /// Folder of the database.
        path: PathBuf,
        /// Fault that was found.
        reason: String,
    },
    /// The state was being spread over directories, or gathered, when the process ended.
    #[error(
        "the database in {0} is half spread or half gathered: run the same `tandem db spread` again"
    )]
    HalfSpread(PathBuf),
    /// There is no table with this name.
    #[error("unknown table `{0}`")]
    UnknownTable(String),
    /// A record cannot be decoded.
    #[error("malformed record in table {table}, key 0x{key}")]
    Malformed {
        /// Table of the record.
        table: &'static str,
        /// Key of the record in hexadecimal.
        key: String,
    },
    /// RocksDB refused or failed.
    #[error("database: {0}")]
    Database(String),
    /// The file system refused or failed.
    #[error("{context} {path}: {source}", path = path.display())]
    Io {
        /// Operation that failed.
        context: &'static str,
        /// Path that it worked on.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns whether the error means that the stored data is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            // Only the text tells which kind of error RocksDB means.
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
