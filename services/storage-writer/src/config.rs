use crate::{Error, chain::Limits, feed_stream::FeedConfig, lead::LeadConfig, scrub::ScrubConfig};
use serde::{Deserialize, Serialize};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tandem_actor::at_most_of_memory;
use tandem_proto::storage::Term;

/// Number of blocks whose access lists EIP-7928 wants to be served: 3,533 epochs of 32 slots.
const ACCESS_LIST_BLOCKS: u64 = 3_533 * 32;

/// Blocks whose history goes at once. With fewer of them, less is kept beyond the limit, but a read looks
/// into more of them.
const HISTORY_SPAN_BLOCKS: u64 = 8192;

/// Blocks whose bodies and receipts are kept (EIP-4444). All headers are kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// All blocks.
    #[default]
    All,
    /// Blocks since the merge: those with proof of work lose theirs.
    Merge,
    /// This many blocks of the base, and at least those for which there are reverse diffs or state
    /// diffs.
    Blocks(u64),
}

/// Settings of storage-writer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Data directory; the database is in its folder `db`.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Minimum number of blocks from the base to the head. Reorgs up to this depth cost nothing.
    pub persist_depth: u64,
    /// Maximum number of blocks from the base to the head while they are not final. The base
    /// follows the finalized block, so that every branch that may still win stands above it.
    pub unfinalized_blocks_max: u64,
    /// Blocks that the base may lag behind its goal before a forkchoice waits.
    pub backlog_blocks_max: u64,
    /// Blocks that enter the base together, in one write, when so many are due; fewer wait a second for
    /// more. 1 moves each block as soon as it is due.
    pub step_blocks: u64,
    /// Milliseconds that a block that is due waits for others. Not part of the interface: only for tests.
    #[serde(skip)]
    #[doc(hidden)]
    pub step_wait_millis: u64,
    /// Blocks that the base can step back from its current position.
    pub reverse_diff_blocks: u64,
    /// Blocks below the base whose access lists are kept (EIP-7928).
    pub access_list_blocks: u64,
    /// Blocks of the base whose state diffs are kept for followers. A follower that is further behind
    /// downloads the state. Blocks with an access list need no diff: their lists serve.
    pub feed_blocks: u64,
    /// Blocks whose bodies and receipts are kept. Lowering it removes those of older blocks in the
    /// background; raising it brings none back.
    pub history: History,
    /// Number of followers that may read the feed at the same time; 0 to give it to none.
    pub feed_readers_max: usize,
    /// Blocks below the base whose states can be read; 0 for none. A follower has a setting for it.
    #[serde(skip)]
    pub history_blocks: u64,
    /// Blocks whose history is removed together, 1 to 65,536. Not part of the interface: only for tests.
    #[serde(skip)]
    #[doc(hidden)]
    pub history_span_blocks: u64,
    /// Maximum bytes of state diffs and trie diffs of pending blocks in memory. Above it, diffs of
    /// side branches are read or computed on demand, and the base follows the head more closely.
    pub pending_memory_bytes_max: u64,
    /// Maximum bytes of side branches in the database. Above it, the branch with the oldest tip is
    /// evicted.
    pub side_branch_bytes_max: u64,
    /// Maximum bytes in the database of blocks that wait for their execution. Above it, the oldest
    /// block is evicted.
    pub kept_bytes_max: u64,
    /// Number of states that peers may ask for at the same time; 0 to give them none.
    pub peer_states_max: usize,
    /// Bytes that the volume must have left for the service to be ready, 0 for any. Checked every
    /// five seconds.
    pub free_bytes_min: u64,
    /// Whether commits and forkchoices wait for the disk. Otherwise a block answered VALID survives
    /// the death of the process, but not a power cut.
    pub sync: bool,
    /// For experiments: microseconds that a read of accounts, slots or code takes longer, as if they
    /// were on a disk. It reads up to 32 keys of a call at once. 0 for none.
    pub read_delay_micros: u64,
    /// For experiments: microseconds that each key of a trie walk takes longer, one key after the
    /// other, as if a thread read its paths from a disk. 0 for none.
    pub trie_read_delay_micros: u64,
    /// Whether to start although acknowledged blocks are lost. Given on the command line only,
    /// because it applies to one start.
    #[serde(skip)]
    pub accept_lost_blocks: bool,
    /// Whether the process leads or keeps a copy of a leader's chain. Given by the command.
    #[serde(skip)]
    pub starts_as: StartsAs,
    /// Address at which `tandem node` offers storage-writer over gRPC to followers and operators. `None`:
    /// it is not offered. `tandem storage-writer` has a flag for its own.
    pub grpc_addr: Option<SocketAddr>,
    /// Stream of NATS to which the feed is published.
    pub feed: FeedConfig,
    /// Lease in NATS by which one of several storage-writers leads.
    pub lead: LeadConfig,
    /// Check of the whole database in the background.
    pub scrub: ScrubConfig,
    /// Tuning of the database.
    pub store: tandem_store::Options,
}

/// Place in which a process starts among the storage-writers of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StartsAs {
    /// It leads, and takes no writes if it knows of another leader.
    #[default]
    Leader,
    /// It keeps a copy of a leader's chain, unless it was promoted. While it follows, lost blocks are
    /// accepted and no write waits for the disk, because the leader has everything.
    Follower,
    /// It follows, unless it was promoted, or has a database that is no copy and knows of no other
    /// leader.
    Either,
}

impl StartsAs {
    /// Returns whether the process follows, with a database that is a copy of another one or is not. `own` is
    /// the term of its newest grant, `heard` the highest one of another storage-writer.
    pub(crate) fn follows(self, is_copy: bool, own: Term, heard: Term) -> bool {
        let was_promoted = own > Term(0) && own >= heard;
        match self {
            Self::Leader => false,
            Self::Follower => !was_promoted,
            Self::Either => !was_promoted && (is_copy || heard > Term(0)),
        }
    }
}

/// Returns the database's defaults, with less memory where this process may use little.
fn store_options() -> tandem_store::Options {
    let defaults = tandem_store::Options::default();
    let at_most =
        |bytes: usize, part| at_most_of_memory(bytes as u64, part).try_into().unwrap_or(bytes);
    tandem_store::Options {
        cache_bytes_max: at_most(defaults.cache_bytes_max, 8),
        memtable_bytes_max: at_most(defaults.memtable_bytes_max, 16),
        ..defaults
    }
}

impl Config {
    /// Returns the defaults for a data directory.
    pub fn new(datadir: impl Into<PathBuf>) -> Self {
        Self {
            datadir: datadir.into(),
            persist_depth: 16,
            unfinalized_blocks_max: 128,
            backlog_blocks_max: 64,
            step_blocks: 8,
            step_wait_millis: 1000,
            reverse_diff_blocks: 10_000,
            access_list_blocks: ACCESS_LIST_BLOCKS,
            feed_blocks: 4096,
            history: History::All,
            feed_readers_max: 16,
            history_blocks: 0,
            history_span_blocks: HISTORY_SPAN_BLOCKS,
            pending_memory_bytes_max: at_most_of_memory(512 << 20, 8),
            side_branch_bytes_max: 4 << 30,
            kept_bytes_max: 1 << 30,
            peer_states_max: 8,
            free_bytes_min: 32 << 20,
            sync: true,
            read_delay_micros: 0,
            trie_read_delay_micros: 0,
            accept_lost_blocks: false,
            starts_as: StartsAs::default(),
            grpc_addr: None,
            feed: FeedConfig::default(),
            lead: LeadConfig::default(),
            scrub: ScrubConfig::default(),
            store: store_options(),
        }
    }

    /// Returns whether damaged logs of the database are an error. A follower gets lost blocks again.
    pub(crate) fn verifies_logs(&self) -> bool {
        !(self.accept_lost_blocks || self.starts_as == StartsAs::Follower)
    }

    /// Returns limits so low that a few small blocks meet all of them. Not part of the interface:
    /// only for tests.
    #[doc(hidden)]
    pub fn with_small_limits(datadir: impl Into<PathBuf>) -> Self {
        Self {
            persist_depth: 3,
            unfinalized_blocks_max: 8,
            backlog_blocks_max: 4,
            step_blocks: 3,
            step_wait_millis: 5,
            reverse_diff_blocks: 12,
            access_list_blocks: 20,
            feed_blocks: 24,
            history_blocks: 16,
            history_span_blocks: 4,
            pending_memory_bytes_max: 20_000,
            peer_states_max: 32,
            ..Self::new(datadir)
        }
    }

    /// Returns the limits on the pending blocks.
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
    /// Returns the defaults without a data directory, which the command line gives.
    fn default() -> Self {
        Self::new(PathBuf::new())
    }
}

/// Folder of the database in a data directory.
pub(crate) const DATABASE_FOLDER: &str = "db";

/// Folder of a snapshot that is being restored in a data directory.
const RESTORE_FOLDER: &str = "db.restoring";

/// Returns the path of the database in a data directory.
#[must_use]
pub fn database_path(datadir: &Path) -> PathBuf {
    datadir.join(DATABASE_FOLDER)
}

/// Returns the folder of a snapshot that is being restored in a data directory. While it is there, no
/// database is opened or made in that directory.
#[must_use]
pub fn restore_path(datadir: &Path) -> PathBuf {
    datadir.join(RESTORE_FOLDER)
}

/// Refuses a data directory in which the restore of a snapshot has not ended.
pub(crate) fn refuse_half_restored(datadir: &Path) -> Result<(), Error> {
    let path = restore_path(datadir);
    if path.exists() { Err(Error::HalfRestored { path }) } else { Ok(()) }
}
