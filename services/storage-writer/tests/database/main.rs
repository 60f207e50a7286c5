//! storage-writer in one process: its database, and what may happen to it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod access_lists;
#[path = "../common/mod.rs"]
mod common;
mod concurrent;
mod corruption;
mod crash;
mod damage;
mod download;
#[path = "../common/histories.rs"]
mod histories;
mod history;
mod init;
mod pruning;
mod random;
#[path = "../common/ranges.rs"]
mod ranges;
#[path = "../common/readers.rs"]
mod readers;
mod small_disk;
mod state_load;
#[path = "../common/targets.rs"]
mod targets;
