//! The pipeline of updates, proof jobs and roots. Under any schedule the roots are those of
//! alloy-trie, a failure or a block given up leaves nothing behind, and no queue grows without end.

use crate::{
    fake::Fake,
    token::{after, id, policies, small, start, token, token_state, write},
};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
    time::Duration,
};
use tandem_multiproof_workers::{Config, MultiproofWorkers};
use tandem_policy::{LivePolicies, Policies};
use tandem_primitives::{AccountUpdate, B256, BlockId, keccak256};
use tandem_proto::{
    multiproof::{Begin, Error, Prefetch, ProofApi, ProofSession, StateUpdate},
    storage,
};
use tandem_testkit::trie::{KeySpace, State, rng, update};

const BATCHINGS: [&str; 8] = [
    "none",
    "fixed{1,1}",
    "fixed{3,4}",
    "fixed{16,500}",
    "pressure{0,2}",
    "pressure{4,10}",
    "window{200}",
    "drain",
];
const CHUNKINGS: [&str; 3] = ["always", "while-idle", "never"];

/// Updates of a block, and the state after them.
struct Change {
    updates: Vec<Arc<StateUpdate>>,
    after: State,
}

fn change(rng: &mut StdRng, before: &State, keys: &[KeySpace; 2]) -> Change {
    let mut after = before.clone();
    let mut updates = Vec::new();
    for _ in 0..rng.random_range(0..12) {
        let mut accounts: Vec<AccountUpdate> = Vec::new();
        for _ in 0..rng.random_range(1..4) {
            let one = update(rng, &after, &keys[0], &keys[1]);
            if accounts.iter().all(|other| other.address_hash != one.address_hash) {
                accounts.push(one);
            }
        }
        accounts.iter().for_each(|account| after.apply(account));
        updates.push(Arc::new(StateUpdate { accounts }));
    }
    Change { updates, after }
}

/// Returns advice that is partly right.
fn advice(rng: &mut StdRng, change: &Change, keys: &[KeySpace; 2]) -> Arc<Prefetch> {
    let mut accounts: Vec<(B256, Vec<B256>)> = Vec::new();
    for update in change.updates.iter().flat_map(|update| &update.accounts) {
        if rng.random() {
            let slots = update.slots.iter().map(|slot| slot.key).collect();
            accounts.push((update.address_hash, slots));
        }
    }
    accounts.push((keys[0].key(rng), vec![keys[1].key(rng)]));
    Arc::new(Prefetch { accounts })
}

fn feed(rng: &mut StdRng, session: &mut dyn ProofSession, updates: &[Arc<StateUpdate>]) {
    for update in updates {
        if rng.random_ratio(1, 6) {
            thread::sleep(Duration::from_micros(rng.random_range(0..200)));
        }
        session.update(update.clone());
    }
}

fn root(session: Box<dyn ProofSession>) -> Result<B256, Error> {
    session.roots().map(|answer| tandem_trie::combine(&answer.roots).unwrap().0)
}

/// Blocks of one branch from the base up, each with its state.
type Branch = Vec<(BlockId, State)>;

/// Runs one block on top of the branch, with everything that may happen before it.
fn one_block(
    rng: &mut StdRng,
    workers: &MultiproofWorkers,
    live: &LivePolicies,
    branch: &mut Branch,
    keys: &[KeySpace; 2],
) {
    let chunk = rng.random_range(1..8);
    live.store(policies(BATCHINGS.choose(rng).unwrap(), CHUNKINGS.choose(rng).unwrap(), chunk));
    if branch.len() > 1 && rng.random_ratio(1, 10) {
        branch.pop();
    }
    let (parent, before) = branch.last().unwrap().clone();
    if rng.random_ratio(1, 6) {
        let given_up = change(rng, &before, keys);
        let block = id(parent.number + 1, rng.random());
        let mut session = workers.begin(Begin::new(block, parent.hash)).unwrap();
        feed(rng, &mut *session, &given_up.updates);
        if rng.random() {
            session.finish();
        }
    }
    let change = change(rng, &before, keys);
    let block = id(parent.number + 1, rng.random());
    let mut session = workers.begin(Begin::new(block, parent.hash)).unwrap();
    if rng.random() {
        workers.prefetch(block.hash, advice(rng, &change, keys));
    }
    let half = rng.random_range(0..=change.updates.len());
    feed(rng, &mut *session, &change.updates[..half]);
    if rng.random() {
        workers.prefetch(block.hash, advice(rng, &change, keys));
    }
    feed(rng, &mut *session, &change.updates[half..]);
    session.finish();
    assert_eq!(root(session).unwrap(), change.after.root(), "block {}", block.number);
    if rng.random_ratio(1, 8) {
        workers.discard(block.hash);
    } else {
        branch.push((block, change.after));
    }
}

#[test]
fn roots_are_right_under_any_schedule() {
    for seed in 0..24 {
        let rng = &mut rng(seed);
        let keys = [KeySpace::random(rng), KeySpace::random(rng)];
        let mut state = State::default();
        for _ in 0..20 {
            state.apply(&update(rng, &state.clone(), &keys[0], &keys[1]));
        }
        let genesis = id(0, 0);
        let fake = Fake::new(genesis, &state);
        fake.delay_us.store(*[0, 30, 400].choose(rng).unwrap(), SeqCst);
        let live = LivePolicies::default();
        let config = Config {
            threads: rng.random_range(1..4),
            proof_threads: rng.random_range(1..5),
            chunk_targets_min: *[None, Some(1), Some(4), Some(1024)].choose(rng).unwrap(),
            mailbox_capacity: *[1, 4, 64].choose(rng).unwrap(),
            trie_bytes_max: *[0, 20_000, 1 << 30].choose(rng).unwrap(),
            verify_nodes: rng.random_ratio(3, 4),
            ..Config::default()
        };
        let workers = start(&fake, &config, &live);
        let mut branch: Branch = vec![(genesis, state)];
        for _ in 0..40 {
            one_block(rng, &workers, &live, &mut branch, &keys);
            while branch.len() > 4 {
                fake.persist(branch[1].0);
                branch.remove(0);
            }
        }
        workers.stop();
    }
}

#[test]
fn a_storage_error_fails_its_block_and_no_other() {
    let state = token_state(64);
    let fake = Fake::new(id(0, 0), &state);
    let workers = start(&fake, &small(2), &LivePolicies::default());
    let updates: Vec<_> = (0..64).map(|slot| write(slot, 7)).collect();
    let begin = Begin::new(id(1, 1), id(0, 0).hash);
    fake.failing.store(true, SeqCst);
    let mut session = workers.begin(begin).unwrap();
    feed(&mut rng(1), &mut *session, &updates);
    let want = storage::Error::Store("the disk is gone".into());
    assert_eq!(root(session), Err(Error::Storage(want)));
    fake.failing.store(false, SeqCst);
    let mut session = workers.begin(begin).unwrap();
    feed(&mut rng(1), &mut *session, &updates);
    assert_eq!(root(session), Ok(after(&state, &updates).root()));
}

#[test]
fn answers_of_a_block_given_up_do_not_get_into_the_next() {
    let state = token_state(64);
    let fake = Fake::new(id(0, 0), &state);
    let workers = start(&fake, &small(2), &LivePolicies::default());
    // The tries know block 1, whose state is not that of its parent.
    let first: Vec<_> = (0..32).map(|slot| write(slot, 7)).collect();
    let mut session = workers.begin(Begin::new(id(1, 1), id(0, 0).hash)).unwrap();
    feed(&mut rng(1), &mut *session, &first);
    assert_eq!(root(session), Ok(after(&state, &first).root()));
    fake.close_gate();
    let second: Vec<_> = (32..64).map(|slot| write(slot, 8)).collect();
    let mut session = workers.begin(Begin::new(id(2, 1), id(1, 1).hash)).unwrap();
    feed(&mut rng(1), &mut *session, &second);
    fake.await_walks(2);
    drop(session);
    // On the state before block 1, while jobs that read the state after it are under way.
    let third: Vec<_> = (0..64).map(|slot| write(slot, 9)).collect();
    let mut session = workers.begin(Begin::new(id(1, 2), id(0, 0).hash)).unwrap();
    feed(&mut rng(1), &mut *session, &third);
    session.finish();
    fake.open_gate();
    assert_eq!(root(session), Ok(after(&state, &third).root()));
}

#[test]
fn a_stalled_storage_makes_the_caller_wait_and_no_queue_grows() {
    const UPDATES: u64 = 400;
    // Each update has more keys than the backlog takes, so the mailbox fills up behind one.
    let slots = 9_000;
    let state = token_state(slots);
    let fake = Fake::new(id(0, 0), &state);
    let config = Config { mailbox_capacity: 8, ..small(3) };
    let workers = start(&fake, &config, &LivePolicies::default());
    fake.close_gate();
    let large = Arc::new(StateUpdate { accounts: vec![token(slots)] });
    let mut session = workers.begin(Begin::new(id(1, 1), id(0, 0).hash)).unwrap();
    session.update(large.clone());
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let feeder = {
        let sent = sent.clone();
        thread::spawn(move || {
            for n in 0..UPDATES {
                session.update(write(n, n + 1));
                sent.fetch_add(1, SeqCst);
            }
            session
        })
    };
    fake.await_walks(3);
    let mut before = u64::MAX;
    while before != sent.load(SeqCst) {
        before = sent.load(SeqCst);
        thread::sleep(Duration::from_millis(50));
    }
    assert!(before <= 10, "{before} updates went into a mailbox of 8");
    fake.open_gate();
    assert_eq!(root(feeder.join().unwrap()), Ok(state.root()), "every slot has its old value");
    assert_eq!(fake.active_max.load(SeqCst), 3, "as many at the same time as proof threads");
}

#[test]
fn a_worker_that_blocks_takes_no_update_while_a_batch_is_read() {
    let state = token_state(64);
    let updates: Vec<_> = (0..12).map(|slot| write(slot, 7)).collect();
    let advice = || {
        let slots = (20..30u64).map(|slot| keccak256(slot.to_be_bytes())).collect();
        Arc::new(Prefetch { accounts: vec![(B256::repeat_byte(0x35), slots)] })
    };
    let most_at_once = |dispatch: &str, awaited: usize| {
        let fake = Fake::new(id(0, 0), &state);
        let dispatch = dispatch.parse().unwrap();
        let live = LivePolicies::new(Policies { dispatch, ..policies("none", "never", 5) });
        let workers = start(&fake, &small(3), &live);
        fake.close_gate();
        let begin = Begin::new(id(1, 1), id(0, 0).hash);
        let mut session = workers.begin(begin).unwrap();
        workers.prefetch(begin.block.hash, advice());
        updates.iter().for_each(|update| session.update(update.clone()));
        session.finish();
        fake.await_walks(awaited);
        if awaited == 1 {
            assert!(!session.has_taken_all(), "updates wait for the batch");
        }
        fake.open_gate();
        assert_eq!(root(session), Ok(after(&state, &updates).root()));
        workers.stop();
        fake.active_max.load(SeqCst)
    };
    assert_eq!(most_at_once("streaming", 3), 3, "as many batches as proof threads");
    assert_eq!(most_at_once("blocking", 1), 1, "one batch after the other");
}

/// Returns the number of keys of each walk of a block that writes to forty slots in one update.
fn walks_under(policies: Policies, proof_threads: usize) -> Vec<usize> {
    let state = token_state(40);
    let fake = Fake::new(id(0, 0), &state);
    let workers = start(&fake, &small(proof_threads), &LivePolicies::new(policies));
    let update = Arc::new(StateUpdate { accounts: vec![token(40)] });
    let mut session = workers.begin(Begin::new(id(1, 1), id(0, 0).hash)).unwrap();
    session.update(update);
    assert_eq!(root(session), Ok(state.root()));
    workers.stop();
    let mut walks = fake.walks.lock().clone();
    walks.sort_unstable();
    walks
}

#[test]
fn chunks_follow_the_policy() {
    // Forty slots and their account; then the tops of the fifteen untouched shards, in one go.
    let (keys, tops) = (41, 15);
    let large = |walks: Vec<usize>| walks.into_iter().max();
    // Two threads, eight chunks at most.
    let always = walks_under(policies("none", "always", 5), 2);
    assert!(always.iter().all(|&keys| keys <= 6), "{always:?}");
    let many = walks_under(policies("none", "always", 5), 3);
    assert!(many.iter().all(|&keys| keys <= 5), "{many:?}");
    let never = walks_under(policies("none", "never", 5), 2);
    assert_eq!(never, [tops, keys]);
    let idle = policies("none", "while-idle", 5);
    assert_eq!(large(walks_under(idle, 1)), Some(keys), "one thread is never more than one idle");
    assert!(large(walks_under(idle, 2)) <= Some(tops), "two are, before anything is asked for");
    let forced = Policies { force_chunk_targets: 40, ..idle };
    assert_eq!(large(walks_under(forced, 1)), Some(tops), "41 keys are cut in any case");
}

#[test]
fn jobs_that_wait_become_one_walk_where_chunks_are_to_be_large_or_the_wait_is_long() {
    let state = token_state(64);
    let walks = |chunk_targets_min: Option<usize>| {
        let fake = Fake::new(id(0, 0), &state);
        let live = LivePolicies::new(policies("none", "never", 5));
        let config = Config { chunk_targets_min, ..small(1) };
        let workers = start(&fake, &config, &live);
        fake.close_gate();
        let begin = Begin::new(id(1, 1), id(0, 0).hash);
        let mut session = workers.begin(begin).unwrap();
        let updates: Vec<_> = (0..10).map(|slot| write(slot, 7)).collect();
        session.update(updates[0].clone());
        fake.await_walks(1);
        // Advised keys wait among keys that the block cannot end without.
        updates[1..5].iter().for_each(|update| session.update(update.clone()));
        let slots = (20..23u64).map(|slot| keccak256(slot.to_be_bytes())).collect();
        let keys = Prefetch { accounts: vec![(B256::repeat_byte(0x35), slots)] };
        workers.prefetch(begin.block.hash, Arc::new(keys));
        updates[5..].iter().for_each(|update| session.update(update.clone()));
        session.finish();
        // Time for the worker to ask for all of it.
        thread::sleep(Duration::from_millis(200));
        fake.open_gate();
        assert_eq!(root(session), Ok(after(&state, &updates).root()));
        workers.stop();
        fake.walks.lock().clone()
    };
    // The account and its first slot, one slot each, three advised slots, the other shards.
    assert_eq!(walks(Some(1)), [2, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 15]);
    assert_eq!(walks(Some(1024)), [2, 27], "all that waited");
    assert_eq!(walks(None), [2, 27], "all that waited for more than a millisecond");
    let some = walks(Some(4));
    assert_eq!((some[0], some.iter().sum::<usize>()), (2, 29), "{some:?}");
    assert!(some.len() > 3 && some[1] >= 4, "{some:?}");
}

#[test]
fn updates_are_gathered_by_the_policy() {
    let state = token_state(64);
    let walks = |batching: &str| {
        let fake = Fake::new(id(0, 0), &state);
        let live = LivePolicies::new(policies(batching, "never", 5));
        let workers = start(&fake, &small(1), &live);
        let mut session = workers.begin(Begin::new(id(1, 1), id(0, 0).hash)).unwrap();
        let updates: Vec<_> = (0..64).map(|slot| write(slot, 7)).collect();
        updates.iter().for_each(|update| session.update(update.clone()));
        assert_eq!(root(session), Ok(after(&state, &updates).root()));
        workers.stop();
        fake.walks.lock().clone()
    };
    // Under `window` all updates come within it, so they are one walk: 64 slots and the account.
    assert_eq!(walks("window{1000000}")[0], 65);
    // The account of the first update, then a slot each.
    assert_eq!(walks("none")[0], 2);
    assert!(walks("fixed{4,1000}").iter().filter(|&&keys| keys != 15).all(|&keys| keys <= 5));
}

#[test]
fn advice_is_followed_and_harmless() {
    let state = token_state(64);
    let fake = Fake::new(id(0, 0), &state);
    let workers = start(&fake, &small(2), &LivePolicies::new(policies("none", "never", 5)));
    let begin = Begin::new(id(1, 1), id(0, 0).hash);
    let slots: Vec<B256> = (0..8u64).map(|slot| keccak256(slot.to_be_bytes())).collect();
    let keys = Arc::new(Prefetch { accounts: vec![(B256::repeat_byte(0x35), slots)] });
    workers.prefetch(begin.block.hash, keys.clone());
    let mut session = workers.begin(begin).unwrap();
    workers.prefetch(id(1, 2).hash, keys.clone());
    workers.prefetch(begin.block.hash, keys);
    while fake.walks.lock().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*fake.walks.lock(), [9], "of the open block, once");
    let updates: Vec<_> = (0..8).map(|slot| write(slot, 7)).collect();
    feed(&mut rng(1), &mut *session, &updates);
    assert_eq!(root(session), Ok(after(&state, &updates).root()));
    assert_eq!(fake.walks.lock().len(), 2, "the updates needed nothing more but the other shards");
}

#[test]
fn a_block_given_up_or_refused_costs_no_walks_but_one_tried_again_has_fresh_tries() {
    let state = token_state(64);
    let fake = Fake::new(id(0, 0), &state);
    let workers = start(&fake, &small(2), &LivePolicies::default());
    let parent = id(0, 0).hash;
    let updates: Vec<_> = (0..64).map(|slot| write(slot, 7)).collect();
    let after = after(&state, &updates).root();
    let prove = |block: BlockId| {
        let mut session = workers.begin(Begin::new(block, parent)).unwrap();
        feed(&mut rng(1), &mut *session, &updates);
        assert_eq!(root(session), Ok(after));
        fake.walks.lock().len()
    };
    let cold = prove(id(1, 1));
    workers.discard(id(1, 1).hash);
    assert_eq!(prove(id(1, 2)), cold, "the paths of a refused block are known to another");
    workers.discard(id(1, 2).hash);
    let mut session = workers.begin(Begin::new(id(1, 3), parent)).unwrap();
    feed(&mut rng(1), &mut *session, &updates);
    drop(session);
    assert_eq!(prove(id(1, 4)), cold, "so are those of a block given up");
    workers.discard(id(1, 4).hash);
    assert!(prove(id(1, 4)) > cold, "a refused block that is tried again reads all anew");
}
