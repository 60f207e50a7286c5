//! Limits for the calls of one request, and cutting of calls that exceed them.
//!
//! A request is one HTTP body: a call, or a batch of calls that are answered one after the other.
//! All calls of a request share its limits. Only the time during which a call executes counts, as
//! in geth. The time it waits for a thread does not count.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Reason for cutting a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Cut {
    /// The request's calls have executed for this many seconds. The wording is geth's.
    #[error("execution aborted (timeout = {0}s)")]
    TimedOut(u64),
    /// The request's calls have used this much gas.
    #[error("the calls of this request have used {0} gas or more, the most that they may use")]
    GasUsed(u64),
    /// The caller has gone, or the node stops.
    #[error("the caller is gone, or the node stops")]
    Abandoned,
}

/// Limits shared by the calls of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Seconds of execution; 0 for no limit.
    pub seconds_max: u64,
    /// Gas of all executions. The execution that exceeds this limit is the last one.
    pub gas_max: u64,
}

/// Usage by the calls of one request so far.
#[derive(Default, Debug)]
pub struct Usage {
    abandoned: AtomicBool,
    nanoseconds: AtomicU64,
    gas: AtomicU64,
}

impl Usage {
    /// Marks the caller as gone: the running call is cut, and the remaining calls do not begin.
    pub fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }

    /// Returns whether the caller is gone.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }
}

/// Executing call. Its time is added to its request's time when it ends.
#[derive(Debug)]
pub struct Running<'a> {
    usage: &'a Usage,
    limits: Limits,
    stopping: &'a AtomicBool,
    started: Instant,
    /// Remaining time of the request.
    time_left: Option<Duration>,
}

impl<'a> Running<'a> {
    /// Begins a call of the request whose usage is `usage`. Setting `stopping` cuts the call.
    ///
    /// # Errors
    /// [`Cut`] if no time or gas is left for the call, or the caller is gone.
    pub fn begin(
        usage: &'a Usage,
        limits: Limits,
        stopping: &'a AtomicBool,
        now: Instant,
    ) -> Result<Self, Cut> {
        let used = Duration::from_nanos(usage.nanoseconds.load(Relaxed));
        let time_max = (limits.seconds_max > 0).then(|| Duration::from_secs(limits.seconds_max));
        let time_left = time_max.map(|time_max| time_max.saturating_sub(used));
        let running = Self { usage, limits, stopping, started: now, time_left };
        running.check_at(now)?;
        running.check_gas()?;
        Ok(running)
    }

    /// Checks whether the call may continue. Long-running work must call this often.
    ///
    /// # Errors
    /// [`Cut`] if the call must end.
    pub fn check(&self) -> Result<(), Cut> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), Cut> {
        if self.usage.is_abandoned() || self.stopping.load(Relaxed) {
            return Err(Cut::Abandoned);
        }
        let elapsed = now.saturating_duration_since(self.started);
        match self.time_left {
            Some(left) if elapsed >= left => Err(Cut::TimedOut(self.limits.seconds_max)),
            _ => Ok(()),
        }
    }

    /// Checks whether gas is left for another execution.
    ///
    /// # Errors
    /// [`Cut::GasUsed`].
    pub fn check_gas(&self) -> Result<(), Cut> {
        match self.usage.gas.load(Relaxed) >= self.limits.gas_max {
            true => Err(Cut::GasUsed(self.limits.gas_max)),
            false => Ok(()),
        }
    }

    /// Adds the gas that an execution has used.
    pub fn add_gas(&self, gas: u64) {
        self.usage.gas.fetch_add(gas, Relaxed);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.usage.nanoseconds.fetch_add(elapsed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { seconds_max: 5, gas_max: 100 };

    #[test]
    fn the_calls_of_a_request_share_its_time_and_its_gas() {
        let (usage, stopping) = (Usage::default(), AtomicBool::new(false));
        let begin = |usage| Running::begin(usage, LIMITS, &stopping, Instant::now());
        let first = begin(&usage).unwrap();
        assert_eq!(first.check(), Ok(()));
        assert_eq!(first.check_at(first.started + Duration::from_secs(4)), Ok(()));
        let late = first.started + Duration::from_secs(5);
        assert_eq!(first.check_at(late), Err(Cut::TimedOut(5)));
        first.add_gas(99);
        assert_eq!(first.check_gas(), Ok(()));
        drop(first);
        // The second call may use the rest.
        usage.nanoseconds.store(4_000_000_000, Relaxed);
        let second = begin(&usage).unwrap();
        let late = second.started + Duration::from_secs(1);
        assert_eq!(second.check_at(late), Err(Cut::TimedOut(5)));
        second.add_gas(1);
        assert_eq!(second.check_gas(), Err(Cut::GasUsed(100)));
        drop(second);
        assert_eq!(begin(&usage).unwrap_err(), Cut::GasUsed(100));
        usage.nanoseconds.store(5_000_000_000, Relaxed);
        assert_eq!(begin(&usage).unwrap_err(), Cut::TimedOut(5));
        assert_eq!(Cut::TimedOut(5).to_string(), "execution aborted (timeout = 5s)");
        assert!(begin(&Usage::default()).is_ok(), "another request has its own");
    }

    #[test]
    fn a_caller_that_goes_and_a_node_that_stops_cut_the_call() {
        let (usage, stopping) = (Usage::default(), AtomicBool::new(false));
        let unlimited = Limits { seconds_max: 0, gas_max: u64::MAX };
        let running = Running::begin(&usage, unlimited, &stopping, Instant::now()).unwrap();
        assert_eq!(running.check_at(running.started + Duration::from_secs(86_400)), Ok(()));
        stopping.store(true, Relaxed);
        assert_eq!(running.check(), Err(Cut::Abandoned));
        stopping.store(false, Relaxed);
        usage.abandon();
        assert_eq!(running.check(), Err(Cut::Abandoned));
        let next = Running::begin(&usage, unlimited, &stopping, Instant::now());
        assert_eq!(next.unwrap_err(), Cut::Abandoned);
    }
}
