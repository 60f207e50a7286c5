//! storage-writer over gRPC: equal answers to those in one process, and everything that can go
//! wrong.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod download;
mod epochs;
mod errors;
#[path = "../common/histories.rs"]
mod histories;
mod host;
mod losses;
#[path = "../common/ranges.rs"]
mod ranges;
#[path = "../common/readers.rs"]
mod readers;
mod roles;
mod scripted;
mod sizes;
#[path = "../common/targets.rs"]
mod targets;
mod terms;
mod unread;
