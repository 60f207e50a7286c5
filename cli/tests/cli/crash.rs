//! Kills the `tandem` process at any moment: no block that was answered VALID is lost, and `tandem
//! verify` finds no fault in the database, also while its state is spread over directories.

use crate::binary;
use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command, time::Duration};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    Builder, Built, Client, Contents, Corpus, Forks, Process, Recorded, decode_status,
};
use tempfile::TempDir;

const KILLS: usize = 10;
const SEED: u64 = 20_001;
/// Kills after which the state lies in two directories, and in one again.
const SPREAD: usize = 3;
const GATHERED: usize = 7;

/// Spreads the state of a killed node over directories, or gathers it.
fn spread(folder: &Path, directories: &[&str]) {
    let mut command = Command::new(binary());
    command.args(["db", "spread", "--datadir", "data"]).current_dir(folder);
    for directory in directories {
        command.args(["--directory", directory]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a block the head. Returns `Err` if the node died meanwhile.
async fn set_head(client: &mut Client, head: B256) -> Result<(), String> {
    let state = json!({
        "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO,
    });
    let answer = client.try_call("engine_forkchoiceUpdatedV3", json!([state, null])).await?;
    let status = decode_status(answer.unwrap()["payloadStatus"].clone());
    assert_eq!(status.verdict(), ("VALID", Some(head)), "{status:?}");
    Ok(())
}

/// Sends a block. Returns `Err` if the node died meanwhile.
async fn send(client: &mut Client, block: &Recorded) -> Result<(), String> {
    let answer: Result<Value, _> = client.try_call(&block.method, block.params.clone()).await?;
    let status = decode_status(answer.unwrap());
    assert_eq!(status.verdict(), ("VALID", Some(block.hash)), "{status:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_valid_block_is_lost_when_the_process_is_killed() {
    let binary = binary();
    let corpus = Corpus::demo();
    let blocks: Vec<_> = corpus.payloads().collect();
    let folder = TempDir::new().unwrap();
    let mut rng = StdRng::seed_from_u64(SEED);
    // Number of blocks answered VALID so far. Everything after a restart builds on the last of
    // them.
    let mut valid = 0;
    for kill in 0..KILLS {
        match kill {
            SPREAD => spread(folder.path(), &["disk-1", "disk-2"]),
            GATHERED => spread(folder.path(), &[]),
            _ => {}
        }
        let mut process = Process::start(binary, folder.path(), &corpus.genesis()).await;
        let mut client = process.client();
        let label = format!("kill {kill} after block {valid}, seed {SEED}");
        let calm = rng.random_range(2..=4);
        for block in &blocks[valid..valid + calm] {
            send(&mut client, block).await.unwrap_or_else(|error| {
                panic!("{label}: {error}\n{}", process.log());
            });
            valid += 1;
            // Sometimes the head lags behind.
            if rng.random_bool(0.7) {
                set_head(&mut client, block.hash).await.unwrap();
            }
        }
        // The process dies at some moment within one more block and a new head.
        let last = blocks[valid].clone();
        let work = tokio::spawn(async move {
            let answered = send(&mut client, &last).await.is_ok();
            if answered {
                let _ = set_head(&mut client, last.hash).await;
            }
            answered
        });
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..150_000))).await;
        process.kill();
        valid += usize::from(work.await.unwrap());
    }
    assert!(valid < blocks.len(), "blocks are left for the end");
    let mut process = Process::start(binary, folder.path(), &corpus.genesis()).await;
    let mut client = process.client();
    for block in &blocks[valid..] {
        send(&mut client, block).await.unwrap();
        set_head(&mut client, block.hash).await.unwrap();
    }
    let head = client.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(head["hash"], json!(corpus.head_hash));
    assert_eq!(head["stateRoot"], json!(corpus.head_state_root));
    process.kill();
    let (status, text) = Process::verify(binary, folder.path());
    assert!(status.success(), "{status}, seed {SEED}\n{text}");
}

/// Moves the head between two branches that part far below the base. The process dies while the
/// base steps back, while blocks move into it, or in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_while_it_reorganises_comes_back_on_one_of_the_branches() {
    let binary = binary();
    let folder = TempDir::new().unwrap();
    let genesis = folder.path().join("genesis.json");
    let mut builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    fs::write(&genesis, builder.genesis_json()).unwrap();
    let trunk = builder.chain(builder.genesis(), SEED, 50, Contents::Random(6));
    let side = builder.chain(trunk[9].hash, SEED + 1, 42, Contents::Random(6));
    let branches: [&[Built]; 2] = [&trunk, &side];
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut heads = vec![builder.genesis()];
    for kill in 0..=KILLS {
        let label = format!("kill {kill}, seed {SEED}");
        let mut process = Process::start(binary, folder.path(), &genesis).await;
        let mut client = process.client();
        let head = client.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
        let head: B256 = serde_json::from_value(head["hash"].clone()).unwrap();
        assert!(heads.contains(&head), "{label}: head {head}, none of {heads:?}");
        for built in branches.into_iter().flatten() {
            let (method, params) = built.new_payload();
            let status = decode_status(client.call(method, params).await.unwrap());
            assert_eq!(status.verdict(), ("VALID", Some(built.hash)), "{label}: {status:?}");
        }
        let targets = [branches[kill % 2], branches[(kill + 1) % 2]].map(|b| b[b.len() - 1].hash);
        heads = vec![head, targets[0], targets[1]];
        if kill == KILLS {
            set_head(&mut client, targets[0]).await.unwrap();
            process.kill();
            break;
        }
        let work = tokio::spawn(async move {
            for target in targets.into_iter().cycle() {
                set_head(&mut client, target).await?;
            }
            Ok::<_, String>(())
        });
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..60_000))).await;
        process.kill();
        assert!(work.await.unwrap().is_err(), "{label}: the node died too late");
    }
    let (status, text) = Process::verify(binary, folder.path());
    assert!(status.success(), "{status}, seed {SEED}\n{text}");
}
