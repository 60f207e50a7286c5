//! The own node as others get to know it.

use std::net::{IpAddr, SocketAddr};
use tandem_discv4::{Endpoint, Enr, EnrBuilder, EnrError, ForkId, Node, NodeKey, NodeUrl};

/// Own endpoint and record. The record's number rises with every change.
pub struct Local {
    pub endpoint: Endpoint,
    pub enr: Enr,
    fork_id: Option<ForkId>,
}

impl Local {
    pub fn new(
        key: &NodeKey,
        endpoint: Endpoint,
        fork_id: Option<ForkId>,
        seq: u64,
    ) -> Result<Self, EnrError> {
        let enr = record(key, &endpoint, fork_id, seq)?;
        Ok(Self { endpoint, enr, fork_id })
    }

    /// Takes over a new address. True when it is another one than before.
    pub fn set_udp(&mut self, key: &NodeKey, udp: SocketAddr) -> bool {
        let endpoint = Endpoint::new(udp, self.endpoint.tcp_port);
        endpoint != self.endpoint && self.change(key, endpoint, self.fork_id)
    }

    /// Takes over a new fork id. True when it is another one than before.
    pub fn set_fork_id(&mut self, key: &NodeKey, fork_id: ForkId) -> bool {
        self.fork_id != Some(fork_id) && self.change(key, self.endpoint, Some(fork_id))
    }

    fn change(&mut self, key: &NodeKey, endpoint: Endpoint, fork_id: Option<ForkId>) -> bool {
        // With one address and a fork id a record stays far below the limit of 300 bytes.
        let Ok(enr) = record(key, &endpoint, fork_id, self.enr.seq() + 1) else { return false };
        *self = Self { endpoint, enr, fork_id };
        true
    }

    /// The own address as far as it is known.
    pub fn external(&self) -> Option<SocketAddr> {
        (!self.endpoint.ip.is_unspecified()).then(|| self.endpoint.udp())
    }

    /// The own node URL.
    pub fn url(&self) -> String {
        NodeUrl(Node { key: *self.enr.key(), endpoint: self.endpoint }).to_string()
    }
}

fn record(
    key: &NodeKey,
    endpoint: &Endpoint,
    fork_id: Option<ForkId>,
    seq: u64,
) -> Result<Enr, EnrError> {
    let mut builder = EnrBuilder::new(seq);
    if !endpoint.ip.is_unspecified() {
        builder = builder.endpoint(endpoint.ip, endpoint.udp_port, endpoint.tcp_port);
    }
    if let Some(fork_id) = fork_id {
        builder = builder.eth(fork_id);
    }
    builder.sign(key)
}

/// Whether an address is one that `from` may tell of: who is far away knows nothing of our own host
/// and network, and would only make us send packets there.
pub fn may_tell(from: IpAddr, of: IpAddr) -> bool {
    if of.is_unspecified() || of.is_multicast() || of == IpAddr::from([255; 4]) {
        return false;
    }
    if of.is_loopback() {
        return from.is_loopback();
    }
    !is_local(of) || is_local(from) || from.is_loopback()
}

fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_far_away_tells_of_local_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (public, lan, host) = (ip("8.8.8.8"), ip("192.168.1.2"), ip("127.0.0.1"));
        assert!(may_tell(public, ip("9.9.9.9")));
        assert!(!may_tell(public, lan) && !may_tell(public, host));
        assert!(may_tell(lan, lan) && !may_tell(lan, host));
        assert!(may_tell(host, host) && may_tell(host, lan) && may_tell(host, public));
        for of in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"] {
            assert!(!may_tell(host, ip(of)));
        }
        assert!(!may_tell(public, ip("fd00::1")) && !may_tell(public, ip("fe80::1")));
    }
}
