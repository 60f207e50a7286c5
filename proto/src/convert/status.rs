//! Errors of the services as messages, and as gRPC statuses that keep the variant. Every client
//! understands the code; the encoded error itself travels in the metadata.

use super::{
    error::{At, ConvertError},
    field::{hash, hash_bytes, nested, required},
};
use crate::{
    limits::ERROR_TEXT_BYTES_MAX,
    multiproof, peer_table as peers, storage,
    wire::{multiproof_workers, peer_table, storage_writer},
};
use multiproof_workers::v1::error as multiproof_wire;
use peer_table::v1::error as peers_wire;
use prost::Message;
use storage_writer::v1::error as storage_wire;
use tonic::{
    Code, Status,
    metadata::{MetadataMap, MetadataValue},
};

/// Metadata key of the encoded error of a failed call. (gRPC's own `grpc-status-details-bin` is
/// meant for `google.rpc.Status`, which tools try to decode there.)
pub const ERROR_METADATA: &str = "tandem-error-bin";

impl From<&storage::Error> for storage_writer::v1::Error {
    /// Cuts texts at [`ERROR_TEXT_BYTES_MAX`].
    fn from(error: &storage::Error) -> Self {
        use storage_wire::{Fenced, Kind, Pruned, RewindTooDeep, TooFarBehind};
        let kind = match error {
            &storage::Error::Fenced { held, granted } => Kind::Fenced(Fenced { held, granted }),
            &storage::Error::Unproven { held } => Kind::Unproven(held),
            &storage::Error::UnknownBlock(hash) => Kind::UnknownBlock(hash_bytes(hash)),
            &storage::Error::RewindTooDeep { to, oldest } => {
                Kind::RewindTooDeep(RewindTooDeep { to, oldest })
            }
            &storage::Error::TooFarBehind { at, oldest } => {
                Kind::TooFarBehind(TooFarBehind { at, oldest })
            }
            &storage::Error::Pruned { number, oldest } => Kind::Pruned(Pruned { number, oldest }),
            storage::Error::Store(text) => Kind::Store(cut(text)),
            storage::Error::Unavailable(text) => Kind::Unavailable(cut(text)),
            storage::Error::Refused(text) => Kind::Refused(cut(text)),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<storage_writer::v1::Error> for storage::Error {
    type Error = ConvertError;

    fn try_from(wire: storage_writer::v1::Error) -> Result<Self, ConvertError> {
        use storage_wire::Kind;
        Ok(match required(wire.kind).at("kind")? {
            Kind::Fenced(fenced) => Self::Fenced { held: fenced.held, granted: fenced.granted },
            Kind::Unproven(held) => Self::Unproven { held },
            Kind::UnknownBlock(bytes) => Self::UnknownBlock(hash(&bytes).at("unknown_block")?),
            Kind::RewindTooDeep(rewind) => {
                Self::RewindTooDeep { to: rewind.to, oldest: rewind.oldest }
            }
            Kind::TooFarBehind(behind) => {
                Self::TooFarBehind { at: behind.at, oldest: behind.oldest }
            }
            Kind::Pruned(pruned) => Self::Pruned { number: pruned.number, oldest: pruned.oldest },
            Kind::Store(text) => Self::Store(text),
            Kind::Unavailable(text) => Self::Unavailable(text),
            Kind::Refused(text) => Self::Refused(text),
        })
    }
}

impl From<&multiproof::Error> for multiproof_workers::v1::Error {
    /// Cuts texts at [`ERROR_TEXT_BYTES_MAX`].
    fn from(error: &multiproof::Error) -> Self {
        use multiproof_wire::{Kind, ParentUnreachable, Unavailable};
        let kind = match error {
            &multiproof::Error::ParentUnreachable { parent, base } => {
                let parent = hash_bytes(parent);
                Kind::ParentUnreachable(ParentUnreachable { parent, base: Some(base.into()) })
            }
            multiproof::Error::Storage(error) => Kind::Storage(error.into()),
            multiproof::Error::Trie(text) => Kind::Trie(cut(text)),
            multiproof::Error::Unavailable => Kind::Unavailable(Unavailable {}),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<multiproof_workers::v1::Error> for multiproof::Error {
    type Error = ConvertError;

    fn try_from(wire: multiproof_workers::v1::Error) -> Result<Self, ConvertError> {
        use multiproof_wire::Kind;
        Ok(match required(wire.kind).at("kind")? {
            Kind::ParentUnreachable(error) => Self::ParentUnreachable {
                parent: hash(&error.parent).at("parent_unreachable.parent")?,
                base: nested(error.base).at("parent_unreachable.base")?,
            },
            Kind::Storage(error) => Self::Storage(error.try_into().at("storage")?),
            Kind::Trie(text) => Self::Trie(text),
            Kind::Unavailable(_) => Self::Unavailable,
        })
    }
}

impl From<&peers::Error> for peer_table::v1::Error {
    /// Cuts texts at [`ERROR_TEXT_BYTES_MAX`].
    fn from(error: &peers::Error) -> Self {
        use peers_wire::{Kind, Overloaded};
        let kind = match error {
            peers::Error::Overloaded => Kind::Overloaded(Overloaded {}),
            peers::Error::Unavailable(text) => Kind::Unavailable(cut(text)),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<peer_table::v1::Error> for peers::Error {
    type Error = ConvertError;

    fn try_from(wire: peer_table::v1::Error) -> Result<Self, ConvertError> {
        use peers_wire::Kind;
        Ok(match required(wire.kind).at("kind")? {
            Kind::Overloaded(_) => Self::Overloaded,
            Kind::Unavailable(text) => Self::Unavailable(text),
        })
    }
}

impl From<storage::Error> for Status {
    fn from(error: storage::Error) -> Self {
        let detail = storage_writer::v1::Error::from(&error);
        status(storage_code(&error), &error.to_string(), &detail)
    }
}

impl From<multiproof::Error> for Status {
    fn from(error: multiproof::Error) -> Self {
        let detail = multiproof_workers::v1::Error::from(&error);
        let code = match &error {
            multiproof::Error::ParentUnreachable { .. } => Code::FailedPrecondition,
            multiproof::Error::Storage(error) => storage_code(error),
            multiproof::Error::Trie(_) => Code::DataLoss,
            multiproof::Error::Unavailable => Code::Unavailable,
        };
        status(code, &error.to_string(), &detail)
    }
}

impl From<peers::Error> for Status {
    fn from(error: peers::Error) -> Self {
        let detail = peer_table::v1::Error::from(&error);
        let code = match &error {
            peers::Error::Overloaded => Code::ResourceExhausted,
            peers::Error::Unavailable(_) => Code::Unavailable,
        };
        status(code, &error.to_string(), &detail)
    }
}

impl From<Status> for storage::Error {
    /// Returns the error that was sent, or else one derived from the status code. No error is sent
    /// when a proxy answers, the connection breaks, or the request is malformed.
    fn from(status: Status) -> Self {
        sent::<storage_writer::v1::Error, _>(&status).unwrap_or_else(|| {
            let text = said(&status);
            match status.code() {
                code if is_absence(code) => Self::Unavailable(text),
                Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
                    Self::Refused(text)
                }
                _ => Self::Store(text),
            }
        })
    }
}

impl From<Status> for multiproof::Error {
    /// Returns the error that was sent, or else [`multiproof::Error::Unavailable`], because no
    /// roots will arrive.
    fn from(status: Status) -> Self {
        sent::<multiproof_workers::v1::Error, _>(&status).unwrap_or(Self::Unavailable)
    }
}

impl From<Status> for peers::Error {
    /// Returns the error that was sent, or else [`peers::Error::Unavailable`]: the caller must do
    /// without the answer, whatever the reason.
    fn from(status: Status) -> Self {
        sent::<peer_table::v1::Error, _>(&status)
            .unwrap_or_else(|| Self::Unavailable(said(&status)))
    }
}

impl From<ConvertError> for Status {
    /// Reports a malformed request.
    fn from(error: ConvertError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl From<ConvertError> for storage::Error {
    /// Reports a malformed answer.
    fn from(error: ConvertError) -> Self {
        Self::Store(format!("malformed answer: {error}"))
    }
}

impl From<ConvertError> for multiproof::Error {
    /// Reports a malformed answer.
    fn from(error: ConvertError) -> Self {
        Self::Trie(format!("malformed answer: {error}"))
    }
}

impl From<ConvertError> for peers::Error {
    /// Reports a malformed answer.
    fn from(error: ConvertError) -> Self {
        Self::Unavailable(format!("malformed answer: {error}"))
    }
}

fn storage_code(error: &storage::Error) -> Code {
    match error {
        storage::Error::Fenced { .. } => Code::FailedPrecondition,
        storage::Error::Unproven { .. } => Code::PermissionDenied,
        storage::Error::UnknownBlock(_) => Code::NotFound,
        storage::Error::RewindTooDeep { .. }
        | storage::Error::TooFarBehind { .. }
        | storage::Error::Pruned { .. } => Code::OutOfRange,
        storage::Error::Store(_) => Code::Internal,
        storage::Error::Unavailable(_) => Code::Unavailable,
        storage::Error::Refused(_) => Code::InvalidArgument,
    }
}

/// Returns whether the code means that there was no answer, as opposed to a refusal.
pub(super) fn is_absence(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::ResourceExhausted
    )
}

pub(super) fn status(code: Code, text: &str, detail: &impl Message) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(ERROR_METADATA, MetadataValue::from_bytes(&detail.encode_to_vec()));
    Status::with_metadata(code, cut(text), metadata)
}

/// Returns the error that was sent with a status, if it is one that this version knows.
pub(super) fn sent<M: Message + Default, E: TryFrom<M>>(status: &Status) -> Option<E> {
    let bytes = status.metadata().get_bin(ERROR_METADATA)?.to_bytes().ok()?;
    M::decode(bytes).ok()?.try_into().ok()
}

/// Returns code and text of a status without an error of ours.
pub(super) fn said(status: &Status) -> String {
    cut(&format!("{:?}: {}", status.code(), status.message()))
}

/// Returns the text, cut to the size that fits into a message.
pub(super) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(ERROR_TEXT_BYTES_MAX)].to_owned()
}
