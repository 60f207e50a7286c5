//! Processor time by subsystem and function: samples of the stacks of all threads, in pprof's
//! format, sorted into subsystems.
//!
//! ```text
//!  Sampler ──► Profile ──► /debug/pprof/profile ──► Profile::parse ──► merge ──► Budget, flamegraph
//! ```
//!
//! A profile counts samples: one for each period of processor time (not wall time) that the process
//! used, wherever it was at that moment. Format:
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod budget;
mod flamegraph;
mod format;
mod profile;
#[cfg(feature = "sampling")]
mod sampler;
mod subsystem;
#[cfg(feature = "sampling")]
mod symbols;

pub use budget::{Budget, Row};
pub use flamegraph::flamegraph;
pub use format::ParseError;
pub use profile::{Profile, Stack};
#[cfg(feature = "sampling")]
pub use sampler::{SampleError, Sampler};
pub use subsystem::Subsystem;
