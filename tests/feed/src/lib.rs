//! Tests of the feed in a stream of NATS, over real storage-writers and followers. All of it is in
//! `tests`.
#![forbid(unsafe_code)]
