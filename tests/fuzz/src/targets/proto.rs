//! Messages between the services: bytes, wire message, domain type.

use crate::{Target, heap, structures};
use bytes::Bytes;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use prost::Message;
use tandem_proto::{
    limits::HEAP_BYTES_PER_BYTE_MAX,
    wire::{multiproof_workers::v1 as workers, storage_writer::v1 as writer},
};
use tandem_testkit::messages::{RECEIVERS, values};

/// Target whose first byte says which message follows.
pub const TARGET: Target = Target {
    name: "proto",
    // Cost of a message crafted for the purpose: thousands of empty items. The largest message is
    // limited, and the senders are our own services.
    bytes_per_byte: HEAP_BYTES_PER_BYTE_MAX,
    structures: structures::none,
    constant: 8 << 10,
    input_len_max: 8 << 10,
    mutations: 100_000,
    seeds,
    dictionary: &[
        b"\x0a\x00",
        b"\x12\x00",
        b"\x1a\x00",
        b"\x22\x00",
        b"\x2a\x00",
        b"\x08\x00",
        b"\x10\x01",
        b"\x0a\x20",
        b"\x12\x20",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\xff\xff\xff\xff\x0f",
    ],
    run: receive,
};

fn receive(input: &[u8]) {
    let Some((choice, message)) = input.split_first() else { return };
    let (_, receive) = RECEIVERS[usize::from(*choice) % RECEIVERS.len()];
    let message = Bytes::copy_from_slice(message);
    heap::measured(|| receive(message));
}

fn runner() -> TestRunner {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    TestRunner::new_with_rng(Config::default(), rng)
}

/// Returns some values of a strategy, the same each time.
fn sample<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> Vec<T> {
    let mut runner = runner();
    (0..4).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Returns an empty message for every receiver, and valid messages of the largest kinds.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        (0..RECEIVERS.len()).map(|choice| vec![choice as u8, 0x0a, 0]).collect();
    let mut add = |name: &str, message: Vec<u8>| {
        let choice = RECEIVERS.iter().position(|(known, _)| *known == name).unwrap();
        seeds.push([&[choice as u8], &message[..]].concat());
    };
    let epoch = tandem_proto::storage::Epoch::numbered(1);
    for block in sample(values::block()) {
        add("CommitRequest", writer::CommitRequest::from((epoch, block)).encode_to_vec());
    }
    for targets in sample(values::targets()) {
        add("WalkTrieRequest", writer::WalkTrieRequest::from(&targets[..]).encode_to_vec());
    }
    for forkchoice in sample(values::forkchoice()) {
        let message = writer::CanonicalizeRequest::from((epoch, forkchoice));
        add("CanonicalizeRequest", message.encode_to_vec());
    }
    for checkpoint in sample(values::checkpoint()) {
        let message = writer::GetCheckpointResponse::from(checkpoint);
        add("GetCheckpointResponse", message.encode_to_vec());
    }
    for (request, answer) in sample(values::read()) {
        add("ReadStateRequest", writer::ReadStateRequest::from(&request).encode_to_vec());
        add("ReadStateResponse", writer::ReadStateResponse::from(answer).encode_to_vec());
    }
    for nodes in sample(values::trie_nodes()) {
        add("WalkTrieResponse", writer::WalkTrieResponse::from(nodes).encode_to_vec());
    }
    for command in sample(values::command()) {
        add("ProcessBlockRequest", workers::ProcessBlockRequest::from(command).encode_to_vec());
    }
    for answer in sample(values::answer()) {
        add("ProcessBlockResponse", workers::ProcessBlockResponse::from(answer).encode_to_vec());
    }
    seeds.retain(|seed| seed.len() <= TARGET.input_len_max);
    seeds
}
