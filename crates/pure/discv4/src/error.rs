/// Reason why a datagram is not a packet of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    /// The datagram is too short for a header, or longer than 1280 bytes.
    #[error("packet of a size that no packet has")]
    Size,
    /// The type byte is unknown.
    #[error("packet of an unknown type")]
    Type,
    /// The first 32 bytes are not the hash of the rest.
    #[error("packet with a wrong hash")]
    Hash,
    /// The signature does not belong to any key.
    #[error("packet with an invalid signature")]
    Signature,
    /// The data does not match the type.
    #[error("packet data: {0}")]
    Data(alloy_rlp::Error),
    /// The record in the packet is invalid.
    #[error("packet with an invalid record: {0}")]
    Record(#[from] EnrError),
}

/// Reason why bytes or a text are not a node record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnrError {
    /// The record has more than 300 bytes.
    #[error("record is larger than 300 bytes")]
    TooLarge,
    /// The bytes are not the RLP of a record.
    #[error("record: {0}")]
    Rlp(alloy_rlp::Error),
    /// Keys are not in strictly ascending order.
    #[error("record keys are not sorted and unique")]
    Unsorted,
    /// The identity scheme is not "v4".
    #[error("record has no identity scheme \"v4\"")]
    Scheme,
    /// The public key is missing or not a point of the curve.
    #[error("record has no valid public key")]
    Key,
    /// The signature was not made by the record's key.
    #[error("record signature is invalid")]
    Signature,
    /// The text does not start with `enr:`, or is not URL-safe base64 without padding.
    #[error("record text is not enr: and base64")]
    Text,
}

/// Reason why a text is not a node URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    /// The text does not start with `enode://`.
    #[error("node URL does not start with enode://")]
    Scheme,
    /// The part before `@` is not 128 hex digits of a public key.
    #[error("node URL has no valid public key")]
    Key,
    /// The part after `@` is not an IP address and port.
    #[error("node URL has no valid address")]
    Address,
}
