use crate::{PublicKey, node_id, rlp};
use alloy_primitives::B256;
use alloy_rlp::{BufMut, Encodable, Header};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Address of a node as packets encode it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// IP address, never an IPv4-mapped IPv6 address; 0.0.0.0 when the packet leaves it open.
    pub ip: IpAddr,
    /// Discovery port.
    pub udp_port: u16,
    /// RLPx port, 0 when there is none or it is unknown.
    pub tcp_port: u16,
}

impl Endpoint {
    /// Creates the endpoint of a UDP address.
    pub fn new(address: SocketAddr, tcp_port: u16) -> Self {
        Self { ip: address.ip().to_canonical(), udp_port: address.port(), tcp_port }
    }

    /// Returns the address that packets are sent to.
    pub fn udp(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.udp_port)
    }

    fn payload_length(&self) -> usize {
        rlp::ip_length(&self.ip) + self.udp_port.length() + self.tcp_port.length()
    }

    /// Reads an endpoint. Senders may not know their own address, and this side does not rely on
    /// their claim. An empty address therefore reads as unspecified.
    pub(crate) fn decode(buf: &mut &[u8]) -> alloy_rlp::Result<Self> {
        let mut list = Header::decode_bytes(buf, true)?;
        let ip = rlp::ip(&mut list)?.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let udp_port = rlp::field(&mut list)?;
        // Old implementations omit the last field.
        let tcp_port = if list.is_empty() { 0 } else { rlp::field(&mut list)? };
        Ok(Self { ip, udp_port, tcp_port })
    }
}

impl Encodable for Endpoint {
    fn length(&self) -> usize {
        let payload_length = self.payload_length();
        payload_length + alloy_rlp::length_of_length(payload_length)
    }

    fn encode(&self, out: &mut dyn BufMut) {
        Header { list: true, payload_length: self.payload_length() }.encode(out);
        rlp::encode_ip(&self.ip, out);
        self.udp_port.encode(out);
        self.tcp_port.encode(out);
    }
}

/// Node with its address, as neighbors packets encode it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// Public key of the node.
    pub key: PublicKey,
    /// Address of the node.
    pub endpoint: Endpoint,
}

impl Node {
    /// Returns the address in the Kademlia space.
    pub fn id(&self) -> B256 {
        node_id(&self.key)
    }

    fn payload_length(&self) -> usize {
        self.endpoint.payload_length() + self.key.length()
    }

    /// Reads a node. Returns `None` when its address has an impossible length.
    pub(crate) fn decode(buf: &mut &[u8]) -> alloy_rlp::Result<Option<Self>> {
        let mut list = Header::decode_bytes(buf, true)?;
        let ip = match rlp::ip(&mut list) {
            Ok(ip) => ip,
            Err(alloy_rlp::Error::UnexpectedLength) => None,
            Err(error) => return Err(error),
        };
        let (udp_port, tcp_port) = (rlp::field(&mut list)?, rlp::field(&mut list)?);
        let key = rlp::field(&mut list)?;
        Ok(ip.map(|ip| Self { key, endpoint: Endpoint { ip, udp_port, tcp_port } }))
    }
}

impl Encodable for Node {
    fn length(&self) -> usize {
        let payload_length = self.payload_length();
        payload_length + alloy_rlp::length_of_length(payload_length)
    }

    fn encode(&self, out: &mut dyn BufMut) {
        Header { list: true, payload_length: self.payload_length() }.encode(out);
        rlp::encode_ip(&self.endpoint.ip, out);
        self.endpoint.udp_port.encode(out);
        self.endpoint.tcp_port.encode(out);
        self.key.encode(out);
    }
}
