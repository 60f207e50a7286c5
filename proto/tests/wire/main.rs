//! Messages sent and received, and messages that are invalid.
#![allow(clippy::unwrap_used, missing_docs)]

mod blob_validator;
mod discovery;
mod malformed;
mod malformed_proof;
mod noise;
mod peer_sessions;
mod peer_table;
mod round_trip;
mod statuses;
mod workers;
