//! Readers beside a base that moves.

use crate::common::{Random, World, account_key, block, slot_key};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tandem_primitives::{B256, BlockId, U256, WalkTarget};
use tandem_proto::storage::{BlockRef, Forkchoice, HistoryReads, ReadState, StorageApi};
use tandem_storage_writer::{Deps, StorageWriter};

/// Chain of blocks, all committed and canonical, and the state after each.
struct Chain {
    blocks: Vec<BlockId>,
    worlds: HashMap<B256, World>,
}

/// Heights of the base, one after the other.
pub type Events = Arc<Mutex<Vec<u64>>>;

pub fn deps(events: &Events) -> Deps {
    let seen = events.clone();
    let on_persisted = Box::new(move |block: BlockId| seen.lock().push(block.number));
    Deps { on_persisted, ..Deps::default() }
}

/// Moves the base forward and back through `api` while others read through it.
pub fn move_and_read(
    writer: Arc<StorageWriter>,
    api: Arc<dyn StorageApi>,
    world: World,
    events: &Events,
) {
    let genesis = api.checkpoint().unwrap().genesis;
    let epoch = api.acquire_epoch("test").unwrap();
    let mut random = Random(7);
    let worlds = HashMap::from([(genesis.hash, world)]);
    let chain = Mutex::new(Chain { blocks: vec![genesis], worlds });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0u64;
            while !done.load(Ordering::Relaxed) {
                check_reads(&*api, &chain);
                check_history(&writer, &chain);
                if reads.is_multiple_of(8) {
                    assert_eq!(writer.verify().unwrap().first_difference, None);
                }
                reads += 1;
            }
            reads
        });
        for round in 0..60 {
            for _ in 0..3 {
                let parent = *chain.lock().blocks.last().unwrap();
                let mut world = chain.lock().worlds[&parent.hash].clone();
                let diff = world.random_diff(&mut random);
                world.apply(&diff);
                let block = block(parent, &world, diff, &mut random);
                let mut chain = chain.lock();
                chain.worlds.insert(block.id.hash, world);
                chain.blocks.push(block.id);
                drop(chain);
                api.commit(epoch, block).unwrap();
            }
            let head = *chain.lock().blocks.last().unwrap();
            let forkchoice = Forkchoice { head, safe: None, finalized: Some(head) };
            api.canonicalize(epoch, forkchoice).unwrap();
            if round % 7 == 6 {
                let base = api.checkpoint().unwrap().base.number;
                api.rewind(epoch, base - 5).unwrap();
            }
        }
        let head = chain.lock().blocks.len() as u64 - 1;
        let started = Instant::now();
        while api.checkpoint().unwrap().base.number < head - 3 {
            assert!(started.elapsed() < Duration::from_secs(20), "the base does not follow");
            std::thread::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    assert_eq!(writer.verify().unwrap().first_difference, None);
    drop((api, writer));
    let events = events.lock();
    // Up to three blocks enter the base together.
    let steps = |pair: &[u64]| pair[1] != pair[0] && pair[1] <= pair[0] + 3;
    assert!(events.windows(2).all(steps), "{events:?}");
}

/// Reads the states after all blocks that history has, while the base moves and old ones go.
fn check_history(writer: &StorageWriter, chain: &Mutex<Chain>) {
    let kept = writer.kept_states().unwrap().unwrap();
    let accounts: Vec<B256> = (0..40).map(account_key).collect();
    let slots = accounts.iter().flat_map(|&a| (0..4).map(move |n| (a, slot_key(n)))).collect();
    let request = ReadState { accounts, slots, codes: Vec::new() };
    for number in kept.oldest..=kept.newest {
        let block = chain.lock().blocks[number as usize];
        // The base may have moved since, so that the block is below all history or above the base.
        let Some(values) = writer.read_state_after(block, &request).unwrap() else { continue };
        let chain = chain.lock();
        let world = &chain.worlds[&block.hash];
        for (key, got) in request.accounts.iter().zip(&values.accounts) {
            assert_eq!(*got, world.0.get(key).map(|(account, _)| *account), "{block}");
        }
        for ((owner, slot), got) in request.slots.iter().zip(&values.slots) {
            let want = world.0.get(owner).and_then(|(_, slots)| slots.get(slot).copied());
            assert_eq!(*got, want.unwrap_or(U256::ZERO), "{block}");
        }
    }
}

fn check_reads(api: &dyn StorageApi, chain: &Mutex<Chain>) {
    let accounts: Vec<B256> = (0..40).map(account_key).collect();
    let slots = accounts.iter().flat_map(|&a| (0..4).map(move |n| (a, slot_key(n))));
    let slots = slots.collect();
    let request = ReadState { accounts, slots, codes: Vec::new() };
    let values = api.read_state(&request).unwrap();
    let head = {
        let chain = chain.lock();
        let world = &chain.worlds[&values.base.hash];
        for (key, got) in request.accounts.iter().zip(&values.accounts) {
            assert_eq!(*got, world.0.get(key).map(|(account, _)| *account));
        }
        for ((owner, slot), got) in request.slots.iter().zip(&values.slots) {
            let want = world.0.get(owner).and_then(|(_, slots)| slots.get(slot).copied());
            assert_eq!(*got, want.unwrap_or(U256::ZERO));
        }
        api.checkpoint().unwrap().forkchoice.head.number
    };
    // Every height up to the head has its block at every moment.
    for number in head.saturating_sub(12)..=head {
        let (id, _) = api.header(BlockRef::Number(number)).unwrap().unwrap();
        assert_eq!(id, chain.lock().blocks[number as usize]);
    }
    let target = |key: &B256| WalkTarget { owner: None, key: *key, from_depth: 1 };
    let targets: Vec<WalkTarget> = request.accounts.iter().map(target).collect();
    let walked = api.walk_trie(&targets).unwrap();
    // Each node except the shards' tops has its hash in an earlier one: the state is one and whole.
    let mut known: Vec<Vec<u8>> = Vec::new();
    for node in &walked.nodes {
        let hash = tandem_primitives::keccak256(&node.rlp);
        let held = |rlp: &[u8]| rlp.windows(32).any(|window| window == hash.as_slice());
        assert!(node.path.len() == 1 || known.iter().any(|rlp| held(rlp)), "{:?}", node.path);
        known.push(node.rlp.to_vec());
    }
}
