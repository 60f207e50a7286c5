//! RLPx, the transport of sessions between peers: handshake, frames, compression, and the messages
//! of the capability "p2p". No I/O, no clock, no state beyond one session's keys: the owner of the
//! socket decides about time and admission.
//!
//! ```text
//! initiator                                      recipient
//!   Initiator::start ── auth, ECIES ───────────►  accept
//!   Initiator::finish ◄────────── ack, ECIES ───    │
//!     Encoder, Decoder                           Encoder, Decoder
//!   Hello ◄──── frame: header, MAC, body, MAC ──► Hello          not compressed
//!   negotiate                                    negotiate       the same message ids on both sides
//!   messages ◄─── frames of message id ‖ snappy(RLP) ──► messages
//! ```
//!
//! * Specification: <https://github.com/ethereum/devp2p/blob/master/rlpx.md>, version 5.
//! * Handshakes have the form of EIP-8. Handshakes from before EIP-8 are refused: the specification
//!   no longer has them.
//! * **Bounds.** A size is checked before memory is taken for it: of a handshake
//!   ([`HANDSHAKE_BYTES_MAX`]), of a frame ([`Decoder::header`]), and of what a message says it
//!   decompresses to ([`Limits`]).
//! * Cryptography comes from libraries (secp256k1, aes, ctr, hmac, sha2, keccak): here is only the
//!   order in which they are called.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod capability;
mod ecies;
mod error;
mod frame;
mod handshake;
mod message;
mod p2p;

pub use capability::{
    CAPABILITIES_MAX, CAPABILITY_NAME_BYTES_MAX, Capability, FIRST_SHARED_ID, Offer, Shared,
    negotiate,
};
pub use error::Error;
pub use frame::{HEADER_BYTES, MAC_BYTES};
pub use handshake::{HANDSHAKE_BYTES_MAX, Initiator, Opened, SIZE_BYTES, accept, packet_bytes};
pub use message::{Decoder, Encoder, Limits, MESSAGE_BYTES_MAX, Message};
pub use p2p::{
    CLIENT_NAME_BYTES_MAX, DISCONNECT, DisconnectReason, HELLO, HELLO_BYTES_MAX, Hello, PING, PONG,
    VERSION, decode_disconnect, encode_disconnect,
};
