//! `tandem verify`: whether the database is what it says.
//!
//! The tries are recomputed from the flat state and every stored node is compared; the chain below
//! the base is followed for a while; the blocks from the base to the head are run through the
//! tries once more. Nothing is changed.

mod blocks;
mod nodes;
mod state;

use crate::{Error, StorageWriter, config::database_path, service::load_chain};
use std::{fmt, path::Path};
use tandem_primitives::{B256, BlockId};
use tandem_store::{Options, Store, View};

/// What is wrong with a stored trie node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeFault {
    /// It is not stored.
    Missing,
    /// Another node is stored in its place.
    Different,
    /// The trie has no node there.
    Extra,
}

/// Something that is not as it must be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// A trie node.
    Node {
        /// Hashed address of the account whose storage trie it is in, `None` for the account trie.
        owner: Option<B256>,
        /// Its path, one nibble a byte.
        path: Vec<u8>,
        /// What is wrong.
        fault: NodeFault,
    },
    /// The state root recomputed from the flat state is not the one in the base's header.
    StateRoot {
        /// The base.
        block: BlockId,
        /// Recomputed.
        got: B256,
        /// In the header.
        want: B256,
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
    /// Something about a block.
    Block {
        /// Which.
        block: BlockId,
        /// What.
        what: String,
    },
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
            Self::StateRoot { block, got, want } => write!(
                f,
                "state root: the flat state has {got}, the header of block {block} says {want}"
            ),
            Self::OrphanSlot { owner, slot } => {
                write!(f, "flat state: slot {slot} of {owner}, which does not exist")
            }
            Self::Code { address_hash, code_hash } => {
                write!(f, "code: {code_hash} of account {address_hash} is missing or damaged")
            }
            Self::Block { block, what } => write!(f, "block {block}: {what}"),
        }
    }
}

/// What [`verify`] looked at, and what it found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The block whose state the base holds.
    pub base: BlockId,
    /// Head of the last forkchoice.
    pub head: BlockId,
    /// Accounts in the base.
    pub accounts: u64,
    /// Slots in the base.
    pub slots: u64,
    /// Nodes of the account trie that are as they should be.
    pub account_nodes: u64,
    /// Nodes of all storage tries that are as they should be.
    pub storage_nodes: u64,
    /// Blocks of the base's chain that were looked at.
    pub blocks: u64,
    /// Pending blocks that were run through the tries.
    pub pending: u64,
    /// Differences found; where there are many, not all may be counted.
    pub differences: u64,
    /// The first of them.
    pub first_difference: Option<Difference>,
}

impl Report {
    /// Whether everything is as it must be.
    pub fn is_clean(&self) -> bool {
        self.differences == 0
    }

    fn differ(&mut self, difference: Difference) {
        self.differences += 1;
        self.first_difference.get_or_insert(difference);
    }
}

/// Checks the database of a data directory, which no process may have open.
///
/// # Errors
/// When the database cannot be opened or read. What is wrong in it is in the report.
pub fn verify(datadir: &Path) -> Result<Report, Error> {
    let store = Store::open(&database_path(datadir), &Options::default())?;
    check(&store.view())
}

impl StorageWriter {
    /// Checks the database as it is at this moment, whatever is written meanwhile.
    ///
    /// # Errors
    /// When the database cannot be read. What is wrong in it is in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        check(&self.shared.store.snapshot())
    }
}

fn check(view: &View<'_>) -> Result<Report, Error> {
    let chain = load_chain(view)?;
    let mut report =
        Report { base: chain.base(), head: chain.forkchoice().head, ..Report::default() };
    state::check(view, &mut report)?;
    blocks::check_base_chain(view, &mut report)?;
    blocks::check_reverse_diffs(view, &mut report)?;
    blocks::check_pending(view, &chain, &mut report)?;
    Ok(report)
}
