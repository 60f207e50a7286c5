//! Addresses that a node may pass on, by IANA's registries of special-purpose addresses (RFC 6890).
//! A distant node knows nothing of this host and its networks. It could only make this node send
//! packets there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Range in which an address is reachable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reach {
    /// No node can have this address.
    Nowhere,
    /// This host.
    Host,
    /// The link of an interface; clouds answer there with secrets of the machine.
    Link,
    /// Networks of an operator: private ones, those of carriers, and all addresses that routers of
    /// the internet do not carry.
    Site,
    /// The internet.
    World,
}

/// Returns whether a node at `from` may pass on a node at `of`. The address must reach as far as
/// its own, or farther.
pub fn may_tell(from: IpAddr, of: IpAddr) -> bool {
    let (from, of) = (reach(from), reach(of));
    of == Reach::World || of != Reach::Nowhere && from != Reach::Nowhere && from <= of
}

/// Returns whether no packet from outside can carry this address: it belongs to this host, its link
/// or a private network. Networks of carriers and clouds are excluded, as strangers share them.
pub fn is_near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

fn reach(ip: IpAddr) -> Reach {
    match ip.to_canonical() {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

fn reach_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        // This network, multicast, broadcast.
        [0 | 224..=239, ..] | [255, 255, 255, 255] => Reach::Nowhere,
        [127, ..] => Reach::Host,
        [169, 254, ..] => Reach::Link,
        // Private networks.
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Reach::Site,
        // Networks shared by the customers of a carrier, and pods of some clouds; protocol
        // assignments, relays of 6to4; benchmarks.
        [100, 64..=127, ..] | [192, 0, 0, _] | [192, 88, 99, _] | [198, 18..=19, ..] => Reach::Site,
        // Documentation.
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Reach::Site,
        // Reserved addresses, which some clouds use internally.
        [240..=255, ..] => Reach::Site,
        _ => Reach::World,
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    let embedded = |high: u16, low: u16| {
        let ip = Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
        // Packets to an embedded address of this host or link still leave it, on the way to a
        // translator.
        if reach_v4(ip) == Reach::World { Reach::World } else { Reach::Site }
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] | [0xff00..=0xffff, ..] => Reach::Nowhere,
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Host,
        [0xfe80..=0xfebf, ..] => Reach::Link,
        // IPv4 addresses behind a translator (NAT64), and behind relays of 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        // Protocol assignments (Teredo, benchmarks, hashes for addresses), documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Reach::Site,
        [0x2000..=0x3fff, ..] => Reach::World,
        // Unique local addresses, and everything not assigned to the internet.
        _ => Reach::Site,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_far_away_tells_of_no_address_that_the_internet_does_not_carry() {
        let (public, public6) = (ip("8.8.8.8"), ip("2a00:1450::1"));
        for of in ["9.9.9.9", "100.63.255.255", "100.128.0.0", "198.17.0.1", "198.20.0.1"] {
            assert!(may_tell(public, ip(of)) && may_tell(public6, ip(of)), "{of}");
        }
        for of in ["2a01:4f8::1", "2001:4860::1", "64:ff9b::808:808", "2002:808:808::1"] {
            assert!(may_tell(public, ip(of)) && may_tell(public6, ip(of)), "{of}");
        }
        let special = [
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.254",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "254.1.2.3",
            "255.255.255.255",
            "::",
            "::1",
            "::10.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2002:a00:1::1",
            "2002:7f00:1::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ];
        for of in special {
            assert!(!may_tell(public, ip(of)) && !may_tell(public6, ip(of)), "{of}");
        }
    }

    #[test]
    fn nodes_of_a_network_tell_of_it_and_of_what_lies_beyond() {
        let (site, carrier, link, host) =
            (ip("192.168.1.2"), ip("100.64.0.1"), ip("169.254.7.7"), ip("127.0.0.1"));
        for from in [site, carrier, ip("fd00::1"), ip("240.0.0.1")] {
            for of in ["10.0.0.1", "100.64.0.2", "fd00::2", "8.8.8.8"] {
                assert!(may_tell(from, ip(of)), "{from} of {of}");
            }
            for of in ["169.254.169.254", "fe80::1", "127.0.0.1", "::1"] {
                assert!(!may_tell(from, ip(of)), "{from} of {of}");
            }
        }
        assert!(may_tell(link, ip("169.254.1.1")) && may_tell(link, site));
        assert!(!may_tell(link, host));
        for of in ["127.0.0.2", "::1", "169.254.1.1", "10.0.0.1", "8.8.8.8"] {
            assert!(may_tell(host, ip(of)), "{of}");
        }
        for of in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"] {
            assert!(!may_tell(host, ip(of)), "{of}");
        }
    }

    #[test]
    fn strangers_share_the_networks_of_carriers_so_these_are_not_near() {
        for near in ["127.0.0.1", "10.0.0.1", "169.254.0.1", "::1", "fd00::1", "fe80::1"] {
            assert!(is_near(ip(near)), "{near}");
        }
        for far in ["100.64.0.1", "198.18.0.1", "240.0.0.1", "8.8.8.8", "2001:db8::1"] {
            assert!(!is_near(ip(far)), "{far}");
        }
    }
}
