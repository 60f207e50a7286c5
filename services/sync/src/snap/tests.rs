//! Downloads between databases: from several peers, of which some lie, over moving pivots and
//! restarts.

use super::{Ended, Progress, Surroundings, download};
use crate::{
    check::ChainHeader,
    config::Config,
    sink::{BlockSink, Chosen, Pending as Work, Prepared},
    snap_run::{SnapRun, Step},
    state::Invalid,
};
use alloy_consensus::Header;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_chain::Block;
use tandem_primitives::{
    Account, B256, BlockId, Bytes, EMPTY_CODE_HASH, StateDiff, U256, keccak256,
};
use tandem_proto::{
    peer_sessions::{Error, Fetch, Fetched, Misconduct, PeerId, PeerSessionsApi, Pending, Session},
    snap::{DownloadedAccount, DownloadedBlock, Leaf, StateItems, StatePart, StateRequest},
    storage::{BaseReads, StateDownloads, StateRanges},
    sync::SyncProgress,
};
use tandem_storage_writer::{Deps, StorageWriter};
use tandem_testkit::world::{Random, World, account_key, block, genesis, slot_key};
use tokio::{sync::watch, time::timeout};

mod peers;

use peers::{LIARS, Peer, Peers, id};

const LAST: B256 = B256::repeat_byte(0xff);
/// Account whose storage needs many answers.
const LARGE: u64 = 3;

fn storage_writer() -> Arc<StorageWriter> {
    let mut config = tandem_storage_writer::Config::new("");
    config.peer_states_max = 32;
    let (json, _) = genesis();
    StorageWriter::create_in_memory(json.as_bytes(), config, Deps::default()).unwrap()
}

/// Codes by hash: that of each tenth account.
fn code(n: u64) -> (B256, Bytes) {
    let code = Bytes::from(vec![n as u8; 700]);
    (keccak256(&code), code)
}

fn state(random: &mut Random) -> World {
    let mut world = World::default();
    for n in 0..1500 {
        let code_hash = if n % 10 == 0 { code(n % 200).0 } else { EMPTY_CODE_HASH };
        let slots = match n {
            LARGE => 2000,
            _ if n % 7 == 0 => random.below(6),
            _ => 0,
        };
        let slot = |n| (slot_key(n), U256::from(random.next() >> random.below(60)) + U256::ONE);
        let slots = (0..slots).map(slot).collect();
        let account = Account { nonce: n, balance: U256::from(n * 7), code_hash };
        world.0.insert(account_key(n), (account, slots));
    }
    world
}

/// Changes a few things of each kind.
fn change(world: &mut World, random: &mut Random) {
    for _ in 0..10 {
        let key = account_key(random.below(1500));
        match random.below(5) {
            0 => drop(world.0.remove(&key)),
            1 => {
                let account = Account { nonce: random.next(), ..Account::default() };
                world.0.insert(account_key(1500 + random.below(500)), (account, BTreeMap::new()));
            }
            2 => {
                if let Some((account, slots)) = world.0.get_mut(&key) {
                    account.code_hash = code(random.below(150)).0;
                    slots.insert(slot_key(random.below(9)), U256::from(random.next()) + U256::ONE);
                }
            }
            3 => {
                if let Some((account, slots)) = world.0.get_mut(&key) {
                    account.balance += U256::ONE;
                    slots.clear();
                }
            }
            _ => {
                if let Some((_, slots)) = world.0.get_mut(&account_key(LARGE)) {
                    slots.remove(&slot_key(random.below(2000)));
                    slots.insert(slot_key(random.below(2000)), U256::from(random.below(9) + 1));
                }
            }
        }
    }
}

/// Returns the whole state in a few parts.
fn parts(world: &World) -> Vec<StatePart> {
    let account = |(key, (account, slots)): (&B256, &(Account, BTreeMap<_, _>))| {
        DownloadedAccount { key: *key, account: *account, has_storage: !slots.is_empty() }
    };
    let accounts = world.0.iter().map(account).collect();
    let mut parts = vec![
        StatePart::Codes((0..200).map(code).collect()),
        StatePart::Accounts { first: B256::ZERO, last: LAST, accounts },
    ];
    for (owner, (_, slots)) in &world.0 {
        let slots = slots.iter().map(|(key, value)| (*key, *value)).collect();
        parts.push(StatePart::Slots { owner: *owner, first: B256::ZERO, last: LAST, slots });
    }
    parts
}

/// Block with this state, and a database that has it.
fn source(world: &World, random: &mut Random) -> (DownloadedBlock, Arc<StorageWriter>) {
    let genesis = storage_writer().checkpoint().unwrap().genesis;
    let block = block(genesis, world, StateDiff::default(), random);
    let block = DownloadedBlock {
        id: block.id,
        header: block.header,
        body: block.body,
        receipts: block.receipts,
    };
    let writer = writer_with(std::slice::from_ref(&block), world, Vec::new());
    (block, writer)
}

/// Database with these blocks, and the state after the last of them, of which these are further codes.
fn writer_with(
    blocks: &[DownloadedBlock],
    world: &World,
    codes: Vec<(B256, Bytes)>,
) -> Arc<StorageWriter> {
    let writer = storage_writer();
    writer.begin_download().unwrap();
    writer.put_blocks(blocks).unwrap();
    writer.put_state(&[StatePart::Codes(codes)], b"").unwrap();
    writer.put_state(&parts(world), b"").unwrap();
    writer.finish_download(blocks.last().unwrap().id).unwrap();
    writer
}

fn surroundings(peers: &Arc<Peers>, target: &Arc<StorageWriter>) -> Surroundings {
    let (sender, receiver) = watch::channel((0..peers.kinds.len()).map(id).collect());
    // The list stays as it is.
    drop(sender);
    Surroundings { sessions: peers.clone(), downloads: target.clone(), peers: receiver }
}

async fn run(peers: &Arc<Peers>, target: &Arc<StorageWriter>, progress: &Arc<Progress>) -> Ended {
    let config = Config { requests_per_peer_max: 4, ..Config::default() };
    let around = surroundings(peers, target);
    let ended = download(around, &config, progress.root(), progress.clone());
    timeout(Duration::from_secs(100), ended).await.expect("the download ends")
}

fn finish(target: &StorageWriter, block: DownloadedBlock, world: &World) {
    let id = block.id;
    target.put_blocks(&[block]).unwrap();
    target.finish_download(id).unwrap();
    let report = target.verify().unwrap();
    assert_eq!((report.first_difference, report.base), (None, id));
    let slots: usize = world.0.values().map(|(_, slots)| slots.len()).sum();
    assert_eq!((report.accounts, report.slots), (world.0.len() as u64, slots as u64));
}

/// geth does so while a state becomes too old for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_breaks_off_one_range_is_asked_again() {
    let random = &mut Random(9);
    let world = state(random);
    let (block, source) = source(&world, random);
    let peers = Peers::new(vec![Peer::BreaksOffOnce], &source, 9);
    let target = storage_writer();
    target.begin_download().unwrap();
    let progress = Arc::new(Progress::begin(block.id, world.root()));
    assert_eq!(run(&peers, &target, &progress).await, Ended::Done);
    assert!(peers.has_broken_off.load(Relaxed) && peers.reported.lock().unwrap().is_empty());
    finish(&target, block, &world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn liars_are_reported_and_the_state_is_whole() {
    for seed in 1..6 {
        let random = &mut Random(seed);
        let world = state(random);
        let (block, source) = source(&world, random);
        let kinds = [&LIARS[..], &[Peer::Honest, Peer::Empty, Peer::Silent]].concat();
        let peers = Peers::new(kinds, &source, seed);
        let target = storage_writer();
        target.begin_download().unwrap();
        let progress = Arc::new(Progress::begin(block.id, world.root()));
        assert_eq!(run(&peers, &target, &progress).await, Ended::Done);
        let liars: BTreeSet<_> = (0..LIARS.len()).map(id).collect();
        assert_eq!(*peers.reported.lock().unwrap(), liars, "seed {seed}");
        finish(&target, block, &world);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moving_pivot_keeps_what_is_done() {
    for seed in 1..8 {
        let random = &mut Random(seed);
        let mut world = state(random);
        let target = storage_writer();
        target.begin_download().unwrap();
        let (mut block, mut from) = source(&world, random);
        let mut progress = Arc::new(Progress::begin(block.id, world.root()));
        let peers = Peers::new(vec![Peer::Honest; 2], &from, seed);
        for _ in 0..3 {
            peers.left.store(random.below(400), Relaxed);
            match run(&peers, &target, &progress).await {
                Ended::Stale => {}
                Ended::Done => break,
                other => panic!("{other:?}"),
            }
            change(&mut world, random);
            (block, from) = source(&world, random);
            *peers.sources.lock().unwrap() = vec![from];
            progress = Arc::new(progress.moved(block.id, world.root()));
        }
        peers.left.store(u64::MAX, Relaxed);
        assert_eq!(run(&peers, &target, &progress).await, Ended::Done, "seed {seed}");
        finish(&target, block, &world);
    }
}

/// A few changes cost a few answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_differs_is_found_without_reading_the_rest() {
    let random = &mut Random(9);
    let mut world = state(random);
    let target = storage_writer();
    target.begin_download().unwrap();
    let (before, from) = source(&world, random);
    let progress = Arc::new(Progress::begin(before.id, world.root()));
    let peers = Peers::new(vec![Peer::Honest], &from, 9);
    assert_eq!(run(&peers, &target, &progress).await, Ended::Done);
    let whole = peers.answered.swap(0, Relaxed);
    let (account, slots) = world.0.get_mut(&account_key(LARGE)).unwrap();
    account.balance += U256::ONE;
    slots.insert(slot_key(7), U256::from(77));
    let (block, from) = source(&world, random);
    *peers.sources.lock().unwrap() = vec![from];
    let progress = Arc::new(progress.moved(block.id, world.root()));
    assert_eq!(run(&peers, &target, &progress).await, Ended::Done);
    let repair = peers.answered.load(Relaxed);
    assert!(repair <= 12 && whole > 100, "{repair} answers, of {whole} for the whole state");
    finish(&target, block, &world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_goes_on_where_it_was() {
    for seed in 1..5 {
        let random = &mut Random(seed);
        let world = state(random);
        let (block, from) = source(&world, random);
        let target = storage_writer();
        target.begin_download().unwrap();
        let mut progress = Arc::new(Progress::begin(block.id, world.root()));
        let peers = Peers::new(vec![Peer::Honest; 3], &from, seed);
        let mut ended = None;
        for _ in 0..20 {
            let some = Duration::from_millis(5 + random.below(40));
            ended = timeout(some, run(&peers, &target, &progress)).await.ok();
            if ended.is_some() {
                break;
            }
            if let Some(read) = Progress::read(&target.download_progress().unwrap().unwrap()) {
                progress = Arc::new(read);
            }
        }
        if ended.is_none() {
            ended = Some(run(&peers, &target, &progress).await);
        }
        assert_eq!(ended, Some(Ended::Done));
        finish(&target, block, &world);
    }
}

/// Blocks with access lists, each with the state after it.
struct Listed {
    blocks: Vec<DownloadedBlock>,
    headers: Vec<ChainHeader>,
    worlds: Vec<World>,
    lists: HashMap<B256, Bytes>,
    /// Codes that the blocks deploy.
    codes: Vec<(B256, Bytes)>,
}

fn listed_chain(first: World, len: u64, random: &mut Random) -> Listed {
    let mut parent = storage_writer().checkpoint().unwrap().genesis;
    let mut chain = Listed {
        blocks: Vec::new(),
        headers: Vec::new(),
        worlds: Vec::new(),
        lists: HashMap::new(),
        codes: Vec::new(),
    };
    let mut world = first;
    for number in 1..=len {
        let (diff, list) = match number {
            1 => (StateDiff::default(), Bytes::from_static(&[0xc0])),
            // Some of the accounts are new.
            _ => world.listed_diff(1600, random),
        };
        world.apply(&diff);
        chain.codes.extend(diff.codes);
        let header = Header {
            parent_hash: parent.hash,
            number,
            state_root: world.root(),
            base_fee_per_gas: Some(1),
            withdrawals_root: Some(B256::ZERO),
            blob_gas_used: Some(0),
            excess_blob_gas: Some(0),
            parent_beacon_block_root: Some(B256::ZERO),
            requests_hash: Some(B256::ZERO),
            block_access_list_hash: Some(keccak256(&list)),
            ..Header::default()
        };
        let id = BlockId::new(number, header.hash_slow());
        let rlp = Bytes::from(alloy_rlp::encode(&header));
        chain.lists.insert(id.hash, list);
        chain.headers.push(ChainHeader { id, parent: parent.hash, rlp: rlp.clone() });
        chain.worlds.push(world.clone());
        chain.blocks.push(DownloadedBlock {
            id,
            header: rlp,
            body: Bytes::from_static(&[0xc3, 0xc0, 0xc0, 0xc0]),
            receipts: Bytes::from_static(&[0xc0]),
        });
        parent = id;
    }
    chain
}

/// Sink of a run that ends before any block is executed.
struct NoSink;

impl BlockSink for NoSink {
    fn head(&self) -> BlockId {
        unreachable!()
    }
    fn first_known(&self, _: &[BlockId]) -> Option<usize> {
        unreachable!()
    }
    fn prepare(&self, _: Block) -> Work<Option<Prepared>> {
        unreachable!()
    }
    fn make_head(&self, _: BlockId) -> Work<Chosen> {
        unreachable!()
    }
    fn reach(&self, _: B256) -> Work<Chosen> {
        unreachable!()
    }
    fn adopt(&self) -> Work<bool> {
        unreachable!()
    }
    fn condemn(&self, _: Invalid) -> Work<()> {
        unreachable!()
    }
    fn show(&self, _: Option<SyncProgress>) {
        unreachable!()
    }
}

/// Downloads the state of the first block until no peer has it, and goes on with a later one. Returns the
/// number of requests that looked for what differs.
async fn repairs_after_a_move(seed: u64, kinds: Vec<Peer>, lists: bool) -> (u64, BTreeSet<PeerId>) {
    const DEPTH: u64 = 2;
    let random = &mut Random(seed);
    let chain = listed_chain(state(random), 9, random);
    let from = writer_with(&chain.blocks[..1], &chain.worlds[0], Vec::new());
    let peers = Peers::new(kinds, &from, seed);
    if lists {
        peers.lists.lock().unwrap().extend(chain.lists);
    }
    peers.left.store(60 + random.below(60), Relaxed);
    let target = storage_writer();
    let config = Config {
        pivot_depth: DEPTH,
        snap_blocks_min: 1,
        requests_per_peer_max: 4,
        ..Config::default()
    };
    let ids: Vec<PeerId> = (0..peers.kinds.len()).map(id).collect();
    let (sender, receiver) = watch::channel(Vec::new());
    let around =
        Surroundings { sessions: peers.clone(), downloads: target.clone(), peers: receiver };
    let mut run = SnapRun::new(config, Some(around), sender);
    run.set_peers(ids);
    let sink: Arc<dyn BlockSink> = Arc::new(NoSink);
    run.headers(&chain.headers[..1 + DEPTH as usize]);
    let genesis = target.checkpoint().unwrap().genesis;
    let first = chain.headers[0].id;
    let begun = run.decide(first, genesis).unwrap().await;
    let stale = run.ended(begun, &sink).unwrap().await;
    let Step::State(root, ended) = stale else { panic!("another step") };
    assert_eq!((root, ended), (chain.worlds[0].root(), Ended::Stale), "seed {seed}");
    run.headers(&chain.headers);
    let pivot = chain.headers.len() - 1 - DEPTH as usize;
    let from = writer_with(&chain.blocks[..=pivot], &chain.worlds[pivot], chain.codes.clone());
    *peers.sources.lock().unwrap() = vec![from];
    peers.left.store(u64::MAX, Relaxed);
    let work = run.ended(Step::State(root, ended), &sink).unwrap();
    let done = timeout(Duration::from_secs(100), work).await.expect("the download ends");
    let Step::State(root, ended) = done else { panic!("another step") };
    assert_eq!((root, ended), (chain.worlds[pivot].root(), Ended::Done), "seed {seed}");
    target.put_blocks(&chain.blocks[..pivot]).unwrap();
    finish(&target, chain.blocks[pivot].clone(), &chain.worlds[pivot]);
    let reported = peers.reported.lock().unwrap().clone();
    (peers.repairs.load(Relaxed), reported)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_lists_leave_nothing_to_repair_when_the_pivot_moves() {
    for seed in 1..6 {
        let kinds = vec![Peer::Honest, Peer::Changes, Peer::OtherKind, Peer::Empty, Peer::Honest];
        let (repairs, reported) = repairs_after_a_move(seed, kinds, true).await;
        assert_eq!(repairs, 0, "seed {seed}");
        assert!(reported.contains(&id(1)), "a list with another hash is a lie");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pivot_moves_without_access_lists_too() {
    let (repairs, reported) = repairs_after_a_move(7, vec![Peer::Honest; 2], false).await;
    assert!(repairs > 0 && reported.is_empty());
}
