//! One node whose clock the test moves, and its peers.

use rand::{SeedableRng, rngs::StdRng};
use std::{net::SocketAddr, time::Duration};
use tandem_discovery::{
    Config,
    state::{Dropped, Effect, Input, Now, Question, State},
};
use tandem_discv4::{
    Endpoint, FindNode, Message, NodeKey, Packet, Ping, Pong, SignedPacket, decode, encode,
};
use tandem_primitives::{B256, B512};
use tandem_proto::event::{Contact, ContactEvent};

pub const START: u64 = 1_700_000_000;

pub fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub struct Bench {
    pub state: State,
    pub elapsed: Duration,
    pub published: Vec<Contact>,
    pub asked: Vec<Question>,
    pub lists_asked: u32,
}

pub struct Peer {
    pub key: NodeKey,
    pub address: SocketAddr,
}

impl Bench {
    pub fn new() -> Self {
        // The node starts no lookup of its own.
        Self::with(&Config { lookup_fast_ms: 1 << 40, ..Config::default() })
    }

    pub fn with(config: &Config) -> Self {
        Self::bound(config, at("9.9.9.9:30303"))
    }

    pub fn bound(config: &Config, bound: SocketAddr) -> Self {
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let state = State::new(config, key, bound, vec![], None, 1, 1).unwrap();
        let mut bench = Self {
            state,
            elapsed: Duration::ZERO,
            published: Vec::new(),
            asked: Vec::new(),
            lists_asked: 0,
        };
        bench.step(Input::Timer);
        bench.asked.clear();
        bench
    }

    pub fn step(&mut self, input: Input<'_>) -> Vec<(SocketAddr, Vec<u8>)> {
        let now = Now { elapsed: self.elapsed, unix: START + self.elapsed.as_secs() };
        let (mut effects, mut sent) = (Vec::new(), Vec::new());
        self.state.step(now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send { to, bytes } => sent.push((to, bytes)),
                Effect::Ask(question) => self.asked.push(question),
                Effect::AskLists => self.lists_asked += 1,
                Effect::Publish(contact) => self.published.push(contact),
            }
        }
        sent
    }

    pub fn receive(&mut self, from: SocketAddr, bytes: &[u8]) -> Vec<Packet> {
        let sent = self.step(Input::Packet { from, bytes });
        assert!(sent.iter().all(|(to, _)| *to == from), "answers go where the packet came from");
        sent.iter().map(|(_, bytes)| decode(bytes).unwrap()).collect()
    }

    pub fn send(
        &mut self,
        peer: &Peer,
        message: impl Into<Message>,
    ) -> (Vec<Packet>, SignedPacket) {
        let packet = encode(&peer.key, &message.into());
        (self.receive(peer.address, &packet.bytes), packet)
    }

    pub fn expiration(&self) -> u64 {
        START + self.elapsed.as_secs() + 20
    }

    pub fn ping(&self, peer: &Peer) -> Ping {
        let (from, to) =
            (Endpoint::new(peer.address, 30303), Endpoint::new(at("9.9.9.9:30303"), 0));
        Ping { from, to, expiration: self.expiration(), enr_seq: Some(7) }
    }

    pub fn pong(&self, ping_hash: B256) -> Pong {
        let to = Endpoint::new(at("9.9.9.9:30303"), 0);
        Pong { to, ping_hash, expiration: self.expiration(), enr_seq: Some(7) }
    }

    pub fn find_node(&self) -> FindNode {
        FindNode { target: B512::repeat_byte(3), expiration: self.expiration() }
    }

    /// Makes the peer ping, and returns the hash of the ping that comes back.
    pub fn pinged(&mut self, peer: &Peer) -> B256 {
        let (answers, _) = self.send(peer, self.ping(peer));
        let ping = answers.iter().find(|packet| matches!(packet.message, Message::Ping(_)));
        ping.unwrap().hash
    }

    pub fn bond(&mut self, peer: &Peer) {
        let hash = self.pinged(peer);
        let (answers, _) = self.send(peer, self.pong(hash));
        assert!(matches!(answers[..], [Packet { message: Message::Pong(_), .. }]), "{answers:?}");
    }

    pub fn dropped(&self, reason: Dropped) -> u64 {
        self.state.counters().dropped[reason as usize]
    }
}

pub fn peer(index: u64) -> Peer {
    let key = NodeKey::random(&mut StdRng::seed_from_u64(index));
    Peer { key, address: SocketAddr::from(([5, 5, (index >> 8) as u8, index as u8], 30303)) }
}

pub fn contact(index: u64, event: ContactEvent) -> Contact {
    let Peer { key, address } = peer(index);
    let (id, ip) = (*key.public(), address.ip());
    Contact { id, ip, udp_port: 30303, tcp_port: 1, enr_seq: None, enr: None, event }
}

pub fn near(index: u64) -> Peer {
    Peer { address: SocketAddr::from(([127, 0, 0, 2], 30303)), ..peer(index) }
}
