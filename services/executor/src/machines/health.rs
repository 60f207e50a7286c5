//! Use of one tx-executor, derived from its record.

use std::time::{Duration, Instant};

/// Failures in a row after which a tx-executor is suspended.
const FAILURES_MAX: u32 = 3;
/// Time for which one is suspended at first; doubles each time.
const SUSPENDED_MIN: Duration = Duration::from_secs(1);
/// Longest time for which one is suspended.
const SUSPENDED_MAX: Duration = Duration::from_secs(60);
/// Time for which one with a wrong result is not used.
const QUARANTINE: Duration = Duration::from_secs(600);
/// Blocks without a failure after which earlier ones are forgotten.
const FORGIVEN: u32 = 64;

/// Use of a tx-executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Its results are used.
    Active,
    /// It gets a few transactions of a block, which are executed here as well and compared.
    Trial,
    /// It failed and is left alone.
    Suspended,
    /// It gave a wrong result and is not used.
    Quarantined,
}

impl Role {
    /// All roles, with their names in metrics.
    pub const NAMES: [(Self, &'static str); 4] = [
        (Self::Active, "active"),
        (Self::Trial, "trial"),
        (Self::Suspended, "suspended"),
        (Self::Quarantined, "quarantined"),
    ];
}

/// Record of one tx-executor.
#[derive(Debug, Default)]
pub struct Health {
    /// Connection over which its results were compared. Another one may lead to another process.
    proven: Option<u64>,
    failures: u32,
    in_time: u32,
    suspended_until: Option<Instant>,
    quarantined_until: Option<Instant>,
}

impl Health {
    /// Returns the use of the tx-executor over this connection.
    pub fn role(&self, now: Instant, connection: u64) -> Role {
        let holds = |until: Option<Instant>| until.is_some_and(|until| now < until);
        if holds(self.quarantined_until) {
            Role::Quarantined
        } else if holds(self.suspended_until) {
            Role::Suspended
        } else if self.proven == Some(connection) {
            Role::Active
        } else {
            Role::Trial
        }
    }

    /// Notes that all results of a trial over this connection were right.
    pub fn prove(&mut self, connection: u64) {
        self.proven = Some(connection);
    }

    /// Notes a block without a failure.
    pub fn note_in_time(&mut self) {
        self.in_time += 1;
        if self.in_time >= FORGIVEN {
            self.failures = 0;
        }
    }

    /// Notes that the tx-executor was late or lost. After a suspension it is on trial.
    pub fn note_failure(&mut self, now: Instant) {
        self.in_time = 0;
        self.failures = self.failures.saturating_add(1);
        if let Some(doublings) = self.failures.checked_sub(FAILURES_MAX) {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            let wait = SUSPENDED_MIN.saturating_mul(factor).min(SUSPENDED_MAX);
            (self.suspended_until, self.proven) = (Some(now + wait), None);
        }
    }

    /// Notes that the tx-executor gave a wrong result.
    pub fn quarantine(&mut self, now: Instant) {
        (self.quarantined_until, self.proven) = (Some(now + QUARANTINE), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tx_executor_is_on_trial_over_each_new_connection() {
        let (mut health, now) = (Health::default(), Instant::now());
        assert_eq!(health.role(now, 1), Role::Trial);
        health.prove(1);
        assert_eq!((health.role(now, 1), health.role(now, 2)), (Role::Active, Role::Trial));
    }

    #[test]
    fn one_that_fails_is_left_alone_for_longer_each_time() {
        let (mut health, mut now) = (Health::default(), Instant::now());
        health.prove(1);
        (1..FAILURES_MAX).for_each(|_| health.note_failure(now));
        assert_eq!(health.role(now, 1), Role::Active);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            health.note_failure(now);
            assert_eq!(health.role(now, 1), Role::Suspended);
            now += Duration::from_secs(seconds);
            assert_eq!(health.role(now, 1), Role::Trial);
        }
        (0..FORGIVEN).for_each(|_| health.note_in_time());
        health.note_failure(now);
        assert_eq!(health.role(now, 1), Role::Trial, "earlier failures are forgotten");
    }

    #[test]
    fn a_quarantine_ends_in_a_trial() {
        let (mut health, now) = (Health::default(), Instant::now());
        health.prove(1);
        health.quarantine(now);
        assert_eq!(health.role(now, 1), Role::Quarantined);
        assert_eq!(health.role(now + QUARANTINE, 1), Role::Trial);
    }
}
