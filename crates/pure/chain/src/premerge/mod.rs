//! Rules that apply only before the merge: difficulty, ommers, the mark of the DAO fork, and the
//! end of proof of work.

mod difficulty;
mod header;
mod ommers;
mod terminal;

pub use difficulty::next_difficulty;
pub(crate) use header::validate_header;
pub use ommers::{Ancestor, OMMER_GENERATIONS, validate_ommers};
pub use terminal::check_terminal;

use crate::BlockError;
use alloy_primitives::{B256, U256};

/// Rule of proof of work, or of its end, that a block breaks. Ommers are identified by their
/// position in the block, from 0.
///
/// Ethash's seal (mix hash and nonce), the proof of work itself, is not checked. Since the merge,
/// the consensus layer alone decides which chain counts, and the user trusts the imported chain.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum PreMergeRule {
    /// The difficulty does not follow from the parent.
    #[error("difficulty is {want}, not {got}")]
    Difficulty {
        /// Difficulty in the header.
        got: U256,
        /// Difficulty computed from the parent.
        want: U256,
    },
    /// The extra data of the ten blocks from the DAO fork on belongs to the other side of the fork
    /// (EIP-779).
    #[error("extra data is that of the other side of the DAO fork")]
    DaoExtraData,
    /// The hash of the ommers is not the one in the header.
    #[error("ommers hash is {want}, not {got}")]
    OmmersHash {
        /// Hash in the header.
        got: B256,
        /// Computed hash.
        want: B256,
    },
    /// The block has more than two ommers.
    #[error("{got} ommers, more than 2")]
    OmmerCount {
        /// Number of ommers in the body.
        got: usize,
    },
    /// An ommer was already named in this block or in an ancestor.
    #[error("ommer {index} was named before")]
    OmmerRepeated {
        /// Position in the block.
        index: usize,
    },
    /// An ommer is an ancestor of the block.
    #[error("ommer {index} is an ancestor")]
    OmmerAncestor {
        /// Position in the block.
        index: usize,
    },
    /// The parent of an ommer is not an ancestor of the second to seventh generation.
    #[error("the parent of ommer {index} is not an ancestor of the second to seventh generation")]
    OmmerParent {
        /// Position in the block.
        index: usize,
    },
    /// The header of an ommer breaks a rule.
    #[error("ommer {index}: {error}")]
    OmmerHeader {
        /// Position in the block.
        index: usize,
        /// Broken rule.
        error: Box<BlockError>,
    },
    /// A block of proof of stake has a parent before the terminal block (EIP-3675).
    #[error("parent is not the terminal block: its total difficulty {total} is under {terminal}")]
    TerminalNotReached {
        /// Total difficulty of the parent.
        total: U256,
        /// Terminal total difficulty of the chain.
        terminal: U256,
    },
    /// A block of proof of work, or the parent of a block of proof of stake, is above the terminal
    /// block (EIP-3675).
    #[error("proof of work has ended: total difficulty {total} had reached {terminal}")]
    TerminalPassed {
        /// Total difficulty of the block below.
        total: U256,
        /// Terminal total difficulty of the chain.
        terminal: U256,
    },
}

impl PreMergeRule {
    /// Returns a short constant name of the rule, for metrics and logs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Difficulty { .. } => "difficulty",
            Self::DaoExtraData => "dao_extra_data",
            Self::OmmersHash { .. } => "ommers_hash",
            Self::OmmerCount { .. } => "ommer_count",
            Self::OmmerRepeated { .. } => "ommer_repeated",
            Self::OmmerAncestor { .. } => "ommer_ancestor",
            Self::OmmerParent { .. } => "ommer_parent",
            Self::OmmerHeader { .. } => "ommer_header",
            Self::TerminalNotReached { .. } => "terminal_not_reached",
            Self::TerminalPassed { .. } => "terminal_passed",
        }
    }
}
