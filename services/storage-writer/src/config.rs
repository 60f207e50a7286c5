use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Settings of storage-writer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The data directory; the database is in `db` below it.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Blocks below head from which on the base follows. Reorgs up to this depth cost nothing.
    pub persist_depth: u64,
    /// Blocks that the base may lag behind `head - persist_depth` before a forkchoice waits.
    pub backlog_blocks_max: u64,
    /// Blocks that the base can step back, counted from where it stands.
    pub reverse_diff_blocks: u64,
    /// Blocks of side chains that are kept below the base.
    pub side_chain_blocks: u64,
    /// Pending blocks that are held; a commit beyond them is refused.
    pub pending_blocks_max: usize,
    /// Whether a commit waits for the disk. Without it a block answered VALID survives the death
    /// of the process, not a power cut.
    pub sync: bool,
    /// How the database is tuned.
    pub store: tandem_store::Options,
}

impl Config {
    /// The defaults for a data directory.
    pub fn new(datadir: impl Into<PathBuf>) -> Self {
        Self {
            datadir: datadir.into(),
            persist_depth: 16,
            backlog_blocks_max: 64,
            reverse_diff_blocks: 10_000,
            side_chain_blocks: 256,
            pending_blocks_max: 4096,
            sync: false,
            store: tandem_store::Options::default(),
        }
    }
}

impl Default for Config {
    /// Without a data directory, which is given on the command line.
    fn default() -> Self {
        Self::new(PathBuf::new())
    }
}

/// The folder of the database in a data directory.
pub(crate) const DATABASE_FOLDER: &str = "db";

/// Where the database of a data directory lies.
pub(crate) fn database_path(datadir: &Path) -> PathBuf {
    datadir.join(DATABASE_FOLDER)
}
