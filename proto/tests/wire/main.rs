//! Messages sent and received, and messages that are invalid.
#![allow(clippy::unwrap_used, missing_docs)]

mod blob_validator;
mod discovery;
mod download;
mod exchange;
mod feed;
mod malformed;
mod malformed_proof;
mod noise;
mod peer_sessions;
mod peer_table;
mod round_trip;
mod snap;
mod statuses;
mod tx_executor;
mod tx_pool;
mod workers;

use bytes::Bytes;
use prost::Message;
use std::fmt::Debug;
use tandem_proto::convert::ConvertError;

/// Returns the value that arrives when this message is sent.
fn sent<M: Message + Default, T: TryFrom<M, Error: Debug>>(message: M) -> T {
    let bytes = Bytes::from(message.encode_to_vec());
    T::try_from(M::decode(bytes).unwrap()).unwrap()
}

/// Returns the value that arrives when this value is sent as an `M`.
fn through<M: Message + Default + From<T>, T: TryFrom<M, Error: Debug>>(value: T) -> T {
    sent::<M, T>(value.into())
}

/// Returns the error of a message that is refused, and nothing if it is not.
fn refused<M, T: TryFrom<M, Error = ConvertError>>(message: M) -> String {
    T::try_from(message).err().map(|error| error.to_string()).unwrap_or_default()
}
