use crate::{Endpoint, Node, UrlError, identity};
use alloy_primitives::hex;
use core::net::SocketAddr;
use std::{fmt, str::FromStr};

/// URL of a node as people write it: `enode://<public key>@<ip>:<tcp port>[?discport=<udp port>]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeUrl(pub Node);

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { key, endpoint } = &self.0;
        let address = SocketAddr::new(endpoint.ip, endpoint.tcp_port);
        write!(f, "enode://{}@{address}", hex::encode(key))?;
        if endpoint.udp_port != endpoint.tcp_port {
            write!(f, "?discport={}", endpoint.udp_port)?;
        }
        Ok(())
    }
}

impl FromStr for NodeUrl {
    type Err = UrlError;

    /// Reads a URL. Refuses names instead of addresses, because resolving them is I/O.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.trim().strip_prefix("enode://").ok_or(UrlError::Scheme)?;
        let (key, rest) = rest.split_once('@').ok_or(UrlError::Key)?;
        let mut bytes = [0; 64];
        hex::decode_to_slice(key, &mut bytes).map_err(|_| UrlError::Key)?;
        if key.starts_with("0x") || !identity::is_on_curve(&bytes.into()) {
            return Err(UrlError::Key);
        }
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let address: SocketAddr = address.parse().map_err(|_| UrlError::Address)?;
        let mut udp_port = address.port();
        for pair in query.split('&') {
            if let Some(port) = pair.strip_prefix("discport=") {
                udp_port = port.parse().map_err(|_| UrlError::Address)?;
            }
        }
        let endpoint =
            Endpoint { ip: address.ip().to_canonical(), udp_port, tcp_port: address.port() };
        Ok(Self(Node { key: bytes.into(), endpoint }))
    }
}
