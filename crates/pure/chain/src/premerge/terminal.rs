use super::PreMergeRule;
use crate::{BlockError, ChainSpec, is_merged};
use alloy_consensus::Header;
use alloy_primitives::U256;

/// Checks the end of proof of work (EIP-3675). `header` stands on a parent of proof of work whose
/// total difficulty, its own included, is `parent_total`. The terminal block is the first to reach
/// the terminal total difficulty. A block of proof of stake needs the terminal block as its parent;
/// a block of proof of work needs a parent before it.
///
/// # Errors
/// [`PreMergeRule::TerminalNotReached`], [`PreMergeRule::TerminalPassed`].
pub fn check_terminal(
    spec: &ChainSpec,
    header: &Header,
    parent: &Header,
    parent_total: U256,
) -> Result<(), BlockError> {
    let terminal = spec.terminal_total_difficulty();
    if !is_merged(header) {
        return match parent_total >= terminal {
            true => Err(PreMergeRule::TerminalPassed { total: parent_total, terminal }.into()),
            false => Ok(()),
        };
    }
    if parent_total < terminal {
        return Err(PreMergeRule::TerminalNotReached { total: parent_total, terminal }.into());
    }
    // Nothing below genesis can have ended proof of work earlier.
    let total = parent_total.saturating_sub(parent.difficulty);
    if !total.is_zero() && total >= terminal {
        return Err(PreMergeRule::TerminalPassed { total, terminal }.into());
    }
    Ok(())
}
