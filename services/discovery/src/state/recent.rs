//! Nodes that answered lately. They are asked when peer-table does not answer, and are checked in
//! turn for being alive.

use std::{collections::VecDeque, time::Duration};
use tandem_discv4::Node;

/// Largest number of nodes remembered.
const RECENT_MAX: usize = 64;
/// Time of silence after which a node is pinged.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// Node that answered, with the time of its last answer or check.
struct Entry {
    node: Node,
    at: Duration,
    /// Whether it has not answered since it was checked.
    asked: bool,
}

/// Nodes that answered last, beginning with the one whose answer or check is the oldest.
#[derive(Default)]
pub struct Recent(VecDeque<Entry>);

impl Recent {
    /// Records that the node has answered.
    pub fn hear(&mut self, now: Duration, node: Node) {
        self.0.retain(|entry| entry.node.key != node.key);
        if self.0.len() == RECENT_MAX {
            // A node that does not answer is evicted before one that did.
            let silent = self.0.iter().position(|entry| entry.asked);
            self.0.remove(silent.unwrap_or(0));
        }
        self.0.push_back(Entry { node, at: now, asked: false });
    }

    /// Returns all nodes, whether they still answer or not.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.0.iter().map(|entry| entry.node)
    }

    /// Returns the next node to check. A node that answered or was checked a moment ago is not due.
    pub fn next_silent(&mut self, now: Duration) -> Option<Node> {
        let entry = self.0.pop_front_if(|entry| entry.at + SILENT_AFTER <= now)?;
        let node = entry.node;
        self.0.push_back(Entry { node, at: now, asked: true });
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_discv4::Endpoint;
    use tandem_primitives::B512;

    fn node(n: u8) -> Node {
        let endpoint = Endpoint { ip: [10, 0, 0, n].into(), udp_port: 1, tcp_port: 1 };
        Node { key: B512::repeat_byte(n), endpoint }
    }

    #[test]
    fn all_are_asked_in_turn_and_a_silent_one_makes_room_first() {
        let mut recent = Recent::default();
        let at = Duration::from_secs;
        (1..=64).for_each(|n| recent.hear(at(u64::from(n)), node(n)));
        assert_eq!(recent.next_silent(at(30)), None, "all answered a moment ago");
        recent.hear(at(65), node(1));
        let asked: Vec<_> = (0..3).map(|_| recent.next_silent(at(96)).unwrap()).collect();
        assert_eq!(asked, [2, 3, 4].map(node));
        // Two answer, so the third one is evicted for a new node.
        recent.hear(at(97), node(2));
        recent.hear(at(97), node(4));
        recent.hear(at(98), node(99));
        let nodes: Vec<_> = recent.nodes().collect();
        assert!(nodes.len() == 64 && !nodes.contains(&node(3)) && nodes.contains(&node(99)));
        // A node that does not answer is asked once in a round, like all others.
        let round: Vec<_> = (0..64).filter_map(|_| recent.next_silent(at(1_000))).collect();
        assert_eq!(round.len(), 64);
        assert_eq!(recent.next_silent(at(1_000)), None);
        assert_eq!(recent.next_silent(at(1_030)), Some(round[0]));
    }
}
