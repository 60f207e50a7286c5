//! Every rule of the crate, tested on blocks built by geth and by mainnet's builders, and on
//! mutations of them.
#![allow(missing_docs, clippy::unwrap_used)]

mod body;
mod codec;
mod common;
mod genesis;
mod header;
mod mainnet;
mod outcome;
mod payload;
mod premerge;
mod presets;
