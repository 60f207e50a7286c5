//! Forkchoices that wait for the stream.

use crate::metrics as names;
use metrics::{counter, histogram};
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};
use tandem_proto::storage::{Error, Result};

/// Blocks that the stream has acknowledged. The publisher notes it, and callers of a forkchoice wait.
#[derive(Debug, Default)]
pub struct StreamAcks {
    stand: Mutex<Stand>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Stand {
    /// Number of the newest change of the forkchoice that is in the stream, with all blocks.
    stored: u64,
    /// Reason why the publisher does not get on now.
    failure: Option<String>,
    /// Whether the publisher has given up.
    ended: bool,
}

impl StreamAcks {
    /// Notes that all changes of the forkchoice up to this number are in the stream.
    pub fn stored(&self, changes: u64) {
        let mut stand = self.stand.lock();
        stand.stored = stand.stored.max(changes);
        stand.failure = None;
        drop(stand);
        self.changed.notify_all();
    }

    /// Notes why the publisher does not get on, and whether it has given up.
    pub fn failed(&self, reason: String, ended: bool) {
        let mut stand = self.stand.lock();
        stand.failure = Some(reason);
        stand.ended = ended;
        drop(stand);
        self.changed.notify_all();
    }

    /// Waits until a change of the forkchoice is in the stream.
    ///
    /// # Errors
    /// [`Error::Store`] after `wait`, or when the publisher has given up.
    pub fn wait_for(&self, change: u64, wait: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut stand = self.stand.lock();
        while stand.stored < change && !stand.ended {
            if self.changed.wait_until(&mut stand, begun + wait).timed_out() {
                break;
            }
        }
        histogram!(names::STREAM_WAIT_SECONDS).record(begun.elapsed());
        if stand.stored >= change {
            return Ok(());
        }
        counter!(names::STREAM_ACKS_MISSED).increment(1);
        let reason = stand.failure.as_deref().unwrap_or("the stream lags behind the head");
        Err(Error::Store(format!(
            "the head is durable here, but the stream has not acknowledged it after {} ms: {reason}",
            begun.elapsed().as_millis()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread};

    #[test]
    fn a_forkchoice_waits_for_its_own_change_and_no_longer_than_it_may() {
        let acks = Arc::<StreamAcks>::default();
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
        let error = acks.wait_for(1, short).unwrap_err().to_string();
        assert!(error.contains("the stream lags"), "{error}");
        let waiting = acks.clone();
        let waiter = thread::spawn(move || waiting.wait_for(2, long));
        acks.stored(1);
        assert!(!waiter.is_finished());
        acks.stored(3);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        acks.failed("no connection".to_owned(), false);
        let error = acks.wait_for(4, short).unwrap_err().to_string();
        assert!(error.contains("no connection"), "{error}");
        // Nothing can be expected of a publisher that gave up.
        acks.failed("fenced".to_owned(), true);
        let begun = Instant::now();
        assert!(acks.wait_for(4, long).is_err() && begun.elapsed() < long);
        assert_eq!(acks.wait_for(3, short), Ok(()), "what was stored stays so");
        // It begins again in a later term.
        acks.failed("the publisher begins again".to_owned(), false);
        let waiting = acks.clone();
        let waiter = thread::spawn(move || waiting.wait_for(4, long));
        acks.stored(4);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}
