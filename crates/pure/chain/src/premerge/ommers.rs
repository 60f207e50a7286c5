use super::PreMergeRule;
use crate::{Block, BlockError, ChainSpec, is_merged, validate_header};
use alloy_consensus::Header;
use alloy_primitives::B256;

/// Maximum number of ommers of one block.
const MAX_OMMERS: usize = 2;

/// Number of ancestors that [`validate_ommers`] needs: the parent of an ommer is an ancestor of the
/// second to seventh generation.
pub const OMMER_GENERATIONS: usize = 7;

/// Ancestor of a block with ommers.
#[derive(Clone, Debug)]
pub struct Ancestor {
    /// Hash of the ancestor.
    pub hash: B256,
    /// Header of the ancestor.
    pub header: Header,
    /// Hashes of the ommers that the ancestor names.
    pub ommers: Vec<B256>,
}

/// Checks the ommers of a block of proof of work in the order of execution-specs'
/// `validate_ommers`. The order is: each header except its seal, their number, repetitions, their
/// kinship (Yellow Paper 11.1). `ancestors` are those of the block, parent first:
/// [`OMMER_GENERATIONS`] of them, or all down to genesis. The header of an ommer is not checked
/// when its parent is not among them, because its kinship fails.
///
/// # Errors
/// The first broken rule.
pub fn validate_ommers(
    spec: &ChainSpec,
    block: &Block,
    ancestors: &[Ancestor],
) -> Result<(), BlockError> {
    for (index, ommer) in block.ommers.iter().enumerate() {
        let parent = ancestors.iter().find(|ancestor| ancestor.hash == ommer.parent_hash);
        if let Some(parent) = parent {
            check_ommer(spec, ommer, &parent.header).map_err(|error| {
                BlockError::from(PreMergeRule::OmmerHeader { index, error: Box::new(error) })
            })?;
        }
    }
    if block.ommers.len() > MAX_OMMERS {
        return Err(PreMergeRule::OmmerCount { got: block.ommers.len() }.into());
    }
    let hashes: Vec<B256> = block.ommers.iter().map(Header::hash_slow).collect();
    if let Some(index) = (1..hashes.len()).find(|&index| hashes[..index].contains(&hashes[index])) {
        return Err(PreMergeRule::OmmerRepeated { index }.into());
    }
    for (index, (ommer, hash)) in block.ommers.iter().zip(&hashes).enumerate() {
        if ancestors.iter().any(|ancestor| ancestor.hash == *hash) {
            return Err(PreMergeRule::OmmerAncestor { index }.into());
        }
        if ancestors.iter().any(|ancestor| ancestor.ommers.contains(hash)) {
            return Err(PreMergeRule::OmmerRepeated { index }.into());
        }
        // A child of the block's own parent is a sibling, not an ommer.
        let mut grandparents = ancestors.iter().take(OMMER_GENERATIONS).skip(1);
        if !grandparents.any(|ancestor| ancestor.hash == ommer.parent_hash) {
            return Err(PreMergeRule::OmmerParent { index }.into());
        }
    }
    Ok(())
}

fn check_ommer(spec: &ChainSpec, ommer: &Header, parent: &Header) -> Result<(), BlockError> {
    if is_merged(ommer) {
        let want = super::next_difficulty(spec, parent, ommer.timestamp);
        return Err(PreMergeRule::Difficulty { got: ommer.difficulty, want }.into());
    }
    validate_header(spec, ommer, parent)
}
