//! Kills the `tandem` process while users send transactions: none that was accepted is lost.

use crate::binary;
use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Client, Forks, Process, Transfer, is_full_run, wait};
use tempfile::TempDir;

const KILLS: usize = 3;
const KILLS_FULL: usize = 50;
const SEED: u64 = 34_050;
const SENDERS: usize = 8;
/// Transactions that users send before a kill, unless it comes earlier.
const SENT_MAX: usize = 40;
const TIP: u128 = 1_000_000_000;

/// Sender and nonce of a transaction.
type Place = (usize, u64);

/// Sends transactions until the node is gone. Returns those that it accepted, and the one that it did
/// not answer.
async fn send(
    mut client: Client,
    senders: Vec<usize>,
    mut next: [u64; SENDERS],
    count: Arc<AtomicUsize>,
) -> (Vec<(Place, B256)>, Option<Place>) {
    let mut accepted = Vec::new();
    for sender in senders {
        let place = (sender, next[sender]);
        let Transfer { raw, hash, .. } = Transfer::new(sender, place.1, TIP);
        match client.try_call("eth_sendRawTransaction", json!([raw])).await {
            Ok(answer) => assert_eq!(answer.unwrap(), json!(hash)),
            Err(_) => return (accepted, Some(place)),
        }
        accepted.push((place, hash));
        next[sender] += 1;
        count.fetch_add(1, Relaxed);
    }
    (accepted, None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_transaction_is_lost_when_the_process_is_killed() {
    let kills = if is_full_run() { KILLS_FULL } else { KILLS };
    let folder = TempDir::new().unwrap();
    let genesis = folder.path().join("genesis.json");
    fs::write(&genesis, Builder::new(Forks::at_genesis(Fork::Osaka)).genesis_json()).unwrap();
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut accepted = BTreeMap::<Place, B256>::new();
    let (mut next, mut unanswered) = ([0; SENDERS], None);
    for kill in 0..=kills {
        let args = ["--disable-sessions"];
        let mut process = Process::start_with(binary(), folder.path(), &genesis, &args).await;
        let mut client = process.public_client();
        let label = format!("kill {kill}, seed {SEED}");
        for (place, hash) in &accepted {
            wait(&format!("{label}: {place:?}"), async || {
                let found = client.call("eth_getTransactionByHash", json!([hash])).await.unwrap();
                (found["hash"] == json!(hash)).then_some(())
            })
            .await;
        }
        // It may have been accepted or not.
        if let Some((sender, nonce)) = unanswered {
            let Transfer { raw, hash, .. } = Transfer::new(sender, nonce, TIP);
            match client.call("eth_sendRawTransaction", json!([raw])).await {
                Ok(answer) => assert_eq!(answer, json!(hash)),
                Err(error) => assert!(error.message.contains("already known"), "{error:?}"),
            }
            accepted.insert((sender, nonce), hash);
            next[sender] = nonce + 1;
        }
        if kill == kills {
            break;
        }
        let senders = (0..SENT_MAX).map(|_| rng.random_range(0..SENDERS)).collect();
        let count = Arc::<AtomicUsize>::default();
        let work = tokio::spawn(send(client, senders, next, count.clone()));
        let enough = rng.random_range(2..SENT_MAX);
        wait("some answers", async || (count.load(Relaxed) >= enough).then_some(())).await;
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..2_000))).await;
        process.kill();
        let (sent, last) = work.await.unwrap();
        next = sent.iter().fold(next, |mut next, ((sender, nonce), _)| {
            next[*sender] = nonce + 1;
            next
        });
        accepted.extend(sent);
        unanswered = last;
    }
    assert!(accepted.len() >= 2 * kills, "{} transactions were sent", accepted.len());
}
