//! Conversion of blob-validator's errors to messages and statuses.

use super::{
    blob_validator::millis,
    error::{At, ConvertError},
    field::required,
    status::{cut, is_absence, said, sent, status},
};
use crate::{
    blob_validator::Error,
    wire::blob_validator::v1::{self, error as error_wire},
};
use std::time::Duration;
use tonic::Code;

impl From<&Error> for v1::Error {
    /// Cuts texts at [`ERROR_TEXT_BYTES_MAX`](crate::limits::ERROR_TEXT_BYTES_MAX).
    fn from(error: &Error) -> Self {
        use error_wire::{DeadlineExceeded, Kind, Overloaded};
        let kind = match error {
            &Error::Overloaded { retry_after } => {
                Kind::Overloaded(Overloaded { retry_after_ms: millis(retry_after) })
            }
            Error::DeadlineExceeded => Kind::DeadlineExceeded(DeadlineExceeded {}),
            Error::Library(text) => Kind::Library(cut(text)),
            Error::Unavailable(text) => Kind::Unavailable(cut(text)),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::Error> for Error {
    type Error = ConvertError;

    fn try_from(wire: v1::Error) -> Result<Self, ConvertError> {
        use error_wire::Kind;
        Ok(match required(wire.kind).at("kind")? {
            Kind::Overloaded(overloaded) => {
                Self::Overloaded { retry_after: Duration::from_millis(overloaded.retry_after_ms) }
            }
            Kind::DeadlineExceeded(_) => Self::DeadlineExceeded,
            Kind::Library(text) => Self::Library(text),
            Kind::Unavailable(text) => Self::Unavailable(text),
        })
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Overloaded { .. } => Code::ResourceExhausted,
            Error::DeadlineExceeded => Code::DeadlineExceeded,
            Error::Library(_) => Code::Internal,
            Error::Unavailable(_) => Code::Unavailable,
        };
        status(code, &error.to_string(), &v1::Error::from(&error))
    }
}

impl From<tonic::Status> for Error {
    /// Returns the error that was sent, or else one derived from the status code.
    fn from(status: tonic::Status) -> Self {
        sent::<v1::Error, _>(&status).unwrap_or_else(|| {
            let text = said(&status);
            match status.code() {
                Code::DeadlineExceeded => Self::DeadlineExceeded,
                code if is_absence(code) => Self::Unavailable(text),
                _ => Self::Library(text),
            }
        })
    }
}

impl From<ConvertError> for Error {
    /// Reports a malformed answer.
    fn from(error: ConvertError) -> Self {
        Self::Library(format!("malformed answer: {error}"))
    }
}
