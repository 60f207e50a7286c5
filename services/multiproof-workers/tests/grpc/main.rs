//! The proof stream over gRPC: the same answers as in one process, and whatever can go wrong.
#![allow(clippy::unwrap_used)]

mod contract;
mod losses;
mod real;
mod remote_storage;
mod scripted;
#[path = "../support/mod.rs"]
mod support;
