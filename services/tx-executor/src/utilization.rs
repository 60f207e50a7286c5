use crate::metrics as names;
use metrics::gauge;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Weight of the newest block in the average.
const WEIGHT: f64 = 0.1;

/// Time without a block after which the threads count as unused.
const UNUSED: Duration = Duration::from_secs(60);

/// Share of the threads' time in which they execute while a block is open, averaged over blocks: the
/// metric by which tx-executors are scaled. Processor time is none, as blocks come in bursts.
#[derive(Default)]
pub struct Utilization(Mutex<Option<Average>>);

struct Average {
    share: f64,
    newest: Instant,
}

impl Utilization {
    /// Notes a block that was open for this time, in which the threads executed for `busy` in all.
    pub fn note(&self, now: Instant, open: Duration, busy: Duration, threads: usize) {
        let most = open.as_secs_f64() * threads as f64;
        if most <= 0.0 {
            return;
        }
        let sample = (busy.as_secs_f64() / most).min(1.0);
        let mut average = self.0.lock();
        let share = average.as_ref().map_or(sample, |it| it.share + WEIGHT * (sample - it.share));
        *average = Some(Average { share, newest: now });
        gauge!(names::UTILIZATION).set(share);
    }

    /// Forgets the average when no block came for a while.
    pub fn expire(&self, now: Instant) {
        let mut average = self.0.lock();
        let is_old = |it: &mut Average| now.saturating_duration_since(it.newest) > UNUSED;
        if average.take_if(is_old).is_some() {
            gauge!(names::UTILIZATION).set(0.0);
        }
    }

    #[cfg(test)]
    fn share(&self) -> Option<f64> {
        self.0.lock().as_ref().map(|it| it.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_averaged_and_the_average_ends_when_none_comes() {
        let (utilization, now) = (Utilization::default(), Instant::now());
        let second = Duration::from_secs(1);
        utilization.note(now, Duration::ZERO, Duration::ZERO, 4);
        assert_eq!(utilization.share(), None, "no time has passed");
        utilization.note(now, second, 2 * second, 4);
        assert_eq!(utilization.share(), Some(0.5));
        utilization.note(now, second, 9 * second, 4);
        assert!((utilization.share().unwrap() - 0.55).abs() < 1e-9, "at most all of the time");
        utilization.expire(now + UNUSED);
        assert!(utilization.share().is_some());
        utilization.expire(now + UNUSED + second);
        assert_eq!(utilization.share(), None);
    }
}
