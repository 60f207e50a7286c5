//! Reasons why a message is refused.

/// Error of a message from a peer. All of them break the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The message is not the RLP that the specification describes.
    #[error("malformed {message}: {error}")]
    Rlp {
        /// Name of the message.
        message: &'static str,
        /// Fault of the encoding.
        error: alloy_rlp::Error,
    },
    /// A list has too many items.
    #[error("{message} with more than {max} items")]
    TooMany {
        /// Name of the message.
        message: &'static str,
        /// Largest number of items that is accepted.
        max: usize,
    },
    /// Lists of one message that belong together have different lengths.
    #[error("{message} with lists of different lengths")]
    Lengths {
        /// Name of the message.
        message: &'static str,
    },
    /// The oldest block that a peer offers is above its newest.
    #[error("{message} with blocks {earliest} to {latest}")]
    Range {
        /// Name of the message.
        message: &'static str,
        /// Oldest block offered.
        earliest: u64,
        /// Newest block offered.
        latest: u64,
    },
    /// The negotiated version has no message with this number.
    #[error("{protocol}/{version} has no message {number:#x}")]
    Number {
        /// Name of the protocol.
        protocol: &'static str,
        /// Its version on this session.
        version: u64,
        /// Number of the message.
        number: u64,
    },
}
