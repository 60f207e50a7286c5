//! Runs the test vectors that Ethereum clients share against Tandem.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod case;
mod http;
mod node;
mod run;
mod suites;

pub use case::{Case, Outcome, Setting, Suite};
pub use node::{CaseNode, RpcFault};
pub use run::{Done, Filter, Options, Report, Sample, run};
pub use suites::ALL as SUITES;
