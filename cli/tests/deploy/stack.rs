//! The whole stack in containers: `just compose-test`.

use crate::{get, metrics::dashboards, skipped, succeeds};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_cluster_tests::repository;

/// Longest wait for all services to be healthy.
const DEADLINE: Duration = Duration::from_secs(300);
/// What the image of all services may take.
const IMAGE_BYTES_MAX: u64 = 120_000_000;

/// A stack of its own, on free ports, from the images of `just images-offline`.
struct Stack {
    /// `docker compose`, or `docker-compose`.
    compose: Vec<&'static str>,
    project: String,
}

impl Stack {
    /// `None`, and a line that says so, where there is no Docker.
    fn new() -> Option<Self> {
        let works = |command: &[&str]| {
            let output = Command::new(command[0]).args(&command[1..]).output();
            output.is_ok_and(|output| output.status.success())
        };
        if !works(&["docker", "info"]) {
            skipped("there is no Docker daemon");
            return None;
        }
        let compose = [vec!["docker", "compose"], vec!["docker-compose"]];
        let compose =
            compose.into_iter().find(|command| works(&[command, &["version"][..]].concat()));
        let Some(compose) = compose else {
            skipped("docker compose is not installed");
            return None;
        };
        Some(Self { compose, project: format!("tandem-test-{}", std::process::id()) })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.compose[0]);
        command
            .args(&self.compose[1..])
            .args(["--project-name", &self.project])
            .args(arguments)
            .current_dir(repository())
            .env("TANDEM_IMAGE", "tandem:offline")
            .env("NATS_IMAGE", "tandem-nats:offline")
            .env("PROMETHEUS_IMAGE", "tandem-prometheus:offline");
        // An empty port is a free one.
        for port in ["TANDEM_ENGINE", "TANDEM_HTTP", "TANDEM_DISCOVERY", "PROMETHEUS"] {
            command.env(format!("{port}_PORT"), "127.0.0.1:");
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        succeeds(&mut self.command(arguments))
    }

    /// Health of the containers by name, of those that have any.
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

    /// Waits until this many workers and the five others are healthy.
    fn wait_until_healthy(&self, workers: usize) {
        let end = Instant::now() + DEADLINE;
        loop {
            let health = self.health();
            let healthy = health.values().filter(|state| *state == "running healthy").count();
            if healthy == workers + 5 {
                return;
            }
            if Instant::now() > end {
                let logs = self.run(&["logs", "--tail", "40"]);
                panic!("not healthy within {DEADLINE:?}: {health:#?}\n{logs}");
            }
            sleep(Duration::from_secs(1));
        }
    }

    /// Waits until so many services are scraped, and asks all that dashboards ask.
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
        let answered = queries.iter().filter(|query| ask(&query.text)[0].is_object()).count();
        // Some of them are about what has not happened, or about services that are not there.
        assert!(answered > queries.len() / 2, "{answered} of {}", queries.len());
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let down = ["--profile", "replay", "--profile", "dashboards", "down", "--volumes"];
        let _ = self.command(&[&down[..], &["--remove-orphans"]].concat()).output();
    }
}

#[test]
#[ignore = "needs Docker and the images of `just images-offline`: just compose-test"]
fn a_stack_replays_the_demo_corpus_scales_and_survives_a_kill() {
    let Some(stack) = Stack::new() else { return };
    let size = ["image", "inspect", "--format", "{{.Size}}", "tandem:offline"];
    let size: u64 = succeeds(Command::new("docker").args(size)).trim().parse().unwrap();
    assert!(size < IMAGE_BYTES_MAX, "the image takes {size} bytes");

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
    stack.prometheus_hears_everyone(7);

    // Once more, with more workers: nothing is written anew, nothing is stopped.
    stack.run(&services("multiproof-workers=4"));
    stack.wait_until_healthy(4);
    stack.run(&["kill", "--signal", "KILL", "executor"]);
    stack.run(&services("multiproof-workers=4"));
    stack.wait_until_healthy(4);
    let replay = stack.run(&["run", "--rm", "replay"]);
    assert!(replay.contains("64 blocks VALID"), "{replay}");
}
