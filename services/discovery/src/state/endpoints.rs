//! What is known of each endpoint that packets were exchanged with: its proof, ours, and what it
//! was asked.

use super::aging::Aging;
use std::{collections::VecDeque, net::SocketAddr, time::Duration};
use tandem_discv4::PublicKey;
use tandem_primitives::B256;

/// How long the proof of an endpoint holds.
pub const PROOF_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// How long we rely on the other side holding ours: less, because its clock started earlier.
const OUR_PROOF_LIFETIME: Duration = Duration::from_secs(11 * 60 * 60);
/// Questions in a row without an answer after which a node counts as lost.
pub const LOST_AFTER: u8 = 2;
/// Endpoints remembered with a proof, and as many without.
const ENDPOINTS_MAX: usize = 1 << 15;
/// Questions waiting for their answers.
const WAITING_MAX: usize = 8192;

/// A node at an address. A proof holds for both together.
pub type EndpointKey = (PublicKey, SocketAddr);

/// One endpoint.
#[derive(Default)]
pub struct Endpoint {
    pub tcp_port: u16,
    pub enr_seq: Option<u64>,
    /// Hash of the ping whose pong is waited for.
    pub ping: Option<B256>,
    /// That ping was sent to find the node, not to answer its own.
    pub sought: bool,
    /// Hash of its ping that gets its pong when that pong has come.
    pub unanswered: Option<B256>,
    /// Hash of the find node whose neighbors are waited for.
    pub find_node: Option<B256>,
    /// Nodes that came for the pending find node.
    pub received: usize,
    /// Hash of the request whose record is waited for.
    pub enr_request: Option<B256>,
    /// It has sent a record before.
    pub sent_record: bool,
    /// Questions in a row that it did not answer.
    pub unanswered_questions: u8,
    proven_at: Option<Duration>,
    ponged_at: Option<Duration>,
}

impl Endpoint {
    /// Whether its endpoint was proven at any time.
    pub fn was_proven(&self) -> bool {
        self.proven_at.is_some()
    }

    fn is_proven(&self, now: Duration) -> bool {
        self.proven_at.is_some_and(|at| now < at + PROOF_LIFETIME)
    }

    /// Whether it will answer questions: it has proven itself and has seen our proof.
    pub fn is_bonded(&self, now: Duration) -> bool {
        self.is_proven(now) && self.ponged_at.is_some_and(|at| now < at + OUR_PROOF_LIFETIME)
    }

    /// We answered its ping.
    pub fn ponged(&mut self, now: Duration) {
        self.ponged_at = Some(now);
    }

    /// It does not answer questions: it may have forgotten our proof.
    pub fn forget_our_proof(&mut self) {
        self.ponged_at = None;
    }

    /// It did not answer. True when it always did until now: a packet may have been lost.
    pub fn fail(&mut self, now: Duration) -> bool {
        self.unanswered_questions = self.unanswered_questions.saturating_add(1);
        self.unanswered_questions < LOST_AFTER && self.is_proven(now)
    }
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    Pong,
    Neighbors,
    Enr,
}

/// A question whose time is up.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    pub at: Duration,
    pub key: EndpointKey,
    pub waiting: Waiting,
    hash: B256,
}

/// All endpoints, bounded. Those without a proof cannot push out those with one.
pub struct Endpoints {
    proven: Aging<EndpointKey, Endpoint>,
    strangers: Aging<EndpointKey, Endpoint>,
    /// All questions wait equally long, so the oldest is the first due.
    timeouts: VecDeque<Timeout>,
}

impl Default for Endpoints {
    fn default() -> Self {
        let (proven, strangers) = (Aging::new(ENDPOINTS_MAX), Aging::new(ENDPOINTS_MAX));
        Self { proven, strangers, timeouts: VecDeque::new() }
    }
}

impl Endpoints {
    pub fn get(&mut self, key: &EndpointKey) -> Option<&mut Endpoint> {
        match self.proven.get(key) {
            Some(endpoint) => Some(endpoint),
            None => self.strangers.get(key),
        }
    }

    pub fn get_or_insert(&mut self, key: EndpointKey) -> &mut Endpoint {
        if self.proven.peek(&key).is_some() {
            return self.proven.get_or_insert_with(key, Endpoint::default);
        }
        self.strangers.get_or_insert_with(key, Endpoint::default)
    }

    pub fn is_proven(&self, key: &EndpointKey, now: Duration) -> bool {
        self.proven.peek(key).is_some_and(|endpoint| endpoint.is_proven(now))
    }

    /// Its pong came.
    pub fn prove(&mut self, key: EndpointKey, now: Duration) {
        if let Some(mut endpoint) = self.strangers.remove(&key).or_else(|| self.proven.remove(&key))
        {
            endpoint.proven_at = Some(now);
            self.proven.insert(key, endpoint);
        }
    }

    /// Endpoints remembered as proven; some of the proofs may have run out.
    pub fn proven_len(&self) -> usize {
        self.proven.len()
    }

    /// Whether one more question may be asked.
    pub fn has_room(&self) -> bool {
        self.timeouts.len() < WAITING_MAX
    }

    /// Waits for an answer until `at`, which never lies before that of an earlier question.
    pub fn wait(&mut self, at: Duration, key: EndpointKey, waiting: Waiting, hash: B256) {
        let endpoint = self.get_or_insert(key);
        match waiting {
            Waiting::Pong => endpoint.ping = Some(hash),
            Waiting::Neighbors => (endpoint.find_node, endpoint.received) = (Some(hash), 0),
            Waiting::Enr => endpoint.enr_request = Some(hash),
        }
        self.timeouts.push_back(Timeout { at, key, waiting, hash });
    }

    /// When the next question's time is up.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.timeouts.front().map(|timeout| timeout.at)
    }

    /// The next question whose time is up and which got no answer.
    pub fn timed_out(&mut self, now: Duration) -> Option<Timeout> {
        while let Some(timeout) = self.timeouts.pop_front_if(|timeout| timeout.at <= now) {
            // One that was forgotten since is as unanswered as one that is still there.
            let Some(endpoint) = self.get(&timeout.key) else { return Some(timeout) };
            let pending = match timeout.waiting {
                Waiting::Pong => &mut endpoint.ping,
                Waiting::Neighbors => &mut endpoint.find_node,
                Waiting::Enr => &mut endpoint.enr_request,
            };
            if pending.take_if(|hash| *hash == timeout.hash).is_none() {
                continue;
            }
            if timeout.waiting == Waiting::Neighbors && endpoint.received > 0 {
                continue;
            }
            return Some(timeout);
        }
        None
    }
}
