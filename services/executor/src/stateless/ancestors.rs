//! Blocks before the executed one.

use super::Error;
use alloy_consensus::Header;
use alloy_primitives::map::B256Map;
use tandem_primitives::{B256, BlockNumber};

/// Known data of the blocks before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ancestors {
    /// Headers in any order, including the parent's. Each must be the parent of another, or of the
    /// block: their hashes bind them to it.
    Headers(Vec<Header>),
    /// Claims bound to the block only by the parent's hash. The block's header cannot be checked
    /// against its parent's in this case.
    Claimed {
        /// State that the block starts from.
        state_root: B256,
        /// Hashes of the blocks before, the parent's first.
        hashes: Vec<B256>,
    },
}

/// Known ancestors of one block.
pub struct Lineage {
    /// Header of the parent, `None` if unknown.
    pub parent: Option<Header>,
    /// State root of the parent.
    pub state_root: B256,
    /// Number of the block.
    number: BlockNumber,
    /// Hashes of the blocks before, the parent's first.
    hashes: Vec<B256>,
}

impl Lineage {
    /// Binds the ancestors to a block's header.
    ///
    /// # Errors
    /// [`Error::NoParent`], [`Error::UnlinkedHeader`], [`Error::ParentHash`].
    pub fn new(block: &Header, ancestors: &Ancestors) -> Result<Self, Error> {
        match ancestors {
            Ancestors::Headers(headers) => Self::link(block, headers),
            Ancestors::Claimed { state_root, hashes } => {
                let (got, want) = (hashes.first().copied(), block.parent_hash);
                if got != Some(want) {
                    return Err(Error::ParentHash { got: got.unwrap_or_default(), want });
                }
                let (state_root, hashes) = (*state_root, hashes.clone());
                Ok(Self { parent: None, state_root, number: block.number, hashes })
            }
        }
    }

    fn link(block: &Header, headers: &[Header]) -> Result<Self, Error> {
        let mut by_hash: B256Map<&Header> =
            headers.iter().map(|header| (header.hash_slow(), header)).collect();
        let parent_hash = block.parent_hash;
        let parent = *by_hash.get(&parent_hash).ok_or(Error::NoParent { parent_hash })?;
        let mut hashes = vec![parent_hash];
        let mut next = parent_hash;
        while let Some(header) = by_hash.remove(&next) {
            next = header.parent_hash;
            // The oldest header still names its parent's hash.
            hashes.push(next);
        }
        let stray = by_hash.into_iter().min_by_key(|(_, header)| header.number);
        if let Some((hash, header)) = stray {
            return Err(Error::UnlinkedHeader { number: header.number, hash });
        }
        let (state_root, number) = (parent.state_root, block.number);
        Ok(Self { parent: Some(parent.clone()), state_root, number, hashes })
    }

    /// Returns the hash of the block at this height, below the executed block.
    ///
    /// # Errors
    /// [`crate::Error::MissingHeader`] if no header leads there.
    pub fn hash(&self, number: BlockNumber) -> Result<B256, crate::Error> {
        let missing = crate::Error::MissingHeader(number);
        let behind = self.number.checked_sub(number).and_then(|behind| behind.checked_sub(1));
        let at = behind.and_then(|behind| usize::try_from(behind).ok());
        at.and_then(|at| self.hashes.get(at).copied()).ok_or(missing)
    }
}
