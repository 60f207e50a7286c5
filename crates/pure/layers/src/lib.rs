//! The changes of the blocks after the base, of all branches, readable from every block.
//!
//! A [`Tree`] holds one layer per block. An [`Index`] leads from each key to its versions in all
//! layers; a reader looks at the versions of one key, newest first, and takes the first that lies
//! on its own [`Branch`]. That costs the same over 1 layer or 128. A version may also say that its
//! block voided everything below it: such wipes are an index of their own, and what counts is which
//! of the two is newer.
//!
//! **When a layer may go.** A read that misses here goes to the base. That is right exactly as long
//! as every block between the base that answers and the reader's own block has its layer here. So a
//! layer is removed only after the base is known to contain its block, and every read of the base
//! made later takes its snapshot later. A base that stands on another branch, or above the reader's
//! block, is caught by [`Branch::reaches`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod index;
mod tree;

pub use index::{Index, Version};
pub use tree::{Branch, Stamp, Tree};
