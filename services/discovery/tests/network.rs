//! Many nodes in one process: packets travel in memory and time is a number.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::MemoryTable;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::SocketAddr,
    time::Duration,
};
use tandem_discovery::{
    Config,
    state::{Effect, Input, Now, Question, State},
};
use tandem_discv4::{Endpoint, ForkId, Node, NodeKey, node_id};
use tandem_policy::Lookups;
use tandem_proto::peer_table::PeerTableApi;

const START: u64 = 1_700_000_000;

struct Host {
    state: State,
    table: MemoryTable,
    address: SocketAddr,
}

/// Arrival, order of sending, receiver, sender, datagram.
type Travelling = (Duration, u64, usize, SocketAddr, Vec<u8>);

struct Network {
    hosts: Vec<Host>,
    places: BTreeMap<SocketAddr, usize>,
    wire: BinaryHeap<Reverse<Travelling>>,
    order: u64,
    now: Duration,
    loss: f64,
    rng: StdRng,
}

fn address(index: usize) -> SocketAddr {
    // Each node has a network of its own, as votes on the own address are counted by network. The
    // networks are public, so that no node is answered with more bytes than it sent.
    SocketAddr::from(([30, 0, index as u8, 1], 30303))
}

fn key(index: usize) -> NodeKey {
    NodeKey::random(&mut StdRng::seed_from_u64(index as u64))
}

fn bootnode(index: usize) -> Node {
    Node { key: *key(index).public(), endpoint: Endpoint::new(address(index), 30303) }
}

impl Network {
    /// Makes `size` nodes that know the first one. None knows its own address.
    fn new(size: usize, loss: f64) -> Self {
        Self::with(&Config::default(), size, loss)
    }

    fn with(config: &Config, size: usize, loss: f64) -> Self {
        let host = |index| {
            let bound = "0.0.0.0:30303".parse().unwrap();
            let fork_id = Some(ForkId { hash: [1, 2, 3, 4], next: 0 });
            let boot = vec![bootnode(0)];
            let state = State::new(config, key(index), bound, boot, fork_id, 1, index as u64);
            Host { state: state.unwrap(), table: MemoryTable::default(), address: address(index) }
        };
        let mut network = Self {
            hosts: (0..size).map(host).collect(),
            places: (0..size).map(|index| (address(index), index)).collect(),
            wire: BinaryHeap::new(),
            order: 0,
            now: Duration::ZERO,
            loss,
            rng: StdRng::seed_from_u64(42),
        };
        for index in 0..size {
            network.step(index, Input::Timer);
        }
        network
    }

    fn step(&mut self, index: usize, input: Input<'_>) {
        let now = Now { elapsed: self.now, unix: START + self.now.as_secs() };
        let host = &mut self.hosts[index];
        let mut effects = Vec::new();
        host.state.step(now, input, &mut effects);
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::AskLists => {}
                Effect::Publish(contact) => host.table.learn(contact),
                Effect::Ask(question) => {
                    let contacts = match &question {
                        Question::Neighbors { target, .. } => {
                            host.table.closest(*target, 24).unwrap()
                        }
                        Question::Seeds { target } => {
                            host.table.closest(node_id(target), 24).unwrap()
                        }
                        Question::Candidate { .. } => {
                            host.table.sample_for_lookup().unwrap().into_iter().collect()
                        }
                        Question::EnrCandidates => {
                            host.table.sample_for_enr().unwrap().into_iter().collect()
                        }
                    };
                    host.state.step(now, Input::Answer { question, contacts }, &mut effects);
                }
                Effect::Send { to, bytes } => {
                    let delay = Duration::from_millis(self.rng.random_range(10..80));
                    let lost = self.rng.random_bool(self.loss);
                    if let Some(&receiver) = self.places.get(&to).filter(|_| !lost) {
                        self.order += 1;
                        let sent = (self.now + delay, self.order, receiver, host.address, bytes);
                        self.wire.push(Reverse(sent));
                    }
                }
            }
        }
    }

    fn run_until(&mut self, end: Duration) {
        loop {
            let timer = (0..self.hosts.len())
                .map(|index| (self.hosts[index].state.deadline().max(self.now), index))
                .min()
                .unwrap();
            let arrival = self.wire.peek().map(|Reverse(packet)| packet.0);
            if arrival.unwrap_or(Duration::MAX).min(timer.0) > end {
                self.now = end;
                return;
            }
            if arrival.is_some_and(|arrival| arrival <= timer.0) {
                let Reverse((at, _, receiver, from, bytes)) = self.wire.pop().unwrap();
                self.now = at;
                self.step(receiver, Input::Packet { from, bytes: &bytes });
            } else {
                self.now = timer.0;
                self.step(timer.1, Input::Timer);
            }
        }
    }

    fn sent(&self) -> u64 {
        self.hosts.iter().map(|host| host.state.counters().sent).sum()
    }

    fn least(&self, of: impl Fn(&Host) -> usize) -> usize {
        self.hosts.iter().map(of).min().unwrap()
    }
}

#[test]
fn fifty_nodes_find_each_other_and_go_quiet_when_they_have_enough() {
    let mut network = Network::new(50, 0.02);
    network.run_until(Duration::from_secs(20));
    let proven = network.least(|host| host.table.proven());
    assert!(proven >= 40, "after 20 s a node has proven only {proven} of 49");

    network.run_until(Duration::from_secs(90));
    let records = network.least(|host| host.table.with_enr());
    assert!(records >= 30, "after 90 s a node has only {records} records");
    for host in &network.hosts {
        assert_eq!(host.state.external(), Some(host.address), "the pongs told");
        assert_eq!(host.state.enr().ip4().map(Into::into), Some(host.address.ip()));
        assert!(host.state.enr().seq() > 1);
    }

    for index in 0..50 {
        network.step(index, Input::Target(1.0));
    }
    network.run_until(Duration::from_secs(120));
    let before = network.sent();
    network.run_until(Duration::from_secs(120 + 600));
    let per_minute = (network.sent() - before) as f64 / 50.0 / 10.0;
    eprintln!(
        "proven {proven}, records {records}, quiet: {per_minute:.1} packets per node and minute"
    );
    assert!(per_minute < 30.0, "{per_minute} packets per node and minute");

    // Peers are lost, so a node is asked at once.
    let lookups = network.hosts[7].state.counters().lookups;
    let sent = network.hosts[7].state.counters().sent;
    network.step(7, Input::Target(0.4));
    network.run_until(network.now + Duration::from_secs(2));
    assert!(network.hosts[7].state.counters().lookups > lookups);
    assert!(network.hosts[7].state.counters().sent > sent + 3);
}

/// Returns the packets that a node sends in a minute with enough peers, and how many of 15 it has
/// proven by then.
fn packets_per_minute(lookups: Lookups) -> (f64, usize) {
    let mut network = Network::with(&Config { lookups, ..Config::default() }, 16, 0.01);
    network.run_until(Duration::from_secs(30));
    let proven = network.least(|host| host.table.proven());
    for index in 0..16 {
        network.step(index, Input::Target(1.0));
    }
    network.run_until(Duration::from_secs(60));
    let before = network.sent();
    network.run_until(Duration::from_secs(180));
    ((network.sent() - before) as f64 / 16.0 / 2.0, proven)
}

#[test]
fn every_policy_finds_the_others_and_only_the_legacy_one_does_not_go_quiet() {
    let [kademlia, single, legacy] =
        [Lookups::Kademlia, Lookups::Single, Lookups::Legacy].map(|lookups| {
            let (packets, proven) = packets_per_minute(lookups);
            eprintln!("{lookups}: {proven} of 15 proven, then {packets:.1} packets a minute");
            assert!(proven >= 13, "{lookups}: only {proven} of 15 proven");
            packets
        });
    assert!(kademlia < 30.0 && single < 30.0 && legacy > 200.0);
    assert!(kademlia < legacy / 20.0 && single < legacy / 20.0);
}

#[test]
fn a_network_that_loses_every_fifth_packet_is_found_all_the_same() {
    let mut network = Network::new(30, 0.2);
    network.run_until(Duration::from_secs(60));
    let proven = network.least(|host| host.table.proven());
    assert!(proven >= 20, "a node has proven only {proven} of 29");
}

#[test]
fn a_node_that_comes_back_under_another_address_is_found_there() {
    let mut network = Network::new(12, 0.0);
    network.run_until(Duration::from_secs(20));
    let moved = address(200);
    network.hosts[5].address = moved;
    network.places.remove(&address(5));
    network.places.insert(moved, 5);
    network.run_until(Duration::from_secs(120));
    let id = *network.hosts[5].state.enr().key();
    let knows = |host: &&Host| {
        host.table.contacts().iter().any(|contact| contact.id == id && contact.ip == moved.ip())
    };
    let others = network.hosts.iter().filter(knows).count();
    assert!(others >= 8, "{others} of 11 know the new address");
    assert_eq!(network.hosts[5].state.external(), Some(moved));
}

/// Returns the packets that one node has sent by the end of each minute. It gets no peers; the others
/// have enough, and some of them fall silent.
fn sent_by_minute(lookups: Lookups, size: usize, silent: usize, minutes: u64) -> Vec<u64> {
    let mut network = Network::with(&Config { lookups, ..Config::default() }, size, 0.01);
    for index in 1..size {
        network.step(index, Input::Target(1.0));
    }
    let mut sent = Vec::new();
    for minute in 1..=minutes {
        network.run_until(Duration::from_secs(60 * minute));
        sent.push(network.hosts[0].state.counters().sent);
        for index in size - silent..size {
            network.places.remove(&address(index));
        }
    }
    sent
}

#[test]
fn a_node_without_peers_never_sends_more_than_under_the_legacy_policy() {
    for (size, silent) in [(2, 0), (12, 0), (12, 6), (60, 0), (60, 20)] {
        let [own, legacy] = [Lookups::Kademlia, Lookups::Legacy]
            .map(|lookups| sent_by_minute(lookups, size, silent, 2));
        eprintln!("{size} nodes, {silent} silent: {own:?} {legacy:?}");
        let exceeds = own.iter().zip(&legacy).any(|(own, legacy)| own > legacy);
        assert!(!exceeds, "{size} nodes, {silent} silent: {own:?}, legacy {legacy:?}");
    }
}

#[test]
fn a_node_whose_sessions_all_fail_is_quiet_after_ten_minutes() {
    for size in [12, 60] {
        let sent = sent_by_minute(Lookups::Kademlia, size, 0, 12);
        let per_minute = (sent[11] - sent[9]) as f64 / 2.0;
        eprintln!("{size} nodes: {per_minute} packets a minute {sent:?}");
        assert!(per_minute < 60.0, "{size} nodes: {sent:?}");
    }
}
