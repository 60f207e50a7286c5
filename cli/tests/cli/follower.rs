//! A follower of a cluster: a copy in a process of its own.

use crate::binary;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path, process::Command};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::{
    Client, Corpus, Process, Recorded, Running, Six, send_head, send_payload,
};
use tempfile::TempDir;

/// Starts a follower of the cluster's storage-writer. Returns it with the client of its JSON-RPC.
fn follow(folder: &Path, name: &str, six: &Six) -> (Running, Client) {
    let (datadir, certificates) =
        (folder.join("copy/data"), folder.join("data/certificates/follower"));
    let leader = format!("https://127.0.0.1:{}", six.port("storage-writer", "grpc"));
    let file = |file: &str| certificates.join(file).to_str().unwrap().to_owned();
    let (ca, cert, key) = (file("ca.crt"), file("tls.crt"), file("tls.key"));
    let given = ["follower", "--leader", &leader, "--datadir", datadir.to_str().unwrap()];
    let settings = folder.join("settings.toml");
    let ports = ["--http.port", "0", "--config", settings.to_str().unwrap()];
    let tls = ["--tls.ca", &ca, "--tls.cert", &cert, "--tls.key", &key];
    let arguments = [&given[..], &ports, &tls].concat();
    let mut running = Running::start(binary(), folder, name, arguments);
    let address = running.says("listening port=\"http\" address=").parse().unwrap();
    // The port answers once the copy is open.
    let serves = || running.log().contains("following leader=").then_some(());
    eventually("the follower serves", serves);
    (running, Client::new(address, None))
}

/// Sends a block and makes it the head, until there is an answer.
async fn extend(six: &Six, engine: &mut Client, block: &Recorded) {
    for _ in 0..600 {
        let sent = send_payload(engine, block).await.is_ok();
        if sent && send_head(engine, block.hash).await.is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("block {} is not taken\n{}", block.hash, six.log());
}

/// Waits until both have the same head.
async fn meet(leader: &mut Client, follower: &mut Client) {
    let latest = json!(["latest", false]);
    for _ in 0..600 {
        let want = leader.call("eth_getBlockByNumber", latest.clone()).await.unwrap();
        // A follower that starts again does not answer.
        let got = follower.call("eth_getBlockByNumber", latest.clone()).await;
        if got.is_ok_and(|got| want["hash"] == got["hash"]) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the follower does not reach the leader's head");
}

/// Compares the answers of both to questions about random blocks, accounts and slots.
async fn compare(leader: &mut Client, follower: &mut Client, random: &mut StdRng) {
    let head = leader.call("eth_blockNumber", json!([])).await.unwrap();
    let head = u64::from_str_radix(&head.as_str().unwrap()[2..], 16).unwrap();
    // A copy has the states from the one on that it began with.
    let can = follower.call("eth_capabilities", json!([])).await.unwrap();
    let oldest = as_number(can["state"]["oldestBlock"].as_str().unwrap());
    let mut questions: Vec<(&str, Value)> = Vec::new();
    for _ in 0..12 {
        let number = format!("{:#x}", 1 + random.random_range(0..head));
        let recent = head - random.random_range(0..head.min(12));
        let recent = format!("{:#x}", recent.max(oldest));
        let block = json!([number, true]);
        let full = leader.call("eth_getBlockByNumber", block.clone()).await.unwrap();
        questions.push(("eth_getBlockByNumber", block));
        questions.push(("eth_getBlockByHash", json!([full["hash"], false])));
        questions.push(("eth_getBlockReceipts", json!([number])));
        questions.push(("eth_getLogs", json!([{"fromBlock": number, "toBlock": recent}])));
        questions.push(("eth_feeHistory", json!(["0x4", number, [50]])));
        questions.push(("debug_getRawBlock", json!([number])));
        let transactions = full["transactions"].as_array().unwrap();
        if transactions.is_empty() {
            continue;
        }
        let transaction = transactions.choose(random).unwrap();
        let hash = &transaction["hash"];
        questions.push(("eth_getTransactionByHash", json!([hash])));
        questions.push(("eth_getTransactionReceipt", json!([hash])));
        let slot = format!("{:#x}", random.random_range(0..8));
        for who in ["from", "to"] {
            let address = &transaction[who];
            if address.is_null() {
                continue;
            }
            questions.push(("eth_getBalance", json!([address, recent])));
            questions.push(("eth_getTransactionCount", json!([address, recent])));
            questions.push(("eth_getCode", json!([address, recent])));
            questions.push(("eth_getStorageAt", json!([address, slot, recent])));
            questions.push(("eth_getProof", json!([address, [slot], recent])));
            let call = json!({"from": transaction["from"], "to": address});
            questions.push(("eth_call", json!([call, recent])));
            questions.push(("eth_estimateGas", json!([call, recent])));
        }
    }
    for (method, params) in questions {
        let want = leader.call(method, params.clone()).await;
        let got = follower.call(method, params.clone()).await;
        match (want, got) {
            (Ok(want), Ok(got)) => assert_eq!(got, want, "{method} {params}"),
            (Err(_), Err(_)) => {}
            (want, got) => panic!("{method} {params}: {got:?}, the leader says {want:?}"),
        }
    }
}

/// Settings with which the base is never far below the head, so that states are soon too old for a leader.
const SETTINGS: &str = "[storage_writer]\nunfinalized_blocks_max = 16\n";

/// Question with its answer.
type Noted = (&'static str, Value, Value);

/// Returns answers of the leader about accounts of its head, with the head's number in the questions.
async fn note(leader: &mut Client, random: &mut StdRng) -> Vec<Noted> {
    let head = leader.call("eth_getBlockByNumber", json!(["latest", true])).await.unwrap();
    let Some(transaction) = head["transactions"].as_array().unwrap().choose(random) else {
        return Vec::new();
    };
    let (number, from) = (&head["number"], &transaction["from"]);
    let to = if transaction["to"].is_null() { from } else { &transaction["to"] };
    let slot = format!("{:#x}", random.random_range(0..8));
    let call = json!({"from": from, "to": to, "data": transaction["input"]});
    let questions = [
        ("eth_getBalance", json!([from, number])),
        ("eth_getTransactionCount", json!([from, number])),
        ("eth_getBalance", json!([to, number])),
        ("eth_getCode", json!([to, number])),
        ("eth_getStorageAt", json!([to, slot, number])),
        ("eth_call", json!([call, number])),
        ("eth_estimateGas", json!([call, number])),
    ];
    let mut noted = Vec::new();
    for (method, params) in questions {
        // Some calls fail.
        if let Ok(answer) = leader.call(method, params.clone()).await {
            noted.push((method, params, answer));
        }
    }
    noted
}

/// Asks a follower for what a leader answered when the blocks were new, and for what is too old.
async fn look_back(leader: &mut Client, follower: &mut Client, noted: &[Noted]) {
    for (method, params, answer) in noted {
        let got = follower.call(method, params.clone()).await.unwrap();
        assert_eq!(got, *answer, "{method} {params}");
    }
    let (method, params, _) = &noted[0];
    let (account, number) = (&params[0], &params[1]);
    let refused = leader.call(method, params.clone()).await.unwrap_err();
    assert_eq!(refused.code, 4444, "{refused:?}");
    let refused = follower.call("eth_getProof", json!([account, [], number])).await.unwrap_err();
    assert_eq!(refused.code, 4444, "{refused:?}");
    assert!(refused.message.contains("oldest block with tries"), "{refused:?}");
    // The copy of the state began above block 1.
    let refused = follower.call("eth_getBalance", json!([account, "0x1"])).await.unwrap_err();
    assert_eq!(refused.code, 4444, "{refused:?}");
    let can = follower.call("eth_capabilities", json!([])).await.unwrap();
    let oldest = can["state"]["oldestBlock"].as_str().unwrap();
    assert!(refused.message.contains(&format!("of block {}", as_number(oldest))), "{refused:?}");
    assert!(as_number(oldest) <= as_number(number.as_str().unwrap()));
    assert!(as_number(oldest) < as_number(can["stateproofs"]["oldestBlock"].as_str().unwrap()));
}

fn as_number(quantity: &str) -> u64 {
    u64::from_str_radix(&quantity[2..], 16).unwrap()
}

/// Follows a replay through kills of either side and through a step back of the head.
async fn followed(corpus: &Corpus, seed: u64) {
    let folder = TempDir::new().unwrap();
    let settings = folder.path().join("settings.toml");
    std::fs::write(&settings, SETTINGS).unwrap();
    let more = ["--nats", "none", "--config", settings.to_str().unwrap()];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    let (mut engine, mut leader) = (six.endpoints.engine(), six.endpoints.http());
    let blocks: Vec<Recorded> = corpus.payloads().collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut noted = Vec::new();
    let (first, second) = (blocks.len() / 3, blocks.len() * 2 / 3);
    for block in &blocks[..first] {
        extend(&six, &mut engine, block).await;
    }
    // It has no database, so it copies a state.
    let (mut running, mut follower) = follow(folder.path(), "follower", &six);
    meet(&mut leader, &mut follower).await;
    compare(&mut leader, &mut follower, &mut random).await;
    for block in &blocks[first..second] {
        extend(&six, &mut engine, block).await;
        noted.extend(note(&mut leader, &mut random).await);
        if random.random_range(0..8) == 0 {
            running.kill();
            (running, follower) = follow(folder.path(), "follower-again", &six);
        }
    }
    meet(&mut leader, &mut follower).await;
    // The head steps back, and comes again.
    let back = &blocks[second - 1 - random.random_range(0..4) as usize - 1];
    send_head(&mut engine, back.hash).await.unwrap();
    meet(&mut leader, &mut follower).await;
    compare(&mut leader, &mut follower, &mut random).await;
    six.kill("storage-writer");
    for block in &blocks[second..] {
        extend(&six, &mut engine, block).await;
    }
    meet(&mut leader, &mut follower).await;
    compare(&mut leader, &mut follower, &mut random).await;
    look_back(&mut leader, &mut follower, &noted).await;
    let refused = follower.call("eth_sendRawTransaction", json!(["0x00"])).await.unwrap_err();
    assert!(refused.message.contains("no transaction pool"), "{refused:?}");
    let syncing = follower.call("eth_syncing", json!([])).await.unwrap();
    assert_eq!(syncing, json!(false));
    let (status, _) = running.terminate();
    assert!(status.success(), "{status}\n{}", running.log());
    let (status, text) = Process::verify(binary(), &folder.path().join("copy"));
    assert!(status.success(), "{status}\n{text}");
    six.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_has_followers_and_restarts_them() {
    let corpus = Corpus::demo();
    let folder = TempDir::new().unwrap();
    let more = ["--nats", "none", "--followers", "2"];
    let mut six = Six::start(binary(), folder.path(), &corpus.genesis(), &more);
    let (mut engine, mut leader) = (six.endpoints.engine(), six.endpoints.http());
    let mut followers = [1, 2].map(|number| {
        let port = six.port(&format!("follower-{number}"), "http");
        Client::new(SocketAddr::from(([127, 0, 0, 1], port)), None)
    });
    let blocks: Vec<Recorded> = corpus.payloads().collect();
    let mut random = StdRng::seed_from_u64(0xc1);
    let (first, second) = blocks.split_at(blocks.len() / 2);
    for block in first {
        extend(&six, &mut engine, block).await;
    }
    for follower in &mut followers {
        meet(&mut leader, follower).await;
    }
    six.kill("follower");
    for block in second {
        extend(&six, &mut engine, block).await;
    }
    for follower in &mut followers {
        meet(&mut leader, follower).await;
        compare(&mut leader, follower, &mut random).await;
    }
    assert!(six.log().contains("follower-1 runs again"), "{}", six.log());
    let (status, _) = six.stop();
    assert!(status.success(), "{status}\n{}", six.log());
    let log = six.log();
    let (_, usage) = log.split_once("CPU ms a block").unwrap();
    let rows = usage.lines().filter(|line| line.starts_with("follower-")).count();
    assert_eq!(rows, 2, "{log}");
    for number in [1, 2] {
        let copy = folder.path().join(format!("data/followers/follower-{number}"));
        let (status, text) = Process::verify_datadir(binary(), &copy);
        assert!(status.success(), "{status}\n{text}");
    }
}

/// Blocks and states come from the copy, transactions go to the cluster's tx-pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exchanges_of_execution_apis_pass_on_a_follower() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let exchanges = package.join("../tools/conformance/fixtures/execution-apis/tests");
    let genesis = exchanges.join("genesis.json");
    let folder = TempDir::new().unwrap();
    let mut import = Command::new(binary());
    import.args(["import", "--datadir"]).arg(folder.path().join("data"));
    import.arg("--genesis").arg(&genesis).arg(exchanges.join("chain.rlp"));
    let imported = import.output().unwrap();
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let more = ["--nats", "none", "--followers", "1"];
    let mut six = Six::start(binary(), folder.path(), &genesis, &more);
    let head = std::fs::read(exchanges.join("headfcu.json")).unwrap();
    let head: Value = serde_json::from_slice(&head).unwrap();
    let mut engine = six.endpoints.engine();
    engine.call(head["method"].as_str().unwrap(), head["params"].clone()).await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], six.port("follower-1", "http")));
    meet(&mut six.endpoints.http(), &mut Client::new(address, None)).await;
    let mut conformance = Command::new(binary());
    conformance.arg("conformance").arg(&exchanges).args(["--rpc", &address.to_string()]);
    let output = conformance.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", six.log());
    assert!(text.contains("96 passed, 0 failed, 82 skipped"), "{text}");
    six.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_as_its_leader_does_through_kills_and_reorgs() {
    followed(&Corpus::demo(), 0x5eed).await;
}
