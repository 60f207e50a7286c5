//! When the next lookup is due: often while peers are wanted, hardly ever once there are enough.

use crate::Config;
use std::time::Duration;
use tandem_policy::{LookupPauses, Lookups};

/// What a turn of the timer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A lookup of a random target.
    Nodes,
    /// Asking nodes for their records.
    Enrs,
}

/// No configuration makes the timer spin.
const PAUSE_MIN: Duration = Duration::from_millis(20);

struct Timer {
    last: Duration,
    next: Duration,
}

impl Timer {
    fn fire(&mut self, now: Duration, pause: Duration) -> bool {
        let due = self.next <= now;
        if due {
            (self.last, self.next) = (now, now + pause);
        }
        due
    }
}

/// The timer of all lookups; under the legacy policy two, one for each kind.
pub struct Schedule {
    lookups: Lookups,
    pauses: LookupPauses,
    completion: f64,
    /// The only one, or that for nodes.
    timer: Timer,
    /// That for records, `None` while one timer serves both.
    enrs: Option<Timer>,
    turn: Turn,
}

impl Schedule {
    pub fn new(config: &Config) -> Self {
        let pause = |ms| Duration::from_millis(ms).max(PAUSE_MIN);
        let timer = || Timer { last: Duration::ZERO, next: Duration::ZERO };
        Self {
            lookups: config.lookups,
            pauses: LookupPauses {
                fast: pause(config.lookup_fast_ms),
                base: pause(config.lookup_base_ms),
                maintenance: pause(config.lookup_maintenance_ms),
                starving_below: config.starving_below,
            },
            completion: 0.0,
            timer: timer(),
            enrs: config.lookups.has_two_timers().then(timer),
            turn: Turn::Nodes,
        }
    }

    pub fn completion(&self) -> f64 {
        self.completion
    }

    /// Whether there are enough peers.
    pub fn is_satisfied(&self) -> bool {
        self.completion >= 1.0
    }

    /// Whether peers are scarce.
    pub fn is_starving(&self) -> bool {
        self.completion < self.pauses.starving_below
    }

    pub fn next(&self) -> Duration {
        self.enrs.as_ref().map_or(self.timer.next, |enrs| enrs.next.min(self.timer.next))
    }

    fn pause(&self) -> Duration {
        self.lookups.pause(self.completion, &self.pauses)
    }

    /// Hears how far the target is reached. Lost peers are made up for at once; with two timers
    /// each sees to it at its next turn, which is never far.
    pub fn hear(&mut self, now: Duration, completion: f64) {
        let fell = completion < self.completion;
        self.completion = completion;
        if self.enrs.is_none() {
            self.timer.next = if fell { now } else { self.timer.last + self.pause() };
        }
    }

    /// The next turn that is due, if one is; its timer is set anew.
    pub fn due(&mut self, now: Duration) -> Option<Turn> {
        let pause = self.pause();
        if let Some(enrs) = &mut self.enrs {
            if self.timer.fire(now, pause) {
                return Some(Turn::Nodes);
            }
            return enrs.fire(now, pause).then_some(Turn::Enrs);
        }
        if !self.timer.fire(now, pause) {
            return None;
        }
        let turn = self.turn;
        self.turn = match turn {
            Turn::Nodes => Turn::Enrs,
            Turn::Enrs => Turn::Nodes,
        };
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_completion_and_a_fall_wakes_at_once() {
        let mut schedule = Schedule::new(&Config::default());
        let at = Duration::from_millis;
        assert_eq!(schedule.due(at(0)), Some(Turn::Nodes));
        assert_eq!(schedule.due(at(499)), None);
        assert_eq!(schedule.due(at(500)), Some(Turn::Enrs));
        schedule.hear(at(600), 0.6);
        assert_eq!(schedule.next(), at(5_500));
        assert_eq!(schedule.due(at(5_500)), Some(Turn::Nodes));
        schedule.hear(at(5_600), 1.0);
        assert_eq!(schedule.next(), at(35_500));
        schedule.hear(at(6_000), 0.9);
        assert_eq!(schedule.due(at(6_000)), Some(Turn::Enrs));
        assert_eq!(schedule.next(), at(11_000));
    }

    #[test]
    fn the_legacy_policy_has_two_timers_that_enough_peers_do_not_stop() {
        let config = Config { lookups: Lookups::Legacy, ..Config::default() };
        let mut schedule = Schedule::new(&config);
        let mut turns = |from: u64, to: u64| {
            let mut counts = [0, 0];
            for ms in from..to {
                while let Some(turn) = schedule.due(Duration::from_millis(ms)) {
                    counts[usize::from(turn == Turn::Enrs)] += 1;
                }
            }
            schedule.hear(Duration::from_millis(to), 1.0);
            counts
        };
        assert_eq!(turns(0, 1_000), [10, 10]);
        assert_eq!(turns(1_000, 61_000), [100, 100]);
    }
}
