//! Position of a follower, for readiness and for people, and the view that serves readers.

use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{B256, BlockId, Bytes, StateDiff};
use tandem_proto::storage::Forkchoice;

/// Readers' view of the chain. It hears of changes after they are durable.
pub trait ChainView: Send + Sync + 'static {
    /// A block is stored, as a child of a block that is stored.
    fn stored(&self, block: BlockId, parent: B256, header: &Bytes, diff: Arc<StateDiff>);

    /// A forkchoice is made.
    fn chosen(&self, forkchoice: Forkchoice);

    /// A downloaded state is adopted, so everything is to be read anew.
    fn adopted(&self);

    /// Shows the leader's head, `None` at it.
    fn behind(&self, leader: Option<BlockId>);
}

/// Position of a follower.
#[derive(Clone, Debug, Default)]
pub struct Status(Arc<Mutex<Position>>);

#[derive(Clone, Debug, Default)]
struct Position {
    head: BlockId,
    leader: Option<BlockId>,
    heard: Option<Instant>,
    /// Whether a leader speaks over the present connection.
    is_led: bool,
    /// Time since which the leader has had another head.
    behind: Option<Instant>,
    refused: Option<Arc<str>>,
    outdated: bool,
}

impl Status {
    /// Notes the own head.
    pub(crate) fn set_head(&self, head: BlockId) {
        self.0.lock().head = head;
    }

    /// Notes a word of the leader, and its head if it said that. Returns how long its head was
    /// another one, once it no longer is.
    pub(crate) fn hear(&self, now: Instant, leader: Option<BlockId>) -> Option<Duration> {
        let mut position = self.0.lock();
        position.heard = Some(now);
        position.is_led = true;
        if leader.is_some() {
            position.leader = leader;
        }
        if position.leader == Some(position.head) {
            return position.behind.take().map(|since| now - since);
        }
        position.behind.get_or_insert(now);
        None
    }

    /// Notes that the connection to the leader is gone.
    pub(crate) fn set_lost(&self) {
        self.0.lock().is_led = false;
    }

    /// Returns whether a leader is in reach.
    pub fn is_led(&self) -> bool {
        self.0.lock().is_led
    }

    /// Notes why a leader was refused.
    pub(crate) fn set_refused(&self, reason: &str) {
        self.0.lock().refused = Some(reason.into());
    }

    /// Returns why a leader was refused last, `None` if none was.
    pub fn refused(&self) -> Option<Arc<str>> {
        self.0.lock().refused.clone()
    }

    /// Notes that no leader has the changes after the own head.
    pub(crate) fn set_outdated(&self) {
        self.0.lock().outdated = true;
    }

    /// Returns whether the follower ended because only a new copy can lead to a leader's head.
    pub fn is_outdated(&self) -> bool {
        self.0.lock().outdated
    }

    /// Returns the own head, and the leader's as far as it is known.
    pub fn heads(&self) -> (BlockId, Option<BlockId>) {
        let position = self.0.lock();
        (position.head, position.leader)
    }

    /// Returns the blocks from the own head to the leader's, `None` before a leader was heard.
    pub fn lag_blocks(&self) -> Option<u64> {
        let position = self.0.lock();
        let leader = position.leader?;
        let blocks = leader.number.abs_diff(position.head.number);
        Some(if leader == position.head { 0 } else { blocks.max(1) })
    }

    /// Returns for how long the leader has had another head.
    pub fn lag_time(&self, now: Instant) -> Duration {
        self.0.lock().behind.map_or(Duration::ZERO, |since| now - since)
    }

    /// Returns whether reads are fresh: a leader was heard lately, and is few blocks ahead.
    pub fn is_fresh(&self, now: Instant, lag_blocks_max: u64, silence_max: Duration) -> bool {
        let heard = self.0.lock().heard;
        heard.is_some_and(|at| now - at <= silence_max)
            && self.lag_blocks().is_some_and(|blocks| blocks <= lag_blocks_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_fresh_near_the_head_of_a_leader_that_speaks() {
        let status = Status::default();
        let (start, max) = (Instant::now(), Duration::from_secs(10));
        let block = |number: u64| BlockId::new(number, B256::with_last_byte(number as u8));
        assert!(!status.is_fresh(start, 4, max), "no leader was heard");
        status.set_head(block(5));
        assert_eq!(status.hear(start, Some(block(9))), None);
        assert_eq!(status.lag_blocks(), Some(4));
        assert!(status.is_fresh(start, 4, max) && !status.is_fresh(start, 3, max));
        assert!(!status.is_fresh(start + max * 2, 4, max), "it is silent");
        let later = start + Duration::from_secs(3);
        assert_eq!(status.lag_time(later), Duration::from_secs(3));
        assert!(status.is_led());
        status.set_lost();
        assert!(!status.is_led());
        status.set_head(block(9));
        assert_eq!(status.hear(later, None), Some(Duration::from_secs(3)));
        assert_eq!((status.lag_blocks(), status.lag_time(later)), (Some(0), Duration::ZERO));
        // Another block of the same height is a lag as well.
        status.hear(later, Some(BlockId::new(9, B256::ZERO)));
        assert_eq!(status.lag_blocks(), Some(1));
    }
}
