//! Contract of sync, which brings the chain to the head that the consensus client chose.

use tandem_primitives::BlockNumber;

/// Progress of the synchronisation from peers, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncProgress {
    /// Work under way: `headers`, `blocks` or `state`.
    pub stage: &'static str,
    /// Head at the beginning.
    pub starting: BlockNumber,
    /// Newest executed block.
    pub current: BlockNumber,
    /// Highest block that is known of.
    pub highest: BlockNumber,
    /// Lowest header of the way down from the wanted head, while it goes on.
    pub lowest_header: Option<BlockNumber>,
    /// Number of peers that are asked.
    pub peers: usize,
    /// Seconds that the rest takes at the present pace, if that is known.
    pub seconds_left: Option<u64>,
    /// Downloaded part of a state, while the download goes on.
    pub state: Option<StateProgress>,
}

/// Progress of the download of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateProgress {
    /// Done share of the keys, in thousandths.
    pub permille: u64,
    /// Downloaded accounts.
    pub accounts: u64,
    /// Downloaded slots.
    pub slots: u64,
    /// Downloaded codes.
    pub codes: u64,
}
