//! Snapshots of a cluster at work and of a node, restored elsewhere.

mod bucket;

use crate::binary;
use bucket::{BUCKET, Bucket};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::Duration,
};
use tandem_cluster_tests::{
    Client, Corpus, Process, Recorded, Running, Six, send_head, send_payload,
};
use tandem_primitives::B256;
use tempfile::TempDir;

fn run(arguments: &[&str], folder: &Path) -> Output {
    Command::new(binary()).args(arguments).current_dir(folder).output().unwrap()
}

/// Runs a command that has to succeed, and returns its JSON.
fn answer(arguments: &[&str], folder: &Path) -> Value {
    let output = run(arguments, folder);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that has to fail, and returns its message.
fn refusal(arguments: &[&str], folder: &Path) -> String {
    let output = run(arguments, folder);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(!output.status.success(), "{arguments:?}: {text}");
    text
}

async fn extend(engine: &mut Client, blocks: &[Recorded]) {
    for block in blocks {
        let mut result = Err(String::new());
        for _ in 0..600 {
            result = match send_payload(engine, block).await {
                Ok(()) => send_head(engine, block.hash).await,
                refused => refused,
            };
            if result.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        result.unwrap();
    }
}

async fn head(client: &mut Client) -> Value {
    client.call("eth_getBlockByNumber", json!(["latest", false])).await.unwrap()["hash"].clone()
}

/// Returns a chunk of the store.
fn any_chunk(store: &Path) -> PathBuf {
    let folders = fs::read_dir(store.join("chunks")).unwrap().map(|it| it.unwrap().path());
    let files = folders.flat_map(|it| fs::read_dir(it).unwrap().map(|it| it.unwrap().path()));
    files.max_by_key(|it| fs::metadata(it).unwrap().len()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_a_cluster_at_work_are_restored_and_carry_the_next_blocks() {
    let (corpus, directory) = (Corpus::demo(), TempDir::new().unwrap());
    let folder = directory.path().to_owned();
    let mut six = Six::start(binary(), &folder, &corpus.genesis(), &["--nats", "none"]);
    let mut engine = six.endpoints.engine();
    let blocks: Vec<Recorded> = corpus.payloads().collect();
    let (first, second) = (blocks.len() / 3, blocks.len() * 2 / 3);
    extend(&mut engine, &blocks[..first]).await;
    let writer = format!("https://127.0.0.1:{}", six.port("storage-writer", "grpc"));
    let create = ["snapshot", "create", "--datadir", "data", "--store", "store", "--json"];
    let text = refusal(&create, &folder);
    assert!(text.contains("--storage-writer"), "{text}");
    let other = ["snapshot", "create", "--datadir", "copy", "--store", "store"];
    fs::create_dir(folder.join("copy")).unwrap();
    let certificates = |name: &str| format!("data/certificates/{name}");
    let tls = |role: &str| {
        ["ca.crt", "tls.crt", "tls.key"].map(|it| certificates(&format!("{role}/{it}")))
    };
    let [ca, cert, key] = tls("follower");
    let follower = ["--tls.ca", &ca, "--tls.cert", &cert, "--tls.key", &key];
    let live = [&create[..], &["--storage-writer", &writer]].concat();
    let text = refusal(&[&live[..], &follower].concat(), &folder);
    assert!(text.contains("operator"), "{text}");
    // Blocks go on while the snapshot is made.
    let (arguments, place) =
        (live.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>(), folder.clone());
    let making = thread::spawn(move || {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        answer(&arguments, &place)
    });
    extend(&mut engine, &blocks[first..second]).await;
    let made = making.join().unwrap();
    assert_eq!(made["new_chunks"], made["chunks"], "{made}");
    assert!(!folder.join("data/checkpoint").exists());
    let number = made["subject"]["head"]["number"].as_u64().unwrap();
    assert!((first as u64..=second as u64).contains(&number), "{made}");
    let [ca, cert, key] = tls("operator");
    let operator = ["--tls.ca", &ca, "--tls.cert", &cert, "--tls.key", &key];
    let elsewhere = [&other[..], &["--storage-writer", &writer], &operator].concat();
    let text = refusal(&elsewhere, &folder);
    assert!(text.contains("--datadir must be its data directory"), "{text}");
    fs::remove_dir_all(folder.join("data/checkpoint")).unwrap();
    // The name of a snapshot has the second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let again = answer(&live, &folder);
    let [new, all] = ["new_chunks", "chunks"].map(|it| again[it].as_u64().unwrap());
    assert!(0 < new && new < all, "{again}");
    let list = answer(&["snapshot", "list", "--store", "store", "--json"], &folder);
    let names: Vec<_> = list.as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, [&made["name"], &again["name"]]);
    assert!(six.stop().0.success(), "{}", six.log());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let stopped = answer(&create, &folder);
    assert_eq!(stopped["subject"]["head"]["hash"], json!(blocks[second - 1].hash));
    let text = run(&["snapshot", "list", "--store", "store"], &folder).stdout;
    assert_eq!(String::from_utf8(text).unwrap().lines().count(), 4);

    restored_elsewhere(&folder, &corpus, stopped["name"].as_str().unwrap()).await;
    // The snapshot of the cluster at work is whole too.
    let name = made["name"].as_str().unwrap();
    let restore = ["snapshot", "restore", "--datadir", "early", "--store", "store", "--json"];
    let early = answer(&[&restore[..], &["--snapshot", name, "--no-verify"]].concat(), &folder);
    assert_eq!((&early["subject"], &early["verified"]), (&made["subject"], &false.into()));
    let (status, text) = Process::verify_datadir(binary(), &folder.join("early"));
    assert!(status.success() && text.contains("no difference"), "{text}");
    assert!(text.contains(&format!("head {number} ")), "{text}");
}

/// Restores a snapshot after an interruption, and starts a node on it that gets the next blocks.
async fn restored_elsewhere(folder: &Path, corpus: &Corpus, name: &str) {
    let blocks: Vec<Recorded> = corpus.payloads().collect();
    let second = blocks.len() * 2 / 3;
    let (chunk, hidden) = (any_chunk(&folder.join("store")), folder.join("hidden"));
    fs::rename(&chunk, &hidden).unwrap();
    let restore = ["snapshot", "restore", "--datadir", "copy/data", "--store", "store", "--json"];
    let text = refusal(&[&restore[..], &["--snapshot", name]].concat(), folder);
    let hash = chunk.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(hash) && text.contains("it is missing"), "{text}");
    let genesis = corpus.genesis();
    let genesis = genesis.to_str().unwrap();
    let node = ["node", "--datadir", "copy/data", "--disable-discovery", "--disable-sessions"];
    for start in [&node[..], &[&node[..], &["--genesis", genesis]].concat()] {
        let text = refusal(start, folder);
        assert!(text.contains("finish with `tandem snapshot restore`"), "{text}");
    }
    fs::rename(&hidden, &chunk).unwrap();
    // Without a name, it goes on with the snapshot that was begun.
    let restored = answer(&restore, folder);
    assert_eq!((&restored["name"], &restored["verified"]), (&json!(name), &true.into()));
    assert!(restored["kept_bytes"].as_u64().unwrap() > 0, "{restored}");
    let text = refusal(&restore, folder);
    assert!(text.contains("has a database already"), "{text}");
    let (status, text) = Process::verify(binary(), &folder.join("copy"));
    assert!(status.success() && text.contains("no difference"), "{text}");
    let node = Process::start(binary(), &folder.join("copy"), &corpus.genesis()).await;
    let (mut engine, mut public) = (node.client(), node.public_client());
    assert_eq!(head(&mut public).await, json!(blocks[second - 1].hash));
    extend(&mut engine, &blocks[second..]).await;
    assert_eq!(head(&mut public).await, json!(blocks[blocks.len() - 1].hash));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_offers_its_storage_writer_gives_snapshots_and_is_followed() {
    let (corpus, directory) = (Corpus::demo(), TempDir::new().unwrap());
    let folder = directory.path();
    fs::write(folder.join("tandem.toml"), "[storage_writer]\ngrpc_addr = \"127.0.0.1:0\"\n")
        .unwrap();
    let genesis = corpus.genesis();
    let arguments = [
        "node",
        "--datadir",
        folder.join("data").to_str().unwrap(),
        "--genesis",
        genesis.to_str().unwrap(),
        "--config",
        folder.join("tandem.toml").to_str().unwrap(),
        "--authrpc.port",
        "0",
        "--http.port",
        "0",
        "--disable-discovery",
        "--disable-sessions",
    ]
    .map(str::to_owned);
    let mut node = Running::start(binary(), folder, "node", arguments.clone());
    let mut port = |name: &str| node.says(&format!("listening port=\"{name}\" address="));
    let engine = port("engine").parse().unwrap();
    let writer = port("storage");
    let secret = tandem_auth::Secret::load(&folder.join("data/jwt.hex")).unwrap();
    let blocks: Vec<Recorded> = corpus.payloads().take(24).collect();
    let mut engine = Client::new(engine, Some(secret));
    extend(&mut engine, &blocks[..16]).await;
    let create = ["snapshot", "create", "--datadir", "data", "--store", "store", "--json"];
    let plain = format!("http://{writer}");
    refusal(&[&create[..], &["--storage-writer", &plain]].concat(), folder);
    let url = format!("https://{writer}");
    let made = answer(&[&create[..], &["--storage-writer", &url]].concat(), folder);
    assert_eq!(made["subject"]["head"]["hash"], json!(blocks[15].hash));
    extend(&mut engine, &blocks[16..]).await;
    let copy = Follows { folder, url: &url, head: blocks[23].hash };
    let log = copy.reaches_the_head("copy", "store").await;
    assert!(log.contains("snapshot restored"), "{log}");
    assert!(!log.contains("a first state is copied"), "{log}");
    // A snapshot of another chain is of no use.
    let init = ["init", "--genesis", "genesis.json", "--datadir", "other"];
    fs::write(folder.join("genesis.json"), tandem_testkit::world::genesis().0).unwrap();
    assert!(run(&init, folder).status.success());
    answer(&["snapshot", "create", "--datadir", "other", "--store", "others", "--json"], folder);
    let log = copy.reaches_the_head("second", "others").await;
    assert!(log.contains("a snapshot is of no use") && log.contains("genesis block"), "{log}");
    assert!(log.contains("a first state is copied"), "{log}");
    assert!(node.terminate().0.success());
}

/// Followers of a node.
struct Follows<'a> {
    folder: &'a Path,
    url: &'a str,
    head: B256,
}

impl Follows<'_> {
    /// Starts a follower that may begin with a snapshot, and waits until it has the head. Returns its log.
    async fn reaches_the_head(&self, name: &str, store: &str) -> String {
        let certificate = |file: &str| {
            let path = self.folder.join("data/certificates/follower").join(file);
            path.to_str().unwrap().to_owned()
        };
        let [ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"].map(certificate);
        let [datadir, store] = [name, store].map(|it| self.folder.join(it));
        let [datadir, store] = [&datadir, &store].map(|it| it.to_str().unwrap());
        let given = ["follower", "--leader", self.url, "--datadir", datadir, "--snapshot", store];
        let tls = ["--tls.ca", &ca, "--tls.cert", &cert, "--tls.key", &key, "--http.port", "0"];
        let arguments = [&given[..], &tls].concat();
        let mut follower = Running::start(binary(), self.folder, &format!("{name}-log"), arguments);
        let public = follower.says("listening port=\"http\" address=").parse().unwrap();
        let mut client = Client::new(public, None);
        for _ in 0..400 {
            let latest = client.call("eth_getBlockByNumber", json!(["latest", false])).await;
            if latest.is_ok_and(|it| it["hash"] == json!(self.head)) {
                assert!(follower.terminate().0.success());
                return follower.log();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the follower does not reach the head\n{}", follower.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_holds_snapshots_too() {
    let (corpus, directory) = (Corpus::demo(), TempDir::new().unwrap());
    let (bucket, address) = Bucket::start().await;
    let folder = directory.path();
    let genesis = corpus.genesis();
    let init = ["init", "--genesis", genesis.to_str().unwrap(), "--datadir", "data"];
    assert!(run(&init, folder).status.success());
    let store = format!("s3://{BUCKET}/main/net");
    let with_keys = |arguments: &[&str]| {
        let output = Command::new(binary())
            .args(arguments)
            .args(["--store", &store, "--json"])
            .envs([("AWS_ENDPOINT", format!("http://{address}"))])
            .envs([("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "here"), ("NO_PROXY", "127.0.0.1")])
            .envs([("AWS_ACCESS_KEY_ID", "user"), ("AWS_SECRET_ACCESS_KEY", "secret")])
            .current_dir(folder)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {error}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let made = with_keys(&["snapshot", "create", "--datadir", "data"]);
    let name = made["name"].as_str().unwrap();
    let keys: Vec<_> = bucket.objects.lock().unwrap().keys().cloned().collect();
    assert!(keys.contains(&format!("main/net/snapshots/{name}.json")), "{keys:?}");
    let (chunks, all) = (keys.len() - 1, made["chunks"].as_u64().unwrap());
    // Equal chunks are one object.
    assert!(0 < chunks && chunks as u64 <= all, "{keys:?}");
    assert_eq!(with_keys(&["snapshot", "create", "--datadir", "data"])["subject"], made["subject"]);
    assert!(
        with_keys(&["snapshot", "list"]).as_array().unwrap().iter().any(|it| it["name"] == name)
    );
    let restored = with_keys(&["snapshot", "restore", "--datadir", "copy", "--snapshot", name]);
    assert_eq!(restored["verified"], true);
    assert_eq!(*bucket.unsigned.lock().unwrap(), 0);
}
