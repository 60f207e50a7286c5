//! Limits on the work that one address may cause: packets processed, and bytes sent before it has
//! proven its endpoint.
//!
//! Bytes sent to such an address come from one of two accounts. Answers are paid for by the pings
//! from that address. So an attacker who forges the address of a victim has to send more than the
//! victim gets. Unsolicited pings have an allowance.

use super::{aging::Aging, reach::is_near};
use crate::Config;
use std::{net::IpAddr, time::Duration};

/// Token bucket.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    filled_at: Duration,
}

impl Bucket {
    fn full(burst: f64, now: Duration) -> Self {
        Self { tokens: burst, filled_at: now }
    }

    fn fill(&mut self, now: Duration, rate: f64, burst: f64) {
        let seconds = now.saturating_sub(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + seconds * rate).min(burst);
        self.filled_at = now;
    }

    fn take(&mut self, tokens: f64) -> bool {
        let enough = self.tokens >= tokens;
        if enough {
            self.tokens -= tokens;
        }
        enough
    }
}

struct Source {
    packets: Bucket,
    /// Bytes that may be sent unsolicited to unproven endpoints at this address.
    allowance: Bucket,
    /// Bytes of pings from this address that have not yet been used for answers.
    owed: usize,
    proven: bool,
}

/// State of all limits, bounded whatever the addresses.
pub struct Limits {
    sources: Aging<IpAddr, Source>,
    /// Bucket shared by all addresses without a proof. A flood from invented ones leaves processor
    /// time for the known ones.
    strangers: Bucket,
    rate: f64,
    burst: f64,
    strangers_rate: f64,
}

/// Bytes that may first be sent unsolicited to an address without a proof: some thirty pings.
const ALLOWANCE_BYTES: f64 = 4096.0;
/// Rate at which the allowance of a silent address recovers, in bytes a second.
const ALLOWANCE_RATE: f64 = 32.0;
/// Share of the bytes from a near address that is added to its allowance.
const ALLOWANCE_PER_BYTE: f64 = 0.75;
/// Largest number of bytes that stay owed for later.
const OWED_MAX: usize = 4096;
const SOURCES_MAX: usize = 1 << 16;

/// Returns one IPv4 address, or one network of IPv6 addresses: the owner of one has all of them.
fn source(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
    }
}

impl Limits {
    pub fn new(config: &Config) -> Self {
        let strangers_rate = f64::from(config.strangers_packets_per_second);
        Self {
            sources: Aging::new(SOURCES_MAX),
            strangers: Bucket::full(strangers_rate, Duration::ZERO),
            rate: f64::from(config.ip_packets_per_second),
            burst: f64::from(config.ip_packets_burst),
            strangers_rate,
        }
    }

    /// Returns whether a packet from this address is processed.
    pub fn admit(&mut self, now: Duration, ip: IpAddr, bytes: usize) -> bool {
        let (rate, burst) = (self.rate, self.burst);
        let source = self.source(now, ip);
        source.packets.fill(now, rate, burst);
        if !source.packets.take(1.0) {
            return false;
        }
        source.allowance.fill(now, ALLOWANCE_RATE, ALLOWANCE_BYTES);
        if is_near(ip) {
            let more = bytes as f64 * ALLOWANCE_PER_BYTE;
            source.allowance.tokens = (source.allowance.tokens + more).min(ALLOWANCE_BYTES);
        }
        if source.proven {
            return true;
        }
        self.strangers.fill(now, self.strangers_rate, self.strangers_rate);
        self.strangers.take(1.0)
    }

    /// Charges bytes that go unsolicited to an unproven endpoint, if the allowance covers them.
    /// Returns whether it does.
    pub fn spend(&mut self, now: Duration, ip: IpAddr, bytes: usize) -> bool {
        let source = self.source(now, ip);
        source.allowance.fill(now, ALLOWANCE_RATE, ALLOWANCE_BYTES);
        source.allowance.take(bytes as f64)
    }

    /// Credits the bytes of a ping that came from an unproven endpoint.
    pub fn owe(&mut self, now: Duration, ip: IpAddr, bytes: usize) {
        let source = self.source(now, ip);
        source.owed = (source.owed + bytes).min(OWED_MAX);
    }

    /// Charges bytes that answer the pings of an unproven endpoint, if those cover them. Returns
    /// whether they do. In total, less is sent there than came.
    ///
    /// A near address uses its allowance instead: no outsider can have it. Its first ping is
    /// answered with all that the protocol provides.
    pub fn answer(&mut self, now: Duration, ip: IpAddr, bytes: usize) -> bool {
        if is_near(ip) {
            return self.spend(now, ip, bytes);
        }
        let source = self.source(now, ip);
        let covered = bytes < source.owed;
        if covered {
            source.owed -= bytes;
        }
        covered
    }

    /// Records that an endpoint at this address answered: the unsolicited bytes were welcome.
    pub fn proven(&mut self, now: Duration, ip: IpAddr) {
        let source = self.source(now, ip);
        source.proven = true;
        source.owed = 0;
        source.allowance = Bucket::full(ALLOWANCE_BYTES, now);
    }

    fn source(&mut self, now: Duration, ip: IpAddr) -> &mut Source {
        let burst = self.burst;
        self.sources.get_or_insert_with(source(ip), || Source {
            packets: Bucket::full(burst, now),
            allowance: Bucket::full(ALLOWANCE_BYTES, now),
            owed: 0,
            proven: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn limits() -> Limits {
        let config = Config {
            ip_packets_per_second: 10,
            ip_packets_burst: 20,
            strangers_packets_per_second: 1000,
            ..Config::default()
        };
        Limits::new(&config)
    }

    #[test]
    fn an_address_gets_its_burst_and_then_its_rate() {
        let mut limits = limits();
        let ip = IpAddr::from([1, 2, 3, 4]);
        let admitted =
            |limits: &mut Limits, now| (0..100).filter(|_| limits.admit(now, ip, 100)).count();
        assert_eq!(admitted(&mut limits, Duration::ZERO), 20);
        assert_eq!(admitted(&mut limits, Duration::from_secs(1)), 10);
        assert_eq!(admitted(&mut limits, Duration::from_secs(100)), 20);
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_source() {
        let mut limits = limits();
        let admitted = (0..1000u128).filter(|host| {
            let ip = Ipv6Addr::from_bits(0x2001_0db8 << 96 | host);
            limits.admit(Duration::ZERO, ip.into(), 100)
        });
        assert_eq!(admitted.count(), 20);
    }

    #[test]
    fn a_flood_from_invented_addresses_leaves_room_for_the_proven() {
        let mut limits = limits();
        let known = IpAddr::from([9, 9, 9, 9]);
        limits.proven(Duration::ZERO, known);
        let admitted = (0..50_000u32).filter(|n| {
            limits.admit(Duration::ZERO, IpAddr::from((n | 0x0a00_0000).to_be_bytes()), 100)
        });
        assert_eq!(admitted.count(), 1000);
        limits.proven(Duration::ZERO, known);
        assert!(limits.admit(Duration::ZERO, known, 100));
        assert!(limits.sources.len() <= SOURCES_MAX);
    }

    #[test]
    fn a_silent_address_is_not_sent_much() {
        let mut limits = limits();
        let ip = IpAddr::from([1, 2, 3, 4]);
        let sent = (0..1000).filter(|_| limits.spend(Duration::ZERO, ip, 128)).count();
        assert_eq!(sent, 32);
        limits.proven(Duration::ZERO, ip);
        assert!(limits.spend(Duration::ZERO, ip, 128));
    }

    #[test]
    fn an_answer_is_smaller_than_what_came_unless_it_stays_near() {
        let mut limits = limits();
        let (now, far) = (Duration::ZERO, IpAddr::from([1, 2, 3, 4]));
        assert!(!limits.answer(now, far, 1), "nothing came");
        limits.owe(now, far, 130);
        assert!(!limits.answer(now, far, 130));
        assert!(limits.answer(now, far, 120) && !limits.answer(now, far, 10));
        assert!(limits.answer(now, far, 9) && !limits.answer(now, far, 1));
        // Neither time nor a proof of another endpoint there changes that.
        limits.owe(now, far, 130);
        limits.proven(now, far);
        assert!(!limits.answer(Duration::from_secs(100_000), far, 1));
        for near in ["127.0.0.1", "192.168.1.1", "::1", "fd00::1", "169.254.0.1"] {
            let near = near.parse().unwrap();
            assert!(limits.answer(now, near, 300), "{near}");
        }
    }
}
