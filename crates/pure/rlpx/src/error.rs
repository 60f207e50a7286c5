//! Reasons why bytes of a peer are refused.

/// Error of the transport. After any of them the session's state is lost: the connection has to be
/// closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A handshake packet is shorter than its fields or longer than the limit.
    #[error("handshake packet of {bytes} bytes; expected {min} to {max}")]
    HandshakeSize {
        /// Size that the packet states.
        bytes: usize,
        /// Smallest size with all fields.
        min: usize,
        /// Largest size that is accepted.
        max: usize,
    },
    /// A handshake packet is not encrypted to this node, or was damaged.
    #[error("handshake packet does not decrypt")]
    Decrypt,
    /// The fields of a handshake packet are malformed.
    #[error("malformed handshake: {0}")]
    Handshake(alloy_rlp::Error),
    /// A public key of the handshake is not a point of the curve.
    #[error("public key of the handshake is not on the curve")]
    PublicKey,
    /// No ephemeral key made the signature of the handshake.
    #[error("invalid signature of the handshake")]
    Signature,
    /// The MAC of a frame's header or body is wrong.
    #[error("wrong MAC of a frame's {0}")]
    Mac(&'static str),
    /// A frame states a size of zero, or above the limit.
    #[error("frame of {bytes} bytes; expected 1 to {max}")]
    FrameSize {
        /// Size that the header states.
        bytes: usize,
        /// Largest size that is accepted.
        max: usize,
    },
    /// A frame's body has another length than its header states.
    #[error("frame body of {bytes} bytes; expected {expected}")]
    BodySize {
        /// Length that was handed in.
        bytes: usize,
        /// Length that the header states, with padding and MAC.
        expected: usize,
    },
    /// A message does not begin with a message id.
    #[error("malformed message id: {0}")]
    MessageId(alloy_rlp::Error),
    /// A message states that it decompresses to more than the limit.
    #[error("message of {bytes} bytes decompressed; expected at most {max}")]
    MessageSize {
        /// Size that the message states.
        bytes: usize,
        /// Largest size that is accepted.
        max: usize,
    },
    /// A message is not Snappy, or states a size that its bytes cannot decompress to.
    #[error("message does not decompress")]
    Decompress,
    /// A message of the capability "p2p" is malformed.
    #[error("malformed {name}: {error}")]
    Malformed {
        /// Name of the message.
        name: &'static str,
        /// Fault of the encoding.
        error: alloy_rlp::Error,
    },
}
