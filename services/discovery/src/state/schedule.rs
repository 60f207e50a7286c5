//! Schedule of lookups: they are frequent while peers are wanted and lookups find nodes, and rare
//! otherwise.
//!
//! Two things slow the timer down. The number of peers, as a share of the wanted number, determines
//! the pause between turns. Lookups that find nothing new double that pause each time, as a network
//! of twelve nodes has no thirteenth, however often it is searched.
//!
//! Many lookups during which the number of peers has not grown do so too. Otherwise a node whose
//! sessions all fail would search a large network for ever, as there is always something new in it.
//!
//! ```text
//!   something new, peers lost, own address changed ──► the shortest pause
//!   more peers than before ──► the shortest pause of this share
//!   nothing new ──► twice as long ──► … ──► the pause of maintenance
//!   no node answers ──► twice as long ──► … ──► the pause of missing peers, until one answers
//! ```

use crate::Config;
use std::{mem, time::Duration};
use tandem_policy::{LookupPauses, Lookups};

/// Purpose of a turn of the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A lookup of a random target.
    Nodes,
    /// Requests for records, and a check of a node that was silent for long.
    Enrs,
}

/// Shortest pause, so that no configuration makes the timer spin.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Number of lookups of one node each that together search as much as one of Kademlia.
const SINGLES: u32 = 8;
/// Number of doublings after which lookups ask fewer nodes.
const DOUBLINGS_TO_REST: u32 = 2;
/// Number of lookups without a further peer that double the pause.
const FRUITLESS: u32 = 32;
/// Shortest time between two events, other than new nodes, that make lookups frequent again. A
/// network that loses packets loses nodes and finds them again all the time.
const WAKE_EVERY: Duration = Duration::from_secs(120);
/// Limit on doublings, above what any pause needs.
const DOUBLINGS_MAX: u32 = 16;

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

/// Returns the pause after this many doublings, limited by `longest` or the pause itself.
pub(crate) fn backed_off(shortest: Duration, longest: Duration, doublings: u32) -> Duration {
    let doubled = shortest.saturating_mul(1 << doublings.min(DOUBLINGS_MAX));
    doubled.min(longest.max(shortest))
}

/// Timer of all lookups; the legacy policy has two, one for each kind.
pub struct Schedule {
    lookups: Lookups,
    pauses: LookupPauses,
    completion: f64,
    /// The only timer, or the timer for nodes.
    timer: Timer,
    /// Timer for records, `None` while one timer serves both.
    enrs: Option<Timer>,
    turn: Turn,
    /// Number of lookups in a row that found nothing new.
    barren: u32,
    /// Number of lookups since there were more peers than before.
    fruitless: u32,
    /// Highest completion since lookups were last made frequent again.
    best: f64,
    /// Whether something new was found since the last lookup ended.
    found: bool,
    /// Whether a node answered since the last lookup ended.
    heard: bool,
    /// Whether no node has answered since the lookup before the last one ended.
    alone: bool,
    /// Time at which lookups were last made frequent again, other than by new nodes.
    woken: Option<Duration>,
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
            barren: 0,
            fruitless: 0,
            best: 0.0,
            found: false,
            heard: false,
            alone: false,
            woken: None,
        }
    }

    pub fn completion(&self) -> f64 {
        self.completion
    }

    /// Returns whether peers are scarce.
    pub fn is_starving(&self) -> bool {
        self.completion < self.pauses.starving_below
    }

    /// Returns whether a lookup asks few nodes: there are enough peers, or the last lookups found
    /// nothing new.
    pub fn is_resting(&self) -> bool {
        self.completion >= 1.0 || self.doublings() >= DOUBLINGS_TO_REST
    }

    /// Returns whether no node has answered for a whole lookup, nor since.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    pub fn next(&self) -> Duration {
        self.enrs.as_ref().map_or(self.timer.next, |enrs| enrs.next.min(self.timer.next))
    }

    fn pause(&self) -> Duration {
        let shortest = self.lookups.pause(self.completion, &self.pauses);
        if self.enrs.is_some() {
            return shortest;
        }
        let longest = if self.alone { self.pauses.base } else { self.pauses.maintenance };
        backed_off(shortest, longest, self.doublings())
    }

    fn doublings(&self) -> u32 {
        let per_doubling = if self.lookups == Lookups::Single { SINGLES } else { 1 };
        (self.barren / per_doubling).max(self.fruitless / (FRUITLESS * per_doubling))
    }

    /// Sets the completion of the target. Lost peers cause a lookup at once. With two timers, each
    /// reacts at its next turn, which is never far.
    pub fn hear(&mut self, now: Duration, completion: f64) {
        let fell = completion < self.completion;
        self.completion = completion;
        if completion > self.best {
            (self.best, self.fruitless) = (completion, 0);
        }
        if fell {
            self.wake(now);
        } else {
            self.pace();
        }
    }

    /// Starts a lookup at once. Lookups are also frequent from then on, unless they were woken a
    /// moment ago.
    pub fn wake(&mut self, now: Duration) {
        if self.may_wake(now) {
            (self.barren, self.fruitless, self.best) = (0, 0, self.completion);
        }
        if self.enrs.is_none() {
            self.timer.next = now;
        }
    }

    /// Records that something new was found, so lookups are worth while.
    pub fn find(&mut self) {
        self.found = true;
    }

    /// Records that a lost node is back.
    pub fn find_again(&mut self, now: Duration) {
        self.found |= self.may_wake(now);
    }

    fn may_wake(&mut self, now: Duration) -> bool {
        let may = self.woken.is_none_or(|at| at + WAKE_EVERY <= now);
        if may {
            self.woken = Some(now);
        }
        may
    }

    /// Records that a node has answered. The first answer after silence shows that the network is
    /// back.
    pub fn hear_node(&mut self, now: Duration) {
        self.heard = true;
        if mem::take(&mut self.alone) {
            self.woken = None;
            self.wake(now);
        }
    }

    /// Records that a lookup has ended.
    pub fn end_lookup(&mut self) {
        self.alone = !mem::take(&mut self.heard);
        self.fruitless = self.fruitless.saturating_add(1);
        self.barren = if mem::take(&mut self.found) { 0 } else { self.barren.saturating_add(1) };
        self.pace();
    }

    /// Moves the next turn to the time that the current pause determines.
    fn pace(&mut self) {
        if self.enrs.is_none() {
            self.timer.next = self.timer.last + self.pause();
        }
    }

    /// Returns the next due turn, if any, and restarts its timer.
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

    /// Counts the turns within a time span, where each lookup ends at once.
    fn turns(schedule: &mut Schedule, from: u64, to: u64, answered: bool) -> usize {
        let (from, to) = (Duration::from_secs(from), Duration::from_secs(to));
        let (mut now, mut count) = (from.max(schedule.next()), 0);
        while now < to {
            if schedule.due(now) == Some(Turn::Nodes) {
                if answered {
                    schedule.hear_node(now);
                }
                schedule.end_lookup();
            }
            count += 1;
            now = schedule.next();
        }
        count
    }

    #[test]
    fn lookups_that_find_nothing_new_become_rare_while_peers_are_scarce() {
        let mut schedule = Schedule::new(&Config::default());
        assert!(turns(&mut schedule, 0, 60, true) <= 14, "the pauses double");
        assert!(schedule.is_starving() && schedule.is_resting());
        assert_eq!(turns(&mut schedule, 120, 720, true), 20, "one in thirty seconds");
        // The next lookup, which comes within a minute, finds something. The ones after it follow
        // as at the start.
        schedule.find();
        assert!(turns(&mut schedule, 720, 810, true) >= 8);
        // A lost peer causes a lookup at once, though there were never enough.
        schedule.hear(Duration::from_secs(900), 0.2);
        turns(&mut schedule, 900, 1_200, true);
        schedule.hear(Duration::from_secs(1_201), 0.1);
        assert_eq!(schedule.next(), Duration::from_secs(1_201));
        assert!(turns(&mut schedule, 1_201, 1_210, true) >= 6);
    }

    #[test]
    fn a_network_that_always_has_something_new_is_searched_less_until_there_is_a_peer() {
        let mut schedule = Schedule::new(&Config::default());
        // Each lookup finds nodes, and no node accepts a session.
        let lookups = |schedule: &mut Schedule, from: u64, to: u64| {
            let (mut now, mut count) = (Duration::from_secs(from).max(schedule.next()), 0);
            while now < Duration::from_secs(to) {
                if schedule.due(now) == Some(Turn::Nodes) {
                    schedule.hear_node(now);
                    schedule.find();
                    schedule.end_lookup();
                    count += 1;
                }
                now = schedule.next();
            }
            count
        };
        assert_eq!(lookups(&mut schedule, 0, 30), 30, "as often as before at the start");
        assert!(!schedule.is_resting());
        lookups(&mut schedule, 30, 600);
        assert!(schedule.is_resting());
        assert!(lookups(&mut schedule, 600, 660) <= 4);
        // A peer shows that sessions are possible. A change below the best does not.
        schedule.hear(Duration::from_secs(700), 0.02);
        assert!(lookups(&mut schedule, 700, 730) >= 29);
        lookups(&mut schedule, 730, 1_500);
        schedule.hear(Duration::from_secs(1_500), 0.0);
        lookups(&mut schedule, 1_500, 1_510);
        schedule.hear(Duration::from_secs(1_510), 0.02);
        let before = schedule.fruitless;
        schedule.hear(Duration::from_secs(1_511), 0.01);
        schedule.hear(Duration::from_secs(1_512), 0.02);
        assert_eq!(schedule.fruitless, before);
    }

    #[test]
    fn losses_in_a_row_are_looked_after_at_once_but_not_often() {
        let mut schedule = Schedule::new(&Config::default());
        schedule.hear(Duration::ZERO, 0.4);
        turns(&mut schedule, 0, 600, true);
        // Every ten seconds a node is lost and found again.
        let mut count = 0;
        for second in (600..1_200).step_by(10) {
            schedule.hear(Duration::from_secs(second), 0.3);
            assert_eq!(schedule.next(), Duration::from_secs(second));
            schedule.hear(Duration::from_secs(second), 0.4);
            schedule.find_again(Duration::from_secs(second));
            count += turns(&mut schedule, second, second + 10, true);
        }
        assert!(count <= 120, "{count} turns in ten minutes");
    }

    #[test]
    fn without_any_answer_the_pause_stays_short_and_the_first_answer_wakes() {
        let mut schedule = Schedule::new(&Config::default());
        turns(&mut schedule, 0, 60, true);
        let silent = turns(&mut schedule, 60, 660, false);
        assert!((110..=125).contains(&silent), "{silent} in ten minutes, one in five seconds");
        assert!(schedule.is_alone());
        let now = Duration::from_secs(661);
        schedule.hear_node(now);
        assert_eq!((schedule.next(), schedule.is_alone()), (now, false));
        // Only the first one brings news.
        turns(&mut schedule, 661, 760, true);
        let next = schedule.next();
        schedule.hear_node(Duration::from_secs(761));
        assert_eq!(schedule.next(), next);
    }

    #[test]
    fn enough_peers_are_slow_at_once_and_lookups_of_one_node_are_given_time() {
        let mut schedule = Schedule::new(&Config::default());
        schedule.hear(Duration::ZERO, 1.0);
        assert!(schedule.is_resting());
        assert_eq!(turns(&mut schedule, 0, 615, true), 20);
        let config = Config { lookups: Lookups::Single, ..Config::default() };
        let mut single = Schedule::new(&config);
        assert!(turns(&mut single, 0, 8, true) >= 14, "as often as before for eight lookups");
        turns(&mut single, 8, 1_200, true);
        assert!(turns(&mut single, 1_200, 1_800, true) <= 21);
    }
}
