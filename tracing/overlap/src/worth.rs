//! Worth of overlapping: the time that it saved, the time that it could still save, and how the
//! overlap compares with chance.

use serde::Serialize;

use crate::analyze::ratio;
use crate::intervals::Intervals;

/// Times of the threads of one side. Several may be busy at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadTimes {
    /// Sum of their busy times in ns.
    pub(crate) busy_ns: u64,
    /// Sum of their processor times in ns.
    pub(crate) cpu_ns: u64,
}

/// Figures of one payload that weigh its overlap. Times ending in `_ns` are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Worth {
    /// max(|A|,|B|) / wall: the overlap to expect if the shorter side lay anywhere in the wall by
    /// chance. Absent when a side has no work, like the next four.
    pub chance: Option<f64>,
    /// (|A| + |B|) / wall: 1 if the sides took turns without a pause, at most 2.
    pub gain: Option<f64>,
    /// (|A| + |B| − wall) / min(|A|,|B|), clamped to 0..1: the part of the possible gain that was
    /// reached. It is 1 − serialization.
    pub reached: Option<f64>,
    /// |B| / |A|.
    pub b_per_a: Option<f64>,
    /// min(|A|,|B|) / payload: the part of the payload that overlapping can save at most.
    pub weight: Option<f64>,
    /// Processor time of side A's threads while they were busy. Absent unless all its spans tell.
    pub a_cpu_ns: Option<u64>,
    /// Processor time of side B's threads.
    pub b_cpu_ns: Option<u64>,
    /// Processor time of both sides / busy time of their threads: below 1, threads that counted as
    /// busy waited for a processor.
    pub cpu_share: Option<f64>,
    /// (min(CPU of A, |A|) + min(CPU of B, |B|) − |A∪B|) / |A∩B|, clamped to 0..1: the part of the
    /// overlap that processor time proves. Sides that take turns on one processor have 0.
    pub proved: Option<f64>,
    /// Time that overlapping saved: |A∩B|.
    pub saved_ns: u64,
    /// Time that it could still save: min(|A|,|B|) − |A∩B|.
    pub could_save_ns: u64,
    /// Part of the tail in which side B was busy. Absent without a tail, like the next one.
    pub tail_busy_ns: Option<u64>,
    /// Part of the tail in which it was not: waking, transport, waiting.
    pub tail_waiting_ns: Option<u64>,
}

impl Worth {
    /// Weighs the two sides of a payload of this length. `either` is their union, `wasted_ns` the
    /// part of side B's time, while side A was busy, that was in vain, `tail` the time from the end
    /// of side A to the end of the tail, `threads` are the times of each side's threads if known.
    pub(crate) fn of(
        a: &Intervals,
        b: &Intervals,
        either: &Intervals,
        wasted_ns: u64,
        payload_ns: u64,
        tail: Option<(u64, u64)>,
        threads: [Option<ThreadTimes>; 2],
    ) -> Self {
        let wall = either.hull().map_or(0, |(start, end)| end - start);
        let (a_ns, b_ns) = (a.total(), b.total() - wasted_ns);
        let (shorter, longer) = (a_ns.min(b_ns), a_ns.max(b_ns));
        let saved_ns = a_ns + b.total() - either.total() - wasted_ns;
        let [a_cpu_ns, b_cpu_ns] = threads.map(|side| side.map(|times| times.cpu_ns));
        let (mut cpu_share, mut proved) = (None, None);
        if let [Some(a), Some(b)] = threads {
            cpu_share = ratio(a.cpu_ns + b.cpu_ns, a.busy_ns + b.busy_ns);
            let worked = a.cpu_ns.min(a_ns) + b.cpu_ns.min(b_ns);
            proved =
                ratio(worked.saturating_sub(either.total()), saved_ns).map(|part| part.min(1.0));
        }
        let has_both = |value: Option<f64>| value.filter(|_| shorter > 0);
        let tail_ns = tail.map(|(start, end)| end.saturating_sub(start));
        let tail_busy_ns = tail.map(|(start, end)| b.clip(start, end).total());
        Self {
            chance: has_both(ratio(longer, wall)),
            gain: has_both(ratio(a_ns + b_ns, wall)),
            reached: ratio((a_ns + b_ns).saturating_sub(wall), shorter).map(|part| part.min(1.0)),
            b_per_a: has_both(ratio(b_ns, a_ns)),
            weight: has_both(ratio(shorter, payload_ns)),
            a_cpu_ns,
            b_cpu_ns,
            cpu_share,
            proved,
            saved_ns,
            could_save_ns: shorter - saved_ns,
            tail_busy_ns,
            tail_waiting_ns: tail_ns.zip(tail_busy_ns).map(|(all, busy)| all - busy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(parts: &[(u64, u64)]) -> Intervals {
        Intervals::union(parts.iter().copied())
    }

    fn worth(
        a: &Intervals,
        b: &Intervals,
        payload_ns: u64,
        tail: Option<(u64, u64)>,
        threads: [Option<ThreadTimes>; 2],
    ) -> Worth {
        let either = Intervals::union(a.as_slice().iter().chain(b.as_slice()).copied());
        Worth::of(a, b, &either, 0, payload_ns, tail, threads)
    }

    #[test]
    fn half_hidden_side_is_worth_its_hidden_half() {
        // A 0–60, B 40–80: wall 80, 20 of 40 hidden, and the tail is busy for 20 of 30.
        let worth = worth(&set(&[(0, 60)]), &set(&[(40, 80)]), 100, Some((60, 90)), [None; 2]);
        let expected = Worth {
            a_cpu_ns: None,
            b_cpu_ns: None,
            cpu_share: None,
            proved: None,
            chance: Some(0.75),
            gain: Some(1.25),
            reached: Some(0.5),
            b_per_a: Some(40.0 / 60.0),
            weight: Some(0.4),
            saved_ns: 20,
            could_save_ns: 20,
            tail_busy_ns: Some(20),
            tail_waiting_ns: Some(10),
        };
        assert_eq!(worth, expected);
    }

    #[test]
    fn wasted_work_is_worth_nothing() {
        // A 0–60, B 40–80, of which 10 in vain: 10 of 30 hidden, and nothing else changes.
        let (a, b) = (set(&[(0, 60)]), set(&[(40, 80)]));
        let either = set(&[(0, 80)]);
        let worth = Worth::of(&a, &b, &either, 10, 100, Some((60, 90)), [None; 2]);
        assert_eq!((worth.reached, worth.weight), (Some(1.0 / 3.0), Some(0.3)));
        assert_eq!((worth.saved_ns, worth.could_save_ns), (10, 20));
        assert_eq!((worth.gain, worth.tail_busy_ns), (Some(90.0 / 80.0), Some(20)));
    }

    #[test]
    fn without_work_on_a_side_there_is_nothing_to_weigh() {
        let worth = worth(&set(&[(0, 60)]), &set(&[]), 100, None, [None; 2]);
        assert_eq!(worth, Worth::default());
    }

    #[test]
    fn processor_time_proves_an_overlap_or_not() {
        let weigh = |a_cpu, b_cpu| {
            let threads = [(a_cpu, 60), (b_cpu, 10)]
                .map(|(cpu_ns, busy_ns)| Some(ThreadTimes { busy_ns, cpu_ns }));
            worth(&set(&[(0, 60)]), &set(&[(20, 30)]), 60, None, threads)
        };
        // Two processors, then one on which the sides took turns.
        assert_eq!((weigh(60, 10).proved, weigh(60, 10).cpu_share), (Some(1.0), Some(1.0)));
        assert_eq!((weigh(52, 8).proved, weigh(52, 8).cpu_share), (Some(0.0), Some(60.0 / 70.0)));
        assert_eq!(weigh(57, 9).proved, Some(0.6));
    }

    #[test]
    fn idle_time_between_the_sides_reaches_nothing() {
        let worth = worth(&set(&[(0, 10)]), &set(&[(50, 60)]), 60, None, [None; 2]);
        assert_eq!((worth.reached, worth.saved_ns, worth.could_save_ns), (Some(0.0), 0, 10));
    }
}
