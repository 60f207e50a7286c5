//! Messages sent and received, and messages that are invalid.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod blob_validator;
mod discovery;
mod malformed;
mod malformed_proof;
mod noise;
mod peer_table;
mod round_trip;
mod statuses;
mod values;
mod workers;
