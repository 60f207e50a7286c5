//! Frame around a message.

use crate::{Message, NodeKey, PacketError, PublicKey, identity, message};
use alloy_primitives::{B256, keccak256};

/// Size of the largest packet in bytes.
pub const PACKET_BYTES_MAX: usize = 1280;

/// Number of bytes before the data: hash, signature, type.
pub const HEADER_BYTES: usize = HASH_BYTES + SIGNATURE_BYTES + 1;

const HASH_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 65;

/// Size of the longest neighbor: IPv6 address, two ports, key, each with its RLP prefix, in a list.
const NODE_BYTES_MAX: usize = 2 + 17 + 3 + 3 + 66;

/// Number of nodes in one neighbors packet, 12, so that it fits whatever their addresses are.
pub const NEIGHBORS_MAX: usize =
    // Two list prefixes of three bytes and an expiration of nine.
    (PACKET_BYTES_MAX - HEADER_BYTES - 3 - 3 - 9) / NODE_BYTES_MAX;

/// Received packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Public key that signed the packet.
    pub sender: PublicKey,
    /// Hash of the packet, which an answer refers to.
    pub hash: B256,
    /// Message in the packet.
    pub message: Message,
}

/// Packet ready to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedPacket {
    /// Datagram.
    pub bytes: Vec<u8>,
    /// Hash of the packet, which an answer refers to.
    pub hash: B256,
}

/// Signs and frames a message. Receivers refuse a packet with a [`crate::Neighbors`] of more than
/// [`NEIGHBORS_MAX`] nodes: the sender must split it.
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

/// Makes the cheap checks: size, type, hash. Most invalid datagrams fail here, without an
/// allocation and before the expensive recovery of the signer. Returns the hash of the packet.
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
    // The data first, because decoding is cheaper than recovery.
    let message = Message::decode_data(signed[0], &signed[1..])?;
    let sender = identity::recover(keccak256(signed), signature)?;
    Ok(Packet { sender, hash, message })
}
