//! Nodes with default settings that find each other and go quiet: discovery's state machine over
//! peer-table's own table. Packets travel in memory, and time is a number.
#![allow(clippy::unwrap_used, missing_docs)]

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{cmp::Reverse, collections::BinaryHeap, net::SocketAddr, time::Duration};
use tandem_discovery::{
    Config,
    state::{Effect, Input, Now, Question, State},
};
use tandem_discv4::{Endpoint, Node, NodeKey, node_id};
use tandem_peer_table::{
    Target,
    table::{Ranked, Table},
};
use tandem_proto::event::Contact;

const START: u64 = 1_700_000_000;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// Packets per node and minute that the operator is promised at most.
const PACKETS_MAX: f64 = 60.0;

struct Host {
    state: State,
    table: Table,
    target: Target,
    started: Duration,
    /// Whether its packets arrive, and those of others reach it.
    reachable: bool,
    running: bool,
}

/// A datagram in transit: arrival, order of sending, receiver, sender, bytes.
type Travelling = (Duration, u64, usize, usize, Vec<u8>);

/// A network with all nodes on one address, as on a machine for trying them out.
struct Network {
    hosts: Vec<Host>,
    wire: BinaryHeap<Reverse<Travelling>>,
    order: u64,
    now: Duration,
    loss: f64,
    rng: StdRng,
    /// Packets sent before the current minute, including those of replaced nodes.
    counted: u64,
    replaced: u64,
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 30303 + index as u16))
}

fn index(address: SocketAddr) -> usize {
    usize::from(address.port()) - 30303
}

fn key(index: usize) -> NodeKey {
    NodeKey::random(&mut StdRng::seed_from_u64(index as u64))
}

fn host(index: usize, started: Duration, snapshot: &[Ranked]) -> Host {
    let bootnode = Node { key: *key(0).public(), endpoint: Endpoint::new(address(0), 30303) };
    let (config, seq) = (Config::default(), 1 + started.as_millis() as u64);
    let state =
        State::new(&config, key(index), address(index), vec![bootnode], None, seq, seq).unwrap();
    let config = tandem_peer_table::Config::default();
    let mut table = Table::new(&config);
    table.restore(snapshot, 0);
    let target = Target::new(&config);
    Host { state, table, target, started, reachable: true, running: true }
}

impl Host {
    fn now(&self, now: Duration) -> Now {
        Now { elapsed: now - self.started, unix: START + now.as_secs() }
    }

    fn answer(&mut self, question: &Question, rng: &mut StdRng) -> Vec<Contact> {
        match question {
            Question::Neighbors { target, .. } => self.table.closest(*target, 24),
            Question::Seeds { target } => self.table.closest(node_id(target), 24),
            Question::Candidate { .. } => self.table.sample_for_lookup(rng).into_iter().collect(),
            Question::EnrCandidates => {
                let mut drawn: Vec<Contact> = Vec::new();
                for contact in (0..3).filter_map(|_| self.table.sample_for_enr(rng)) {
                    if drawn.iter().all(|other| other.id != contact.id) {
                        drawn.push(contact);
                    }
                }
                drawn
            }
        }
    }
}

impl Network {
    /// Returns nodes that know only the first one, each started a moment after the previous one.
    fn new(size: usize, loss: f64) -> Self {
        let mut network = Self {
            hosts: Vec::new(),
            wire: BinaryHeap::new(),
            order: 0,
            now: Duration::ZERO,
            loss,
            rng: StdRng::seed_from_u64(42),
            counted: 0,
            replaced: 0,
        };
        for _ in 0..size {
            network.add();
            network.run(Duration::from_millis(50));
        }
        network
    }

    fn add(&mut self) {
        let index = self.hosts.len();
        self.hosts.push(host(index, self.now, &[]));
        self.step(index, Input::Timer);
    }

    fn restart(&mut self, index: usize, snapshot: &[Ranked]) {
        self.replaced += self.hosts[index].state.counters().sent;
        self.hosts[index] = host(index, self.now, snapshot);
        self.step(index, Input::Timer);
    }

    fn step(&mut self, index: usize, input: Input<'_>) {
        let now = self.hosts[index].now(self.now);
        let (mut effects, mut learned) = (Vec::new(), Vec::new());
        self.hosts[index].state.step(now, input, &mut effects);
        while !effects.is_empty() {
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::AskLists => {}
                    Effect::Publish(contact) => learned.push(contact),
                    Effect::Ask(question) => {
                        let host = &mut self.hosts[index];
                        host.table.advance(now.elapsed.as_millis() as u64);
                        let contacts = host.answer(&question, &mut self.rng);
                        host.state.step(now, Input::Answer { question, contacts }, &mut effects);
                    }
                    Effect::Send { to, bytes } => self.send(index, to, bytes),
                }
            }
            let host = &mut self.hosts[index];
            host.table.apply(&std::mem::take(&mut learned), now.elapsed.as_millis() as u64);
            if let Some(completion) = host.target.changed(&host.table.counts()) {
                host.state.step(now, Input::Target(completion), &mut effects);
            }
        }
    }

    fn send(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>) {
        let delay = Duration::from_micros(self.rng.random_range(100..2_000));
        let lost = self.rng.random_bool(self.loss);
        if self.hosts[from].reachable && !lost {
            self.order += 1;
            self.wire.push(Reverse((self.now + delay, self.order, index(to), from, bytes)));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let running = self.hosts.iter().enumerate().filter(|(_, host)| host.running);
            let due = |host: &Host| (host.started + host.state.deadline()).max(self.now);
            let timer = running.map(|(index, host)| (due(host), index)).min();
            let timer = timer.unwrap_or((Duration::MAX, 0));
            let arrival = self.wire.peek().map(|Reverse(packet)| packet.0);
            if arrival.unwrap_or(Duration::MAX).min(timer.0) > end {
                self.now = end;
                return;
            }
            if arrival.is_some_and(|arrival| arrival <= timer.0) {
                let Reverse((at, _, receiver, sender, bytes)) = self.wire.pop().unwrap();
                self.now = at;
                if self.hosts.get(receiver).is_some_and(|host| host.running && host.reachable) {
                    self.step(receiver, Input::Packet { from: address(sender), bytes: &bytes });
                }
            } else {
                self.now = timer.0;
                self.step(timer.1, Input::Timer);
            }
        }
    }

    /// Runs until a condition holds. Returns how long that took.
    fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> Duration {
        let begin = self.now;
        while !holds(self) {
            assert!(self.now - begin < limit, "not within {limit:?}: alive {:?}", self.alive());
            self.run(Duration::from_millis(100));
        }
        self.now - begin
    }

    /// Returns the packets per running node in each of the next minutes.
    fn minutes(&mut self, count: usize) -> Vec<f64> {
        let nodes = self.hosts.iter().filter(|host| host.running).count() as f64;
        self.counted = self.sent();
        let minute = |_| {
            self.run(MINUTE);
            let sent = self.sent();
            let before = std::mem::replace(&mut self.counted, sent);
            (sent - before) as f64 / nodes
        };
        (0..count).map(minute).collect()
    }

    fn sent(&self) -> u64 {
        self.replaced + self.hosts.iter().map(|host| host.state.counters().sent).sum::<u64>()
    }

    /// Returns the number of nodes that each running node takes to be alive.
    fn alive(&self) -> Vec<usize> {
        let running = self.hosts.iter().filter(|host| host.running);
        running.map(|host| host.table.counts().alive).collect()
    }

    fn all_know(&self, count: usize) -> bool {
        self.alive().iter().all(|&alive| alive == count)
    }
}

fn max(minutes: &[f64]) -> f64 {
    minutes.iter().copied().fold(0.0, f64::max)
}

#[test]
fn twelve_nodes_find_each_other_in_seconds_and_go_quiet_in_minutes() {
    let mut network = Network::new(12, 0.0);
    let known = network.until(10 * SECOND, |network| network.all_know(11));
    let minutes = network.minutes(30);
    eprintln!("all know each other {known:?} after the last start; packets: {minutes:.1?}");
    assert!(known <= 5 * SECOND, "{known:?}");
    assert!(max(&minutes) < 700.0, "the first minute counts, too");
    assert!(max(&minutes[3..]) <= 20.0, "{minutes:?}");
    assert!(network.all_know(11));
}

#[test]
fn a_network_of_any_size_that_loses_packets_goes_quiet_too() {
    for (size, loss) in [(2, 0.05), (12, 0.02), (12, 0.1), (40, 0.02)] {
        let mut network = Network::new(size, loss);
        network.until(MINUTE, |network| network.alive().iter().all(|alive| alive + 3 >= size));
        network.run(9 * MINUTE);
        let minutes = network.minutes(30);
        let mean = minutes.iter().sum::<f64>() / minutes.len() as f64;
        eprintln!("{size} nodes, {loss} lost: {mean:.1} packets a minute, {minutes:.0?}");
        assert!(mean <= PACKETS_MAX && max(&minutes) <= 3.0 * PACKETS_MAX, "{minutes:?}");
        assert!(network.alive().iter().all(|alive| alive + 3 >= size));
    }
}

#[test]
fn lost_neighbours_are_noticed_and_others_take_their_place() {
    let mut network = Network::new(12, 0.0);
    network.run(10 * MINUTE);
    for lost in [3, 4, 5] {
        network.hosts[lost].running = false;
    }
    let noticed = network.until(10 * MINUTE, |network| network.all_know(8));
    // Newcomers that know only the first node.
    (0..3).for_each(|_| network.add());
    let replaced = network.until(20 * SECOND, |network| network.all_know(11));
    let minutes = network.minutes(10);
    eprintln!("noticed after {noticed:?}, replaced after {replaced:?}; then {minutes:.1?}");
    assert!(noticed <= 5 * MINUTE, "{noticed:?}");
    assert!(max(&minutes[5..]) <= PACKETS_MAX);
}

#[test]
fn a_restart_finds_the_others_at_once() {
    let mut network = Network::new(12, 0.0);
    network.run(10 * MINUTE);
    let snapshot = network.hosts[7].table.best(2048);
    assert_eq!(snapshot.len(), 11);
    network.hosts[7].running = false;
    network.run(30 * MINUTE);
    // Its snapshot is enough, whatever the bootnode does.
    network.hosts[0].running = false;
    network.restart(7, &snapshot);
    let known = |network: &Network| network.hosts[7].table.counts().alive >= 10;
    let with_snapshot = network.until(5 * SECOND, known);
    network.restart(0, &[]);
    network.run(MINUTE);
    network.restart(7, &[]);
    let without = network.until(10 * SECOND, |network| network.hosts[7].table.counts().alive == 11);
    eprintln!("10 of 11 after {with_snapshot:?} with a snapshot, all after {without:?} without");
}

#[test]
fn a_node_that_was_cut_off_is_quiet_and_back_at_once() {
    for minutes in [2, 30, 180] {
        let mut network = Network::new(12, 0.0);
        network.run(10 * MINUTE);
        network.hosts[4].reachable = false;
        let before = network.hosts[4].state.counters().sent;
        network.run(minutes * MINUTE);
        let sent = network.hosts[4].state.counters().sent - before;
        let per_minute = sent as f64 / f64::from(minutes);
        assert_eq!(network.hosts[4].table.counts().alive, 0, "it knows that it is alone");
        network.hosts[4].reachable = true;
        let one = network.until(15 * SECOND, |net| net.hosts[4].table.counts().alive > 0);
        let all = network.until(15 * SECOND, |net| net.hosts[4].table.counts().alive == 11);
        let others = network.until(30 * SECOND, |network| network.all_know(11));
        eprintln!(
            "cut off for {minutes} minutes: {per_minute:.1} packets a minute; one node after \
             {one:?}, all after {all:?} more, known to all after {others:?} more"
        );
        assert!(minutes < 30 || per_minute <= PACKETS_MAX, "{per_minute} packets a minute");
    }
}

#[test]
fn reported_sessions_decide_and_do_not_make_it_look_for_ever() {
    let mut network = Network::new(12, 0.0);
    network.run(10 * MINUTE);
    let report = |network: &mut Network, count| {
        let host = &mut network.hosts[2];
        host.target.report(count);
        let completion = host.target.changed(&host.table.counts()).unwrap();
        let lookups = host.state.counters().lookups;
        network.step(2, Input::Target(completion));
        network.run(5 * SECOND);
        network.hosts[2].state.counters().lookups - lookups
    };
    assert!(report(&mut network, 0) >= 2, "no session: it looks at once and often");
    network.run(5 * MINUTE);
    let before = network.hosts[2].state.counters().lookups;
    network.run(10 * MINUTE);
    let lookups = network.hosts[2].state.counters().lookups - before;
    assert!(lookups <= 11, "{lookups} lookups in ten minutes, as there is no node more");
    assert!(report(&mut network, 50) <= 1, "enough");
    assert!(report(&mut network, 20) >= 2, "peers were lost");
}
