//! Kademlia lookup: it asks the nodes closest to a target for nodes that are closer still.

use std::time::Duration;
use tandem_discv4::{Node, PublicKey, distance, node_id};
use tandem_primitives::B256;
use tracing::{Span, field::Empty, info_span};

/// Number of nodes that a lookup seeks: `k` of the protocol.
pub const K: usize = 16;
/// Number of nodes asked at a time: `α` of the protocol.
pub const ALPHA: usize = 3;
/// Number of nodes that a lookup remembers, so that failures among the closest can be replaced.
const CANDIDATES_MAX: usize = 3 * K;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    New,
    Asked,
    Answered,
    Failed,
}

struct Candidate {
    distance: B256,
    node: Node,
    progress: Progress,
}

/// Lookup in progress.
pub struct Lookup {
    pub target: PublicKey,
    pub deadline: Duration,
    pub span: Span,
    hash: B256,
    own: PublicKey,
    /// Candidates, closest first.
    candidates: Vec<Candidate>,
    asked: usize,
    asked_max: usize,
    found: usize,
}

impl Lookup {
    /// Makes a lookup that asks at most `asked_max` nodes, in no span yet. `own` is never asked.
    pub fn new(target: PublicKey, own: PublicKey, asked_max: usize, deadline: Duration) -> Self {
        let hash = node_id(&target);
        let candidates = Vec::with_capacity(CANDIDATES_MAX + 1);
        let span = Span::none();
        Self { target, deadline, span, hash, own, candidates, asked: 0, asked_max, found: 0 }
    }

    /// Adds a node. Returns true if this lookup did not know it.
    pub fn add(&mut self, node: Node) -> bool {
        if node.key == self.own {
            return false;
        }
        let distance = distance(&self.hash, &node.id());
        let Err(place) = self.candidates.binary_search_by(|other| other.distance.cmp(&distance))
        else {
            return false;
        };
        self.found += 1;
        self.candidates.insert(place, Candidate { distance, node, progress: Progress::New });
        if self.candidates.len() > CANDIDATES_MAX {
            // The farthest node without a pending answer is removed.
            if let Some(last) = self.candidates.iter().rposition(|c| c.progress != Progress::Asked)
            {
                self.candidates.remove(last);
            }
        }
        true
    }

    /// Returns the next node to ask; `None` if enough are being asked or no node is left.
    pub fn next(&mut self) -> Option<Node> {
        if self.in_flight() >= ALPHA || self.asked >= self.asked_max {
            return None;
        }
        let next = self
            .candidates
            .iter_mut()
            .filter(|candidate| candidate.progress != Progress::Failed)
            .take(K)
            .find(|candidate| candidate.progress == Progress::New)?;
        next.progress = Progress::Asked;
        self.asked += 1;
        Some(next.node)
    }

    /// Records whether a node that was asked has answered.
    pub fn settle(&mut self, node: &Node, answered: bool) {
        // A lookup without an answer has no trace: a node that reaches no other would fill the
        // collector.
        if answered && self.span.is_none() {
            self.span = info_span!("lookup", asked = Empty, found = Empty);
        }
        let distance = distance(&self.hash, &node.id());
        if let Ok(place) = self.candidates.binary_search_by(|other| other.distance.cmp(&distance)) {
            let candidate = &mut self.candidates[place];
            candidate.progress = if answered { Progress::Answered } else { Progress::Failed };
        }
    }

    /// Returns whether the closest nodes have all answered, or no node is left to ask.
    pub fn is_finished(&mut self) -> bool {
        if self.in_flight() > 0 {
            return false;
        }
        let closest = self.candidates.iter().filter(|c| c.progress != Progress::Failed).take(K);
        self.asked >= self.asked_max || closest.clone().all(|c| c.progress == Progress::Answered)
    }

    fn in_flight(&self) -> usize {
        self.candidates.iter().filter(|candidate| candidate.progress == Progress::Asked).count()
    }

    /// Records the figures on the span.
    pub fn record(&self) {
        self.span.record("asked", self.asked);
        self.span.record("found", self.found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;
    use tandem_discv4::Endpoint;
    use tandem_primitives::B512;

    fn node(rng: &mut StdRng) -> Node {
        let mut key = [0; 64];
        rng.fill(&mut key[..]);
        let endpoint = Endpoint { ip: [10, 0, 0, 1].into(), udp_port: 1, tcp_port: 1 };
        Node { key: B512::from(key), endpoint }
    }

    fn lookup(asked_max: usize) -> Lookup {
        let (target, own) = (B512::repeat_byte(1), B512::repeat_byte(2));
        Lookup::new(target, own, asked_max, Duration::MAX)
    }

    /// Checks a network in which every node knows its neighbours: the lookup ends with the closest
    /// of all.
    #[test]
    fn it_asks_the_closest_three_at_a_time_and_finds_the_closest_of_all() {
        let mut rng = StdRng::seed_from_u64(1);
        let all: Vec<_> = (0..300).map(|_| node(&mut rng)).collect();
        let mut lookup = lookup(usize::MAX);
        let hash = lookup.hash;
        let mut sorted = all.clone();
        sorted.sort_by_key(|node| distance(&hash, &node.id()));
        all.iter().take(5).for_each(|&node| assert!(lookup.add(node)));
        let mut asked = BTreeSet::new();
        while !lookup.is_finished() {
            let round: Vec<_> = std::iter::from_fn(|| lookup.next()).collect();
            assert!(!round.is_empty() && round.len() <= ALPHA);
            for node in round {
                assert!(asked.insert(node.id()), "nobody is asked twice");
                let own = sorted.iter().position(|other| other.key == node.key).unwrap();
                // Each node knows the sixteen before it, and answers with them.
                for closer in &sorted[own.saturating_sub(16)..own] {
                    lookup.add(*closer);
                }
                lookup.settle(&node, true);
            }
        }
        assert!(sorted[..16].iter().all(|node| asked.contains(&node.id())));
        assert!(asked.len() < 80, "{} of 300 asked", asked.len());
    }

    #[test]
    fn lookup_has_no_trace_before_a_node_answers() {
        let subscriber = tracing_subscriber::registry();
        let _default = tracing::subscriber::set_default(subscriber);
        let mut rng = StdRng::seed_from_u64(3);
        let mut lookup = lookup(usize::MAX);
        (0..2).for_each(|_| assert!(lookup.add(node(&mut rng))));
        let [first, second] = [lookup.next().unwrap(), lookup.next().unwrap()];
        lookup.settle(&first, false);
        assert!(lookup.span.is_none());
        lookup.settle(&second, true);
        assert!(!lookup.span.is_none());
    }

    #[test]
    fn nodes_that_fail_are_replaced_by_the_next() {
        let mut rng = StdRng::seed_from_u64(2);
        let mut lookup = lookup(usize::MAX);
        (0..40).for_each(|_| assert!(lookup.add(node(&mut rng))));
        let mut answered = 0;
        while !lookup.is_finished() {
            let node = lookup.next().unwrap();
            let ok = node.id()[31].is_multiple_of(2);
            answered += usize::from(ok);
            lookup.settle(&node, ok);
        }
        assert!(answered >= 10);
    }

    #[test]
    fn itself_and_those_known_are_not_added_and_the_number_asked_is_bounded() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut lookup = lookup(2);
        let first = node(&mut rng);
        assert!(lookup.add(first) && !lookup.add(first));
        assert!(!lookup.add(Node { key: B512::repeat_byte(2), ..first }));
        (0..1000).for_each(|_| {
            lookup.add(node(&mut rng));
        });
        assert_eq!(lookup.candidates.len(), CANDIDATES_MAX);
        let round: Vec<_> = std::iter::from_fn(|| lookup.next()).collect();
        assert_eq!(round.len(), 2);
        assert!(!lookup.is_finished());
        round.iter().for_each(|node| lookup.settle(node, true));
        assert!(lookup.is_finished());
    }
}
