//! SIGKILL at random moments: no acknowledged block is lost, and the base stays whole.

use crate::common::{Random, World, block, new_chain};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tandem_primitives::{B256, BlockId};
use tandem_proto::storage::{
    BaseReads, BlockReads, BlockRef, BlockWrites, Forkchoice, TrieStorage, WriteLease,
};
use tandem_storage_writer::{Config, Deps, StorageWriter, spread_state, verify};

const DATADIR: &str = "TANDEM_TEST_CRASH_DATADIR";

/// Process that is killed. It continues from the head that it finds, prints every acknowledged
/// block, and reorgs now and then.
#[test]
fn child() {
    let Ok(datadir) = std::env::var(DATADIR) else { return };
    let writer =
        StorageWriter::start(Config::with_small_limits(Path::new(&datadir)), Deps::default())
            .unwrap();
    let epoch = writer.acquire_epoch("child").unwrap();
    let (_, genesis_world) = genesis_world();
    let checkpoint = writer.checkpoint().unwrap();
    // The states are rebuilt from the seeds that this test keeps in files beside the database.
    let mut worlds = HashMap::from([(checkpoint.genesis.hash, genesis_world)]);
    let mut chain = vec![checkpoint.genesis];
    let mut random = Random(std::process::id().into());
    for number in 1..=checkpoint.forkchoice.head.number {
        let (id, _) = writer.header(BlockRef::Number(number)).unwrap().unwrap();
        let seed = std::fs::read_to_string(seed_path(&datadir, id.hash)).unwrap();
        let world = next(&worlds[&chain[number as usize - 1].hash], seed.parse().unwrap()).1;
        worlds.insert(id.hash, world);
        chain.push(id);
    }
    loop {
        if random.one_in(10) && chain.len() > 3 {
            chain.truncate(chain.len() - 2);
        }
        let parent: BlockId = *chain.last().unwrap();
        let seed = random.next() | 1;
        let (diff, world) = next(&worlds[&parent.hash], seed);
        let block = block(parent, &world, diff, &mut random);
        std::fs::write(seed_path(&datadir, block.id.hash), seed.to_string()).unwrap();
        let head = block.id;
        writer.commit(epoch, block).unwrap();
        println!("committed {} {} {}", head.number, head.hash, parent.hash);
        std::io::stdout().flush().unwrap();
        writer.canonicalize(epoch, Forkchoice { head, ..Forkchoice::default() }).unwrap();
        println!("head {} {} {}", head.number, head.hash, parent.hash);
        std::io::stdout().flush().unwrap();
        worlds.insert(head.hash, world);
        chain.push(head);
    }
}

fn seed_path(datadir: impl AsRef<Path>, hash: B256) -> PathBuf {
    datadir.as_ref().join(format!("{hash}.seed"))
}

fn next(world: &World, seed: u64) -> (tandem_primitives::StateDiff, World) {
    let diff = world.random_diff(&mut Random(seed));
    let mut after = world.clone();
    after.apply(&diff);
    (diff, after)
}

fn genesis_world() -> (BlockId, World) {
    new_chain(tempfile::tempdir().unwrap().path())
}

#[test]
fn a_killed_process_loses_no_acknowledged_block() {
    let directory = tempfile::tempdir().unwrap();
    new_chain(directory.path());
    kill_repeatedly(directory.path(), 10, &mut HashMap::new());
}

/// Parts of one block are in files of several directories, which one log repairs.
#[test]
fn a_killed_process_whose_state_is_spread_loses_no_acknowledged_block() {
    let directory = tempfile::tempdir().unwrap();
    new_chain(directory.path());
    let disks = [1, 2, 3].map(|number| directory.path().join(format!("disk-{number}")));
    spread_state(directory.path(), &disks, |_, _| ()).unwrap();
    // A reorg of the last round may leave blocks of the rounds before.
    let mut parents = HashMap::new();
    kill_repeatedly(directory.path(), 10, &mut parents);
    spread_state(directory.path(), &[], |_, _| ()).unwrap();
    kill_repeatedly(directory.path(), 1, &mut parents);
}

/// Kills a child per round. `parents` collects the parent of every block that a child committed.
fn kill_repeatedly(directory: &Path, rounds: u32, parents: &mut HashMap<B256, BlockId>) {
    let mut random = Random(42);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::child", "--exact", "--nocapture"])
            .env(DATADIR, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || output.lines().collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(150 + random.below(500)));
        child.kill().unwrap();
        child.wait().unwrap();
        let lines: Vec<String> = reader.join().unwrap().into_iter().map_while(Result::ok).collect();
        let report = verify(directory).unwrap();
        assert_eq!(report.first_difference, None, "round {round}");
        let config = Config::with_small_limits(directory);
        let writer = StorageWriter::start(config.clone(), Deps::default()).unwrap();
        let mut last_head = None;
        let mut blocks = Vec::new();
        for line in &lines {
            let words: Vec<&str> = line.split(' ').collect();
            // The last line may be cut short.
            let [what, number, hash, parent] = words.as_slice() else { continue };
            let Ok(parent) = parent.parse::<B256>() else { continue };
            let id = BlockId::new(number.parse().unwrap(), hash.parse().unwrap());
            parents.insert(id.hash, BlockId::new(id.number - 1, parent));
            match *what {
                "committed" => blocks.push(id),
                _ => last_head = Some(id.number),
            }
        }
        println!("round {round}: {} blocks, base {}", blocks.len(), report.base.number);
        for id in &blocks {
            let found = writer.block(BlockRef::Hash(id.hash)).unwrap().is_some();
            // The base cannot step back below its reverse diffs. So a branch that leaves its chain
            // there cannot become canonical any more, and is dropped as a whole.
            let fork = fork_point(&writer, parents, *id);
            let over = fork.number + config.reverse_diff_blocks <= report.base.number;
            assert!(found || over, "{id} is lost, whose branch begins on {fork}");
        }
        if let Some(head) = last_head {
            assert!(report.head.number + 2 >= head, "the head went back");
        }
    }
}

/// Returns the canonical block on which the branch of this block begins.
fn fork_point(
    writer: &StorageWriter,
    parents: &HashMap<B256, BlockId>,
    mut block: BlockId,
) -> BlockId {
    let canonical = |id: BlockId| {
        let header = writer.header(BlockRef::Number(id.number)).unwrap();
        header.is_some_and(|(found, _)| found == id)
    };
    while !canonical(block) {
        block = parents[&block.hash];
    }
    block
}

/// A block is committed while its root is still being computed. If the process dies before the root
/// turns out wrong, the block is never discarded.
#[test]
fn a_block_that_was_never_proven_does_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let (genesis, world) = new_chain(directory.path());
    let mut random = Random(7);
    let (good, bad, child) = {
        let writer =
            StorageWriter::start(Config::with_small_limits(directory.path()), Deps::default())
                .unwrap();
        let epoch = writer.acquire_epoch("test").unwrap();
        let (diff, after) = next(&world, 11);
        let good = block(genesis, &after, diff.clone(), &mut random);
        // The header of this block promises the parent's state, but the diff leads to another.
        let bad = block(genesis, &world, diff, &mut random);
        let (diff, after) = next(&after, 13);
        let child = block(bad.id, &after, diff, &mut random);
        for block in [&good, &bad, &child] {
            writer.commit(epoch, block.clone()).unwrap();
        }
        (good.id, bad.id, child.id)
    };
    let writer =
        StorageWriter::start(Config::with_small_limits(directory.path()), Deps::default()).unwrap();
    let known = |id: BlockId| writer.header(BlockRef::Hash(id.hash)).unwrap().is_some();
    assert!(known(good));
    assert!(!known(bad) && !known(child));
    assert_eq!(writer.pending().unwrap().len(), 1);
}
