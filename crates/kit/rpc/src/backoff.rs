use std::time::Duration;

/// First wait before a retry; it doubles with each retry.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// Longest wait before a retry: short, as a service is usually back in a moment.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Lifetime of a connection after which the next one is tried at once.
const SETTLED: Duration = Duration::from_secs(1);

/// Wait before the next attempt to connect.
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: WAIT_MIN }
    }
}

impl Backoff {
    /// Returns the wait after an attempt; `lived` is the lifetime of its connection, if there was
    /// one. There is no wait after a connection that lived a second. Otherwise the wait is random,
    /// up to twice the one before, and at most a second.
    pub fn wait(&mut self, lived: Option<Duration>) -> Duration {
        if lived.is_some_and(|lived| lived >= SETTLED) {
            self.next = WAIT_MIN;
            return Duration::ZERO;
        }
        // Clients that lost the same server should not come back at the same moment.
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(WAIT_MAX);
        wait
    }
}

#[cfg(test)]
mod tests;
