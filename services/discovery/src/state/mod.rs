//! Decisions of the protocol, without socket, clock or waiting. [`State::step`] takes an event and
//! returns the effects to carry out; the caller carries them out.
//!
//! ```text
//!   packet, answer of peer-table, timer, target ──► step(now, input) ──► send, ask peer-table, publish
//! ```
//!
//! A question to a node is a **quest**: first both endpoints are proven, then the node is asked.
//!
//! ```text
//!   ping ──► Bonding ──pong──► Settling ──its ping, or a while──► Asking ──answer──► done
//!                     └──────── it has our proof already ───────────┘
//! ```

mod aging;
mod endpoints;
mod external;
mod limits;
mod local;
mod lookup;
mod packets;
mod questions;
mod quests;
pub(crate) mod reach;
mod recent;
pub(crate) mod schedule;

use crate::Config;
use endpoints::Endpoints;
use external::External;
use limits::Limits;
use local::Local;
use lookup::{K, Lookup};
use questions::Questions;
use quests::{Quest, Want};
use rand::{Rng, SeedableRng, rngs::StdRng};
use recent::Recent;
use schedule::{Schedule, Turn};
use std::{mem, net::SocketAddr, time::Duration};
use tandem_discv4::{Endpoint, Enr, EnrError, ForkId, Node, NodeKey, PublicKey};
use tandem_policy::Lookups;
use tandem_primitives::{B256, B512};
use tandem_proto::event::{Contact, ContactEvent};
use tracing::{Span, info, info_span};

/// Time after which a lookup is ended as it stands.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(20);

/// The time in two forms: for intervals, and for the content of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Time since the start; it never goes back.
    pub elapsed: Duration,
    /// UNIX time in seconds.
    pub unix: u64,
}

/// Question to peer-table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// The nodes closest to the target of a find node packet, for its sender.
    Neighbors {
        /// Sender of the packet.
        asker: PublicKey,
        /// Address for the answer.
        to: SocketAddr,
        /// Kademlia address of the target.
        target: B256,
    },
    /// The nodes closest to the target of a lookup that begins.
    Seeds {
        /// Target of the lookup.
        target: PublicKey,
    },
    /// One node that is asked for the nodes closest to the target.
    Candidate {
        /// Target of the lookup.
        target: PublicKey,
    },
    /// Nodes whose records are wanted.
    EnrCandidates,
}

/// Event that the state handles.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A datagram arrived.
    Packet {
        /// Address of the sender.
        from: SocketAddr,
        /// Content of the datagram.
        bytes: &'a [u8],
    },
    /// peer-table answered.
    Answer {
        /// Question that was asked.
        question: Question,
        /// Contacts that it returned.
        contacts: Vec<Contact>,
    },
    /// peer-table could not be asked, or did not answer.
    Refused(Question),
    /// Nodes from lists in DNS.
    Listed(Vec<Node>),
    /// The number of peers, as a share of the wanted number, changed.
    Target(f64),
    /// The chain moved to another fork.
    ForkId(ForkId),
    /// The time of [`State::deadline`] has come.
    Timer,
}

/// Effect that the caller carries out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send a datagram.
    Send {
        /// Address of the receiver.
        to: SocketAddr,
        /// Content of the datagram.
        bytes: Vec<u8>,
    },
    /// Ask peer-table, and pass the answer on as [`Input::Answer`] or [`Input::Refused`].
    Ask(Question),
    /// Ask the node lists for more nodes, and pass them on as [`Input::Listed`]. Without lists
    /// there is no answer.
    AskLists,
    /// Publish news of a node.
    Publish(Contact),
}

/// Reason why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dropped {
    /// It is not a packet of the protocol, or not a valid one.
    Malformed,
    /// Its expiration has passed.
    Expired,
    /// Its sender has used up what it may send, or what it may be sent before its proof.
    RateLimited,
    /// It does not match a pending question, its address or its kind.
    Unsolicited,
    /// Its sender has not proven its endpoint.
    Unproven,
    /// peer-table could not be asked.
    Overloaded,
}

impl Dropped {
    /// All reasons, in the order of [`Counters::dropped`].
    pub const ALL: [Self; 6] = [
        Self::Malformed,
        Self::Expired,
        Self::RateLimited,
        Self::Unsolicited,
        Self::Unproven,
        Self::Overloaded,
    ];
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets received.
    pub received: u64,
    /// Packets handed over to be sent.
    pub sent: u64,
    /// Packets dropped, by reason.
    pub dropped: [u64; Dropped::ALL.len()],
    /// Lookups begun.
    pub lookups: u64,
    /// Records received.
    pub records: u64,
    /// Nodes that came from lists in DNS.
    pub listed: u64,
}

/// The state of discovery.
pub struct State {
    key: NodeKey,
    config: Config,
    timeout: Duration,
    local: Local,
    limits: Limits,
    endpoints: Endpoints,
    external: External,
    schedule: Schedule,
    lookup: Option<Lookup>,
    /// Whether peer-table was asked for the seeds of the next lookup.
    seeding: bool,
    /// Whether a quest of the lookup ended, or nodes were added to it.
    lookup_moved: bool,
    questions: Questions,
    /// Time at which the lookup may ask again, if it waits for that.
    questions_due: Option<Duration>,
    enr_span: Option<Span>,
    quests: Vec<Quest>,
    bootnodes: Vec<Node>,
    /// Index of the bootnode that was checked last.
    next_bootnode: usize,
    /// Time from which the node lists may be asked again.
    lists_due: Duration,
    recent: Recent,
    rng: StdRng,
    counters: Counters,
    now: Now,
    effects: Vec<Effect>,
}

impl Counters {
    fn drop(&mut self, reason: Dropped) {
        self.dropped[reason as usize] += 1;
    }
}

impl State {
    /// Makes the state at the start. `bound` is the socket's address. `seed` determines the targets
    /// of lookups. `enr_seq` must be higher than that of any earlier record.
    ///
    /// # Errors
    /// [`EnrError::TooLarge`], which does not happen with the current entries.
    pub fn new(
        config: &Config,
        key: NodeKey,
        bound: SocketAddr,
        bootnodes: Vec<Node>,
        fork_id: Option<ForkId>,
        enr_seq: u64,
        seed: u64,
    ) -> Result<Self, EnrError> {
        let (tcp_port, external) = (config.tcp_port, &config.external_ips);
        let local = Local::new(&key, bound, tcp_port, external, fork_id, enr_seq)?;
        let mut state = Self {
            key,
            timeout: Duration::from_millis(config.request_timeout_ms),
            local,
            limits: Limits::new(config),
            endpoints: Endpoints::default(),
            external: External::default(),
            schedule: Schedule::new(config),
            lookup: None,
            seeding: false,
            lookup_moved: false,
            questions: Questions::default(),
            questions_due: None,
            enr_span: None,
            quests: Vec::new(),
            bootnodes: Vec::new(),
            next_bootnode: 0,
            lists_due: Duration::ZERO,
            recent: Recent::default(),
            rng: StdRng::seed_from_u64(seed),
            counters: Counters::default(),
            now: Now { elapsed: Duration::ZERO, unix: 0 },
            effects: Vec::new(),
            config: config.clone(),
        };
        state.bootnodes = bootnodes;
        state.bootnodes.retain(|node| node.key != *state.key.public());
        for node in state.bootnodes.clone() {
            state.publish(&node, ContactEvent::Seen, None, None);
        }
        Ok(state)
    }

    /// Handles an event and appends its effects.
    pub fn step(&mut self, now: Now, input: Input<'_>, effects: &mut Vec<Effect>) {
        self.now = now;
        match input {
            Input::Packet { from, bytes } => self.on_packet(from, bytes),
            Input::Answer { question, contacts } => self.on_answer(question, contacts),
            Input::Refused(question) => self.on_refused(&question),
            Input::Listed(nodes) => self.on_listed(&nodes),
            Input::Target(completion) => self.schedule.hear(now.elapsed, completion),
            Input::ForkId(fork_id) => {
                if self.local.set_fork_id(&self.key, fork_id) {
                    self.schedule.wake(now.elapsed);
                }
            }
            Input::Timer => {}
        }
        self.on_time();
        while mem::take(&mut self.lookup_moved) {
            self.drive_lookup();
        }
        effects.append(&mut self.effects);
    }

    /// Returns when [`Input::Timer`] is due if no event comes before.
    pub fn deadline(&self) -> Duration {
        let lookup = self.lookup.as_ref().map(|lookup| lookup.deadline);
        let others =
            [self.endpoints.next_timeout(), self.next_settled(), lookup, self.questions_due];
        others.into_iter().flatten().fold(self.schedule.next(), Duration::min)
    }

    /// Returns the own record.
    pub fn enr(&self) -> &Enr {
        &self.local.enr
    }

    /// Returns the own node URL.
    pub fn url(&self) -> String {
        self.local.url()
    }

    /// Returns the own address as far as it is known; IPv4 if there are two.
    pub fn external(&self) -> Option<SocketAddr> {
        self.local.external()
    }

    /// Returns the counts since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the last known share of the wanted peers.
    pub fn completion(&self) -> f64 {
        self.schedule.completion()
    }

    /// Returns the number of endpoints remembered as proven.
    pub fn bonded(&self) -> usize {
        self.endpoints.proven_len()
    }

    fn on_time(&mut self) {
        let now = self.now.elapsed;
        while let Some(timeout) = self.endpoints.timed_out(now) {
            self.on_timeout(&timeout);
        }
        self.ask_settled();
        if self.lookup.as_ref().is_some_and(|lookup| lookup.deadline <= now) {
            self.end_lookup();
        }
        self.lookup_moved |= self.questions_due.take_if(|due| *due <= now).is_some();
        while let Some(turn) = self.schedule.due(now) {
            self.begin_turn(turn);
        }
    }

    /// Asks peer-table for what the turn needs. A turn is skipped if the last one of its kind is
    /// still in progress.
    fn begin_turn(&mut self, turn: Turn) {
        self.ask_lists();
        if turn == Turn::Enrs {
            self.check_silent();
        }
        match turn {
            Turn::Nodes if self.lookup.is_none() && !self.seeding => {
                let mut target = [0; 64];
                self.rng.fill(&mut target[..]);
                let target = B512::from(target);
                self.seeding = true;
                self.effects.push(Effect::Ask(match self.config.lookups {
                    Lookups::Kademlia => Question::Seeds { target },
                    Lookups::Single | Lookups::Legacy => Question::Candidate { target },
                }));
            }
            Turn::Enrs if self.enr_span.is_none() => {
                self.effects.push(Effect::Ask(Question::EnrCandidates));
            }
            Turn::Nodes | Turn::Enrs => {}
        }
    }

    /// Requests nodes from the lists, but only while peers are scarce.
    fn ask_lists(&mut self) {
        let now = self.now.elapsed;
        if self.schedule.is_starving() && self.lists_due <= now {
            self.lists_due = now + Duration::from_millis(self.config.dns_pause_ms);
            self.effects.push(Effect::AskLists);
        }
    }

    /// Pings the node that has been silent for the longest time. A node without any answers pings
    /// its bootnodes, one after the other.
    fn check_silent(&mut self) {
        let alone = self.schedule.is_alone() && !self.bootnodes.is_empty();
        let node = if alone {
            self.next_bootnode = (self.next_bootnode + 1) % self.bootnodes.len();
            Some(self.bootnodes[self.next_bootnode])
        } else {
            self.recent.next_silent(self.now.elapsed)
        };
        if let Some(node) = node {
            self.check(&node);
        }
    }

    /// Publishes the nodes of a list; lookups will ask them.
    fn on_listed(&mut self, nodes: &[Node]) {
        if self.schedule.is_alone() {
            self.schedule.wake(self.now.elapsed);
        }
        self.counters.listed += nodes.len() as u64;
        for node in nodes {
            if node.key != *self.key.public() {
                self.publish(node, ContactEvent::Seen, None, None);
            }
        }
    }

    fn on_answer(&mut self, question: Question, contacts: Vec<Contact>) {
        match question {
            Question::Neighbors { asker, to, .. } => self.send_neighbors(&asker, to, &contacts),
            Question::Seeds { target } | Question::Candidate { target } => {
                self.begin_lookup(target, &contacts);
            }
            Question::EnrCandidates => self.begin_enr_lookup(&contacts),
        }
    }

    fn on_refused(&mut self, question: &Question) {
        match question {
            Question::Neighbors { .. } => self.counters.drop(Dropped::Overloaded),
            // The bootnodes and the nodes that answered lately must suffice.
            Question::Seeds { target } | Question::Candidate { target } => {
                self.begin_lookup(*target, &[]);
            }
            Question::EnrCandidates => {}
        }
    }

    fn begin_lookup(&mut self, target: PublicKey, seeds: &[Contact]) {
        self.seeding = false;
        if self.lookup.is_some() {
            return;
        }
        let (asked_max, enough) = match self.config.lookups {
            Lookups::Single | Lookups::Legacy => (1, 1),
            Lookups::Kademlia if self.schedule.is_resting() => {
                (self.config.maintenance_asked_max, K)
            }
            Lookups::Kademlia => (self.config.lookup_asked_max, K),
        };
        let deadline = self.now.elapsed + LOOKUP_TIME_MAX;
        let mut lookup = Lookup::new(target, *self.key.public(), asked_max, deadline);
        for node in seeds.iter().filter_map(node) {
            lookup.add(node);
        }
        if seeds.len() < enough {
            self.bootnodes.iter().copied().chain(self.recent.nodes()).for_each(|node| {
                lookup.add(node);
            });
        }
        if !lookup.is_finished() {
            self.counters.lookups += 1;
        }
        self.lookup = Some(lookup);
        self.lookup_moved = true;
    }

    /// Asks further nodes, or ends the lookup when it is done.
    fn drive_lookup(&mut self) {
        while let Some(node) = self.next_asked() {
            self.begin_quest(node, Want::Nodes);
        }
        if self.lookup.as_mut().is_some_and(Lookup::is_finished) {
            self.end_lookup();
        }
    }

    /// Returns the node that the lookup asks next, if one may be asked now. The other policies ask
    /// at the pace of their timers.
    fn next_asked(&mut self) -> Option<Node> {
        let lookup = self.lookup.as_mut()?;
        if self.config.lookups != Lookups::Kademlia {
            return lookup.next();
        }
        if let Err(due) = self.questions.take(self.now.elapsed) {
            self.questions_due = Some(due);
            return None;
        }
        let next = lookup.next();
        if next.is_none() {
            self.questions.give_back();
        }
        next
    }

    fn end_lookup(&mut self) {
        self.questions_due = None;
        if let Some(lookup) = self.lookup.take() {
            lookup.record();
            self.schedule.end_lookup();
        }
        self.quests.retain(|quest| quest.want != Want::Nodes);
    }

    fn begin_enr_lookup(&mut self, contacts: &[Contact]) {
        if contacts.is_empty() || self.enr_span.is_some() {
            return;
        }
        self.enr_span = Some(info_span!("enr_lookup", asked = contacts.len()));
        for node in contacts.iter().filter_map(node) {
            self.begin_quest(node, Want::Enr);
        }
        self.end_enr_lookup();
    }

    /// Ends the span of the record lookup once the last node has answered or failed.
    fn end_enr_lookup(&mut self) {
        if self.quests.iter().all(|quest| quest.want != Want::Enr) {
            self.enr_span = None;
        }
    }

    fn publish(
        &mut self,
        node: &Node,
        event: ContactEvent,
        enr_seq: Option<u64>,
        enr: Option<&Enr>,
    ) {
        let Endpoint { ip, udp_port, tcp_port } = node.endpoint;
        let enr = enr.map(|enr| enr.rlp().clone());
        let contact = Contact { id: node.key, ip, udp_port, tcp_port, enr_seq, enr, event };
        self.effects.push(Effect::Publish(contact));
    }

    fn set_external(&mut self, udp: SocketAddr) {
        let given =
            self.config.external_ips.iter().any(|ip| ip.to_canonical().is_ipv4() == udp.is_ipv4());
        if !given && self.local.set_udp(&self.key, udp) {
            info!(%udp, seq = self.local.enr.seq(), "external address learned");
            self.schedule.wake(self.now.elapsed);
        }
    }
}

/// Returns the contact as a node; `None` if it has no UDP port.
fn node(contact: &Contact) -> Option<Node> {
    let Contact { id, ip, udp_port, tcp_port, .. } = *contact;
    let endpoint = Endpoint { ip, udp_port, tcp_port };
    (udp_port != 0).then_some(Node { key: id, endpoint })
}
