//! Several workers as one: the roots equal those of one worker, even if workers come, go, are late
//! or lie.
#![allow(clippy::unwrap_used)]

mod churn;
mod faults;
mod members;
mod pods;
#[allow(dead_code, reason = "of the scripted workers only the host is used")]
#[path = "../grpc/scripted.rs"]
mod scripted;
#[path = "../support/mod.rs"]
mod support;
