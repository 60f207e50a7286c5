//! Workers that are asked for some shards of a block only.

use crate::support::{self, Chain, Made, Random, prove, state_root};
use std::{sync::Arc, thread::sleep, time::Duration};
use tandem_multiproof_workers::MultiproofWorkers;
use tandem_primitives::{Shard, ShardSet, SubtrieRoot};
use tandem_proto::multiproof::{Error, ProofApi, ShardRoots};

/// Returns the block's roots for these shards; the updates are those of all shards.
fn prove_some(
    workers: &MultiproofWorkers,
    made: &Made,
    shards: ShardSet,
) -> Result<ShardRoots, Error> {
    let mut session = workers.begin(made.begin().of_shards(shards))?;
    support::feed(&mut *session, &made.updates);
    session.finish();
    session.roots()
}

fn some(random: &mut Random) -> ShardSet {
    ShardSet::from_bits(random.below(1 << 16) as u16)
}

#[test]
fn only_the_shards_that_are_asked_for_are_answered_and_held() {
    let chain = Chain::new();
    let workers = chain.workers(3, chain.storage.clone());
    let made = chain.make(chain.genesis, 30, &mut Random(1));
    let all = prove(&*chain.workers(1, chain.storage.clone()), &made).unwrap();
    for bits in [0, 1, 0x8000, 0x00f0, 0xaaaa] {
        let shards = ShardSet::from_bits(bits);
        let answer = prove_some(&workers, &made, shards).unwrap();
        assert_eq!(answer.shards, shards);
        for shard in Shard::all() {
            let want: &SubtrieRoot = &all.roots[shard.index()];
            let want = want.as_ref().filter(|_| shards.contains(shard));
            assert_eq!(answer.roots[shard.index()].as_ref(), want, "shard {shard} of {shards}");
        }
    }
    workers.stop();
}

#[test]
fn what_is_held_is_of_the_newest_block_though_some_threads_had_nothing_to_do() {
    let mut chain = Chain::new();
    let mut random = Random(3);
    let workers = chain.workers(2, chain.storage.clone());
    let first = chain.make(chain.genesis, 30, &mut random);
    prove(&*workers, &first).unwrap();
    chain.commit(&first);
    let second = chain.make(first.block.id, 30, &mut random);
    // Shards of one thread, then one more of the other, as for a worker that takes over.
    let mut held = ShardSet::EMPTY;
    for bits in [0x0005, 0x0002] {
        let shards = ShardSet::from_bits(bits);
        prove_some(&workers, &second, shards).unwrap();
        held = held.union(shards);
        // They publish this once they have answered.
        let says = || {
            let status = workers.status().unwrap();
            (status.tip, status.shards) == (Some(second.block.id.hash), held)
        };
        let said = (0..20_000).any(|_| {
            says() || {
                sleep(Duration::from_millis(1));
                false
            }
        });
        assert!(said, "{held}: {:?}", workers.status());
    }
    workers.stop();
}

/// Each block's shards are dealt out anew among three workers. Some workers are asked for shards of
/// others once these are done. Blocks are on branches, the base moves, and blocks are refused or
/// given up.
#[test]
fn shards_move_between_workers_from_block_to_block() {
    let mut chain = Chain::new();
    let mut random = Random(2);
    let three: Vec<Arc<MultiproofWorkers>> =
        (0..3).map(|n| chain.workers(1 + n % 2, chain.storage.clone())).collect();
    let (mut before, mut head) = (chain.genesis, chain.genesis);
    let mut sets = [ShardSet::from_bits(0x001f), ShardSet::from_bits(0x07e0), ShardSet::EMPTY];
    for number in 0..200 {
        if random.one_in(4) {
            sets[0] = some(&mut random);
            sets[1] = some(&mut random).difference(sets[0]);
        }
        let late = if random.one_in(4) { some(&mut random) } else { ShardSet::EMPTY };
        sets[2] = ShardSet::ALL.difference(sets[0]).difference(sets[1]);
        let parent = if random.one_in(6) { before } else { head };
        let made = chain.make(parent, 1 + random.below(25) as usize, &mut random);
        let mut roots: [SubtrieRoot; Shard::COUNT] = Default::default();
        let mut take = |answer: ShardRoots| {
            for index in answer.shards.iter().map(Shard::index) {
                roots[index].clone_from(&answer.roots[index]);
            }
        };
        for (workers, shards) in three.iter().zip(sets) {
            if random.one_in(10) {
                drop(workers.begin(made.begin().of_shards(some(&mut random))).unwrap());
            }
            take(prove_some(workers, &made, shards.difference(late)).unwrap());
        }
        // Another worker takes over the late shards.
        for (at, shards) in sets.into_iter().enumerate() {
            let shards = shards.intersection(late);
            take(prove_some(&three[(at + 1) % 3], &made, shards).unwrap());
        }
        let (root, _) = tandem_trie::combine(&roots).unwrap();
        assert_eq!(root, made.root, "block {number}");
        if random.one_in(7) {
            three.iter().for_each(|workers| workers.discard(made.block.id.hash));
            continue;
        }
        chain.commit(&made);
        (before, head) = (parent, made.block.id);
        if random.one_in(3) {
            chain.make_head(head);
        }
    }
    let whole = chain.make(head, 9, &mut random);
    for workers in three {
        assert_eq!(state_root(&prove(&*workers, &whole).unwrap()), whole.root);
        workers.stop();
    }
}
