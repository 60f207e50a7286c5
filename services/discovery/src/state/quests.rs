//! Questions to nodes, from the proof of both endpoints to the answer.

use super::{
    State,
    endpoints::{EndpointKey, Timeout, Waiting},
};
use std::{net::Ipv4Addr, time::Duration};
use tandem_discv4::{Endpoint, EnrRequest, FindNode, Message, Node, Ping, SignedPacket, encode};
use tandem_proto::event::ContactEvent;

/// Time that a proven node gets to ask for our proof before we ask it anything. It does not tell
/// whether it has one.
const SETTLE: Duration = Duration::from_millis(300);

/// Kind of question to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Nodes close to the target of the lookup.
    Nodes,
    /// The node's record.
    Enr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// A ping was sent to the node.
    Bonding,
    /// The node has proven itself; until this time it may ask for our proof.
    Settling(Duration),
    /// The question was sent.
    Asking,
}

/// One question to one node.
pub struct Quest {
    pub want: Want,
    node: Node,
    stage: Stage,
}

impl Quest {
    fn key(&self) -> EndpointKey {
        (self.node.key, self.node.endpoint.udp())
    }
}

impl State {
    pub(super) fn begin_quest(&mut self, node: Node, want: Want) {
        let key = (node.key, node.endpoint.udp());
        let now = self.now.elapsed;
        let endpoint = self.endpoints.get(&key);
        let bonded = endpoint.as_ref().is_some_and(|endpoint| endpoint.is_bonded(now));
        let pinged = endpoint.is_some_and(|endpoint| endpoint.ping.is_some());
        let stage = if bonded {
            self.ask(&node, want).then_some(Stage::Asking)
        } else if pinged || self.send_ping(&node) {
            Some(Stage::Bonding)
        } else {
            None
        };
        match stage {
            Some(stage) => self.quests.push(Quest { want, node, stage }),
            // The node is not at fault, so no failure is published.
            None => self.settle(&node, want, false),
        }
    }

    /// Advances the quests of a node that has proven itself.
    pub(super) fn quests_proven(&mut self, key: &EndpointKey) {
        let now = self.now.elapsed;
        let bonded = self.endpoints.get(key).is_some_and(|endpoint| endpoint.is_bonded(now));
        for quest in self.quests.iter_mut().filter(|quest| quest.key() == *key) {
            if quest.stage == Stage::Bonding {
                quest.stage = Stage::Settling(if bonded { now } else { now + SETTLE });
            }
        }
    }

    /// Advances the quests of a node that has our proof.
    pub(super) fn quests_ponged(&mut self, key: &EndpointKey) {
        let now = self.now.elapsed;
        for quest in self.quests.iter_mut().filter(|quest| quest.key() == *key) {
            if matches!(quest.stage, Stage::Settling(_)) {
                quest.stage = Stage::Settling(now);
            }
        }
    }

    /// Returns when the next node has had its time to settle.
    pub(super) fn next_settled(&self) -> Option<Duration> {
        let settling = self.quests.iter().filter_map(|quest| match quest.stage {
            Stage::Settling(until) => Some(until),
            Stage::Bonding | Stage::Asking => None,
        });
        settling.min()
    }

    /// Asks the nodes that have had their time to settle.
    pub(super) fn ask_settled(&mut self) {
        let now = self.now.elapsed;
        loop {
            let due = |quest: &Quest| matches!(quest.stage, Stage::Settling(until) if until <= now);
            let Some(index) = self.quests.iter().position(due) else { return };
            let (node, want) = (self.quests[index].node, self.quests[index].want);
            if self.ask(&node, want) {
                self.quests[index].stage = Stage::Asking;
            } else {
                self.quests.swap_remove(index);
                self.settle(&node, want, false);
            }
        }
    }

    /// Ends the quest of a node that answered.
    pub(super) fn quest_answered(&mut self, key: &EndpointKey, want: Want) {
        self.end_quest(key, want, Stage::Asking, true);
    }

    fn end_quest(&mut self, key: &EndpointKey, want: Want, stage: Stage, answered: bool) {
        let found =
            |quest: &Quest| quest.key() == *key && quest.want == want && quest.stage == stage;
        if let Some(index) = self.quests.iter().position(found) {
            let quest = self.quests.swap_remove(index);
            self.settle(&quest.node, want, answered);
        }
    }

    fn settle(&mut self, node: &Node, want: Want, answered: bool) {
        match want {
            Want::Nodes => {
                if let Some(lookup) = &mut self.lookup {
                    lookup.settle(node, answered);
                }
                self.lookup_moved = true;
            }
            Want::Enr => self.end_enr_lookup(),
        }
    }

    pub(super) fn on_timeout(&mut self, timeout: &Timeout) {
        let Timeout { key, waiting, .. } = *timeout;
        let mut node = Node { key: key.0, endpoint: Endpoint::new(key.1, 0) };
        let mut once_more = false;
        if let Some(known) = self.endpoints.get(&key) {
            node.endpoint.tcp_port = known.tcp_port;
            once_more = known.fail(self.now.elapsed);
            if waiting == Waiting::Pong {
                known.unanswered = None;
            } else {
                known.forget_our_proof();
            }
        }
        self.publish(&node, ContactEvent::Failed, None, None);
        match waiting {
            Waiting::Pong => {
                self.end_quest(&key, Want::Nodes, Stage::Bonding, false);
                self.end_quest(&key, Want::Enr, Stage::Bonding, false);
            }
            Waiting::Neighbors => self.end_quest(&key, Want::Nodes, Stage::Asking, false),
            Waiting::Enr => self.end_quest(&key, Want::Enr, Stage::Asking, false),
        }
        if once_more {
            self.check(&node);
        }
    }

    /// Pings a node to check that it is alive, unless a ping is pending.
    pub(super) fn check(&mut self, node: &Node) {
        let key = (node.key, node.endpoint.udp());
        let asked = self.endpoints.get(&key).is_some_and(|endpoint| endpoint.ping.is_some());
        if !asked {
            self.send_ping(node);
        }
    }

    /// Sends a ping and waits for its pong. Returns false if the ping is not allowed.
    pub(super) fn send_ping(&mut self, node: &Node) -> bool {
        let ping = self.ping(node, Some(self.local.enr.seq()));
        let sent = self.send_question(node, &ping.into(), Waiting::Pong);
        if sent {
            self.endpoints.get_or_insert((node.key, node.endpoint.udp())).sought = true;
        }
        sent
    }

    /// Makes the ping that answers a stranger's. It is shorter than the stranger's, unless that one
    /// left something out. The number of our record comes with the pong. Our address in a ping is
    /// not used by any node, and the other side knows its own RLPx port.
    pub(super) fn ping_back(&self, node: &Node) -> Message {
        let to = Endpoint { tcp_port: 0, ..node.endpoint };
        let mut ping = self.ping(&Node { endpoint: to, ..*node }, None);
        ping.from.ip = Ipv4Addr::UNSPECIFIED.into();
        ping.into()
    }

    fn ping(&self, node: &Node, enr_seq: Option<u64>) -> Ping {
        Ping {
            from: self.local.endpoint_towards(node.endpoint.ip),
            to: node.endpoint,
            expiration: self.expiration(),
            enr_seq,
        }
    }

    /// Sends a ping that the account has paid for.
    pub(super) fn ask_back(&mut self, node: &Node, ping: Message) {
        self.put_question(node, encode(&self.key, &ping), Waiting::Pong);
        self.endpoints.get_or_insert((node.key, node.endpoint.udp())).sought = false;
    }

    fn ask(&mut self, node: &Node, want: Want) -> bool {
        let expiration = self.expiration();
        let (message, waiting) = match want {
            Want::Nodes => {
                let Some(lookup) = &self.lookup else { return false };
                (FindNode { target: lookup.target, expiration }.into(), Waiting::Neighbors)
            }
            Want::Enr => (EnrRequest { expiration }.into(), Waiting::Enr),
        };
        let sent = self.send_question(node, &message, waiting);
        if sent && want == Want::Nodes {
            self.publish(node, ContactEvent::Asked, None, None);
        }
        sent
    }

    /// Sends a question. To an endpoint without a proof it is unsolicited, so the allowance must
    /// cover it.
    fn send_question(&mut self, node: &Node, message: &Message, waiting: Waiting) -> bool {
        let (now, to) = (self.now.elapsed, node.endpoint.udp());
        if !self.endpoints.has_room() {
            return false;
        }
        let packet = encode(&self.key, message);
        let proven = self.endpoints.is_proven(&(node.key, to), now);
        let sent = proven || self.limits.spend(now, to.ip(), packet.bytes.len());
        if sent {
            self.put_question(node, packet, waiting);
        }
        sent
    }

    fn put_question(&mut self, node: &Node, packet: SignedPacket, waiting: Waiting) {
        let (now, key) = (self.now.elapsed, (node.key, node.endpoint.udp()));
        self.send(key.1, packet.bytes);
        self.endpoints.wait(now + self.timeout, key, waiting, packet.hash);
        if node.endpoint.tcp_port != 0 {
            self.endpoints.get_or_insert(key).tcp_port = node.endpoint.tcp_port;
        }
    }
}
