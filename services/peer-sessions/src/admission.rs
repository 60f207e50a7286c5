//! Decides which connections become sessions. No I/O and no clock: the time comes from outside.

use crate::config::Config;
use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};
use tandem_discv4::PublicKey;
use tandem_proto::peer_sessions::Direction;
use tandem_rlpx::DisconnectReason;

/// Reason why a connection is closed before any of its bytes is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Too many handshakes are under way.
    Handshakes,
    /// Handshakes come too fast.
    Rate,
    /// The subnet has enough handshakes and sessions.
    Subnet,
}

impl Refusal {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Handshakes => "handshakes",
            Self::Rate => "rate",
            Self::Subnet => "subnet",
        }
    }
}

/// Addresses that are taken for one owner, as a prefix.
type Subnet = Ipv6Addr;

/// Place of a session.
struct Entry {
    ip: IpAddr,
    established: bool,
}

/// Handshakes and sessions, and their limits.
pub(crate) struct Admission {
    own: PublicKey,
    limits: Config,
    /// Peers that the limits do not concern.
    trusted: HashSet<PublicKey>,
    /// Places by peer and direction. A peer has both directions only while connections cross.
    sessions: HashMap<(PublicKey, Direction), Entry>,
    /// Inbound handshakes under way.
    handshakes: usize,
    /// Inbound handshakes and sessions by subnet.
    subnets: HashMap<Subnet, usize>,
    rate: Bucket,
}

impl Admission {
    pub(crate) fn new(own: PublicKey, limits: &Config, trusted: HashSet<PublicKey>) -> Self {
        let rate = f64::from(limits.handshakes_per_second_max);
        Self {
            own,
            limits: limits.clone(),
            trusted,
            sessions: HashMap::new(),
            handshakes: 0,
            subnets: HashMap::new(),
            rate: Bucket::new(rate, rate.max(limits.handshakes_max as f64)),
        }
    }

    /// Admits an inbound handshake. [`Self::end_handshake`] has to follow.
    pub(crate) fn begin_handshake(&mut self, now: Duration, ip: IpAddr) -> Result<(), Refusal> {
        if self.handshakes >= self.limits.handshakes_max {
            return Err(Refusal::Handshakes);
        }
        let subnet = subnet(ip);
        let taken = subnet.and_then(|subnet| self.subnets.get(&subnet)).copied().unwrap_or(0);
        if taken >= self.limits.subnet_sessions_max {
            return Err(Refusal::Subnet);
        }
        if !self.rate.take(now, 1.0) {
            return Err(Refusal::Rate);
        }
        self.handshakes += 1;
        self.enter(ip);
        Ok(())
    }

    /// Ends an inbound handshake, whether or not a session came of it.
    pub(crate) fn end_handshake(&mut self, ip: IpAddr) {
        self.handshakes = self.handshakes.saturating_sub(1);
        self.leave(ip);
    }

    /// Admits the session of a peer that has proven its key. [`Self::establish`] may follow,
    /// [`Self::release`] has to.
    ///
    /// If two nodes dial each other at the same time, the one with the smaller key decides: it
    /// admits the connection that comes first, and sends its Status on no other. The one with the
    /// larger key admits both until a Status arrives on one of them. If both decided, each could
    /// refuse the connection that the other has chosen.
    pub(crate) fn admit(
        &mut self,
        id: PublicKey,
        direction: Direction,
        ip: IpAddr,
    ) -> Result<(), DisconnectReason> {
        if id == self.own {
            return Err(DisconnectReason::Own);
        }
        let crossing = self.sessions.get(&(id, opposite(direction)));
        let peer_decides = id < self.own;
        if self.sessions.contains_key(&(id, direction))
            || crossing.is_some_and(|other| other.established || !peer_decides)
        {
            return Err(DisconnectReason::AlreadyConnected);
        }
        let inbound = |(_, direction): &&(PublicKey, Direction)| *direction == Direction::Inbound;
        let inbound = self.sessions.keys().filter(inbound).count();
        let inbound_full = direction == Direction::Inbound && inbound >= self.limits.inbound_max;
        // An inbound session's own handshake is still counted, so one more may be there.
        let own_handshake = usize::from(direction == Direction::Inbound);
        let taken = subnet(ip).and_then(|subnet| self.subnets.get(&subnet)).copied().unwrap_or(0);
        let subnet_full = taken >= self.limits.subnet_sessions_max + own_handshake;
        let full = self.sessions.len() >= self.limits.sessions_max || inbound_full || subnet_full;
        if full && !self.trusted.contains(&id) {
            return Err(DisconnectReason::TooManyPeers);
        }
        self.sessions.insert((id, direction), Entry { ip, established: false });
        self.enter(ip);
        Ok(())
    }

    /// Notes that a session is established, unless a crossing connection of the peer is.
    pub(crate) fn establish(
        &mut self,
        id: PublicKey,
        direction: Direction,
    ) -> Result<(), DisconnectReason> {
        let crossing = self.sessions.get(&(id, opposite(direction)));
        if crossing.is_some_and(|other| other.established) {
            return Err(DisconnectReason::AlreadyConnected);
        }
        let entry = self.sessions.get_mut(&(id, direction));
        entry.ok_or(DisconnectReason::AlreadyConnected)?.established = true;
        Ok(())
    }

    /// Ends the session of a peer.
    pub(crate) fn release(&mut self, id: PublicKey, direction: Direction) {
        if let Some(entry) = self.sessions.remove(&(id, direction)) {
            self.leave(entry.ip);
        }
    }

    /// Returns whether there is a session with a peer, also one that is not established yet.
    pub(crate) fn has(&self, id: &PublicKey) -> bool {
        let directions = [Direction::Inbound, Direction::Outbound];
        directions.iter().any(|direction| self.sessions.contains_key(&(*id, *direction)))
    }

    /// Returns how many more sessions there may be.
    pub(crate) fn room(&self) -> usize {
        self.limits.sessions_max.saturating_sub(self.sessions.len())
    }

    fn enter(&mut self, ip: IpAddr) {
        if let Some(subnet) = subnet(ip) {
            *self.subnets.entry(subnet).or_default() += 1;
        }
    }

    fn leave(&mut self, ip: IpAddr) {
        let Some(subnet) = subnet(ip) else { return };
        if let Some(count) = self.subnets.get_mut(&subnet) {
            *count -= 1;
            if *count == 0 {
                self.subnets.remove(&subnet);
            }
        }
    }
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Inbound => Direction::Outbound,
        Direction::Outbound => Direction::Inbound,
    }
}

/// Returns the subnet of an address: 24 bits of IPv4, 48 of IPv6. `None` for addresses that no
/// stranger can have: this machine's and those of private networks.
fn subnet(ip: IpAddr) -> Option<Subnet> {
    match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_private() || ip.is_link_local() => None,
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            Some(std::net::Ipv4Addr::new(a, b, c, 0).to_ipv6_mapped())
        }
        IpAddr::V6(ip)
            if ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local() =>
        {
            None
        }
        IpAddr::V6(ip) => Some((u128::from(ip) >> 80 << 80).into()),
    }
}

/// Token bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    max: f64,
    tokens: f64,
    filled: Duration,
}

impl Bucket {
    /// Makes a full bucket.
    pub(crate) fn new(per_second: f64, max: f64) -> Self {
        Self { per_second, max, tokens: max, filled: Duration::ZERO }
    }

    /// Takes tokens if they are there.
    fn take(&mut self, now: Duration, tokens: f64) -> bool {
        self.fill(now);
        let there = self.tokens >= tokens;
        if there {
            self.tokens -= tokens;
        }
        there
    }

    /// Takes tokens, and returns how long the caller has to wait for those that are missing.
    pub(crate) fn take_after(&mut self, now: Duration, tokens: f64) -> Duration {
        self.fill(now);
        self.tokens -= tokens;
        if self.tokens >= 0.0 || self.per_second <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(-self.tokens / self.per_second)
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn key(byte: u8) -> PublicKey {
        PublicKey::repeat_byte(byte)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn admission(config: Config) -> Admission {
        Admission::new(key(0), &config, HashSet::from([key(99)]))
    }

    #[test]
    fn a_peer_has_one_session_and_this_node_none_with_itself() {
        let mut admission = admission(Config::default());
        let near = ip("127.0.0.1");
        assert_eq!(admission.admit(key(0), Direction::Outbound, near), Err(DisconnectReason::Own));
        assert_eq!(admission.admit(key(1), Direction::Outbound, near), Ok(()));
        let again = admission.admit(key(1), Direction::Inbound, near);
        assert_eq!(again, Err(DisconnectReason::AlreadyConnected));
        admission.release(key(1), Direction::Outbound);
        assert_eq!(admission.admit(key(1), Direction::Inbound, near), Ok(()));
    }

    /// State of a connection at one of its sides.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Stage {
        Greeted,
        /// The own Status has been sent.
        Admitted,
        Established,
        Refused,
        /// Ended after the own Status had been sent.
        Ended,
    }

    /// Two nodes that dial each other at the same time.
    struct Crossing {
        nodes: [Admission; 2],
        /// Stages by dialling node, then by side.
        stages: [[Stage; 2]; 2],
    }

    impl Crossing {
        fn new() -> Self {
            let node = |byte| Admission::new(key(byte), &Config::default(), HashSet::new());
            Self { nodes: [node(1), node(2)], stages: [[Stage::Greeted; 2]; 2] }
        }

        /// Lets one side take the next step on one connection. Returns whether there was one.
        fn step(&mut self, dialler: usize, side: usize) -> bool {
            let direction = if dialler == side { Direction::Outbound } else { Direction::Inbound };
            let (node, peer) = (&mut self.nodes[side], key(2 - side as u8));
            let [own, other] = [side, 1 - side].map(|side| self.stages[dialler][side]);
            let next = match (own, other) {
                (Stage::Greeted, _) => match node.admit(peer, direction, ip("127.0.0.1")) {
                    Ok(()) => Stage::Admitted,
                    Err(_) => Stage::Refused,
                },
                (Stage::Admitted, Stage::Admitted | Stage::Established | Stage::Ended) => {
                    match node.establish(peer, direction) {
                        Ok(()) => Stage::Established,
                        Err(_) => Stage::Ended,
                    }
                }
                (Stage::Admitted, Stage::Refused) | (Stage::Established, Stage::Ended) => {
                    Stage::Ended
                }
                _ => return false,
            };
            if next == Stage::Ended {
                node.release(peer, direction);
            }
            self.stages[dialler][side] = next;
            true
        }
    }

    #[test]
    fn of_two_crossing_connections_both_sides_keep_the_same_in_every_order() {
        let (mut orders, mut ends) = (vec![Vec::new()], 0);
        while let Some(order) = orders.pop() {
            let mut ended = true;
            for event in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let mut crossing = Crossing::new();
                let next = [&order[..], &[event]].concat();
                let mut steps = next.iter().map(|(dialler, side)| crossing.step(*dialler, *side));
                if steps.all(|stepped| stepped) {
                    ended = false;
                    orders.push(next);
                }
            }
            if ended {
                let mut crossing = Crossing::new();
                order.iter().for_each(|(dialler, side)| {
                    crossing.step(*dialler, *side);
                });
                let kept = |sides: &&[Stage; 2]| **sides == [Stage::Established; 2];
                assert_eq!(crossing.stages.iter().filter(kept).count(), 1, "{order:?}");
                let places = crossing.nodes.map(|node| node.sessions.len());
                assert_eq!(places, [1, 1], "{order:?}");
                ends += 1;
            }
        }
        assert!(ends > 100, "{ends}");
    }

    #[test]
    fn a_crossing_connection_that_ends_leaves_the_other_alone() {
        let (mut admission, near) = (admission(Config::default()), ip("127.0.0.1"));
        let (own, id) = (key(5), key(1));
        admission.own = own;
        assert_eq!(admission.admit(id, Direction::Inbound, near), Ok(()));
        assert_eq!(admission.admit(id, Direction::Outbound, near), Ok(()));
        assert_eq!(admission.establish(id, Direction::Outbound), Ok(()));
        let lost = admission.establish(id, Direction::Inbound);
        assert_eq!(lost, Err(DisconnectReason::AlreadyConnected));
        admission.release(id, Direction::Inbound);
        let late = admission.admit(id, Direction::Inbound, near);
        assert_eq!(late, Err(DisconnectReason::AlreadyConnected));
        admission.release(id, Direction::Outbound);
        assert!(!admission.has(&id));
    }

    #[test]
    fn inbound_sessions_leave_room_for_outbound_ones() {
        let config = Config { sessions_max: 3, inbound_max: 2, ..Config::default() };
        let mut admission = admission(config);
        let near = ip("10.0.0.1");
        let mut admit = |byte, direction| admission.admit(key(byte), direction, near);
        assert_eq!(admit(1, Direction::Inbound), Ok(()));
        assert_eq!(admit(2, Direction::Inbound), Ok(()));
        assert_eq!(admit(3, Direction::Inbound), Err(DisconnectReason::TooManyPeers));
        assert_eq!(admit(3, Direction::Outbound), Ok(()));
        assert_eq!(admit(4, Direction::Outbound), Err(DisconnectReason::TooManyPeers));
        assert_eq!(admit(99, Direction::Inbound), Ok(()), "a trusted peer");
        assert_eq!(admission.room(), 0);
    }

    #[test]
    fn a_subnet_has_few_sessions_and_handshakes() {
        let config = Config { subnet_sessions_max: 2, ..Config::default() };
        for (same, other) in [
            (["8.8.8.1", "8.8.8.2", "8.8.8.3"], "8.8.9.1"),
            (["::ffff:8.8.8.1", "8.8.8.2", "8.8.8.3"], "::ffff:8.8.9.1"),
            (["2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1::"], "2001:db8:2::1"),
        ] {
            let mut admission = admission(config.clone());
            assert_eq!(admission.begin_handshake(NOW, ip(same[0])), Ok(()));
            assert_eq!(admission.admit(key(1), Direction::Inbound, ip(same[0])), Ok(()));
            admission.end_handshake(ip(same[0]));
            assert_eq!(admission.begin_handshake(NOW, ip(same[1])), Ok(()));
            assert_eq!(admission.begin_handshake(NOW, ip(same[2])), Err(Refusal::Subnet));
            assert_eq!(admission.begin_handshake(NOW, ip(other)), Ok(()));
            assert_eq!(admission.admit(key(2), Direction::Inbound, ip(same[1])), Ok(()));
            admission.end_handshake(ip(same[1]));
            let refused = admission.admit(key(3), Direction::Outbound, ip(same[2]));
            assert_eq!(refused, Err(DisconnectReason::TooManyPeers));
            admission.release(key(1), Direction::Inbound);
            assert_eq!(admission.admit(key(3), Direction::Outbound, ip(same[2])), Ok(()));
            admission.end_handshake(ip(other));
            admission.release(key(2), Direction::Inbound);
            admission.release(key(3), Direction::Outbound);
            assert!(admission.subnets.is_empty(), "what has gone takes no memory");
        }
    }

    #[test]
    fn a_flood_of_handshakes_is_bounded_in_number_and_rate() {
        let config =
            Config { handshakes_max: 5, handshakes_per_second_max: 10, ..Config::default() };
        let mut admission = admission(config);
        let near = ip("192.168.1.1");
        let mut begun = 0;
        for _ in 0..1000 {
            begun += usize::from(admission.begin_handshake(NOW, near).is_ok());
        }
        assert_eq!(begun, 5);
        assert_eq!(admission.begin_handshake(NOW, near), Err(Refusal::Handshakes));
        for millisecond in 0..10_000 {
            let now = NOW + Duration::from_millis(millisecond);
            (0..admission.handshakes).for_each(|_| admission.end_handshake(near));
            begun += usize::from(admission.begin_handshake(now, near).is_ok());
        }
        assert!((100..=111).contains(&begun), "{begun} in ten seconds");
    }

    #[test]
    fn an_empty_bucket_says_how_long_to_wait() {
        let mut bucket = Bucket::new(10.0, 20.0);
        assert_eq!(bucket.take_after(NOW, 20.0), Duration::ZERO);
        assert_eq!(bucket.take_after(NOW, 5.0), Duration::from_millis(500));
        assert_eq!(bucket.take_after(NOW * 2, 5.0), Duration::ZERO);
    }
}
