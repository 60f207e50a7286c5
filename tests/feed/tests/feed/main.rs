//! The feed in a stream of NATS: a real server, a real storage-writer that publishes, and followers
//! that read.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod acks;
mod cluster;
mod end;
mod follow;
mod leader;
mod publish;
mod stored;
