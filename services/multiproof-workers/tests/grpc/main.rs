//! The proof stream over gRPC: equal answers to those in one process, and everything that can go
//! wrong.
#![allow(clippy::unwrap_used)]

mod contract;
mod losses;
mod real;
mod remote_storage;
mod scripted;
#[path = "../support/mod.rs"]
mod support;
