//! Root of a list: leaves in batches, item by item, and the reference implementation.

use alloy_trie::root::ordered_trie_root_encoded;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tandem_trie::{ListTrie, list_root};

/// Numbers of items in a block, and bytes of each: transactions, receipts with one log, receipts
/// with many.
const LISTS: [(usize, usize); 3] = [(400, 180), (400, 450), (200, 2000)];

fn roots(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("list_root");
    for (count, bytes) in LISTS {
        let mut rng = StdRng::seed_from_u64(1);
        let mut item = || {
            let mut item = vec![0; bytes];
            rng.fill_bytes(&mut item);
            item
        };
        let list: Vec<Vec<u8>> = (0..count).map(|_| item()).collect();
        let name = format!("{count}x{bytes}B");
        group.bench_with_input(BenchmarkId::new("batches", &name), &list, |bench, list| {
            bench.iter(|| list_root(list));
        });
        group.bench_with_input(BenchmarkId::new("item by item", &name), &list, |bench, list| {
            bench.iter(|| {
                let mut trie = ListTrie::new();
                list.iter().for_each(|item| trie.push(item));
                trie.root()
            });
        });
        group.bench_with_input(BenchmarkId::new("alloy-trie", &name), &list, |bench, list| {
            bench.iter(|| ordered_trie_root_encoded(list));
        });
    }
    group.finish();
}

criterion_group!(benches, roots);
criterion_main!(benches);
