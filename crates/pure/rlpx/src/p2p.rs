//! Messages of the capability "p2p", which every session has.

use crate::{CAPABILITIES_MAX, CAPABILITY_NAME_BYTES_MAX, Capability, Error};
use alloy_rlp::{BytesMut, Decodable, Encodable, Header};
use tandem_discv4::PublicKey;

/// Message id of a [`Hello`].
pub const HELLO: u64 = 0;
/// Message id of a [`DisconnectReason`].
pub const DISCONNECT: u64 = 1;
/// Message id of a ping: an empty list.
pub const PING: u64 = 2;
/// Message id of a ping's answer: an empty list.
pub const PONG: u64 = 3;

/// Version of the transport: messages are compressed from version 5 on (EIP-706).
pub const VERSION: u64 = 5;

/// Largest content of a Hello that is accepted: go-ethereum's `baseProtocolMaxMsgSize`.
pub const HELLO_BYTES_MAX: usize = 2048;

/// Bytes of a client's name that are kept.
pub const CLIENT_NAME_BYTES_MAX: usize = 128;

/// First message of each side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Version of the transport. A session with a lower one than [`VERSION`] has no compression.
    pub version: u64,
    /// Name and version of the client, printable ASCII.
    pub client: String,
    /// Protocols that the peer speaks.
    pub capabilities: Vec<Capability>,
    /// Port for inbound sessions, 0 if there is none. Receivers ignore it.
    pub port: u16,
    /// Public key of the peer.
    pub id: PublicKey,
}

impl Hello {
    /// Returns the message's content.
    pub fn encode(&self) -> BytesMut {
        let items: [&dyn Encodable; 5] =
            [&self.version, &self.client, &self.capabilities, &self.port, &self.id];
        let payload_length = items.iter().map(|item| item.length()).sum();
        let mut out = BytesMut::new();
        Header { list: true, payload_length }.encode(&mut out);
        items.iter().for_each(|item| item.encode(&mut out));
        out
    }

    /// Reads a message's content. Capabilities with names that no protocol can have are left out,
    /// and so are those after the first [`CAPABILITIES_MAX`]. The client's name is made printable
    /// and cut. Anything after the known fields is ignored.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not a Hello.
    pub fn decode(content: &[u8]) -> Result<Self, Error> {
        decode_hello(content).map_err(|error| Error::Malformed { name: "Hello", error })
    }
}

fn decode_hello(mut content: &[u8]) -> alloy_rlp::Result<Hello> {
    if content.len() > HELLO_BYTES_MAX {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    let mut fields = Header::decode_bytes(&mut content, true)?;
    let version = u64::decode(&mut fields)?;
    let client = printable(Header::decode_bytes(&mut fields, false)?);
    let mut list = Header::decode_bytes(&mut fields, true)?;
    let mut capabilities = Vec::new();
    while !list.is_empty() && capabilities.len() < CAPABILITIES_MAX {
        let mut pair = Header::decode_bytes(&mut list, true)?;
        let name = Header::decode_bytes(&mut pair, false)?;
        let version = u64::decode(&mut pair)?;
        if (1..=CAPABILITY_NAME_BYTES_MAX).contains(&name.len()) && name.is_ascii() {
            capabilities.push(Capability { name: printable(name), version });
        }
    }
    let port = u64::decode(&mut fields)? as u16;
    let id = PublicKey::decode(&mut fields)?;
    Ok(Hello { version, client, capabilities, port, id })
}

fn printable(bytes: &[u8]) -> String {
    let kept = bytes.iter().take(CLIENT_NAME_BYTES_MAX);
    kept.map(|&byte| if matches!(byte, b' '..=b'~') { byte as char } else { '?' }).collect()
}

/// Reason why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub enum DisconnectReason {
    /// The peer asks for it.
    #[error("requested")]
    Requested = 0x00,
    /// The connection failed.
    #[error("network error")]
    Network = 0x01,
    /// A message broke the protocol.
    #[error("breach of protocol")]
    Protocol = 0x02,
    /// The peers have nothing for each other.
    #[error("useless peer")]
    Useless = 0x03,
    /// The peer has enough sessions.
    #[error("too many peers")]
    TooManyPeers = 0x04,
    /// The two peers already have a session.
    #[error("already connected")]
    AlreadyConnected = 0x05,
    /// The version of the transport is not supported.
    #[error("incompatible version of the transport")]
    Version = 0x06,
    /// The peer has no identity.
    #[error("invalid identity")]
    InvalidIdentity = 0x07,
    /// The client stops.
    #[error("client quitting")]
    Quitting = 0x08,
    /// The peer is another node than the one that was dialled.
    #[error("unexpected identity")]
    UnexpectedIdentity = 0x09,
    /// The peer is this node.
    #[error("connected to itself")]
    Own = 0x0a,
    /// An answer took too long.
    #[error("timeout")]
    Timeout = 0x0b,
    /// A protocol above the transport failed.
    #[error("failure of a subprotocol")]
    Subprotocol = 0x10,
    /// A number that the specification does not have.
    #[error("unknown reason")]
    Unknown = 0xff,
}

impl DisconnectReason {
    /// All reasons of the specification.
    pub const ALL: [Self; 13] = [
        Self::Requested,
        Self::Network,
        Self::Protocol,
        Self::Useless,
        Self::TooManyPeers,
        Self::AlreadyConnected,
        Self::Version,
        Self::InvalidIdentity,
        Self::Quitting,
        Self::UnexpectedIdentity,
        Self::Own,
        Self::Timeout,
        Self::Subprotocol,
    ];

    fn from_number(number: u64) -> Self {
        let known = Self::ALL.into_iter().find(|reason| u64::from(*reason as u8) == number);
        known.unwrap_or(Self::Unknown)
    }
}

/// Returns the content of a message that ends a session.
pub fn encode_disconnect(reason: DisconnectReason) -> Vec<u8> {
    alloy_rlp::encode(vec![u64::from(reason as u8)])
}

/// Reads the content of a message that ends a session: a list with the number, or, as some clients
/// send it, the number alone. A missing number is [`DisconnectReason::Requested`].
///
/// # Errors
/// [`Error::Malformed`] if it is neither.
pub fn decode_disconnect(mut content: &[u8]) -> Result<DisconnectReason, Error> {
    let mut decode = || {
        let header = Header::decode(&mut &*content)?;
        let mut list = content;
        if header.list {
            list = Header::decode_bytes(&mut content, true)?;
        }
        if list.is_empty() { Ok(0) } else { u64::decode(&mut list) }
    };
    let number = decode().map_err(|error| Error::Malformed { name: "Disconnect", error })?;
    Ok(DisconnectReason::from_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            client: "tandem/0.1".to_owned(),
            capabilities: vec![Capability { name: "eth".to_owned(), version: 69 }],
            port: 30303,
            id: PublicKey::repeat_byte(7),
        }
    }

    #[test]
    fn a_hello_is_read_as_it_was_written_and_no_part_of_it() {
        let content = hello().encode();
        assert_eq!(Hello::decode(&content).unwrap(), hello());
        for end in 0..content.len() {
            assert!(Hello::decode(&content[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_hello_of_a_later_version_is_understood() {
        // One more field, and bytes after the list.
        let content = hello().encode();
        let mut later = BytesMut::new();
        let fields =
            &content[content.len() - Header::decode(&mut &*content).unwrap().payload_length..];
        let payload_length = fields.len() + 1;
        Header { list: true, payload_length }.encode(&mut later);
        later.extend_from_slice(fields);
        later.extend_from_slice(&[0x01, 0xff]);
        assert_eq!(Hello::decode(&later).unwrap(), hello());
    }

    #[test]
    fn names_are_bounded_and_printable() {
        let mut sent = hello();
        sent.client = format!("evil\n{}", "x".repeat(500));
        sent.capabilities =
            (0..90).map(|version| Capability { name: "eth".to_owned(), version }).collect();
        sent.capabilities[0].name = "longerthan8".to_owned();
        sent.capabilities[1].name.clear();
        let seen = Hello::decode(&sent.encode()).unwrap();
        assert_eq!(seen.client, format!("evil?{}", "x".repeat(CLIENT_NAME_BYTES_MAX - 5)));
        assert_eq!(seen.capabilities.len(), CAPABILITIES_MAX);
        assert_eq!(seen.capabilities[0].version, 2);
        sent.client = "x".repeat(HELLO_BYTES_MAX);
        assert!(Hello::decode(&sent.encode()).is_err());
    }

    #[test]
    fn every_reason_is_read_as_it_was_written() {
        for reason in DisconnectReason::ALL {
            let content = encode_disconnect(reason);
            assert_eq!(content.len(), 2);
            assert_eq!(decode_disconnect(&content).unwrap(), reason);
            assert_eq!(decode_disconnect(&content[1..]).unwrap(), reason, "without the list");
        }
        assert_eq!(decode_disconnect(&[0xc0]).unwrap(), DisconnectReason::Requested);
        assert_eq!(decode_disconnect(&[0xc1, 0x0f]).unwrap(), DisconnectReason::Unknown);
        assert_eq!(decode_disconnect(&[0xc2, 0x81, 0xee]).unwrap(), DisconnectReason::Unknown);
        for malformed in [&[][..], &[0xc1], &[0xc1, 0xc0], &[0xc1, 0x81]] {
            assert!(decode_disconnect(malformed).is_err(), "{malformed:?}");
        }
    }
}
