use crate::chain::Limits;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Settings of storage-writer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The data directory; the database is in `db` below it.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Blocks that the base stays behind the head at least. Reorgs up to this depth cost nothing.
    pub persist_depth: u64,
    /// Blocks that the base stays behind the head at most while they are not final. The base follows
    /// the finalized block, so that every branch that may still win stands above it.
    pub unfinalized_blocks_max: u64,
    /// Blocks that the base may lag behind where it should be before a forkchoice waits.
    pub backlog_blocks_max: u64,
    /// Blocks that the base can step back, counted from where it stands.
    pub reverse_diff_blocks: u64,
    /// Bytes of state diffs and trie diffs of pending blocks in memory. Beyond them those of side
    /// branches are read or computed when they are needed, and the base follows the head more closely.
    pub pending_memory_bytes_max: u64,
    /// Bytes of side branches in the database. Beyond them the branch whose tip is oldest is dropped.
    pub side_branch_bytes_max: u64,
    /// Bytes of blocks in the database that wait for their execution. Beyond them the oldest is
    /// dropped.
    pub kept_bytes_max: u64,
    /// Bytes that the volume must have left for the service to be ready, 0 for any. Looked at every five
    /// seconds.
    pub free_bytes_min: u64,
    /// Whether commits and forkchoices wait for the disk. Without it a block answered VALID survives
    /// the death of the process, not a power cut.
    pub sync: bool,
    /// Whether to start although acknowledged blocks are gone. Given on the command line alone, as
    /// it is for one start.
    #[serde(skip)]
    pub accept_lost_blocks: bool,
    /// How the database is tuned.
    pub store: tandem_store::Options,
}

impl Config {
    /// The defaults for a data directory.
    pub fn new(datadir: impl Into<PathBuf>) -> Self {
        Self {
            datadir: datadir.into(),
            persist_depth: 16,
            unfinalized_blocks_max: 128,
            backlog_blocks_max: 64,
            reverse_diff_blocks: 10_000,
            pending_memory_bytes_max: 512 << 20,
            side_branch_bytes_max: 4 << 30,
            kept_bytes_max: 1 << 30,
            free_bytes_min: 32 << 20,
            sync: true,
            accept_lost_blocks: false,
            store: tandem_store::Options::default(),
        }
    }
}

impl Config {
    /// The limits of what is pending.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            persist_depth: self.persist_depth,
            unfinalized_blocks_max: self.unfinalized_blocks_max,
            memory_bytes_max: self.pending_memory_bytes_max,
            side_bytes_max: self.side_branch_bytes_max,
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
