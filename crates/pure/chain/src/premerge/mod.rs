//! The rules of blocks from before the merge that later ones do not know: difficulty, ommers, the
//! mark of the DAO fork, and where proof of work ends.

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

/// The rule of proof of work, or of its end, that a block breaks. Ommers are named by their
/// position in the block, from 0.
///
/// The proof of work itself, ethash's seal (mix hash and nonce), is not checked: since the merge
/// the consensus layer alone decides which chain counts, and what is imported is one that the user
/// trusts.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum PreMergeRule {
    /// The difficulty does not follow from the parent.
    #[error("difficulty is {want}, not {got}")]
    Difficulty {
        /// In the header.
        got: U256,
        /// Computed from the parent.
        want: U256,
    },
    /// The extra data of the ten blocks from the DAO fork on says on which side the chain is
    /// (EIP-779).
    #[error("extra data is that of the other side of the DAO fork")]
    DaoExtraData,
    /// The ommers do not have the hash that the header names.
    #[error("ommers hash is {want}, not {got}")]
    OmmersHash {
        /// In the header.
        got: B256,
        /// Computed.
        want: B256,
    },
    /// More than two ommers.
    #[error("{got} ommers, more than 2")]
    OmmerCount {
        /// Ommers in the body.
        got: usize,
    },
    /// The same ommer in this block or in one before it.
    #[error("ommer {index} was named before")]
    OmmerRepeated {
        /// Position in the block.
        index: usize,
    },
    /// An ommer that is an ancestor of the block.
    #[error("ommer {index} is an ancestor")]
    OmmerAncestor {
        /// Position in the block.
        index: usize,
    },
    /// An ommer whose parent is no ancestor of the second to seventh generation.
    #[error("the parent of ommer {index} is no ancestor of the second to seventh generation")]
    OmmerParent {
        /// Position in the block.
        index: usize,
    },
    /// An ommer whose header breaks a rule.
    #[error("ommer {index}: {error}")]
    OmmerHeader {
        /// Position in the block.
        index: usize,
        /// The rule.
        error: Box<BlockError>,
    },
    /// A block of proof of stake on one of proof of work that is not the last (EIP-3675).
    #[error("parent is not the terminal block: its total difficulty {total} is under {terminal}")]
    TerminalNotReached {
        /// Total difficulty of the parent.
        total: U256,
        /// Terminal total difficulty of the chain.
        terminal: U256,
    },
    /// A block of proof of work, or the parent of one of proof of stake, above the terminal block
    /// (EIP-3675).
    #[error("proof of work has ended: total difficulty {total} had reached {terminal}")]
    TerminalPassed {
        /// Total difficulty of the block below.
        total: U256,
        /// Terminal total difficulty of the chain.
        terminal: U256,
    },
}

impl PreMergeRule {
    /// A short constant name of the rule, for metrics and logs.
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
