//! When the next lookup is due: often while peers are wanted, hardly ever once there are enough.

use crate::Config;
use std::time::Duration;

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

/// The one timer of all lookups.
pub struct Schedule {
    completion: f64,
    last: Duration,
    next: Duration,
    turn: Turn,
    fast: Duration,
    base: Duration,
    maintenance: Duration,
    starving_below: f64,
}

impl Schedule {
    pub fn new(config: &Config) -> Self {
        let pause = |ms| Duration::from_millis(ms).max(PAUSE_MIN);
        Self {
            completion: 0.0,
            last: Duration::ZERO,
            next: Duration::ZERO,
            turn: Turn::Nodes,
            fast: pause(config.lookup_fast_ms),
            base: pause(config.lookup_base_ms),
            maintenance: pause(config.lookup_maintenance_ms),
            starving_below: config.starving_below,
        }
    }

    pub fn completion(&self) -> f64 {
        self.completion
    }

    /// Whether there are enough peers.
    pub fn is_satisfied(&self) -> bool {
        self.completion >= 1.0
    }

    pub fn next(&self) -> Duration {
        self.next
    }

    fn interval(&self) -> Duration {
        if self.is_satisfied() {
            self.maintenance
        } else if self.completion < self.starving_below {
            self.fast
        } else {
            self.base
        }
    }

    /// Hears how far the target is reached. Lost peers are made up for at once.
    pub fn hear(&mut self, now: Duration, completion: f64) {
        let fell = completion < self.completion;
        self.completion = completion;
        self.next = if fell { now } else { self.last + self.interval() };
    }

    /// The turn that is due, if one is; the next one is set.
    pub fn due(&mut self, now: Duration) -> Option<Turn> {
        if now < self.next {
            return None;
        }
        self.last = now;
        self.next = now + self.interval();
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
}
