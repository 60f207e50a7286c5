//! Memory that a message costs its receiver, whatever it contains.
#![allow(clippy::unwrap_used, missing_docs)]

use bytes::Bytes;
use prost::Message;
use std::alloc::System;
use tandem_heap::{Counting, thread};
use tandem_primitives::{AccountUpdate, B256, BlockId, SlotUpdate, U256};
use tandem_proto::{
    limits::HEAP_BYTES_PER_BYTE_MAX,
    multiproof::StateUpdate,
    storage::{TrieNode, TrieNodes},
    wire::{multiproof_workers::v1 as workers, storage_writer::v1 as writer},
};
use tandem_testkit::messages::{self, RECEIVERS};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

/// Bytes that any message may take, for the text of an error and the first step of each list.
const SLACK: usize = 8 * 1024;

fn check(name: &str, receive: messages::Receiver, message: &Bytes) {
    let length = message.len();
    let message = message.clone();
    let (peak, ()) = thread::peak(move || {
        receive(message);
    });
    let bound = length * HEAP_BYTES_PER_BYTE_MAX + SLACK;
    assert!(peak <= bound, "{name}: {length} bytes took {peak}");
}

fn tag(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

fn nested(field: u8, inner: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag(field, 2)];
    prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
    bytes.extend_from_slice(inner);
    bytes
}

/// Returns the cheapest payloads with many items: many empty items, many zeros, many ones.
fn payloads() -> Vec<Vec<u8>> {
    const BYTES: usize = 2048;
    let mut payloads = Vec::new();
    for field in 1..=8 {
        payloads.push([tag(field, 2), 0].repeat(BYTES / 2));
        payloads.push([tag(field, 0), 0].repeat(BYTES / 2));
        payloads.push(nested(field, &[0; BYTES]));
        payloads.push(nested(field, &[1; BYTES]));
    }
    payloads
}

#[test]
fn repetition_takes_no_more_than_the_bound() {
    for payload in payloads() {
        let mut layer = vec![payload];
        // The deepest column is five messages down: a balance of an account of a diff of a block.
        for _depth in 0..5 {
            for message in &layer {
                let message = Bytes::from(message.clone());
                for (name, receive) in RECEIVERS {
                    check(name, receive, &message);
                }
            }
            layer =
                layer.iter().flat_map(|inner| (1..=7).map(|field| nested(field, inner))).collect();
        }
    }
}

fn receiver(wanted: &str) -> messages::Receiver {
    RECEIVERS.iter().find(|(name, _)| *name == wanted).unwrap().1
}

/// Valid messages with the smallest possible items.
#[test]
fn the_smallest_items_take_no_more_than_the_bound() {
    const ITEMS: usize = 5000;
    let key = |index: usize| B256::from(U256::from(index));
    let gone = |index| AccountUpdate {
        address_hash: key(index),
        account: None,
        wiped: false,
        slots: vec![],
    };
    let slots = (0..ITEMS).map(|index| SlotUpdate { key: key(index), value: U256::ZERO }).collect();
    let cleared = AccountUpdate { slots, ..gone(0) };
    for accounts in [(0..ITEMS).rev().map(gone).collect(), vec![cleared]] {
        let update = workers::StateUpdate::from(&StateUpdate { accounts });
        let command = Some(workers::process_block_request::Command::Update(update));
        let message = workers::ProcessBlockRequest { session: 1, command }.encode_to_vec();
        let receive = receiver("ProcessBlockRequest");
        assert!(receive(message.clone().into()));
        check("ProcessBlockRequest", receive, &message.into());
    }

    let node = TrieNode { owner: None, path: Default::default(), rlp: vec![0x80].into() };
    let nodes = TrieNodes { base: BlockId::default(), nodes: vec![node; ITEMS] };
    let message = writer::WalkTrieResponse::from(nodes).encode_to_vec();
    let receive = receiver("WalkTrieResponse");
    assert!(receive(message.clone().into()));
    check("WalkTrieResponse", receive, &message.into());
}
