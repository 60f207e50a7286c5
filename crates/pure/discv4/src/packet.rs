//! The frame around a message.

use crate::{Message, NodeKey, PacketError, PublicKey, identity, message};
use alloy_primitives::{B256, keccak256};

/// Bytes of the largest packet.
pub const PACKET_BYTES_MAX: usize = 1280;

/// Bytes before the data: hash, signature, type.
pub const HEADER_BYTES: usize = HASH_BYTES + SIGNATURE_BYTES + 1;

const HASH_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 65;

/// The longest neighbor: IPv6 address, two ports, key, each with its RLP prefix, in a list.
const NODE_BYTES_MAX: usize = 2 + 17 + 3 + 3 + 66;

/// Nodes in one neighbors packet, so that it fits whatever their addresses are: 12.
pub const NEIGHBORS_MAX: usize =
    // Two list prefixes of three bytes and an expiration of nine.
    (PACKET_BYTES_MAX - HEADER_BYTES - 3 - 3 - 9) / NODE_BYTES_MAX;

/// A received packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Who signed it.
    pub sender: PublicKey,
    /// Its hash, by which an answer refers to it.
    pub hash: B256,
    /// What it says.
    pub message: Message,
}

/// A packet to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedPacket {
    /// The datagram.
    pub bytes: Vec<u8>,
    /// Its hash, by which an answer refers to it.
    pub hash: B256,
}

/// Signs and frames a message. A [`crate::Neighbors`] of more than [`NEIGHBORS_MAX`] nodes gives a packet
/// that receivers refuse: the sender splits.
pub fn encode(key: &NodeKey, message: &Message) -> SignedPacket {
    let mut bytes = Vec::with_capacity(256);
    bytes.resize(HASH_BYTES + SIGNATURE_BYTES, 0);
    bytes.push(message.packet_type());
    message.encode_data(&mut bytes);
    let signed = keccak256(&bytes[HASH_BYTES + SIGNATURE_BYTES..]);
    bytes[HASH_BYTES..HASH_BYTES + SIGNATURE_BYTES].copy_from_slice(&key.sign_recoverable(signed));
    let hash = keccak256(&bytes[HASH_BYTES..]);
    bytes[..HASH_BYTES].copy_from_slice(hash.as_slice());
    SignedPacket { bytes, hash }
}

/// The cheap checks: size, type, hash. Most of what is no packet ends here, without an allocation and
/// before the expensive recovery of the signer. Returns the packet's hash.
///
/// # Errors
/// [`PacketError::Size`], [`PacketError::Type`], [`PacketError::Hash`].
pub fn check_frame(bytes: &[u8]) -> Result<B256, PacketError> {
    if bytes.len() <= HEADER_BYTES || bytes.len() > PACKET_BYTES_MAX {
        return Err(PacketError::Size);
    }
    if !message::TYPES.contains(&bytes[HEADER_BYTES - 1]) {
        return Err(PacketError::Type);
    }
    let hash = keccak256(&bytes[HASH_BYTES..]);
    if hash.as_slice() != &bytes[..HASH_BYTES] {
        return Err(PacketError::Hash);
    }
    Ok(hash)
}

/// Reads a datagram: checks the frame, recovers the sender, reads the message.
///
/// # Errors
/// See [`PacketError`].
pub fn decode(bytes: &[u8]) -> Result<Packet, PacketError> {
    let hash = check_frame(bytes)?;
    let (signature, signed) =
        bytes[HASH_BYTES..].split_first_chunk::<SIGNATURE_BYTES>().ok_or(PacketError::Size)?;
    // The data first: it is the cheaper of the two.
    let message = Message::decode_data(signed[0], &signed[1..])?;
    let sender = identity::recover(keccak256(signed), signature)?;
    Ok(Packet { sender, hash, message })
}
