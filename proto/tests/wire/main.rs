//! Messages there and back, and messages that are no value.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod malformed;
mod noise;
mod round_trip;
mod statuses;
mod values;
