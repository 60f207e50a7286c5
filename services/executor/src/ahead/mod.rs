//! Work on a block before its turn: senders are recovered, keys are read, transactions are executed.
//!
//! Nothing here decides whether a block is valid. The engine compares what it takes from here with
//! the block's own state, or computes it again.

pub mod listed;
pub mod predict;
pub mod read_ahead;
pub mod senders;
pub mod speculate;
