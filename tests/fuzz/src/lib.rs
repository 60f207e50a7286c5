//! Fuzzing of everything that reads bytes of others: each [`Target`] gives its input to the
//! function that the running node gives it to, and checks what must hold whatever the input is.
//!
//! * Nothing panics; what two decoders accept, they read the same; what was read can be written
//!   and read again.
//! * The heap grows by no more than [`Target::bytes_per_byte`] times the input plus
//!   [`Target::constant`], plus [`Target::structures`] where the input lists things that are larger
//!   in memory than four times their smallest encoding.
//!
//! ```text
//!   seeds (made by code) ─┐
//!   corpus/<target>/ ─────┼─► tests/bounded.rs   every one, then mutations from a fixed seed
//!                         └─► bin/guided.rs      libFuzzer; what it finds goes to corpus/
//!   patterns ───────────────► tests/growth.rs    the worst repetitions, large
//! ```
//!
//! `docs/fuzzing.md` says how to use it.

#![allow(clippy::unwrap_used, reason = "what fails here is a finding, or a seed that is wrong")]

pub mod corpus;
pub mod heap;
pub mod mutate;
pub mod patterns;
mod reader;
pub mod run;
mod seeds;
pub mod structures;
pub mod targets;

pub use reader::Reader;

/// One front door.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// Heap that it may take for each byte of its input.
    pub bytes_per_byte: usize,
    /// Heap that it may take beyond that for what this input lists: so many times a structure that
    /// no decoder can make smaller.
    pub structures: fn(&[u8]) -> usize,
    /// Heap in bytes that it may take whatever the input is: threads' first use of a library, the
    /// text of an error, the first step of each list.
    pub constant: usize,
    /// Bytes of the longest input that is tried.
    pub input_len_max: usize,
    /// Mutated inputs in the bounded run.
    pub mutations: u32,
    /// Valid inputs, and nearly valid ones.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces that mean something in this format.
    pub dictionary: &'static [&'static [u8]],
    /// Reads an input; panics on a finding. What counts as the target's own heap use is what runs
    /// inside [`heap::measured`].
    pub run: fn(&[u8]),
}
