/// Why a datagram is no packet of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    /// It is too short for a header, or longer than 1280 bytes.
    #[error("packet of a size that no packet has")]
    Size,
    /// Its type byte names no packet.
    #[error("packet of an unknown type")]
    Type,
    /// Its first 32 bytes are not the hash of the rest.
    #[error("packet with a wrong hash")]
    Hash,
    /// No key made its signature.
    #[error("packet with an invalid signature")]
    Signature,
    /// Its data is not what its type demands.
    #[error("packet data: {0}")]
    Data(alloy_rlp::Error),
    /// The record in it is invalid.
    #[error("packet with an invalid record: {0}")]
    Record(#[from] EnrError),
}

/// Why this is no node record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnrError {
    /// More than 300 bytes.
    #[error("record is larger than 300 bytes")]
    TooLarge,
    /// Not the RLP of a record.
    #[error("record: {0}")]
    Rlp(alloy_rlp::Error),
    /// Keys are not in strictly ascending order.
    #[error("record keys are not sorted and unique")]
    Unsorted,
    /// The identity scheme is not "v4".
    #[error("record has no identity scheme \"v4\"")]
    Scheme,
    /// The public key is missing or no point of the curve.
    #[error("record has no valid public key")]
    Key,
    /// The signature was not made by the record's key.
    #[error("record signature is invalid")]
    Signature,
    /// The text does not start with `enr:`, or is not URL-safe base64 without padding.
    #[error("record text is not enr: and base64")]
    Text,
}

/// Why this is no node URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    /// It does not start with `enode://`.
    #[error("node URL does not start with enode://")]
    Scheme,
    /// The part before `@` is not 128 hex digits of a public key.
    #[error("node URL has no valid public key")]
    Key,
    /// What follows `@` is no IP address and port.
    #[error("node URL has no valid address")]
    Address,
}
