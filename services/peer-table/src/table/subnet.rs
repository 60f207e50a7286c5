//! Limits by subnet: an attacker has to pay for addresses, so their number is limited.

use crate::config::Config;
use alloy_primitives::map::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network that an address belongs to. Addresses of different families never share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Subnet(u128);

/// Grouping of addresses, with the number of contacts in each group.
#[derive(Debug)]
pub(super) struct Subnets {
    v4_bits: u32,
    v6_bits: u32,
    contacts_max: u32,
    counts: HashMap<Subnet, u32>,
}

impl Subnets {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            v4_bits: config.subnet_v4_bits.min(32).into(),
            v6_bits: config.subnet_v6_bits.min(128).into(),
            contacts_max: config.subnet_contacts_max,
            counts: HashMap::default(),
        }
    }

    /// Returns the subnet that an address counts for; `None` on this machine and in private
    /// networks. Addresses there cost nothing, and no stranger has access.
    pub(super) fn of(&self, ip: IpAddr) -> Option<Subnet> {
        let (address, host_bits) = match ip {
            _ if is_local(ip) => return None,
            // The address is used as an IPv4-mapped IPv6 address, which no contact has.
            IpAddr::V4(ip) => (ip.to_ipv6_mapped().to_bits(), 32 - self.v4_bits),
            IpAddr::V6(ip) => (ip.to_bits(), 128 - self.v6_bits),
        };
        Some(Subnet(
            address.checked_shr(host_bits).unwrap_or(0).checked_shl(host_bits).unwrap_or(0),
        ))
    }

    /// Returns whether one more contact of the subnet may be added.
    pub(super) fn has_room(&self, subnet: Option<Subnet>) -> bool {
        subnet.is_none_or(|subnet| {
            self.counts.get(&subnet).is_none_or(|&count| count < self.contacts_max)
        })
    }

    /// Counts one more contact.
    pub(super) fn add(&mut self, subnet: Option<Subnet>) {
        if let Some(subnet) = subnet {
            *self.counts.entry(subnet).or_default() += 1;
        }
    }

    /// Counts one contact less.
    pub(super) fn remove(&mut self, subnet: Option<Subnet>) {
        let Some(subnet) = subnet else { return };
        if let Some(count) = self.counts.get_mut(&subnet) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&subnet);
            }
        }
    }

    /// Returns the counts in an order that does not depend on history.
    #[cfg(test)]
    pub(super) fn sorted(&self) -> std::collections::BTreeMap<u128, u32> {
        self.counts.iter().map(|(subnet, &count)| (subnet.0, count)).collect()
    }
}

/// Returns whether the address belongs to this machine, the link or a private network (RFC 1918,
/// RFC 3927, RFC 4193).
fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Returns whether a packet can be sent to the address at all.
pub(super) fn is_usable(ip: IpAddr, udp_port: u16) -> bool {
    let unusable = ip.is_unspecified() || ip.is_multicast() || ip == Ipv4Addr::BROADCAST;
    let mapped = matches!(ip, IpAddr::V6(ip) if is_mapped(ip));
    udp_port != 0 && !unusable && !mapped
}

/// Returns whether an address is IPv4-mapped: contacts carry the IPv4 address itself (see
/// [`tandem_proto::event::Contact::ip`]).
fn is_mapped(ip: Ipv6Addr) -> bool {
    ip.to_ipv4_mapped().is_some()
}
