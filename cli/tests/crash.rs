//! The `tandem` process dies at any moment: no block that was answered VALID is lost, and the
//! database is one that `tandem verify` finds nothing wrong with.

#![allow(clippy::unwrap_used)]

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::time::Duration;
use tandem_cluster_tests::{Client, Corpus, Process, Recorded, decode_status};
use tempfile::TempDir;

const KILLS: usize = 10;
const SEED: u64 = 20_001;

/// The hash of a block, made the head.
async fn set_head(client: &mut Client, block: &Recorded) -> Result<(), String> {
    let state = json!({
        "headBlockHash": block.hash,
        "safeBlockHash": format!("0x{:064x}", 0),
        "finalizedBlockHash": format!("0x{:064x}", 0),
    });
    let answer = client.try_call("engine_forkchoiceUpdatedV3", json!([state, null])).await?;
    let status = decode_status(answer.unwrap()["payloadStatus"].clone());
    assert_eq!(status.verdict(), ("VALID", Some(block.hash)), "{status:?}");
    Ok(())
}

/// Sends a block; `Err` when the node died over it.
async fn send(client: &mut Client, block: &Recorded) -> Result<(), String> {
    let answer: Result<Value, _> = client.try_call(&block.method, block.params.clone()).await?;
    let status = decode_status(answer.unwrap());
    assert_eq!(status.verdict(), ("VALID", Some(block.hash)), "{status:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_valid_block_is_lost_when_the_process_is_killed() {
    let binary = Process::binary();
    let corpus = Corpus::demo();
    let blocks: Vec<_> = corpus.payloads().collect();
    let folder = TempDir::new().unwrap();
    let mut rng = StdRng::seed_from_u64(SEED);
    // Blocks answered VALID so far: everything after a restart builds on the last of them.
    let mut valid = 0;
    for kill in 0..KILLS {
        let mut process = Process::start(&binary, folder.path(), &corpus.genesis()).await;
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
                set_head(&mut client, block).await.unwrap();
            }
        }
        // One more block and a new head, somewhere within which the process dies.
        let last = blocks[valid].clone();
        let work = tokio::spawn(async move {
            let answered = send(&mut client, &last).await.is_ok();
            if answered {
                let _ = set_head(&mut client, &last).await;
            }
            answered
        });
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..150_000))).await;
        process.kill();
        valid += usize::from(work.await.unwrap());
    }
    assert!(valid < blocks.len(), "blocks are left for the end");
    let mut process = Process::start(&binary, folder.path(), &corpus.genesis()).await;
    let mut client = process.client();
    for block in &blocks[valid..] {
        send(&mut client, block).await.unwrap();
        set_head(&mut client, block).await.unwrap();
    }
    let head = client.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap();
    assert_eq!(head["hash"], json!(corpus.head_hash));
    assert_eq!(head["stateRoot"], json!(corpus.head_state_root));
    process.kill();
    let (status, text) = Process::verify(&binary, folder.path());
    assert!(status.success(), "{status}, seed {SEED}\n{text}");
}
