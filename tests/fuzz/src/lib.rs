//! Fuzzing of everything that reads foreign bytes. Each [`Target`] passes its input to the function
//! that the running node passes it to, and checks properties that hold for any input.
//!
//! * No input causes a panic. Input that two decoders accept means the same to both. A decoded
//!   value can be encoded and decoded again.
//! * The heap grows by at most [`Target::bytes_per_byte`] times the input plus
//!   [`Target::constant`]. [`Target::structures`] adds room for listed items that are larger in
//!   memory than four times their smallest encoding.
//!
//! ```text
//!   seeds (made by code) ─┐
//!   corpus/<target>/ ─────┼─► tests/bounded.rs   every one, then mutations from a fixed seed
//!                         └─► bin/guided.rs      libFuzzer; what it finds goes to corpus/
//!   patterns ───────────────► tests/growth.rs    the worst repetitions, large
//! ```
//!
//! `docs/fuzzing.md` explains how to use it.

#![forbid(unsafe_code)]
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

/// An entry point for foreign bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the target and of its folder in `corpus/`.
    pub name: &'static str,
    /// Heap in bytes that it may take for each byte of its input.
    pub bytes_per_byte: usize,
    /// Additional heap in bytes that it may take for the items that an input lists. Each item
    /// counts as a structure that no decoder can make smaller.
    pub structures: fn(&[u8]) -> usize,
    /// Heap in bytes that it may take for any input: threads' first use of a library, the text of
    /// an error, the first step of each list.
    pub constant: usize,
    /// Length in bytes of the longest input to try.
    pub input_len_max: usize,
    /// Number of mutated inputs in the bounded run.
    pub mutations: u32,
    /// Valid and nearly valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Byte strings with a meaning in this format.
    pub dictionary: &'static [&'static [u8]],
    /// Function that reads an input and panics on a finding. Only code inside [`heap::measured`]
    /// counts as the target's own heap use.
    pub run: fn(&[u8]),
}
