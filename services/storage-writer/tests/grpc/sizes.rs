//! The largest messages, and larger requests.

use crate::{
    host::Host,
    scripted::{Scripted, block},
};
use std::sync::Arc;
use tandem_primitives::{B256, NodeChange, ShardSet, TrieDiff, U256, WalkTarget};
use tandem_proto::{
    limits::{
        READ_ACCOUNTS_MAX, READ_CODES_MAX, READ_SLOTS_MAX, STORAGE_MESSAGE_BYTES_MAX,
        TRIE_DIFF_PART_BYTES, WALK_TARGETS_MAX,
    },
    storage::{BaseReads, BlockWrites, Epoch, Error, ReadState, TrieStorage},
};

fn key(n: usize) -> B256 {
    U256::from(n).into()
}

#[test]
fn the_largest_read_is_one_message_and_a_larger_one_is_made_in_parts() {
    // Code of the size that EIP-170 allows.
    let storage = Arc::new(Scripted::sized(24_576, 0));
    let host = Host::start(storage.clone());
    let client = host.client();
    let request = |more: usize| ReadState {
        accounts: (0..READ_ACCOUNTS_MAX).map(key).collect(),
        slots: (0..READ_SLOTS_MAX + more).map(|n| (key(1), key(n))).collect(),
        codes: (0..READ_CODES_MAX).map(key).collect(),
    };
    for (more, calls) in [(0, 1), (1, 2)] {
        let before = storage.count("read_state");
        let got = client.read_state(&request(more)).unwrap();
        assert_eq!(storage.count("read_state") - before, calls);
        assert!(got == storage.read_state(&request(more)).unwrap());
    }
}

#[test]
fn the_largest_walk_is_one_message_and_a_larger_one_is_made_in_parts() {
    // Branches with all children.
    let storage = Arc::new(Scripted::sized(0, 532));
    let host = Host::start(storage.clone());
    let client = host.client();
    let target = |n| WalkTarget { owner: Some(key(n)), key: key(n), from_depth: 0 };
    for (targets, calls) in [(WALK_TARGETS_MAX, 1), (WALK_TARGETS_MAX + 3, 2)] {
        let targets: Vec<_> = (0..targets).map(target).collect();
        let before = storage.count("walk_trie");
        let got = client.walk_trie(&targets).unwrap();
        assert_eq!(storage.count("walk_trie") - before, calls);
        assert!(got == storage.walk_trie(&targets).unwrap());
    }
}

#[test]
fn a_block_of_the_largest_size_is_taken_and_listed_and_what_is_larger_is_refused() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let client = host.client();
    let large = block(STORAGE_MESSAGE_BYTES_MAX - 1024);
    client.commit(Epoch::numbered(1), large.clone()).unwrap();
    client.commit(Epoch::numbered(1), block(10)).unwrap();
    let listed = client.pending().unwrap();
    assert_eq!(listed.iter().map(|block| block.id).collect::<Vec<_>>(), [large.id, block(10).id]);
    let error = client.commit(Epoch::numbered(1), block(STORAGE_MESSAGE_BYTES_MAX)).unwrap_err();
    assert!(
        matches!(&error, Error::Refused(text) if text.contains("a message has at most")),
        "{error}"
    );
    assert_eq!(storage.count("commit"), 2);
    // The connection still works after that.
    client.checkpoint().unwrap();
}

/// Returns a diff of more than `bytes` bytes.
fn diff(bytes: usize) -> Arc<TrieDiff> {
    let mut diff = TrieDiff::default();
    diff.wiped = vec![key(1), key(2)];
    let mut owners = (0..).map(key);
    while diff.byte_len() <= bytes {
        let owner = owners.next();
        for nibble in 0..16 {
            diff.push(NodeChange { owner, path: &[nibble], rlp: Some(&[nibble; 10_000]) });
        }
    }
    Arc::new(diff)
}

#[test]
fn trie_diffs_come_in_parts_and_one_that_is_too_large_to_hand_over_is_left_out() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let client = host.client();
    let hash = B256::repeat_byte(2);
    assert_eq!(client.trie_diff(hash), Ok(None));
    for whole in [Arc::default(), diff(5 * TRIE_DIFF_PART_BYTES)] {
        *storage.diff.lock().unwrap() = Some(whole.clone());
        assert!(client.trie_diff(hash).unwrap().unwrap() == whole);
    }
    let (small, too_large) = (diff(1), diff(STORAGE_MESSAGE_BYTES_MAX));
    client.put_trie_diff(hash, ShardSet::ALL, too_large).unwrap();
    client.put_trie_diff(hash, ShardSet::ALL, small.clone()).unwrap();
    crate::host::wait_until(|| storage.count("put_trie_diff") == 1);
    crate::host::wait_until(|| storage.diff.lock().unwrap().as_ref() == Some(&small));
}
