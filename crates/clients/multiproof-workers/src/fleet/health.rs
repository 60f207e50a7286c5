//! Role of one worker, derived from its record.

use std::time::{Duration, Instant};

/// Blocks in a row that a worker on trial may fail before it is suspended: its tries are cold.
const TRIALS: u32 = 3;
/// Blocks in time, in a row, after which earlier failures are forgotten.
const FORGIVEN: u32 = 64;

/// Time for which a worker that failed is suspended.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub min: Duration,
    /// Longest time.
    pub max: Duration,
}

/// Use of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerRole {
    /// The worker answers for its shards.
    Active,
    /// The worker gets blocks beside those that answer.
    Trial,
    /// The worker failed and is left alone.
    Suspended,
    /// The worker gave wrong roots and is not used.
    Quarantined,
}

/// Record of one worker.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Connection over which the worker has shown that it is in time. Another connection may lead
    /// to another process, with cold tries.
    proven: Option<u64>,
    failures: u32,
    in_time: u32,
    suspended_until: Option<Instant>,
    quarantined_until: Option<Instant>,
}

impl Health {
    /// Returns the role of the worker over this connection.
    pub fn role(&self, now: Instant, connection: u64) -> WorkerRole {
        let holds = |until: Option<Instant>| until.is_some_and(|until| now < until);
        if holds(self.quarantined_until) {
            WorkerRole::Quarantined
        } else if holds(self.suspended_until) {
            WorkerRole::Suspended
        } else if self.proven == Some(connection) {
            WorkerRole::Active
        } else {
            WorkerRole::Trial
        }
    }

    /// Returns whether the worker has no remembered failure.
    pub fn has_no_failures(&self) -> bool {
        self.failures == 0
    }

    /// Returns whether the worker must be remembered.
    pub fn must_be_remembered(&self, now: Instant) -> bool {
        matches!(self.role(now, 0), WorkerRole::Suspended | WorkerRole::Quarantined)
    }

    /// Notes that the worker was in time with a block, or that no other worker can answer.
    pub fn record_in_time(&mut self, connection: u64) {
        self.proven = Some(connection);
        self.in_time += 1;
        if self.in_time >= FORGIVEN {
            self.failures = 0;
        }
    }

    /// Notes that the worker was late or lost, or had no roots.
    pub fn record_failure(&mut self, now: Instant, backoff: &Backoff) {
        self.in_time = 0;
        self.failures = self.failures.saturating_add(1);
        if self.proven.take().is_some() {
            self.failures = self.failures.max(TRIALS + 1);
        }
        if let Some(doublings) = self.failures.checked_sub(TRIALS + 1) {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            self.suspended_until = Some(now + backoff.min.saturating_mul(factor).min(backoff.max));
        }
    }

    /// Notes that the worker gave wrong roots.
    pub fn quarantine(&mut self, until: Instant) {
        self.proven = None;
        self.failures = self.failures.max(TRIALS);
        self.quarantined_until = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(10) };

    #[test]
    fn a_newcomer_is_on_trial_until_it_was_in_time() {
        let (mut health, now) = (Health::default(), Instant::now());
        assert_eq!(health.role(now, 1), WorkerRole::Trial);
        for _ in 0..TRIALS {
            health.record_failure(now, &BACKOFF);
            assert_eq!(health.role(now, 1), WorkerRole::Trial, "its tries may have been cold");
        }
        health.record_in_time(1);
        assert_eq!(health.role(now, 1), WorkerRole::Active);
        assert_eq!(health.role(now, 2), WorkerRole::Trial, "another process, perhaps");
    }

    #[test]
    fn one_that_fails_is_left_alone_for_longer_each_time() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        health.record_in_time(1);
        for wait in [1, 2, 4, 8, 10, 10] {
            health.record_failure(now, &BACKOFF);
            assert_eq!(health.role(now, 1), WorkerRole::Suspended);
            let before = now + Duration::from_secs(wait) - Duration::from_millis(1);
            assert_eq!(health.role(before, 1), WorkerRole::Suspended);
            now += Duration::from_secs(wait);
            assert_eq!(health.role(now, 1), WorkerRole::Trial);
            health.record_in_time(1);
            assert_eq!(health.role(now, 1), WorkerRole::Active);
        }
        (0..FORGIVEN).for_each(|_| health.record_in_time(1));
        assert!(health.has_no_failures());
        health.record_failure(now, &BACKOFF);
        assert_eq!(health.role(now + BACKOFF.min, 1), WorkerRole::Trial, "as the first time");
    }

    #[test]
    fn a_quarantine_ends_in_a_trial() {
        let (mut health, now) = (Health::default(), Instant::now());
        health.record_in_time(1);
        let until = now + Duration::from_secs(600);
        health.quarantine(until);
        assert!(health.must_be_remembered(now) && !health.must_be_remembered(until));
        assert_eq!(health.role(now, 1), WorkerRole::Quarantined);
        assert_eq!(health.role(until, 1), WorkerRole::Trial);
        assert!(!health.has_no_failures());
    }
}
