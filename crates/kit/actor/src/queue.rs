//! Metrics of a queue: how many messages wait in it, and how long each waited.

use crate::{SendError, metrics};
use ::metrics::{Counter, Gauge, Histogram};
use std::{sync::Arc, time::Instant};

/// Metrics of a bounded queue, whatever channel it is made of. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Meters>);

#[derive(Debug)]
pub(crate) struct Meters {
    pub messages: Gauge,
    pub wait: Histogram,
    pub refused: Counter,
}

impl Queue {
    /// Returns the metrics of the queue with this name. Queues with the same name are added up.
    pub fn named(name: &'static str) -> Self {
        metrics::describe();
        Self::with(metrics::of(name))
    }

    pub(crate) fn with(meters: Meters) -> Self {
        // Shows the zeros from the start.
        meters.messages.increment(0.0);
        meters.refused.increment(0);
        Self(Arc::new(meters))
    }

    /// Counts a message as waiting from now until it is taken out or dropped.
    pub fn put<T>(&self, message: T) -> Queued<T> {
        self.0.messages.increment(1.0);
        Queued { message, place: Place { queue: self.clone(), since: Instant::now() } }
    }

    /// Counts a message as refused for lack of room.
    pub fn refuse(&self) -> SendError {
        self.0.refused.increment(1);
        SendError::Full
    }
}

/// Message that waits until the receiver takes it out.
#[derive(Debug)]
pub struct Queued<T> {
    message: T,
    place: Place,
}

impl<T> Queued<T> {
    /// Returns the message and ends its wait.
    pub fn take(self) -> T {
        self.take_with_time().0
    }

    /// Returns the message and the time at which its wait began.
    pub fn take_with_time(self) -> (T, Instant) {
        let Self { message, place } = self;
        place.queue.0.wait.record(place.since.elapsed());
        (message, place.since)
    }
}

/// Place of a message in the queue. It is freed on drop, also for a message that is never taken.
#[derive(Debug)]
struct Place {
    queue: Queue,
    since: Instant,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.0.messages.decrement(1.0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ::metrics::HistogramFn;
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    /// Values that a queue has reported.
    #[derive(Default)]
    pub struct Shown {
        messages: Arc<AtomicU64>,
        refused: Arc<AtomicU64>,
        waits: Arc<Waits>,
    }

    #[derive(Default)]
    struct Waits(Mutex<Vec<f64>>);

    impl HistogramFn for Waits {
        fn record(&self, value: f64) {
            self.0.lock().unwrap().push(value);
        }
    }

    impl Shown {
        pub fn queue(&self) -> Queue {
            let (messages, refused) = (self.messages.clone().into(), self.refused.clone().into());
            let wait = Histogram::from_arc(self.waits.clone());
            Queue::with(Meters { messages, wait, refused })
        }

        /// Returns the numbers of messages waiting, taken and refused.
        pub fn counts(&self) -> (f64, usize, u64) {
            let messages = f64::from_bits(self.messages.load(Relaxed));
            (messages, self.waits.0.lock().unwrap().len(), self.refused.load(Relaxed))
        }
    }

    #[test]
    fn a_message_waits_until_it_is_taken_or_dropped() {
        let shown = Shown::default();
        let queue = shown.queue();
        let (one, two) = (queue.put('a'), queue.clone().put('b'));
        assert_eq!(shown.counts(), (2.0, 0, 0));
        assert_eq!(one.take(), 'a');
        assert_eq!(shown.counts(), (1.0, 1, 0));
        drop(two);
        assert_eq!(queue.refuse(), SendError::Full);
        assert_eq!(shown.counts(), (0.0, 1, 1), "of what nobody took there is no wait");
        assert!(shown.waits.0.lock().unwrap().iter().all(|wait| (0.0..60.0).contains(wait)));
    }
}
