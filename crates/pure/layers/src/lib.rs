//! Changes made by the blocks above the base, on all branches, readable from every block.
//!
//! A [`Tree`] holds one layer per block. An [`Index`] maps each key to its versions in all layers.
//! A reader looks at the versions of one key, newest first, and takes the first one on its own
//! [`Branch`]. That costs the same for 1 layer and for 128. A version may also say that its block
//! wiped everything below it. Such wipes have an index of their own; the newer of value and wipe
//! counts.
//!
//! **When a layer may be removed.** A read that misses here goes to the base. That is correct as
//! long as every block between the base and the reader's own block has its layer here. A layer is
//! therefore removed only after the base is known to contain its block. Every read of the base made
//! afterwards must take its snapshot afterwards. [`Branch::reaches`] detects a base that stands on
//! another branch or above the reader's block.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod index;
mod tree;

pub use index::{Index, Version};
pub use tree::{Branch, Stamp, Tree};
