//! Followers over real databases: a leader with a random chain behind gRPC, and a copy of it.
#![allow(clippy::unwrap_used)]

mod chain;
mod follow;
mod interrupted;
mod lies;
mod promoted;
mod setup;
mod tampered;
