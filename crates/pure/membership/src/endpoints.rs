//! Rules for the endpoints of workers that are known only by their heartbeats. An executor connects
//! to the endpoint a heartbeat names, so a heartbeat must not direct it to arbitrary hosts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Maximum length of a host name (RFC 1035, 2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// Endpoints at which workers are accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointRules {
    /// Allowed networks, for endpoints with an IP address.
    pub networks: Vec<Network>,
    /// Allowed names, for endpoints with a host name.
    pub names: Vec<NamePattern>,
    /// Lowest and highest allowed port.
    pub ports: [u16; 2],
}

/// Reason why an endpoint is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointRefusal {
    /// The endpoint does not have the required form.
    #[error("is not of the form http://HOST:PORT or https://HOST:PORT")]
    Form,
    /// The address is in none of the networks.
    #[error("address {0} is in none of the allowed networks")]
    Network(IpAddr),
    /// The host name matches none of the patterns.
    #[error("name `{0}` matches none of the allowed names")]
    Name(String),
    /// The port is outside the allowed range.
    #[error("port {port} is not within {least} to {most}")]
    Port {
        /// Port of the endpoint.
        port: u16,
        /// Lowest allowed port.
        least: u16,
        /// Highest allowed port.
        most: u16,
    },
}

impl EndpointRules {
    /// Checks an endpoint such as `http://10.0.0.7:9601`.
    ///
    /// # Errors
    /// [`EndpointRefusal`], also for user information, a path, a query or another scheme.
    pub fn check(&self, endpoint: &str) -> Result<(), EndpointRefusal> {
        let scheme = ["http://", "https://"].iter().find_map(|it| endpoint.strip_prefix(it));
        let authority = scheme.ok_or(EndpointRefusal::Form)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority.rsplit_once(':').ok_or(EndpointRefusal::Form)?;
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(EndpointRefusal::Form);
        }
        let port: u16 = port.parse().map_err(|_| EndpointRefusal::Form)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match bracketed {
            Some(address) => {
                let address: Ipv6Addr = address.parse().map_err(|_| EndpointRefusal::Form)?;
                self.check_address(address.to_canonical())?;
            }
            None => match host.parse::<Ipv4Addr>() {
                Ok(address) => self.check_address(address.into())?,
                Err(_) => self.check_name(host)?,
            },
        }
        let [least, most] = self.ports;
        if (least..=most).contains(&port) {
            Ok(())
        } else {
            Err(EndpointRefusal::Port { port, least, most })
        }
    }

    fn check_address(&self, address: IpAddr) -> Result<(), EndpointRefusal> {
        let is_allowed = self.networks.iter().any(|network| network.contains(address));
        if is_allowed { Ok(()) } else { Err(EndpointRefusal::Network(address)) }
    }

    fn check_name(&self, name: &str) -> Result<(), EndpointRefusal> {
        if !is_name(name) {
            return Err(EndpointRefusal::Form);
        }
        let is_allowed = self.names.iter().any(|pattern| pattern.matches(name));
        if is_allowed { Ok(()) } else { Err(EndpointRefusal::Name(name.to_owned())) }
    }
}

impl Default for EndpointRules {
    /// Allows loopback and private networks (RFC 1918, RFC 6598, RFC 4193), but not link-local
    /// addresses, where clouds serve credentials. Allows names without a dot, as containers have,
    /// names of services in Kubernetes, and ports from 1024 on.
    fn default() -> Self {
        let v4 = |a, b, bits| Network { address: Ipv4Addr::new(a, b, 0, 0).into(), bits };
        let v6 = |first, last, bits| Network {
            address: Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last).into(),
            bits,
        };
        Self {
            networks: vec![
                v4(127, 0, 8),
                v4(10, 0, 8),
                v4(172, 16, 12),
                v4(192, 168, 16),
                v4(100, 64, 10),
                v6(0, 1, 128),
                v6(0xfc00, 0, 7),
            ],
            names: vec![NamePattern("*".into()), NamePattern(".svc.cluster.local".into())],
            ports: [1024, u16::MAX],
        }
    }
}

/// Returns whether this is a host name. Names that resolvers read as addresses in another notation
/// are not: `127.1`, `0x7f000001`, `2130706433`.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(fits)
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.to_ascii_lowercase().starts_with("0x")
            && last.bytes().skip(2).all(|byte| byte.is_ascii_hexdigit());
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label) && !is_number
}

/// Error: a network or a name pattern cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// Invalid network.
    #[error("invalid network `{0}`; expected an address and a number of bits, such as 10.0.0.0/8")]
    Network(String),
    /// Invalid name pattern.
    #[error("invalid name `{0}`; expected `*` for names without a dot, `.SUFFIX`, or a whole name")]
    Name(String),
}

/// Network: an address and the number of leading bits that all its addresses share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Returns whether an address belongs to the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, length) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let rest = length - u32::from(self.bits);
        // A shift by all 128 bits leaves nothing to compare.
        (own ^ other).checked_shr(rest).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let invalid = || RuleError::Network(text.to_owned());
        let (address, bits) = text.split_once('/').ok_or_else(invalid)?;
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits: u8 = bits.parse().map_err(|_| invalid())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most { Err(invalid()) } else { Ok(Self { address, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl TryFrom<String> for Network {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

/// Pattern for host names: `*` for all names without a dot, `.SUFFIX` for all names that end with
/// it, or one name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern(Box<str>);

impl NamePattern {
    /// Returns whether a name matches, ignoring case.
    pub fn matches(&self, name: &str) -> bool {
        if &*self.0 == "*" {
            return !name.contains('.');
        }
        let name = name.to_ascii_lowercase();
        if self.0.starts_with('.') { name.ends_with(&*self.0) } else { name == *self.0 }
    }
}

impl FromStr for NamePattern {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text == "*" || is_name(text.strip_prefix('.').unwrap_or(text)) {
            Ok(Self(text.to_ascii_lowercase().into()))
        } else {
            Err(RuleError::Name(text.to_owned()))
        }
    }
}

impl TryFrom<String> for NamePattern {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EndpointRefusal::{Form, Name, Network as OtherNetwork, Port};
    use proptest::prelude::*;

    #[test]
    fn what_deployments_announce_is_believed() {
        for endpoint in [
            "http://127.0.0.1:9601",
            "https://10.244.1.7:9601",
            "http://172.18.0.5:9601/",
            "http://192.168.1.2:9601",
            "http://100.64.3.4:9601",
            "http://[::1]:40001",
            "http://[fd00:10:244::7]:9601",
            "http://[::ffff:10.0.0.7]:9601",
            // Name of a container.
            "http://3f2a9c41be77:9601",
            "http://localhost:9601",
            "https://worker-0.workers.chain.svc.cluster.local:9601",
        ] {
            assert_eq!(EndpointRules::default().check(endpoint), Ok(()), "{endpoint}");
        }
    }

    #[test]
    fn what_an_executor_must_not_connect_to_is_refused() {
        let (address, name) = (|text: &str| text.parse().unwrap(), |text: &str| text.to_owned());
        let port = |port| Port { port, least: 1024, most: u16::MAX };
        let cases = [
            ("http://127.0.0.1:23333/latest/meta-data", Form),
            ("javascript:1", Form),
            ("http://user:pw@10.0.0.7:9601", Form),
            ("http://user@10.0.0.7:9601", Form),
            ("http://10.0.0.7:9601?a=b", Form),
            ("http://10.0.0.7:9601#a", Form),
            ("http://10.0.0.7", Form),
            ("http://10.0.0.7:", Form),
            ("http://10.0.0.7:+9601", Form),
            ("http://10.0.0.7:65536", Form),
            ("http://10.0.0.7:9601//", Form),
            ("ftp://10.0.0.7:9601", Form),
            ("HTTP://10.0.0.7:9601", Form),
            ("unix:///run/a.sock", Form),
            ("http://:9601", Form),
            ("http://[::1:9601", Form),
            ("http://[10.0.0.7]:9601", Form),
            ("http://[fe80::1%eth0]:9601", Form),
            // Addresses in other notations.
            ("http://2130706433:9601", Form),
            ("http://0x7f000001:9601", Form),
            ("http://127.1:9601", Form),
            ("http://169.254.0xa9fe:9601", Form),
            ("http://a b:9601", Form),
            ("http://..:9601", Form),
            ("http://169.254.169.254:9601", OtherNetwork(address("169.254.169.254"))),
            ("http://[::ffff:169.254.169.254]:9601", OtherNetwork(address("169.254.169.254"))),
            ("http://8.8.8.8:9601", OtherNetwork(address("8.8.8.8"))),
            ("http://0.0.0.0:9601", OtherNetwork(address("0.0.0.0"))),
            ("http://[fe80::1]:9601", OtherNetwork(address("fe80::1"))),
            ("http://[2001:db8::1]:9601", OtherNetwork(address("2001:db8::1"))),
            ("http://example.com:9601", Name(name("example.com"))),
            ("http://metadata.google.internal:9601", Name(name("metadata.google.internal"))),
            (
                "http://svc.cluster.local.evil.example:9601",
                Name(name("svc.cluster.local.evil.example")),
            ),
            ("http://10.0.0.7:22", port(22)),
            ("http://10.0.0.7:0", port(0)),
            ("http://metadata:80", port(80)),
        ];
        for (endpoint, refusal) in cases {
            assert_eq!(EndpointRules::default().check(endpoint), Err(refusal), "{endpoint}");
        }
    }

    #[test]
    fn rules_are_read_from_texts_and_written_as_such() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "fd00::/8", "::/0", "10.1.2.3/32"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0/8", "a/8", "10.0.0.0/-1"] {
            assert_eq!(text.parse::<Network>(), Err(RuleError::Network(text.to_owned())));
        }
        for text in ["*", ".example.com", "worker-1"] {
            assert_eq!(String::from(text.parse::<NamePattern>().unwrap()), text);
        }
        for text in ["", ".", "*.example.com", "a b", "..a"] {
            assert_eq!(text.parse::<NamePattern>(), Err(RuleError::Name(text.to_owned())));
        }
        let suffix: NamePattern = ".Example.com".parse().unwrap();
        assert!(suffix.matches("w.EXAMPLE.com") && !suffix.matches("wexample.com"));
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(
            all.contains([1, 2, 3, 4].into()) && !all.contains(IpAddr::V6(Ipv6Addr::LOCALHOST))
        );
    }

    proptest! {
        /// An accepted endpoint contains nothing except host and port.
        #[test]
        fn what_is_believed_has_no_more_than_host_and_port(
            text in "(http|https|x)://[a-z0-9.:/@?#\\[\\]%-]{0,24}(:[0-9]{1,6})?",
        ) {
            let rules = EndpointRules { ports: [0, u16::MAX], ..EndpointRules::default() };
            if rules.check(&text).is_ok() {
                let rest = text.split_once("://").unwrap().1;
                let rest = rest.strip_suffix('/').unwrap_or(rest);
                prop_assert!(!rest.contains(['/', '@', '?', '#', '%']), "{text}");
                prop_assert!(rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()));
            }
        }

        #[test]
        fn an_address_is_in_a_network_if_its_first_bits_are_the_same(
            own: u32, other: u32, bits in 0u8..=32,
        ) {
            let network = Network { address: Ipv4Addr::from(own).into(), bits };
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            let same = own & mask == other & mask;
            prop_assert_eq!(network.contains(Ipv4Addr::from(other).into()), same);
        }
    }
}
