//! States of any size that follow from a seed: for measurements on more state than fits into memory.
//!
//! * [`Plan`] says which accounts and slots there are, and what is in them. Every one of them can be
//!   named without a look at the state.
//! * [`CODE`] is the code of all its contracts: it reads and writes the slots that a call names.
//! * [`Base`] is what comes from a genesis file: the chain's configuration, and accounts.
//! * [`load`] makes a database of them, shard by shard.
//! * [`write_genesis`] writes the same state as a genesis file, which other programs can read.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod base;
mod code;
mod genesis;
mod load;
mod plan;

pub use base::Base;
pub use code::{CODE, Step, calldata};
pub use genesis::write_genesis;
pub use load::{MEMORY_BYTES, MEMORY_BYTES_PER_THREAD, load};
pub use plan::Plan;
pub use tandem_storage_writer::StateAt;
