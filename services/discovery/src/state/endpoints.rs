//! State of each endpoint that packets were exchanged with: its proof, ours, and pending questions.

use super::aging::Aging;
use std::{collections::VecDeque, net::SocketAddr, time::Duration};
use tandem_discv4::PublicKey;
use tandem_primitives::B256;

/// Time for which the proof of an endpoint is valid.
pub const PROOF_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Time for which we rely on the other side holding our proof: less, because its clock started
/// earlier.
const OUR_PROOF_LIFETIME: Duration = Duration::from_secs(11 * 60 * 60);
/// Number of unanswered questions in a row after which a node counts as lost.
pub const LOST_AFTER: u8 = 2;
/// Largest number of endpoints remembered with a proof, and of those without.
const ENDPOINTS_MAX: usize = 1 << 15;
/// Largest number of questions waiting for their answers.
const WAITING_MAX: usize = 8192;

/// Node at an address. A proof is valid for both together.
pub type EndpointKey = (PublicKey, SocketAddr);

/// State of one endpoint.
#[derive(Default)]
pub struct Endpoint {
    pub tcp_port: u16,
    pub enr_seq: Option<u64>,
    /// Hash of our ping whose pong is pending.
    pub ping: Option<B256>,
    /// Whether that ping was sent to find the node, not to answer its own.
    pub sought: bool,
    /// Hash of the node's ping, which is answered once our ping is answered.
    pub unanswered: Option<B256>,
    /// Hash of the find node packet whose neighbors are pending.
    pub find_node: Option<B256>,
    /// Number of nodes that arrived for the pending find node packet.
    pub received: usize,
    /// Hash of the request whose record is pending.
    pub enr_request: Option<B256>,
    /// Whether it has sent a record before.
    pub sent_record: bool,
    /// Number of questions in a row that it did not answer.
    pub unanswered_questions: u8,
    proven_at: Option<Duration>,
    ponged_at: Option<Duration>,
}

impl Endpoint {
    /// Returns whether its endpoint was ever proven.
    pub fn was_proven(&self) -> bool {
        self.proven_at.is_some()
    }

    fn is_proven(&self, now: Duration) -> bool {
        self.proven_at.is_some_and(|at| now < at + PROOF_LIFETIME)
    }

    /// Returns whether it will answer questions: it has proven itself and has seen our proof.
    pub fn is_bonded(&self, now: Duration) -> bool {
        self.is_proven(now) && self.ponged_at.is_some_and(|at| now < at + OUR_PROOF_LIFETIME)
    }

    /// Records that we answered its ping.
    pub fn ponged(&mut self, now: Duration) {
        self.ponged_at = Some(now);
    }

    /// Forgets that it has our proof, as it does not answer questions.
    pub fn forget_our_proof(&mut self) {
        self.ponged_at = None;
    }

    /// Records a missing answer. Returns true if it has always answered so far: a packet may have
    /// been lost.
    pub fn fail(&mut self, now: Duration) -> bool {
        self.unanswered_questions = self.unanswered_questions.saturating_add(1);
        self.unanswered_questions < LOST_AFTER && self.is_proven(now)
    }
}

/// Kind of the pending answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    Pong,
    Neighbors,
    Enr,
}

/// Question whose deadline has passed.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    pub at: Duration,
    pub key: EndpointKey,
    pub waiting: Waiting,
    hash: B256,
}

/// All endpoints, bounded. An endpoint without a proof cannot evict one with a proof.
pub struct Endpoints {
    proven: Aging<EndpointKey, Endpoint>,
    strangers: Aging<EndpointKey, Endpoint>,
    /// Deadlines of the questions. All wait equally long, so the oldest is due first.
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

    /// Records that its pong arrived.
    pub fn prove(&mut self, key: EndpointKey, now: Duration) {
        if let Some(mut endpoint) = self.strangers.remove(&key).or_else(|| self.proven.remove(&key))
        {
            endpoint.proven_at = Some(now);
            self.proven.insert(key, endpoint);
        }
    }

    /// Returns the number of endpoints remembered as proven; some of the proofs may have expired.
    pub fn proven_len(&self) -> usize {
        self.proven.len()
    }

    /// Returns whether one more question may be asked.
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

    /// Returns the next deadline of a question.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.timeouts.front().map(|timeout| timeout.at)
    }

    /// Returns the next question whose deadline passed without an answer.
    pub fn timed_out(&mut self, now: Duration) -> Option<Timeout> {
        while let Some(timeout) = self.timeouts.pop_front_if(|timeout| timeout.at <= now) {
            // A forgotten endpoint is as unanswered as one that still exists.
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
