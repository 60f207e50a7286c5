//! Pace of one attempt: when its block is to be closed, when it is given up, and when it stands back.

use super::turn::EngineTurn;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Longest time for which one attempt stands back from the engine. Then it goes on beside it, at its
/// low priority.
const STAND_BACK_MAX: Duration = Duration::from_secs(1);

/// Decision before the next transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pacing {
    /// There is time for another transaction.
    Go,
    /// The block is to be closed as it is.
    Close,
    /// Another build is more urgent.
    GiveUp,
}

/// Pace of one attempt.
pub struct Pace<'a> {
    turn: &'a EngineTurn,
    /// Number of the build that is worked on; see [`super::builds::Builds::due`].
    due: &'a AtomicU64,
    own: u64,
    close_at: Instant,
    stand_back: Duration,
}

impl<'a> Pace<'a> {
    /// Begins an attempt at the build `own`, whose block is closed after `fill_max`.
    pub fn new(turn: &'a EngineTurn, due: &'a AtomicU64, own: u64, fill_max: Duration) -> Self {
        let close_at = Instant::now() + fill_max;
        Self { turn, due, own, close_at, stand_back: STAND_BACK_MAX }
    }

    /// Decides about the next transaction. Waits while the engine is at work.
    pub fn next(&mut self) -> Pacing {
        if self.turn.is_taken() && !self.stand_back.is_zero() {
            let began = Instant::now();
            self.turn.wait(self.stand_back);
            let waited = began.elapsed();
            self.stand_back = self.stand_back.saturating_sub(waited);
            self.close_at += waited;
        }
        if self.due.load(Relaxed) != self.own {
            return Pacing::GiveUp;
        }
        if Instant::now() >= self.close_at { Pacing::Close } else { Pacing::Go }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_closed_in_time_and_given_up_for_a_more_urgent_one() {
        let (turn, due) = (EngineTurn::default(), AtomicU64::new(7));
        let long = Duration::from_secs(600);
        assert_eq!(Pace::new(&turn, &due, 7, long).next(), Pacing::Go);
        assert_eq!(Pace::new(&turn, &due, 7, Duration::ZERO).next(), Pacing::Close);
        due.store(8, Relaxed);
        assert_eq!(Pace::new(&turn, &due, 7, long).next(), Pacing::GiveUp);
    }

    #[test]
    fn the_time_of_the_engine_is_not_that_of_the_block_and_has_a_bound() {
        let (turn, due) = (EngineTurn::default(), AtomicU64::new(7));
        let mut pace = Pace::new(&turn, &due, 7, Duration::from_millis(500));
        pace.stand_back = Duration::from_millis(600);
        let taken = turn.take();
        let began = Instant::now();
        assert_eq!(pace.next(), Pacing::Go, "it waited longer than its block takes");
        assert!(began.elapsed() >= Duration::from_millis(600));
        let again = Instant::now();
        let _ = pace.next();
        assert!(again.elapsed() < Duration::from_millis(500), "and waits no more");
        drop(taken);
    }
}
