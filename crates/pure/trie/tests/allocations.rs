//! Inserting and hashing allocate no memory per node. The number of allocations does not grow with
//! the number of leaves, except for arrays that double.
#![allow(clippy::unwrap_used)]

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::alloc::System;
use tandem_heap::{Counting, process::allocations};
use tandem_primitives::{B256, TrieDiff};
use tandem_trie::{Scratch, StorageTrie};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

fn leaves(rng: &mut StdRng, count: usize) -> Vec<(B256, [u8; 9])> {
    let mut leaf = || {
        let mut value: [u8; 9] = rng.random();
        value[0] = 0x88;
        (B256::new(rng.random()), value)
    };
    (0..count).map(|_| leaf()).collect()
}

fn update(trie: &mut StorageTrie, leaves: &[(B256, [u8; 9])]) {
    leaves.iter().for_each(|(key, value)| trie.update(key, value).unwrap());
}

fn root(trie: &mut StorageTrie, scratch: &mut Scratch) -> TrieDiff {
    let mut diff = TrieDiff::default();
    trie.root(None, &mut diff, scratch).unwrap();
    diff
}

// There is only one test: the allocations of parallel tests would be counted too.
#[test]
fn allocations_do_not_grow_with_the_leaves() {
    let rng = &mut StdRng::seed_from_u64(1);
    let mut scratch = Scratch::default();
    // This allocates the lasting buffers, and starts the threads of the pool.
    let mut trie = StorageTrie::empty(None);
    trie.update_all(&leaves(rng, 20_000), &mut scratch, |_, _| {});
    root(&mut trie, &mut scratch);

    // A helping thread takes one or two allocations.
    let threads = 2 * rayon::current_num_threads();
    for (len, most) in [(1_000, 75 + threads), (10_000, 110 + threads)] {
        let leaves = leaves(rng, len);
        let (inserting, mut trie) = allocations(|| {
            let mut trie = StorageTrie::empty(None);
            update(&mut trie, &leaves);
            trie
        });
        let (hashing, diff) = allocations(|| root(&mut trie, &mut scratch));
        assert!(diff.len() > len);
        assert!(inserting + hashing <= most, "{len} leaves: {inserting} + {hashing}");

        let (inserting, mut trie) = allocations(|| {
            let mut trie = StorageTrie::empty(None);
            trie.update_all(&leaves, &mut scratch, |_, _| {});
            trie
        });
        let (hashing, _) = allocations(|| root(&mut trie, &mut scratch));
        assert!(inserting + hashing <= most, "{len} leaves at once: {inserting} + {hashing}");

        // Other values for existing leaves need no memory except the diff's.
        let other: Vec<_> = leaves.iter().map(|(key, _)| (*key, [0x88; 9])).collect();
        let (updating, ()) = allocations(|| update(&mut trie, &other));
        let (hashing, diff) = allocations(|| root(&mut trie, &mut scratch));
        assert!(diff.len() > len);
        assert!(updating <= 1 && hashing <= 45 + threads, "{len} leaves: {updating} + {hashing}");
    }
}
