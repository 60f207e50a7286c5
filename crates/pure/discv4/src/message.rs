//! The six messages. Times are absolute UNIX times in seconds. The receiver, which has a clock,
//! decides whether a time has passed.

use crate::{
    Endpoint, Enr, HEADER_BYTES, Node, PacketError, PublicKey,
    rlp::{field, optional_u64},
};
use alloy_primitives::B256;
use alloy_rlp::{BufMut, Encodable, Header};

/// Protocol version in pings; receivers ignore it.
const VERSION: u8 = 4;

/// Request to a node for a sign of life, 0x01.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ping {
    /// Endpoint of the sender as the sender sees it. Only its TCP port is of use.
    pub from: Endpoint,
    /// Endpoint of the receiver as the sender sees it.
    pub to: Endpoint,
    /// Time at which the packet expires.
    pub expiration: u64,
    /// Sequence number of the sender's record (EIP-868).
    pub enr_seq: Option<u64>,
}

/// Answer to a ping, 0x02.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pong {
    /// Endpoint that the ping came from. The pinging node learns its external address from it.
    pub to: Endpoint,
    /// Hash of the ping packet.
    pub ping_hash: B256,
    /// Time at which the packet expires.
    pub expiration: u64,
    /// Sequence number of the sender's record (EIP-868).
    pub enr_seq: Option<u64>,
}

/// Request for the nodes closest to a target, 0x03.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FindNode {
    /// Target, 64 bytes of any value; it need not be a point of the curve.
    pub target: PublicKey,
    /// Time at which the packet expires.
    pub expiration: u64,
}

/// Answer to find node, 0x04. One request may get several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbors {
    /// Nodes, at most [`crate::NEIGHBORS_MAX`] when this side sends the packet.
    pub nodes: Vec<Node>,
    /// Time at which the packet expires.
    pub expiration: u64,
}

/// Request for a node's record, 0x05 (EIP-868).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnrRequest {
    /// Time at which the packet expires.
    pub expiration: u64,
}

/// Answer with a node's record, 0x06 (EIP-868).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnrResponse {
    /// Hash of the request packet.
    pub request_hash: B256,
    /// Record, valid in itself. The receiver must check that it belongs to the sender.
    pub enr: Enr,
}

/// Content of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// 0x01
    Ping(Ping),
    /// 0x02
    Pong(Pong),
    /// 0x03
    FindNode(FindNode),
    /// 0x04
    Neighbors(Neighbors),
    /// 0x05
    EnrRequest(EnrRequest),
    /// 0x06
    EnrResponse(EnrResponse),
}

/// Known packet types.
pub(crate) const TYPES: std::ops::RangeInclusive<u8> = 1..=6;

impl Message {
    /// Returns the type byte of the packet.
    pub fn packet_type(&self) -> u8 {
        match self {
            Self::Ping(_) => 1,
            Self::Pong(_) => 2,
            Self::FindNode(_) => 3,
            Self::Neighbors(_) => 4,
            Self::EnrRequest(_) => 5,
            Self::EnrResponse(_) => 6,
        }
    }

    /// Returns the name of the packet, for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ping(_) => "ping",
            Self::Pong(_) => "pong",
            Self::FindNode(_) => "find_node",
            Self::Neighbors(_) => "neighbors",
            Self::EnrRequest(_) => "enr_request",
            Self::EnrResponse(_) => "enr_response",
        }
    }

    /// Returns the time at which the packet expires, `None` for the one type that does not expire.
    pub fn expiration(&self) -> Option<u64> {
        match self {
            Self::Ping(ping) => Some(ping.expiration),
            Self::Pong(pong) => Some(pong.expiration),
            Self::FindNode(find) => Some(find.expiration),
            Self::Neighbors(neighbors) => Some(neighbors.expiration),
            Self::EnrRequest(request) => Some(request.expiration),
            Self::EnrResponse(_) => None,
        }
    }

    /// Returns the size of the packet with this message in bytes.
    pub fn packet_bytes(&self) -> usize {
        let mut data = Vec::with_capacity(256);
        self.encode_data(&mut data);
        HEADER_BYTES + data.len()
    }

    /// Appends the packet's data.
    pub(crate) fn encode_data(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ping(ping) => {
                let fields: [&dyn Encodable; 4] =
                    [&VERSION, &ping.from, &ping.to, &ping.expiration];
                list(&fields, ping.enr_seq, out);
            }
            Self::Pong(pong) => {
                list(&[&pong.to, &pong.ping_hash, &pong.expiration], pong.enr_seq, out);
            }
            Self::FindNode(find) => list(&[&find.target, &find.expiration], None, out),
            Self::Neighbors(neighbors) => {
                list(&[&neighbors.nodes, &neighbors.expiration], None, out);
            }
            Self::EnrRequest(request) => list(&[&request.expiration], None, out),
            Self::EnrResponse(response) => {
                list(&[&response.request_hash, &response.enr], None, out)
            }
        }
    }

    /// Reads a packet's data. Elements beyond the known ones and bytes beyond the list are ignored.
    pub(crate) fn decode_data(packet_type: u8, data: &[u8]) -> Result<Self, PacketError> {
        let mut data = data;
        let mut list = Header::decode_bytes(&mut data, true).map_err(PacketError::Data)?;
        if packet_type == 6 {
            let request_hash = field(&mut list).map_err(PacketError::Data)?;
            let enr = Enr::decode_first(&mut list)?;
            return Ok(Self::EnrResponse(EnrResponse { request_hash, enr }));
        }
        fields(packet_type, &mut list).map_err(PacketError::Data)?.ok_or(PacketError::Type)
    }
}

fn fields(packet_type: u8, list: &mut &[u8]) -> alloy_rlp::Result<Option<Message>> {
    let message = match packet_type {
        1 => {
            // The version is skipped, whatever it is.
            let _ = Header::decode_raw(list)?;
            let (from, to) = (Endpoint::decode(list)?, Endpoint::decode(list)?);
            let expiration = field(list)?;
            Message::Ping(Ping { from, to, expiration, enr_seq: optional_u64(list) })
        }
        2 => {
            let to = Endpoint::decode(list)?;
            let (ping_hash, expiration) = (field(list)?, field(list)?);
            Message::Pong(Pong { to, ping_hash, expiration, enr_seq: optional_u64(list) })
        }
        3 => Message::FindNode(FindNode { target: field(list)?, expiration: field(list)? }),
        4 => {
            let mut items = Header::decode_bytes(list, true)?;
            let mut nodes = Vec::with_capacity(crate::NEIGHBORS_MAX);
            while !items.is_empty() {
                // A node with an unknown kind of address is skipped alone.
                nodes.extend(Node::decode(&mut items)?);
            }
            Message::Neighbors(Neighbors { nodes, expiration: field(list)? })
        }
        5 => Message::EnrRequest(EnrRequest { expiration: field(list)? }),
        _ => return Ok(None),
    };
    Ok(Some(message))
}

fn list(fields: &[&dyn Encodable], enr_seq: Option<u64>, out: &mut dyn BufMut) {
    let known: usize = fields.iter().map(|field| field.length()).sum();
    let payload_length = known + enr_seq.map_or(0, |seq| seq.length());
    Header { list: true, payload_length }.encode(out);
    fields.iter().for_each(|field| field.encode(out));
    if let Some(seq) = enr_seq {
        seq.encode(out);
    }
}

macro_rules! messages {
    ($($name:ident),*) => {$(
        impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        }
    )*};
}
messages!(Ping, Pong, FindNode, Neighbors, EnrRequest, EnrResponse);
