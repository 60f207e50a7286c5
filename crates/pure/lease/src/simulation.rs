//! Deterministic simulation: candidates with clocks that drift and settings that differ, over a network
//! that delays, loses and duplicates messages, with partitions, pauses and restarts. The code under test is
//! that of the lease itself.
//!
//! At each moment at most one candidate may take writes. Paused candidates count, because a paused process
//! may go on at any moment. Terms rise with every holder. Some time after the last trouble there is a
//! holder.

use crate::{Answer, Lease, Record, Request, Settings, Wish};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

/// Number of seeds.
const SEEDS: u64 = 1_000;

/// Microseconds of trouble in one run, of true time.
const TROUBLE: u64 = 120_000_000;

/// Microseconds without trouble after which there is a holder: late messages of 4 s, then a wait for the
/// longest lease by a slow clock.
const HEALING: u64 = 10_000_000;

/// Microseconds after that in which the holder stays.
const CALM: u64 = 10_000_000;

/// Something that happens at a moment. Nodes are named by position and incarnation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Poll { node: usize, life: u64 },
    Arrive { node: usize, life: u64, number: u64, request: Message },
    Deliver { node: usize, life: u64, number: u64, answer: Message },
    Trouble { node: usize },
}

/// Position of a request or an answer in the list of all of them.
type Message = usize;

/// One candidate and its machine.
struct Node {
    lease: Lease,
    settings: Settings,
    life: u64,
    /// Own time when true time is 0, in microseconds.
    offset: u64,
    /// Microseconds of own time in a million of true time.
    rate: u64,
    /// Highest term that its database has.
    known_term: u32,
    is_cut_off: bool,
    /// True time until which the process does nothing.
    paused_until: u64,
    /// True time of the next poll; events of other times are stale.
    polls_at: u64,
    has_left: bool,
}

impl Node {
    fn own_time(&self, now: u64) -> Duration {
        Duration::from_micros(self.offset + now * self.rate / 1_000_000)
    }

    /// Returns the true time at which the own clock shows a time, or a little later.
    fn true_time(&self, own: Duration) -> u64 {
        let passed = (own.as_micros() as u64).saturating_sub(self.offset);
        (passed * 1_000_000).div_ceil(self.rate) + 1
    }
}

/// Store with compare-and-set.
#[derive(Default)]
pub struct Store {
    revision: u64,
    record: Option<Record>,
}

impl Store {
    pub fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Read => Answer::Found { revision: self.revision, record: self.record.clone() },
            Request::Write { expected, .. } if *expected != self.revision => Answer::Conflict,
            Request::Write { record, .. } => {
                self.revision += 1;
                self.record = Some(record.clone());
                Answer::Written(self.revision)
            }
        }
    }
}

/// Findings of a run.
#[derive(Default, Debug)]
struct Outcome {
    /// Moments at which two candidates might take writes.
    doubles: u64,
    /// Holders by term.
    holders: BTreeMap<u32, (usize, u64)>,
    /// Last moment at which no candidate might take writes, in microseconds.
    vacant_at: u64,
}

/// Conditions of a run.
#[derive(Clone, Copy)]
struct Conditions {
    /// Largest drift of a clock, in millionths.
    drift: u64,
    /// Margin of all leases, in hundredths of them.
    margin: u64,
    /// Whether the record is removed at times. Terms may repeat then.
    loses_record: bool,
}

struct World {
    random: StdRng,
    conditions: Conditions,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    requests: Vec<Request>,
    answers: Vec<Answer>,
    nodes: Vec<Node>,
    store: Store,
    outcome: Outcome,
}

impl World {
    fn new(seed: u64, conditions: Conditions) -> Self {
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            conditions,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            nodes: Vec::new(),
            store: Store::default(),
            outcome: Outcome::default(),
        };
        let count = world.random.random_range(2..=3);
        for node in 0..count {
            let (offset, rate) = world.clock();
            let settings = world.settings();
            world.nodes.push(Node {
                lease: Lease::new(format!("{node}.0"), settings),
                settings,
                life: 0,
                offset,
                rate,
                known_term: 0,
                is_cut_off: false,
                paused_until: 0,
                polls_at: 0,
                has_left: false,
            });
            world.push(0, Event::Poll { node, life: 0 });
            world.push(0, Event::Trouble { node });
        }
        world
    }

    /// Returns the offset and the rate of a new clock.
    fn clock(&mut self) -> (u64, u64) {
        let drift = self.conditions.drift;
        let (slow, fast) = (1_000_000 - drift, 1_000_000 + drift);
        let rate = match self.random.random_range(0..3) {
            0 => slow,
            1 => fast,
            _ => self.random.random_range(slow..=fast),
        };
        (self.random.random_range(0..1 << 40), rate)
    }

    /// Returns the settings of a candidate.
    fn settings(&mut self) -> Settings {
        // A record that is lost says no longer how long its holder may write.
        let seconds = if self.conditions.loses_record { 2..=2 } else { 1..=3 };
        let ttl = Duration::from_secs(self.random.random_range(seconds));
        Settings::new(ttl, ttl * self.conditions.margin as u32 / 100).unwrap()
    }

    fn push(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, event)));
    }

    /// Returns how long each copy of a message travels: none if it is lost, two if it is duplicated.
    fn travels(&mut self, node: usize) -> Vec<u64> {
        if self.now >= TROUBLE {
            return vec![self.random.random_range(100..5_000)];
        }
        if self.nodes[node].is_cut_off {
            return Vec::new();
        }
        let copies = match self.random.random_range(0..100) {
            0..2 => 0,
            2..6 => 2,
            _ => 1,
        };
        let travel = |_| {
            let longest = if self.random.random_range(0..30) == 0 { 4_000_000 } else { 20_000 };
            self.random.random_range(100..longest)
        };
        (0..copies).map(travel).collect()
    }

    fn run(mut self) -> Outcome {
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            if at > TROUBLE + HEALING + CALM {
                break;
            }
            self.now = at;
            self.step(event);
            self.check();
        }
        self.outcome
    }

    fn step(&mut self, event: Event) {
        match &event {
            Event::Poll { node, life } | Event::Deliver { node, life, .. } => {
                let is_poll = matches!(event, Event::Poll { .. });
                let it = &mut self.nodes[*node];
                if it.life != *life || (is_poll && it.polls_at != self.now) {
                    return;
                }
                if self.now < it.paused_until {
                    let until = it.paused_until;
                    if is_poll {
                        it.polls_at = until;
                    }
                    return self.push(until, event);
                }
            }
            Event::Arrive { .. } | Event::Trouble { .. } => {}
        }
        match event {
            Event::Poll { node, life } => self.poll(node, life),
            Event::Arrive { node, life, number, request } => {
                let answer = self.store.answer(&self.requests[request]);
                self.answers.push(answer);
                let answer = self.answers.len() - 1;
                for travel in self.travels(node) {
                    self.push(self.now + travel, Event::Deliver { node, life, number, answer });
                }
            }
            Event::Deliver { node, life, number, answer } => {
                let answer = self.answers[answer].clone();
                let it = &mut self.nodes[node];
                let own = it.own_time(self.now);
                it.lease.answer(own, number, answer);
                self.poll(node, life);
            }
            Event::Trouble { node } => self.trouble(node),
        }
    }

    /// Lets a candidate make its next request.
    fn poll(&mut self, node: usize, life: u64) {
        let it = &mut self.nodes[node];
        let own = it.own_time(self.now);
        if let Some(held) = it.lease.held(own) {
            // Its database leads in this term before it takes a write.
            it.known_term = it.known_term.max(held.term);
        }
        let wish = Wish { takes_over: true, begins: true, known_term: it.known_term };
        let request = it.lease.poll(own, wish);
        let next = it.true_time(it.lease.next()).max(self.now + 1);
        it.polls_at = next;
        self.push(next, Event::Poll { node, life });
        let Some((number, request)) = request else { return };
        self.requests.push(request);
        let request = self.requests.len() - 1;
        for travel in self.travels(node) {
            self.push(self.now + travel, Event::Arrive { node, life, number, request });
        }
    }

    /// Begins or ends some trouble for a node.
    fn trouble(&mut self, node: usize) {
        if self.now >= TROUBLE {
            self.nodes[node].is_cut_off = false;
            if self.nodes[node].has_left {
                self.restart(node);
            }
            return;
        }
        let (kind, length) =
            (self.random.random_range(0..8), self.random.random_range(0..6_000_000));
        let now = self.now;
        let it = &mut self.nodes[node];
        match kind {
            0 | 1 => it.is_cut_off = true,
            2 | 3 => it.is_cut_off = false,
            4 => it.paused_until = it.paused_until.max((now + length).min(TROUBLE)),
            5 => {
                it.lease.leave(it.own_time(now));
                it.has_left = true;
            }
            6 => self.restart(node),
            _ if self.conditions.loses_record => {
                self.store.revision += 1;
                self.store.record = None;
            }
            _ => {}
        }
        let next = (now + self.random.random_range(200_000..5_000_000)).min(TROUBLE);
        self.push(next, Event::Trouble { node });
    }

    /// Ends a process and starts another one: its clock begins anew, and only the database is left.
    fn restart(&mut self, node: usize) {
        let (offset, rate) = self.clock();
        let it = &mut self.nodes[node];
        it.life += 1;
        let life = it.life;
        it.lease = Lease::new(format!("{node}.{life}"), it.settings);
        (it.offset, it.rate) = (offset, rate);
        (it.paused_until, it.polls_at, it.has_left) = (0, self.now, false);
        self.push(self.now, Event::Poll { node, life });
    }

    /// Counts the candidates that may take writes at this moment.
    fn check(&mut self) {
        let mut holding = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(held) = node.lease.held(node.own_time(self.now)) {
                holding.push((held.term, (index, node.life)));
            }
        }
        match holding.len() {
            0 => self.outcome.vacant_at = self.now,
            1 => {}
            _ => self.outcome.doubles += 1,
        }
        for (term, holder) in holding.into_iter().filter(|_| !self.conditions.loses_record) {
            match self.outcome.holders.get(&term) {
                Some(known) => assert_eq!(*known, holder, "two holders of term {term}"),
                None => {
                    let highest = self.outcome.holders.last_key_value();
                    assert!(highest.is_none_or(|(highest, _)| *highest < term), "{term} is late");
                    self.outcome.holders.insert(term, holder);
                }
            }
        }
    }
}

/// Clocks drift just less than the margin allows.
const HARD: Conditions = Conditions { drift: 99_000, margin: 10, loses_record: false };

#[test]
fn no_two_candidates_ever_take_writes_and_terms_rise() {
    let settings = Settings::new(Duration::from_secs(2), Duration::from_millis(200)).unwrap();
    let allowed = settings.drift_max() * 1e6;
    assert!((95_000.0..allowed).contains(&(HARD.drift as f64)), "just below {allowed}");
    let mut terms = 0;
    for seed in 0..SEEDS {
        let outcome = World::new(seed, HARD).run();
        assert_eq!(outcome.doubles, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.vacant_at < TROUBLE + HEALING, "seed {seed}: {outcome:?}");
        terms += outcome.holders.len() as u64;
    }
    // There was something to go wrong: several take-overs in each run.
    assert!(terms > 4 * SEEDS, "{terms} terms");
}

#[test]
fn a_record_that_is_removed_makes_no_second_holder() {
    for seed in 0..SEEDS {
        let outcome = World::new(seed, Conditions { loses_record: true, ..HARD }).run();
        assert_eq!(outcome.doubles, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.vacant_at < TROUBLE + HEALING, "seed {seed}: {outcome:?}");
    }
}

#[test]
fn clocks_that_drift_more_than_the_margin_allows_are_caught_by_the_simulation() {
    let fast = Conditions { drift: 150_000, ..HARD };
    let doubles = (0..SEEDS).filter(|seed| World::new(*seed, fast).run().doubles > 0);
    assert!(doubles.count() > 0, "the simulation would see two holders");
}
