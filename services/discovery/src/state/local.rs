//! The own node as others see it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tandem_discv4::{Endpoint, Enr, EnrBuilder, EnrError, ForkId, Node, NodeKey, NodeUrl};

/// Own addresses and record. The record's number rises with every change.
pub struct Local {
    pub enr: Enr,
    content: Content,
}

/// Content of the record.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    /// Address of the socket.
    bound: SocketAddr,
    tcp_port: u16,
    /// Addresses as others see them, one for each family.
    v4: Option<SocketAddr>,
    v6: Option<SocketAddr>,
    fork_id: Option<ForkId>,
}

impl Local {
    /// Makes the node at its start. `external` are its addresses known from elsewhere; the last one
    /// of each family counts.
    pub fn new(
        key: &NodeKey,
        bound: SocketAddr,
        tcp_port: u16,
        external: &[IpAddr],
        fork_id: Option<ForkId>,
        seq: u64,
    ) -> Result<Self, EnrError> {
        let mut content = Content { bound, tcp_port, v4: None, v6: None, fork_id };
        for ip in [bound.ip()].iter().chain(external) {
            if !ip.is_unspecified() {
                content.set(SocketAddr::new(ip.to_canonical(), bound.port()));
            }
        }
        Ok(Self { enr: content.sign(key, seq)?, content })
    }

    /// Sets a new address of its family. Returns true if it has changed.
    pub fn set_udp(&mut self, key: &NodeKey, udp: SocketAddr) -> bool {
        let mut content = self.content.clone();
        content.set(udp);
        self.change(key, content)
    }

    /// Sets a new fork id. Returns true if it has changed.
    pub fn set_fork_id(&mut self, key: &NodeKey, fork_id: ForkId) -> bool {
        let content = Content { fork_id: Some(fork_id), ..self.content.clone() };
        self.change(key, content)
    }

    fn change(&mut self, key: &NodeKey, content: Content) -> bool {
        if content == self.content {
            return false;
        }
        // With two addresses and a fork id, a record stays far below the limit of 300 bytes.
        let Ok(enr) = content.sign(key, self.enr.seq() + 1) else { return false };
        *self = Self { enr, content };
        true
    }

    /// Returns the own address as far as it is known; IPv4 if there are two.
    pub fn external(&self) -> Option<SocketAddr> {
        self.content.v4.or(self.content.v6)
    }

    /// Returns the sender's endpoint for packets to this address.
    pub fn endpoint_towards(&self, ip: IpAddr) -> Endpoint {
        let Content { bound, tcp_port, v4, v6, .. } = self.content;
        let (known, nowhere) = match ip {
            IpAddr::V4(_) => (v4, Ipv4Addr::UNSPECIFIED.into()),
            IpAddr::V6(_) => (v6, Ipv6Addr::UNSPECIFIED.into()),
        };
        Endpoint::new(known.unwrap_or_else(|| SocketAddr::new(nowhere, bound.port())), tcp_port)
    }

    /// Returns the own node URL.
    pub fn url(&self) -> String {
        let Content { bound, tcp_port, .. } = self.content;
        let endpoint = Endpoint::new(self.external().unwrap_or(bound), tcp_port);
        NodeUrl(Node { key: *self.enr.key(), endpoint }).to_string()
    }
}

impl Content {
    fn set(&mut self, udp: SocketAddr) {
        match udp {
            SocketAddr::V4(_) => self.v4 = Some(udp),
            SocketAddr::V6(_) => self.v6 = Some(udp),
        }
    }

    fn sign(&self, key: &NodeKey, seq: u64) -> Result<Enr, EnrError> {
        let mut builder = EnrBuilder::new(seq);
        for udp in [self.v4, self.v6].into_iter().flatten() {
            builder = builder.endpoint(udp.ip(), udp.port(), self.tcp_port);
        }
        if let Some(fork_id) = self.fork_id {
            builder = builder.eth(fork_id);
        }
        builder.sign(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_an_address_of_each_family_and_changes_count() {
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut local = Local::new(&key, at("[::]:30303"), 30304, &[], None, 7).unwrap();
        assert_eq!((local.external(), local.enr.ip4(), local.enr.ip6()), (None, None, None));
        assert!(local.set_udp(&key, at("[2001:db8::1]:30305")));
        assert_eq!(local.external(), Some(at("[2001:db8::1]:30305")));
        assert!(local.set_udp(&key, at("5.5.5.5:30303")));
        assert!(!local.set_udp(&key, at("5.5.5.5:30303")), "nothing new");
        assert!(local.set_fork_id(&key, ForkId { hash: [1; 4], next: u64::MAX }));
        let enr = &local.enr;
        assert_eq!(enr.seq(), 10);
        assert_eq!(
            (enr.ip4(), enr.udp4(), enr.tcp4()),
            (Some([5; 4].into()), Some(30303), Some(30304))
        );
        let six = Some("2001:db8::1".parse().unwrap());
        assert_eq!((enr.ip6(), enr.udp6(), enr.tcp6()), (six, Some(30305), Some(30304)));
        assert!(enr.rlp().len() < 220, "{} of 300 bytes", enr.rlp().len());
        assert!(local.url().ends_with("@5.5.5.5:30304?discport=30303"), "{}", local.url());
        let towards = |ip: &str| local.endpoint_towards(ip.parse().unwrap()).udp();
        assert_eq!(towards("8.8.8.8"), at("5.5.5.5:30303"));
        assert_eq!(towards("2001:db8::8"), at("[2001:db8::1]:30305"));
    }

    #[test]
    fn what_is_configured_stands_beside_what_is_bound() {
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let local = |bound: &str, external: &[&str]| {
            let external: Vec<_> = external.iter().map(|ip| ip.parse().unwrap()).collect();
            Local::new(&key, bound.parse().unwrap(), 0, &external, None, 1).unwrap()
        };
        let enr = local("0.0.0.0:9", &["1.2.3.4", "2001:db8::2"]).enr;
        assert_eq!(enr.ip4(), Some([1, 2, 3, 4].into()));
        assert_eq!((enr.ip6(), enr.udp6()), (Some("2001:db8::2".parse().unwrap()), Some(9)));
        assert_eq!(local("10.0.0.1:9", &["1.2.3.4"]).enr.ip4(), Some([1, 2, 3, 4].into()));
        let unknown = local("0.0.0.0:9", &[]);
        let towards = unknown.endpoint_towards([8; 4].into());
        assert_eq!((towards.udp(), unknown.external()), ("0.0.0.0:9".parse().unwrap(), None));
    }
}
