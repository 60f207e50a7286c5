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
    direction: Direction,
    ip: IpAddr,
    established: bool,
}

/// Handshakes and sessions, and their limits.
pub(crate) struct Admission {
    own: PublicKey,
    limits: Config,
    /// Peers that the limits do not concern.
    trusted: HashSet<PublicKey>,
    sessions: HashMap<PublicKey, Entry>,
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
    /// If two nodes dial each other at the same time, both keep the connection of the one with the
    /// smaller key. Otherwise each could refuse the other's.
    pub(crate) fn admit(
        &mut self,
        id: PublicKey,
        direction: Direction,
        ip: IpAddr,
    ) -> Result<(), DisconnectReason> {
        if id == self.own {
            return Err(DisconnectReason::Own);
        }
        if let Some(other) = self.sessions.get(&id) {
            let own_dial_wins = self.own < id;
            let wins = (direction == Direction::Outbound) == own_dial_wins;
            if other.established || other.direction == direction || !wins {
                return Err(DisconnectReason::AlreadyConnected);
            }
            let other = other.direction;
            self.release(&id, other);
        }
        let inbound = |it: &&Entry| it.direction == Direction::Inbound;
        let inbound = self.sessions.values().filter(inbound).count();
        let inbound_full = direction == Direction::Inbound && inbound >= self.limits.inbound_max;
        // An inbound session's own handshake is still counted, so one more may be there.
        let own_handshake = usize::from(direction == Direction::Inbound);
        let taken = subnet(ip).and_then(|subnet| self.subnets.get(&subnet)).copied().unwrap_or(0);
        let subnet_full = taken >= self.limits.subnet_sessions_max + own_handshake;
        let full = self.sessions.len() >= self.limits.sessions_max || inbound_full || subnet_full;
        if full && !self.trusted.contains(&id) {
            return Err(DisconnectReason::TooManyPeers);
        }
        self.sessions.insert(id, Entry { direction, ip, established: false });
        self.enter(ip);
        Ok(())
    }

    /// Notes that a session is established, unless another connection took its place meanwhile.
    pub(crate) fn establish(
        &mut self,
        id: &PublicKey,
        direction: Direction,
    ) -> Result<(), DisconnectReason> {
        let entry = self.sessions.get_mut(id).filter(|entry| entry.direction == direction);
        let entry = entry.ok_or(DisconnectReason::AlreadyConnected)?;
        entry.established = true;
        Ok(())
    }

    /// Ends the session of a peer. A session that has lost its place changes nothing.
    pub(crate) fn release(&mut self, id: &PublicKey, direction: Direction) {
        if self.sessions.get(id).is_some_and(|entry| entry.direction == direction)
            && let Some(entry) = self.sessions.remove(id)
        {
            self.leave(entry.ip);
        }
    }

    /// Returns whether there is a session with a peer, also one that is not established yet.
    pub(crate) fn has(&self, id: &PublicKey) -> bool {
        self.sessions.contains_key(id)
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
        admission.release(&key(1), Direction::Outbound);
        assert_eq!(admission.admit(key(1), Direction::Inbound, near), Ok(()));
    }

    /// Two nodes whose connections to each other cross, in each order in which they can arrive.
    #[test]
    fn of_two_crossing_connections_both_sides_keep_the_same() {
        let (near, keys) = (ip("127.0.0.1"), [key(1), key(2)]);
        for first_at in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let mut kept = Vec::new();
            for side in [0, 1] {
                let mut admission = Admission::new(keys[side], &Config::default(), HashSet::new());
                let peer = keys[1 - side];
                // A connection is known by the side that has dialled.
                let direction = |dialler| {
                    if dialler == side { Direction::Outbound } else { Direction::Inbound }
                };
                let order = [first_at[side], 1 - first_at[side]];
                let admitted =
                    order.map(|dialler| admission.admit(peer, direction(dialler), near).is_ok());
                assert!(admitted[0], "the first finds no other");
                let mut stays = |dialler| admission.establish(&peer, direction(dialler)).is_ok();
                kept.push([stays(0), stays(1)]);
            }
            assert_eq!(kept, [[true, false]; 2], "{first_at:?}");
        }
    }

    #[test]
    fn a_session_that_lost_its_place_leaves_that_of_the_other_alone() {
        let (mut admission, near) = (admission(Config::default()), ip("127.0.0.1"));
        assert_eq!(admission.admit(key(1), Direction::Inbound, near), Ok(()));
        assert_eq!(admission.admit(key(1), Direction::Outbound, near), Ok(()));
        let lost = admission.establish(&key(1), Direction::Inbound);
        assert_eq!(lost, Err(DisconnectReason::AlreadyConnected));
        admission.release(&key(1), Direction::Inbound);
        assert_eq!(admission.establish(&key(1), Direction::Outbound), Ok(()));
        let late = admission.admit(key(1), Direction::Inbound, near);
        assert_eq!(late, Err(DisconnectReason::AlreadyConnected));
        admission.release(&key(1), Direction::Outbound);
        assert!(!admission.has(&key(1)));
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
            admission.release(&key(1), Direction::Inbound);
            assert_eq!(admission.admit(key(3), Direction::Outbound, ip(same[2])), Ok(()));
            admission.end_handshake(ip(other));
            admission.release(&key(2), Direction::Inbound);
            admission.release(&key(3), Direction::Outbound);
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
