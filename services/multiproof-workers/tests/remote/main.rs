//! Workers in other processes, over gRPC: one worker, and several workers as one fleet. The answers
//! equal those in one process, whatever goes wrong.
#![allow(clippy::unwrap_used)]

mod churn;
mod contract;
mod faults;
mod losses;
mod members;
mod pods;
mod real;
mod remote_storage;
mod scripted;
#[path = "../support/mod.rs"]
mod support;
