//! `tandem verify`: checks whether the database is consistent.
//!
//! The tries are recomputed from the flat state, and every stored node is compared. The chain below
//! the base is followed for a limited depth. The blocks from the base to the head are run through
//! the tries once more. Only [`repair`] changes anything.

mod blocks;
mod nodes;
mod state;

pub(crate) use state::{check_shard_at_pace, mend_shard, mend_storage};

use crate::{
    Config, Error, Loss, StorageWriter, acknowledged::find_loss, config::database_path,
    load::load_chain,
};
use std::{fmt, path::Path};
use tandem_primitives::{B256, BlockId};
use tandem_store::{FoundMark, MARK_FILE, Options, Store, View};

/// Fault of a stored trie node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeFault {
    /// The node is not stored.
    Missing,
    /// Another node is stored in its place.
    Different,
    /// A node is stored where the trie has none.
    Extra,
}

/// Deviation from the expected contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// A trie node.
    Node {
        /// Hashed address of the account whose storage trie has the node, `None` for the account
        /// trie.
        owner: Option<B256>,
        /// Path of the node, one nibble per byte.
        path: Vec<u8>,
        /// Fault of the node.
        fault: NodeFault,
    },
    /// The state root recomputed from the flat state, or from the diff of a pending block, differs
    /// from the one in the block's header.
    StateRoot {
        /// The base or the pending block.
        block: BlockId,
        /// Root in the header.
        header: B256,
        /// Recomputed root.
        computed: B256,
    },
    /// A slot whose account does not exist.
    OrphanSlot {
        /// Hashed address.
        owner: B256,
        /// Hashed slot.
        slot: B256,
    },
    /// The code of an account is missing, or hashes to something else.
    Code {
        /// Hashed address.
        address_hash: B256,
        /// The account's code hash.
        code_hash: B256,
    },
    /// Fault of a block.
    Block {
        /// The block.
        block: BlockId,
        /// Description of the fault.
        what: String,
    },
    /// Acknowledged writes that are lost.
    Lost(Loss),
    /// Unreadable data; everything that depends on it could not be checked.
    Damage(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { owner, path, fault } => {
                match owner {
                    None => f.write_str("account trie")?,
                    Some(owner) => write!(f, "storage trie of {owner}")?,
                }
                let path: String = path.iter().map(|nibble| format!("{nibble:x}")).collect();
                let what = match fault {
                    NodeFault::Missing => "is missing",
                    NodeFault::Different => "differs from the flat state",
                    NodeFault::Extra => "does not belong there",
                };
                write!(f, ": the node at path [{path}] {what}")
            }
            Self::StateRoot { block, header, computed } => {
                write!(f, "state root after block {block} is {computed}, its header has {header}")
            }
            Self::OrphanSlot { owner, slot } => {
                write!(f, "flat state: slot {slot} of {owner}, which does not exist")
            }
            Self::Code { address_hash, code_hash } => {
                write!(f, "code: {code_hash} of account {address_hash} is missing or damaged")
            }
            Self::Block { block, what } => write!(f, "block {block}: {what}"),
            Self::Lost(loss) => write!(f, "{loss}"),
            Self::Damage(what) => f.write_str(what),
        }
    }
}

/// Extent and findings of [`verify`].
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The block whose state the base holds.
    pub base: BlockId,
    /// Head of the last forkchoice.
    pub head: BlockId,
    /// Number of accounts in the base.
    pub accounts: u64,
    /// Number of slots in the base.
    pub slots: u64,
    /// Number of correct nodes of the account trie.
    pub account_nodes: u64,
    /// Number of correct nodes of all storage tries.
    pub storage_nodes: u64,
    /// Number of blocks of the base's chain that were checked.
    pub blocks: u64,
    /// Number of pending blocks that were run through the tries.
    pub pending: u64,
    /// Number of records of all tables that could be read; 0 when the files were not checked.
    pub records: u64,
    /// Number of differences found; not all may be counted when there are many.
    pub differences: u64,
    /// First difference.
    pub first_difference: Option<Difference>,
}

impl Report {
    /// Returns whether no difference was found.
    pub fn is_clean(&self) -> bool {
        self.differences == 0
    }

    /// Counts damage that ended a part of the check, and passes on any other error.
    fn unless_damaged(&mut self, checked: Result<(), Error>) -> Result<(), Error> {
        match checked {
            Err(error) if error.is_damage() => {
                self.differ(Difference::Damage(error.to_string()));
                Ok(())
            }
            checked => checked,
        }
    }

    fn differ(&mut self, difference: Difference) {
        self.differences += 1;
        self.first_difference.get_or_insert(difference);
    }
}

/// Checks the database of a data directory, which no process may have open.
///
/// # Errors
/// When the database cannot be opened or read. Faults of its contents are in the report.
pub fn verify(datadir: &Path) -> Result<Report, Error> {
    check_all(datadir, Mend::No)
}

impl StorageWriter {
    /// Checks the database as it is at this moment, whatever is written meanwhile.
    ///
    /// # Errors
    /// When the database cannot be read. Faults of its contents are in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        check(&self.shared.store.snapshot(), None)
    }
}

/// Checks the database of a data directory, and mends the parts that can be rebuilt. Trie nodes are
/// rebuilt from the flat state, and the indices of blocks from their bodies. Returns the reports
/// from before and after.
///
/// # Errors
/// As [`verify`], and when the database cannot be written.
pub fn repair(datadir: &Path) -> Result<(Report, Report), Error> {
    let before = check_all(datadir, Mend::Yes)?;
    let after = check_all(datadir, Mend::No)?;
    Ok((before, after))
}

/// Whether to mend the parts that can be rebuilt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mend {
    No,
    Yes,
}

/// Opens a database even if its log is incomplete, which is then reported. A check starts no compaction, which would
/// replace a table whose filter is damaged before that is found.
fn open(datadir: &Path, mend: Mend) -> Result<Store, Error> {
    let auto_compaction = mend == Mend::Yes;
    let options = Options { verify_logs: false, auto_compaction, ..Options::default() };
    Ok(Store::open(&database_path(datadir), &options)?)
}

/// Runs [`check`], and checks the files: every checksum, every record, and the acknowledged writes.
fn check_all(datadir: &Path, mend: Mend) -> Result<Report, Error> {
    // Opened once before the files are read, so that they contain the log's records.
    drop(open(datadir, Mend::No)?);
    let checksums = Store::verify_checksums(&database_path(datadir));
    let store = &open(datadir, mend)?;
    let mut report = check(&store.view(), (mend == Mend::Yes).then_some(store))?;
    if mend == Mend::Yes {
        store.flush()?;
    }
    let scrubbed = store.scrub();
    report.records = scrubbed.records;
    for fault in checksums.into_iter().chain(scrubbed.faults) {
        report.differ(Difference::Damage(fault));
    }
    match find_loss(store, report.head)? {
        (_, Some(loss)) => report.differ(Difference::Lost(loss)),
        (FoundMark::Mark(_), None) => {}
        (FoundMark::Missing, None) => report.differ(Difference::Damage(format!(
            "the file {MARK_FILE} is missing, removed or never written by an older Tandem: \
             whether blocks were lost is unknown"
        ))),
        (FoundMark::Damaged, None) => {
            report.differ(Difference::Damage(format!("the file {MARK_FILE} cannot be read")));
        }
    }
    Ok(report)
}

/// Rebuilds all tries from the flat state, where they differ from it. Returns the number of
/// differences.
pub(crate) fn mend_all(store: &Store) -> Result<u64, Error> {
    let mut report = Report::default();
    state::check(&store.view(), Some(store), &mut report)?;
    Ok(report.differences)
}

fn check(view: &View<'_>, mend: Option<&Store>) -> Result<Report, Error> {
    let chain = load_chain(view, &Config::default().limits())?;
    let base = chain.base();
    let mut report = Report { base, head: chain.forkchoice().head, ..Report::default() };
    // Damage that ends one of these checks counts as a difference, and the others go on.
    let checked = state::check(view, mend, &mut report);
    report.unless_damaged(checked)?;
    let checked = blocks::check_base_chain(view, mend, &mut report);
    report.unless_damaged(checked)?;
    let checked = blocks::check_reverse_diffs(view, &mut report);
    report.unless_damaged(checked)?;
    let checked = blocks::check_pending(view, &chain, &mut report);
    report.unless_damaged(checked)?;
    Ok(report)
}
