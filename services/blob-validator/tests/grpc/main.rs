//! blob-validator over gRPC: the same answers as in one process, each blob verified once, and all
//! that can go wrong.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod contract;
mod counts;
mod host;
mod losses;
mod malformed;
mod threads;
mod validator_pool;
