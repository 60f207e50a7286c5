//! Connections between services, with and without certificates.
#![allow(clippy::unwrap_used)]

mod bytes;
mod direct;
mod echo;
mod house;
mod logs;
mod reload;
mod strangers;
