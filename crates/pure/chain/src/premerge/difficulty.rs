use crate::{ChainSpec, Fork};
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_primitives::U256;

/// Minimum difficulty of a block, before the bomb is added.
const MIN_DIFFICULTY: u64 = 131_072;

/// Divisor of the parent's difficulty that gives one step up or down.
const STEP_DIVISOR: u64 = 2_048;

/// Maximum number of steps down, from Homestead on.
const STEPS_DOWN_MAX: u64 = 99;

/// Number of blocks after which the bomb doubles.
const BOMB_PERIOD: u64 = 100_000;

/// Number of blocks by which each fork delays the bomb, newest first (EIP-5133, 4345, 3554, 2384,
/// 1234, 649).
const BOMB_DELAYS: [(Fork, u64); 6] = [
    (Fork::GrayGlacier, 11_400_000),
    (Fork::ArrowGlacier, 10_700_000),
    (Fork::London, 9_700_000),
    (Fork::MuirGlacier, 9_000_000),
    (Fork::Constantinople, 5_000_000),
    (Fork::Byzantium, 3_000_000),
];

/// Returns the difficulty of a block with this timestamp (in seconds) on a parent of proof of work
/// (Yellow Paper 4.3.4, EIP-2, 100, and the EIPs that delay the bomb).
pub fn next_difficulty(spec: &ChainSpec, parent: &Header, timestamp: u64) -> U256 {
    let number = parent.number.saturating_add(1);
    let active = |fork| spec.is_active_at_block(fork, number);
    let elapsed = timestamp.saturating_sub(parent.timestamp);
    let (up, down) = if active(Fork::Byzantium) {
        let ommers = parent.ommers_hash != EMPTY_OMMER_ROOT_HASH;
        (1 + u64::from(ommers), elapsed / 9)
    } else if active(Fork::Homestead) {
        (1, elapsed / 10)
    } else if elapsed < 13 {
        (1, 0)
    } else {
        (0, 1)
    };
    let step = parent.difficulty / U256::from(STEP_DIVISOR);
    let adjusted = if up >= down {
        parent.difficulty.saturating_add(step.saturating_mul(U256::from(up - down)))
    } else {
        let steps = U256::from((down - up).min(STEPS_DOWN_MAX));
        parent.difficulty.saturating_sub(step.saturating_mul(steps))
    };
    let delay = BOMB_DELAYS.iter().find(|(fork, _)| active(*fork)).map_or(0, |(_, delay)| *delay);
    let periods = number.saturating_sub(delay) / BOMB_PERIOD;
    let bomb = match periods.checked_sub(2) {
        None => U256::ZERO,
        // The end of this range is unreachable, except for a genesis with such a block number.
        Some(exponent @ 0..256) => U256::ONE << exponent,
        Some(_) => U256::MAX,
    };
    adjusted.max(U256::from(MIN_DIFFICULTY)).saturating_add(bomb)
}
