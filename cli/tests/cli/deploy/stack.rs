//! The whole stack in containers: `just compose-test`.

use crate::{
    deploy::{get, metrics::dashboards, skipped, succeeds},
    neighbour::stranger::{all_are_refused, strangers},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::File,
    net::{IpAddr, SocketAddr},
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_cluster_tests::repository;

/// Longest wait for all services to be healthy.
const DEADLINE: Duration = Duration::from_secs(300);
/// Maximum size of the image of all services.
const IMAGE_BYTES_MAX: u64 = 120_000_000;

/// Image of all services, as `just images-offline` makes it.
const IMAGE: &str = "tandem:offline";

/// Returns whether a command succeeds.
fn works(command: &[&str]) -> bool {
    let output = Command::new(command[0]).args(&command[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns whether there is a Docker daemon. Prints a line if there is none.
fn docker_answers() -> bool {
    let answers = works(&["docker", "info"]);
    if !answers {
        skipped("there is no Docker daemon");
    }
    answers
}

/// Returns the standard output of a Docker command.
fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    let said = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(output.status.success(), "{arguments:?}: {}", said(&output.stderr));
    said(&output.stdout)
}

/// A separate stack on free ports, from the images of `just images-offline`.
struct Stack {
    /// Command of Compose: `docker compose`, or `docker-compose`.
    compose: Vec<&'static str>,
    project: String,
}

impl Stack {
    /// Returns a stack; without Docker, prints a line and returns `None`.
    fn new() -> Option<Self> {
        if !docker_answers() {
            return None;
        }
        let compose = [vec!["docker", "compose"], vec!["docker-compose"]];
        let compose =
            compose.into_iter().find(|command| works(&[command, &["version"][..]].concat()));
        let Some(compose) = compose else {
            skipped("docker compose is not installed");
            return None;
        };
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Relaxed);
        let project = format!("tandem-test-{}-{number}", std::process::id());
        Some(Self { compose, project })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.compose[0]);
        command
            .args(&self.compose[1..])
            .args(["--project-name", &self.project])
            .args(arguments)
            .current_dir(repository())
            .env("TANDEM_IMAGE", IMAGE)
            .env("NATS_IMAGE", "tandem-nats:offline")
            .env("PROMETHEUS_IMAGE", "tandem-prometheus:offline");
        // An empty port is a free one.
        for port in
            ["TANDEM_ENGINE", "TANDEM_HTTP", "TANDEM_DISCOVERY", "TANDEM_SESSIONS", "PROMETHEUS"]
        {
            command.env(format!("{port}_PORT"), "127.0.0.1:");
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        succeeds(&mut self.command(arguments))
    }

    /// Returns the health of the containers by name, for those with a health check.
    fn health(&self) -> BTreeMap<String, String> {
        let label = format!("label=com.docker.compose.project={}", self.project);
        let list =
            succeeds(Command::new("docker").args(["ps", "--all", "--quiet", "--filter", &label]));
        let form =
            "{{.Name}} {{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{end}}";
        let mut inspect = Command::new("docker");
        inspect.args(["inspect", "--format", form]).args(list.split_whitespace());
        let lines = succeeds(&mut inspect);
        let lines = lines.lines().filter_map(|line| line.trim().split_once(' '));
        lines.map(|(name, state)| (name.to_owned(), state.to_owned())).collect()
    }

    /// Waits until this many workers and the six others are healthy.
    fn wait_until_healthy(&self, workers: usize) {
        let end = Instant::now() + DEADLINE;
        loop {
            let health = self.health();
            let healthy = health.values().filter(|state| *state == "running healthy").count();
            if healthy == workers + 6 {
                return;
            }
            if Instant::now() > end {
                let logs = self.run(&["logs", "--tail", "40"]);
                panic!("not healthy within {DEADLINE:?}: {health:#?}\n{logs}");
            }
            sleep(Duration::from_secs(1));
        }
    }

    /// Waits until this many services are scraped, and most queries of the dashboards have an
    /// answer.
    fn prometheus_hears_everyone(&self, services: u64) {
        let address = self.run(&["port", "prometheus", "9090"]);
        let ask = |query: &str| -> Value {
            let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let answer = get(address.trim(), &format!("/api/v1/query?query={query}"));
            let answer: Value = serde_json::from_str(&answer).unwrap();
            answer["data"]["result"].clone()
        };
        let end = Instant::now() + DEADLINE;
        let services = Value::from(services.to_string());
        while ask("count(up == 1)")[0]["value"][1] != services {
            assert!(Instant::now() < end, "not all are up: {:#}", ask("up"));
            sleep(Duration::from_secs(1));
        }
        let queries = dashboards();
        let answered = || queries.iter().filter(|query| ask(&query.text)[0].is_object()).count();
        // Some queries are about events that have not happened, or about services that are absent.
        // Rates have to wait for a second scrape.
        while answered() <= queries.len() / 2 {
            assert!(Instant::now() < end, "{} of {}", answered(), queries.len());
            sleep(Duration::from_secs(1));
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let down = ["--profile", "replay", "--profile", "dashboards", "down", "--volumes"];
        let _ = self.command(&[&down[..], &["--remove-orphans"]].concat()).output();
    }
}

/// A container that never starts, for its files.
struct Files(String);

impl Files {
    fn of(image: &str) -> Self {
        Self(docker(&["create", "--network", "none", image]))
    }

    /// Exports all its files as a tar file.
    fn export(&self, to: &Path) {
        let mut command = Command::new("docker");
        let file = File::create(to).unwrap();
        assert!(command.args(["export", &self.0]).stdout(file).status().unwrap().success());
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", &self.0]).output();
    }
}

#[test]
#[ignore = "needs Docker and the images of `just images-offline`: just compose-test"]
fn the_image_is_small_says_what_it_is_and_has_no_shell() {
    if !docker_answers() {
        return;
    }
    let inspected: Value = serde_json::from_str(&docker(&["image", "inspect", IMAGE])).unwrap();
    let (size, config) = (inspected[0]["Size"].as_u64().unwrap(), &inspected[0]["Config"]);
    eprintln!("the image takes {size} bytes");
    assert!(size < IMAGE_BYTES_MAX, "the image takes {size} bytes");
    assert_eq!(config["User"], "65532:65532");

    // Without rights, network or writable files, the image still reports its version.
    let run = ["run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none"];
    let said = docker(&[&run[..], &[IMAGE, "--version"]].concat());
    let version = env!("CARGO_PKG_VERSION");
    let build = said.strip_prefix(&format!("tandem {version} (")).expect("the version");
    let (commit, profile) = build.trim_end_matches(')').split_once(", ").expect("commit, profile");
    assert_eq!(profile, "release", "{said}");
    let label = |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].clone();
    assert_eq!(label("version"), version);
    let revision = label("revision");
    assert!(revision.as_str().unwrap().starts_with(commit), "{revision} of {said}");

    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("all.tar");
    Files::of(IMAGE).export(&all);
    let names = succeeds(Command::new("tar").arg("--list").arg("--file").arg(&all));
    let is_shell = |name: &&str| {
        let name = name.rsplit('/').next().unwrap();
        ["sh", "ash", "bash", "dash", "busybox"].contains(&name)
    };
    assert_eq!(names.lines().find(is_shell), None);
    for file in ["usr/local/bin/tandem", "usr/share/doc/tandem/notices.txt"] {
        assert!(names.lines().any(|name| name == file), "{names}");
    }
    let mut bill = Command::new("tar");
    bill.arg("--extract").arg("--to-stdout").arg("--file").arg(&all);
    let bill = succeeds(bill.arg("usr/share/doc/tandem/sbom.cdx.json"));
    let bill: Value = serde_json::from_str(&bill).unwrap();
    assert_eq!(bill["metadata"]["component"]["version"], version);
    let parts = bill["components"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["name"] == "librocksdb-sys"), "{} parts", parts.len());
}

#[test]
#[ignore = "needs Docker and the images of `just images-offline`: just compose-test"]
fn a_stack_replays_the_demo_corpus_scales_and_survives_a_kill() {
    let Some(stack) = Stack::new() else { return };
    let up = ["--profile", "dashboards", "up", "--detach", "--no-build", "--scale"];
    let services = |workers| {
        let prometheus_without_grafana = ["executor", "multiproof-workers", "discovery", "nats"];
        let mut arguments = [&up[..], &[workers]].concat();
        arguments.extend(prometheus_without_grafana);
        arguments.push("prometheus");
        arguments
    };
    stack.run(&services("multiproof-workers=2"));
    stack.wait_until_healthy(2);
    let replay = stack.run(&["run", "--rm", "replay"]);
    assert!(replay.contains("64 blocks VALID"), "{replay}");
    stack.prometheus_hears_everyone(8);

    // A second run with more workers rewrites nothing and stops nothing.
    stack.run(&services("multiproof-workers=4"));
    stack.wait_until_healthy(4);
    stack.run(&["kill", "--signal", "KILL", "executor"]);
    stack.run(&services("multiproof-workers=4"));
    stack.wait_until_healthy(4);
    let replay = stack.run(&["run", "--rm", "replay"]);
    assert!(replay.contains("64 blocks VALID"), "{replay}");
}

/// Returns the gRPC addresses in the containers of a stack, by service.
fn grpc_addresses(stack: &Stack) -> BTreeMap<&'static str, SocketAddr> {
    let services = [
        ("storage-writer", 9600, "tandem.storage_writer.v1.StorageWriter"),
        ("multiproof-workers", 9601, "tandem.multiproof_workers.v1.MultiproofWorkers"),
        ("peer-table", 9602, "tandem.peer_table.v1.PeerTable"),
        ("blob-validator", 9603, "tandem.blob_validator.v1.BlobValidator"),
        ("peer-sessions", 9604, "tandem.peer_sessions.v1.PeerSessions"),
        ("tx-pool", 9605, "tandem.tx_pool.v1.TxPool"),
    ];
    // An address in any of its networks will do.
    let form = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}";
    let address = |(name, port, service)| {
        let id = stack.run(&["ps", "--quiet", name]);
        let id = id.lines().next().expect("a container").trim();
        let addresses = docker(&["inspect", "--format", form, id]);
        let ip: IpAddr = addresses.split_whitespace().next().unwrap().parse().unwrap();
        (service, SocketAddr::new(ip, port))
    };
    services.into_iter().map(address).collect()
}

/// This machine is on each network of the stack, like any other container there.
#[tokio::test]
#[ignore = "needs Docker and the images of `just images-offline`: just compose-test"]
async fn a_stranger_on_the_networks_of_a_stack_gets_no_call_through() {
    let Some(stack) = Stack::new() else { return };
    stack.run(&["up", "--detach", "--no-build"]);
    stack.wait_until_healthy(1);
    let folder = tempfile::tempdir().unwrap();
    all_are_refused(&strangers(folder.path()), &grpc_addresses(&stack)).await;

    let id = stack.run(&["ps", "--quiet", "discovery"]);
    let networks = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}";
    let networks = docker(&["inspect", "--format", networks, id.trim()]);
    let mut networks: Vec<_> = networks.split_whitespace().collect();
    networks.sort_unstable();
    let own = ["p2p", "peers"].map(|network| format!("{}_{network}", stack.project));
    assert_eq!(networks, own, "discovery is on no network with the chain");
    let replay = stack.run(&["run", "--rm", "replay"]);
    assert!(replay.contains("64 blocks VALID"), "{replay}");
}
