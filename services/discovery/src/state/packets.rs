//! Handling of each kind of packet.

use super::{
    Dropped, Effect, Question, State,
    endpoints::{EndpointKey, LOST_AFTER},
    lookup::K,
    node,
    quests::Want,
    reach::may_tell,
};
use std::{mem, net::SocketAddr};
use tandem_discv4::{
    Endpoint, EnrResponse, HEADER_BYTES, Message, NEIGHBORS_MAX, Neighbors, Node, PACKET_BYTES_MAX,
    Packet, Ping, Pong, PublicKey, decode, encode, node_id,
};
use tandem_primitives::B256;
use tandem_proto::event::{Contact, ContactEvent};

impl State {
    pub(super) fn on_packet(&mut self, from: SocketAddr, bytes: &[u8]) {
        self.counters.received += 1;
        if let Err(reason) = self.take_packet(from, bytes) {
            self.counters.drop(reason);
        }
    }

    fn take_packet(&mut self, from: SocketAddr, bytes: &[u8]) -> Result<(), Dropped> {
        // The cheapest checks come first: a flood costs only the work before its refusal.
        if bytes.len() <= HEADER_BYTES || bytes.len() > PACKET_BYTES_MAX || from.port() == 0 {
            return Err(Dropped::Malformed);
        }
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        if !self.limits.admit(self.now.elapsed, from.ip(), bytes.len()) {
            return Err(Dropped::RateLimited);
        }
        let Packet { sender, hash, message } = decode(bytes).map_err(|_| Dropped::Malformed)?;
        if message.expiration().is_some_and(|expiration| self.is_expired(expiration)) {
            return Err(Dropped::Expired);
        }
        if sender == *self.key.public() {
            return Err(Dropped::Unsolicited);
        }
        let key = (sender, from);
        match message {
            Message::Ping(ping) => self.on_ping(key, hash, &ping, bytes.len()),
            Message::Pong(pong) => self.on_pong(key, &pong),
            Message::FindNode(find) => {
                self.check_proven(&key)?;
                let target = node_id(&find.target);
                let question = Question::Neighbors { asker: sender, to: from, target };
                self.effects.push(Effect::Ask(question));
                Ok(())
            }
            Message::Neighbors(neighbors) => self.on_neighbors(key, &neighbors.nodes),
            Message::EnrRequest(_) => {
                self.check_proven(&key)?;
                let enr = self.local.enr.clone();
                self.reply(from, EnrResponse { request_hash: hash, enr });
                Ok(())
            }
            Message::EnrResponse(response) => self.on_enr_response(key, &response),
        }
    }

    /// Returns whether an expiration has passed, or lies so far in the future that it would never
    /// expire.
    fn is_expired(&self, expiration: u64) -> bool {
        expiration < self.now.unix || i64::try_from(expiration).is_err()
    }

    /// Returns the expiration of a packet sent now.
    pub(super) fn expiration(&self) -> u64 {
        self.now.unix.saturating_add(self.config.expiration_seconds)
    }

    fn check_proven(&self, key: &EndpointKey) -> Result<(), Dropped> {
        let proven = self.endpoints.is_proven(key, self.now.elapsed);
        if proven { Ok(()) } else { Err(Dropped::Unproven) }
    }

    fn on_ping(
        &mut self,
        key: EndpointKey,
        hash: B256,
        ping: &Ping,
        bytes: usize,
    ) -> Result<(), Dropped> {
        let now = self.now.elapsed;
        let node = Node { key: key.0, endpoint: Endpoint::new(key.1, ping.from.tcp_port) };
        let proven = self.endpoints.is_proven(&key, now);
        if proven {
            self.send_pong(&node, hash);
        } else {
            self.limits.owe(now, key.1.ip(), bytes);
            self.answer_stranger(&node, hash)?;
        }
        let endpoint = self.endpoints.get_or_insert(key);
        endpoint.tcp_port = ping.from.tcp_port;
        let newer = ping.enr_seq > endpoint.enr_seq;
        if newer {
            endpoint.enr_seq = ping.enr_seq;
        }
        let is_lost = endpoint.unanswered_questions >= LOST_AFTER;
        if proven && newer {
            // The node has answered, and its record has changed.
            self.publish(&node, ContactEvent::Answered, ping.enr_seq, None);
        }
        if proven && is_lost {
            // The node did not answer for a while, and seems to be back.
            self.check(&node);
        }
        Ok(())
    }

    /// Answers the ping of an endpoint without a proof. It sends a pong and a ping if the received
    /// bytes cover both. Otherwise it sends the ping alone, which is smaller, and the pong once the
    /// node has answered that ping. A node that we sought gets its pong at once, or two such nodes
    /// would wait for each other.
    fn answer_stranger(&mut self, node: &Node, hash: B256) -> Result<(), Dropped> {
        let (now, ip) = (self.now.elapsed, node.endpoint.ip);
        let key = (node.key, node.endpoint.udp());
        let (pong, ping) = (self.pong(node, hash).packet_bytes(), self.ping_back(node));
        let known = self.endpoints.get(&key);
        let (pinged, sought) =
            known.map_or((false, false), |known| (known.ping.is_some(), known.sought));
        let ping_bytes = if pinged { 0 } else { ping.packet_bytes() };
        if pinged && sought && self.limits.spend(now, ip, pong) {
            self.send_pong(node, hash);
            return Ok(());
        }
        if !pinged && !self.endpoints.has_room() {
            return Err(Dropped::Overloaded);
        }
        let both = self.limits.answer(now, ip, pong + ping_bytes);
        if !both && !pinged && !self.limits.answer(now, ip, ping_bytes) {
            return Err(Dropped::RateLimited);
        }
        if both {
            self.send_pong(node, hash);
        } else {
            self.endpoints.get_or_insert(key).unanswered = Some(hash);
        }
        if !pinged {
            self.ask_back(node, ping);
        }
        Ok(())
    }

    fn pong(&self, node: &Node, ping_hash: B256) -> Message {
        let (to, enr_seq) = (node.endpoint, Some(self.local.enr.seq()));
        Pong { to, ping_hash, expiration: self.expiration(), enr_seq }.into()
    }

    /// Sends a pong, which gives the receiver our proof.
    fn send_pong(&mut self, node: &Node, ping_hash: B256) {
        let key = (node.key, node.endpoint.udp());
        self.reply(key.1, self.pong(node, ping_hash));
        let endpoint = self.endpoints.get_or_insert(key);
        endpoint.ponged(self.now.elapsed);
        endpoint.unanswered = None;
        self.quests_ponged(&key);
    }

    fn on_pong(&mut self, key: EndpointKey, pong: &Pong) -> Result<(), Dropped> {
        let now = self.now.elapsed;
        let endpoint = self.endpoints.get(&key).ok_or(Dropped::Unsolicited)?;
        let asked = endpoint.ping.take_if(|hash| *hash == pong.ping_hash);
        asked.ok_or(Dropped::Unsolicited)?;
        if pong.enr_seq > endpoint.enr_seq {
            endpoint.enr_seq = pong.enr_seq;
        }
        let (enr_seq, unanswered) = (endpoint.enr_seq, endpoint.unanswered);
        // A node that came by itself does not show that looking for nodes is worth while.
        if endpoint.sought && !endpoint.was_proven() {
            self.schedule.find();
        }
        let node = Node { key: key.0, endpoint: Endpoint::new(key.1, endpoint.tcp_port) };
        self.endpoints.prove(key, now);
        self.limits.proven(now, key.1.ip());
        self.publish(&node, ContactEvent::Answered, enr_seq, None);
        self.hear_node(node);
        let votes_min = self.config.external_votes_min;
        if votes_min > 0 && pong.to.udp_port != 0 && may_tell(key.1.ip(), pong.to.ip) {
            let known = self.external.vote(now, key.1.ip(), pong.to.udp(), votes_min);
            if let Some(udp) = known {
                self.set_external(udp);
            }
        }
        if let Some(hash) = unanswered {
            self.send_pong(&node, hash);
        }
        self.quests_proven(&key);
        Ok(())
    }

    /// Records that a node has answered.
    fn hear_node(&mut self, node: Node) {
        let now = self.now.elapsed;
        let key = (node.key, node.endpoint.udp());
        if let Some(endpoint) = self.endpoints.get(&key)
            && mem::take(&mut endpoint.unanswered_questions) >= LOST_AFTER
        {
            self.schedule.find_again(now);
        }
        self.recent.hear(now, node);
        self.schedule.hear_node(now);
    }

    fn on_neighbors(&mut self, key: EndpointKey, nodes: &[Node]) -> Result<(), Dropped> {
        let endpoint = self.endpoints.get(&key).ok_or(Dropped::Unsolicited)?;
        if endpoint.find_node.is_none() {
            return Err(Dropped::Unsolicited);
        }
        let node = Node { key: key.0, endpoint: Endpoint::new(key.1, endpoint.tcp_port) };
        let enr_seq = endpoint.enr_seq;
        let room = K.saturating_sub(endpoint.received);
        let first = endpoint.received == 0;
        // An empty answer is an answer too.
        endpoint.received += nodes.len().max(1);
        if endpoint.received >= K {
            endpoint.find_node = None;
        }
        for node in nodes.iter().take(room) {
            let Endpoint { ip, udp_port, .. } = node.endpoint;
            if udp_port == 0 || node.key == *self.key.public() || !may_tell(key.1.ip(), ip) {
                continue;
            }
            self.publish(node, ContactEvent::Seen, None, None);
            if let Some(lookup) = &mut self.lookup {
                lookup.add(*node);
            }
        }
        if first {
            // This is a sign of life. peer-table may have forgotten a proof that is remembered
            // here.
            self.publish(&node, ContactEvent::Answered, enr_seq, None);
            self.hear_node(node);
            self.quest_answered(&key, Want::Nodes);
        }
        self.lookup_moved = true;
        Ok(())
    }

    fn on_enr_response(&mut self, key: EndpointKey, response: &EnrResponse) -> Result<(), Dropped> {
        let endpoint = self.endpoints.get(&key).ok_or(Dropped::Unsolicited)?;
        // Another node's record is not a valid answer.
        let asked = endpoint
            .enr_request
            .take_if(|hash| *hash == response.request_hash && *response.enr.key() == key.0);
        asked.ok_or(Dropped::Unsolicited)?;
        let seq = Some(response.enr.seq());
        endpoint.enr_seq = endpoint.enr_seq.max(seq);
        // Later records are changes, which a node may make as often as it likes.
        if !mem::replace(&mut endpoint.sent_record, true) {
            self.schedule.find();
        }
        let node = Node { key: key.0, endpoint: Endpoint::new(key.1, endpoint.tcp_port) };
        self.counters.records += 1;
        self.publish(&node, ContactEvent::EnrReceived, seq, Some(&response.enr));
        self.hear_node(node);
        self.quest_answered(&key, Want::Enr);
        Ok(())
    }

    /// Answers a find node packet. Only nodes known to be alive are passed on, and only if the
    /// asker can reach them.
    pub(super) fn send_neighbors(&mut self, asker: &PublicKey, to: SocketAddr, known: &[Contact]) {
        let key = (*asker, to);
        if !self.endpoints.is_proven(&key, self.now.elapsed) {
            return self.counters.drop(Dropped::Unproven);
        }
        let nodes: Vec<_> = known
            .iter()
            .filter(|contact| contact.event == ContactEvent::Answered && contact.id != *asker)
            .filter_map(node)
            .filter(|node| may_tell(to.ip(), node.endpoint.ip))
            .take(K)
            .collect();
        let expiration = self.expiration();
        // An empty result takes one packet too.
        for index in 0..nodes.len().div_ceil(NEIGHBORS_MAX).max(1) {
            let nodes = nodes.iter().skip(index * NEIGHBORS_MAX).take(NEIGHBORS_MAX).copied();
            let neighbors = Neighbors { nodes: nodes.collect(), expiration };
            self.reply(to, neighbors);
        }
    }

    /// Sends to an endpoint that has proven itself, or a message that its account has paid for.
    fn reply(&mut self, to: SocketAddr, message: impl Into<Message>) {
        let packet = encode(&self.key, &message.into());
        self.send(to, packet.bytes);
    }

    pub(super) fn send(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        self.counters.sent += 1;
        self.effects.push(Effect::Send { to, bytes });
    }
}
