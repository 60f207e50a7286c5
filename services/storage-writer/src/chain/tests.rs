use super::*;
use tandem_primitives::NodeChange;

fn id(number: u64, branch: u8) -> BlockId {
    BlockId::new(number, B256::left_padding_from(&[branch, number as u8]))
}

fn block(id: BlockId, parent: BlockId) -> Pending {
    let record = PendingRecord {
        id,
        parent: parent.hash,
        transaction_hashes: Arc::new([B256::ZERO; 4]),
        diff: Arc::default(),
    };
    Pending::new(Arc::new(record), 1000, false)
}

fn limits() -> Limits {
    Limits {
        persist_depth: 2,
        unfinalized_blocks_max: 8,
        memory_bytes_max: 1 << 20,
        side_bytes_max: 2_000,
    }
}

/// Returns base 10, canonical blocks 11..=14, and a side chain 12..=13 from 11.
fn chain() -> Chain {
    let mut chain = Chain::new(id(10, 0), Forkchoice::default());
    for number in 11..=14 {
        chain.insert(block(id(number, 0), id(number - 1, 0)));
    }
    chain.insert(block(id(12, 1), id(11, 0)));
    chain.insert(block(id(13, 1), id(12, 1)));
    let (_, path) = chain.ancestor(id(14, 0).hash, &id(10, 0).hash);
    chain.set_forkchoice(Forkchoice { head: id(14, 0), ..Forkchoice::default() }, path);
    chain
}

#[test]
fn the_canonical_path_answers_by_number() {
    let mut chain = chain();
    assert_eq!(chain.canonical_hash(10), None);
    assert_eq!(chain.canonical_hash(11), Some(id(11, 0).hash));
    assert_eq!(chain.canonical_hash(14), Some(id(14, 0).hash));
    assert_eq!(chain.canonical_hash(15), None);
    assert_eq!(chain.goal(), 10, "nothing moves before a forkchoice");
    chain.advance();
    assert_eq!(chain.base(), id(11, 0));
    assert_eq!(chain.canonical_hash(11), None);
    assert_eq!(chain.canonical_hash(12), Some(id(12, 0).hash));
    chain.step_back(id(10, 0), vec![block(id(11, 0), id(10, 0))], &limits());
    assert_eq!(chain.canonical_hash(11), Some(id(11, 0).hash));
    assert_eq!((chain.base(), chain.backlog()), (id(10, 0), 0));
}

#[test]
fn what_builds_on_a_block_that_nobody_proved_is_not_proven_either() {
    let mut chain = chain();
    let unproven =
        |chain: &Chain| chain.unproven().iter().map(|block| block.id).collect::<Vec<_>>();
    assert_eq!(unproven(&chain), [id(12, 1), id(13, 1)], "those that never were canonical");
    chain.set_proven(&id(13, 1).hash);
    assert_eq!(unproven(&chain), [id(12, 1), id(13, 1)]);
    chain.set_proven(&id(12, 1).hash);
    assert_eq!(unproven(&chain), []);
    chain.insert(block(id(14, 1), id(13, 1)));
    assert_eq!(unproven(&chain), [id(14, 1)], "not those before it again");
}

#[test]
fn a_branch_that_leaves_below_the_base_says_where() {
    let mut chain = chain();
    let base = id(10, 0).hash;
    assert_eq!(chain.ancestor(base, &base), (Ancestor::Base, vec![]));
    let side = [id(11, 0), id(12, 1), id(13, 1)].map(|id| id.hash).to_vec();
    assert_eq!(chain.ancestor(id(13, 1).hash, &base), (Ancestor::Base, side));
    chain.insert(block(id(9, 2), id(8, 0)));
    let (ancestor, _) = chain.ancestor(id(9, 2).hash, &base);
    assert_eq!(ancestor, Ancestor::Other(id(8, 0).hash));
}

#[test]
fn the_base_follows_finality_and_memory() {
    let mut chain = chain();
    let mut goal = |finalized: Option<BlockId>, limits: &Limits| {
        chain.forkchoice.finalized = finalized;
        chain.set_goal(limits);
        chain.goal()
    };
    assert_eq!(goal(None, &limits()), 10, "all branches may still win");
    assert_eq!(goal(Some(id(11, 0)), &limits()), 11);
    assert_eq!(goal(Some(id(14, 0)), &limits()), 12, "no closer than the persist depth");
    assert_eq!(goal(None, &Limits { unfinalized_blocks_max: 3, ..limits() }), 11);
    let held = |bytes| Limits { memory_bytes_max: bytes, ..limits() };
    let one = block(id(14, 0), id(13, 0)).memory_bytes();
    assert_eq!(goal(None, &held(2 * one)), 12, "two blocks fit");
    assert_eq!(goal(None, &held(3 * one)), 11);
}

#[test]
fn finality_excludes_branches_as_a_whole() {
    let mut chain = chain();
    chain.insert(block(id(15, 1), id(14, 0)));
    assert!(chain.excluded(0).is_empty());
    chain.forkchoice.finalized = Some(id(11, 0));
    assert!(chain.excluded(0).is_empty(), "the branch leaves at the finalized block");
    chain.forkchoice.finalized = Some(id(12, 0));
    let mut excluded = chain.excluded(0);
    excluded.sort_unstable();
    assert_eq!(excluded, [id(12, 1).hash, id(13, 1).hash]);
    chain.forkchoice.finalized = None;
    chain.insert(block(id(9, 2), id(8, 0)));
    chain.insert(block(id(10, 2), id(9, 2)));
    assert!(chain.excluded(8).is_empty(), "the base can step back to block 8");
    assert_eq!(chain.excluded(9).len(), 2);
}

#[test]
fn the_branch_with_the_oldest_tip_gives_way_and_never_the_one_that_grows() {
    let mut chain = chain();
    assert_eq!(chain.crowded_out(&id(14, 0).hash, &limits()), None, "2000 bytes are allowed");
    chain.insert(block(id(13, 2), id(12, 1)));
    chain.insert(block(id(14, 3), id(13, 2)));
    let out = |parent: BlockId, chain: &Chain| chain.crowded_out(&parent.hash, &limits());
    // The canonical chain is not a side branch, however long it is.
    assert_eq!(out(id(14, 0), &chain), Some(vec![id(13, 1).hash]), "down to where it forks");
    assert_eq!(out(id(13, 1), &chain), Some(vec![id(14, 3).hash, id(13, 2).hash]));
    chain.remove(&id(13, 1).hash);
    assert_eq!(out(id(14, 3), &chain), None, "nothing else can go");
    let whole = [id(14, 3), id(13, 2), id(12, 1)].map(|id| id.hash).to_vec();
    assert_eq!(out(id(14, 0), &chain), Some(whole));
    assert_eq!(chain.bytes().0, 7 * 1000);
}

#[test]
fn side_branches_give_up_their_memory_first() {
    let mut chain = chain();
    let mut diff = TrieDiff::default();
    diff.push(NodeChange { owner: None, path: &[1], rlp: Some(&[1; 500]) });
    let diff = Arc::new(diff);
    for id in [id(13, 0), id(12, 1), id(13, 1)] {
        chain.add_trie(id.hash, ShardSet::ALL, diff.clone(), Origin::Elsewhere);
    }
    let (_, before) = chain.bytes();
    let one = diff.byte_len() as u64;
    chain.shrink(&Limits { memory_bytes_max: before - 1, ..limits() });
    assert_eq!(chain.bytes().1, before - one, "the oldest block's trie diff alone");
    assert!(chain.get(&id(12, 1).hash).unwrap().record.is_some());
    chain.shrink(&Limits { memory_bytes_max: 0, ..limits() });
    assert!(chain.get(&id(13, 1).hash).unwrap().record.is_none());
    assert!(chain.get(&id(13, 0).hash).unwrap().trie.complete().is_some(), "it is canonical");
    chain.ordered().iter().for_each(|block| drop(chain.remove(&block.id.hash)));
    assert_eq!(chain.bytes(), (0, 0));
}

#[test]
fn blocks_enter_the_base_together_up_to_one_whose_tries_are_unknown() {
    let mut chain = chain();
    let numbers = |chain: &Chain, blocks, bytes| -> Vec<u64> {
        chain.next_step(blocks, bytes).iter().map(|block| block.id.number).collect()
    };
    assert!(numbers(&chain, 8, u64::MAX).is_empty(), "none is due");
    chain.goal = 13;
    assert_eq!(numbers(&chain, 8, u64::MAX), [11], "its tries are computed over the base");
    for number in [11, 12, 14] {
        chain.set_trie(&id(number, 0).hash, TrieParts::whole(Arc::default()));
    }
    assert_eq!(numbers(&chain, 8, u64::MAX), [11, 12], "those of 13 are unknown");
    chain.set_trie(&id(13, 0).hash, TrieParts::whole(Arc::default()));
    assert_eq!(numbers(&chain, 8, u64::MAX), [11, 12, 13], "14 is not due");
    assert_eq!(numbers(&chain, 2, u64::MAX), [11, 12]);
    let one = chain.get(&id(11, 0).hash).unwrap().memory_bytes();
    assert_eq!(numbers(&chain, 8, 2 * one), [11, 12]);
    assert_eq!(numbers(&chain, 8, 0), [11], "one block always goes");
}

#[test]
fn parts_of_a_trie_diff_make_a_whole_in_any_order_also_before_their_block() {
    let part = |nibble: u8| {
        let mut diff = TrieDiff::default();
        diff.push(NodeChange { owner: None, path: &[nibble], rlp: Some(&[nibble]) });
        Arc::new(diff)
    };
    let mut chain = chain();
    let late = block(id(15, 0), id(14, 0));
    let hash = late.id.hash;
    chain.add_trie(hash, ShardSet::from_bits(0xff00), part(8), Origin::Elsewhere);
    assert_eq!(chain.merged_trie(&hash), None);
    chain.insert(late);
    chain.add_trie(hash, ShardSet::from_bits(0xff00), part(8), Origin::Elsewhere);
    assert_eq!(chain.merged_trie(&hash), None);
    chain.add_trie(hash, ShardSet::from_bits(0x00ff), part(0), Origin::Here);
    assert_eq!(chain.get(&hash).unwrap().trie.origin(), Origin::Elsewhere, "one part is enough");
    assert_eq!(chain.merged_trie(&hash).unwrap().len(), 2);
}
