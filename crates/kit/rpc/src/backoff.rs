use std::time::Duration;

/// First wait before another attempt; it doubles with each.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// Longest wait before another attempt: short, as a service is back in a moment.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// A connection that lived longer is followed by the next at once.
const SETTLED: Duration = Duration::from_secs(1);

/// How long to wait before the next attempt to connect.
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: WAIT_MIN }
    }
}

impl Backoff {
    /// The wait after an attempt, whose connection `lived` so long if it came to be: none after one
    /// that lived a second, otherwise up to twice as long as the wait before and at most a second.
    pub fn wait(&mut self, lived: Option<Duration>) -> Duration {
        if lived.is_some_and(|lived| lived >= SETTLED) {
            self.next = WAIT_MIN;
            return Duration::ZERO;
        }
        // Many clients that lost the same server do not come back at the same moment.
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(WAIT_MAX);
        wait
    }
}

#[cfg(test)]
mod tests;
