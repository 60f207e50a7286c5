//! Workers in one process: updates, proof jobs and roots.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../support/fake.rs"]
mod fake;
mod membership;
mod pipeline;
mod scheduling;
mod shards;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/token.rs"]
mod token;
