//! Measures how much of the messages between services zstd would save, and at what cost, on the
//! messages of `corpora/demo`. Prints a table with a row for each kind of message.
//!
//! Compression pays off on a link so slow that sending the saved bytes takes longer than
//! compressing and decompressing. The last column is that speed: on faster links, zstd makes a
//! message arrive later.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "common/capture.rs"]
mod capture;
mod common;

use capture::capture;
use common::{is_bench, say};
use prost::Message;
use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{AccountUpdate, B256, ShardSet, WalkTarget};
use tandem_proto::{
    storage::{BaseReads, Block, BlockReads, BlockRef, Epoch, ReadState, TrieStorage},
    wire::{multiproof_workers, storage_writer},
};
use tokio::runtime::Runtime;

/// Messages of one kind, encoded.
struct Kind {
    name: &'static str,
    messages: Vec<Vec<u8>>,
}

/// Result of zstd on these messages at one level.
#[derive(Default)]
struct Packed {
    bytes: usize,
    compress: Duration,
    decompress: Duration,
}

fn pack(messages: &[Vec<u8>], level: i32) -> Packed {
    let mut compressor = zstd::bulk::Compressor::new(level).unwrap();
    let mut decompressor = zstd::bulk::Decompressor::new().unwrap();
    let mut packed = Packed::default();
    for message in messages {
        let started = Instant::now();
        let small = black_box(compressor.compress(message).unwrap());
        packed.compress += started.elapsed();
        let started = Instant::now();
        let again = black_box(decompressor.decompress(&small, message.len()).unwrap());
        packed.decompress += started.elapsed();
        assert_eq!(again, *message);
        packed.bytes += small.len();
    }
    packed
}

/// Returns all keys that the updates of the blocks name.
fn keys(accounts: &[AccountUpdate]) -> (ReadState, Vec<WalkTarget>) {
    let (mut read, mut walks) = (ReadState::default(), Vec::new());
    for account in accounts {
        let owner = account.address_hash;
        read.accounts.push(owner);
        walks.push(WalkTarget { owner: None, key: owner, from_depth: 1 });
        for slot in &account.slots {
            read.slots.push((owner, slot.key));
            walks.push(WalkTarget { owner: Some(owner), key: slot.key, from_depth: 0 });
        }
    }
    (read, walks)
}

fn main() {
    if !is_bench() {
        return;
    }
    let (storage, seen) = capture(&Runtime::new().unwrap());
    let blocks = storage.pending().unwrap();
    assert_eq!(blocks.len(), seen.len());
    let names = ["state updates", "reads", "walks", "commits", "trie diffs"];
    let mut kinds = names.map(|name| Kind { name, messages: Vec::new() });
    for (block, seen) in blocks.into_iter().zip(&seen) {
        assert_eq!(seen.begin.block, block.id, "in the same order");
        let [updates, reads, walks, commits, diffs] = &mut kinds;
        let wire = |update| multiproof_workers::v1::StateUpdate::from(update).encode_to_vec();
        updates.messages.extend(seen.updates.iter().map(|update| wire(&**update)));
        let diff = storage.state_diffs(&[block.id.hash]).unwrap().remove(0).unwrap();
        let record = storage.block(BlockRef::Hash(block.id.hash)).unwrap().unwrap();
        let block = Block {
            id: block.id,
            parent: block.parent,
            header: record.header,
            body: record.body,
            receipts: record.receipts,
            transaction_hashes: Arc::new([]),
            diff,
            access_list: None,
        };
        let (read, targets) = keys(&block.diff.accounts);
        let values = storage.read_state(&read).unwrap();
        reads.messages.push(storage_writer::v1::ReadStateResponse::from(values).encode_to_vec());
        let nodes = storage.walk_trie(&targets).unwrap();
        walks.messages.push(storage_writer::v1::WalkTrieResponse::from(nodes).encode_to_vec());
        let hash: B256 = block.id.hash;
        let diff = storage.trie_diff(hash).unwrap().unwrap();
        let diff = storage_writer::v1::PutTrieDiffRequest::from((hash, ShardSet::ALL, &*diff));
        diffs.messages.push(diff.encode_to_vec());
        let commit = storage_writer::v1::CommitRequest::from((Epoch::numbered(1), block));
        commits.messages.push(commit.encode_to_vec());
    }
    say(
        "zstd, level                 messages    bytes     share   compress  decompress  pays below",
    );
    say("                             a block  a block  of bytes     µs a block     Mbit/s");
    for Kind { name, messages } in &kinds {
        let bytes: usize = messages.iter().map(Vec::len).sum();
        let count = seen.len() as f64;
        for level in [1, 3] {
            // The first pass warms up.
            pack(messages, level);
            let packed = pack(messages, level);
            let saved = bytes.saturating_sub(packed.bytes) as f64 * 8.0;
            let took = (packed.compress + packed.decompress).as_secs_f64();
            say(&format!(
                "{name:16} {level:5} {:12.1} {:9.0} {:8.0} % {:9.0} {:9.0} {:12.0}",
                messages.len() as f64 / count,
                bytes as f64 / count,
                100.0 * packed.bytes as f64 / bytes as f64,
                packed.compress.as_secs_f64() * 1e6 / count,
                packed.decompress.as_secs_f64() * 1e6 / count,
                saved / took / 1e6,
            ));
        }
    }
}
