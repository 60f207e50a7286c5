//! Several workers as one: the same roots as one worker gives, whoever comes, goes, is late or lies.
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
