//! Alerts of `deploy/rules.yml`, read from a Prometheus that scrapes the pods of a release, in
//! several states of the release.

use super::{
    Options,
    kube::wait,
    load::Load,
    release::{READY_TIME_MAX, Release, hook},
};
use crate::{
    client,
    figure::{Figure, Limit, Report},
};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tandem_testkit::last_lines;
use tempfile::TempDir;

/// Claim of storage-writer.
const CLAIM: &str = "data-tandem-storage-writer-0";
/// Shortened `for` of each rule.
const FOR: &str = "5s";
/// Time in which a healthy release may cause no alert.
const CALM: Duration = Duration::from_secs(45);
/// Longest time until an alert of a state fires, with `for` shortened. The second is for a head
/// that stands still, whose rule looks back for minutes.
const FIRE_TIME_MAX: Duration = Duration::from_secs(150);
const SILENCE_TIME_MAX: Duration = Duration::from_secs(420);
/// Time in which other alerts may follow the first alert of a state.
const MORE_TIME: Duration = Duration::from_secs(20);
/// Time that Prometheus watches the pods before the first state.
const HISTORY_MIN: Duration = Duration::from_secs(90);
/// Longest wait for an answer of Prometheus.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// A state of the release, and its cause.
#[derive(Clone, Copy, Debug)]
enum State {
    /// A workload has no pods.
    Gone(&'static str),
    /// No blocks arrive.
    Silence,
    /// A caller of the Engine API has a wrong secret.
    WrongSecret,
    /// The volume of storage-writer is full.
    FullVolume,
}

const STATES: [(&str, State); 10] = [
    ("workers gone", State::Gone("deployment/tandem-multiproof-workers")),
    ("blob-validator gone", State::Gone("deployment/tandem-blob-validator")),
    ("peer-table gone", State::Gone("deployment/tandem-peer-table")),
    ("discovery gone", State::Gone("deployment/tandem-discovery")),
    ("NATS gone", State::Gone("statefulset/tandem-nats")),
    ("executor gone", State::Gone("deployment/tandem-executor")),
    ("storage-writer gone", State::Gone("statefulset/tandem-storage-writer")),
    ("no blocks come", State::Silence),
    ("a wrong secret at the Engine API", State::WrongSecret),
    ("full volume", State::FullVolume),
];

/// Measures the figures: alerts that fire in each state.
pub fn measure(options: &Options, report: &mut Report) {
    let mut stage = None;
    report.measure("alerts: all is well", || {
        let stage = get(&mut stage, options)?;
        stage.wait_until_quiet()?;
        let from = Instant::now();
        let mut seen = BTreeSet::new();
        while from.elapsed() < CALM {
            seen.extend(stage.prometheus.firing()?);
            std::thread::sleep(Duration::from_secs(1));
        }
        let names = names(&seen);
        let note = format!(
            "`for` is {FOR}, {} targets; {}",
            stage.prometheus.targets()?,
            names.join(", ")
        );
        let name = "alerts: firing while all is well";
        Ok(vec![Figure::new(name, names.len() as f64, Limit::Exactly(0.0)).note(note)])
    });
    for (name, state) in STATES {
        let name = format!("alerts: firing with {name}");
        report.measure(&name, || in_state(get(&mut stage, options)?, &name, state));
    }
}

/// The release, its client and the Prometheus that watches it.
struct Watched<'a> {
    prometheus: Prometheus,
    load: Load,
    release: Release<'a>,
}

fn get<'s, 'a>(
    stage: &'s mut Option<Watched<'a>>,
    options: &'a Options,
) -> anyhow::Result<&'s Watched<'a>> {
    if stage.is_none() {
        *stage = Some(Watched::start(options)?);
    }
    stage.as_ref().context("nothing is installed")
}

impl<'a> Watched<'a> {
    fn start(options: &'a Options) -> anyhow::Result<Self> {
        let kept = json!({"persistence": {"enabled": true, "size": "64Mi"}});
        let values = json!({"services": {"discovery": kept, "peer-table": kept},
            "config": {"storage_writer": {"store": {"memtable_bytes_max": 16 << 20}}}});
        let release = Release::prepare(options, "alerts", &values)?;
        if let Some(program) = &options.volume {
            hook(program, &["prepare", release.kube.namespace(), CLAIM])?;
        }
        release.helm("install", &json!({}), READY_TIME_MAX)?;
        release.expose()?;
        release.wait_until_ready()?;
        let load = release.load()?;
        let prometheus = Prometheus::start(options, &release)?;
        Ok(Self { prometheus, load, release })
    }

    /// Waits until alerts of earlier states have ended.
    fn wait_until_quiet(&self) -> anyhow::Result<()> {
        wait("alerts to end", READY_TIME_MAX, || {
            Ok(self.prometheus.firing()?.is_empty().then_some(()))
        })
    }

    fn enter(&self, state: State) -> anyhow::Result<()> {
        match state {
            State::Gone(workload) => self.release.kube.scale(workload, 0),
            State::Silence => {
                self.load.pause(true);
                Ok(())
            }
            State::WrongSecret => Ok(()),
            State::FullVolume => {
                let program = self.release.options.volume.as_deref();
                let program = program.context("no --volume-command: it fills the volume")?;
                hook(program, &["fill", self.release.kube.namespace(), CLAIM])
            }
        }
    }

    fn leave(&self, state: State) -> anyhow::Result<()> {
        match state {
            State::Gone(workload) => {
                self.release
                    .kube
                    .scale(workload, if workload.ends_with("workers") { 2 } else { 1 })?;
            }
            State::Silence => self.load.pause(false),
            State::WrongSecret => {}
            State::FullVolume => {
                if let Some(program) = &self.release.options.volume {
                    hook(program, &["free", self.release.kube.namespace(), CLAIM])?;
                }
            }
        }
        self.release.wait_until_ready()
    }

    /// Calls the Engine API with another secret, once.
    fn call_with_a_wrong_secret(&self) -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("jwt.hex");
        fs::write(&file, "00".repeat(32))?;
        let mut client =
            client::Client::engine(self.release.engine(None)?, &file, ANSWER_TIME_MAX)?;
        let answer = client.call("eth_chainId", &json!([]));
        anyhow::ensure!(answer.is_err(), "a wrong secret is taken");
        Ok(())
    }
}

/// Brings a state about, waits for alerts that were not firing before, and ends the state.
fn in_state(stage: &Watched<'_>, name: &str, state: State) -> anyhow::Result<Vec<Figure>> {
    // Rules that compare with a minute ago see the pods then.
    std::thread::sleep(HISTORY_MIN.saturating_sub(stage.prometheus.started.elapsed()));
    let before = stage.prometheus.firing()?;
    let seen = stage.enter(state).and_then(|()| watch(stage, state, &before));
    // The next state begins in a healthy release, also after an error.
    stage.leave(state)?;
    let (fired, first) = seen?;
    let names = names(&fired);
    let when = first.map_or(String::new(), |first| format!("after {} s: ", first.as_secs()));
    let note = format!("{when}{}", names.join(", "));
    Ok(vec![Figure::new(name, names.len() as f64, Limit::AtLeast(1.0)).note(note)])
}

/// Returns the alerts that fire now and did not before, and the time until the first one.
fn watch(
    stage: &Watched<'_>,
    state: State,
    before: &BTreeSet<Alert>,
) -> anyhow::Result<(BTreeSet<Alert>, Option<Duration>)> {
    let begun = Instant::now();
    let is_silent = matches!(state, State::Silence);
    let time_max = if is_silent { SILENCE_TIME_MAX } else { FIRE_TIME_MAX };
    let mut fired = BTreeSet::new();
    let mut first: Option<Duration> = None;
    while first.map_or(begun.elapsed() < time_max, |first| begun.elapsed() < first + MORE_TIME) {
        if matches!(state, State::WrongSecret) {
            stage.call_with_a_wrong_secret()?;
        }
        fired.extend(stage.prometheus.firing()?.difference(before).cloned());
        if !fired.is_empty() {
            first.get_or_insert(begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok((fired, first))
}

/// Returns the names of alerts, each once, with its job.
fn names(alerts: &BTreeSet<Alert>) -> Vec<String> {
    let text = |(name, job): &Alert| {
        if job.is_empty() { name.clone() } else { format!("{name} ({job})") }
    };
    alerts.iter().map(text).collect()
}

/// Name and job of an alert.
type Alert = (String, String);

/// A Prometheus on loopback that finds and scrapes the pods through a `kubectl proxy`.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    started: Instant,
    /// Folder of its configuration and its data.
    folder: TempDir,
}

impl Prometheus {
    fn start(options: &Options, release: &Release<'_>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        let rules = fs::read_to_string(&options.rules)
            .with_context(|| format!("read {}", options.rules.display()))?;
        fs::write(folder.path().join("rules.yml"), shortened(&rules))?;
        let config = configuration(release.proxy.address(), release.kube.namespace());
        fs::write(folder.path().join("prometheus.yml"), config.to_string())?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let log = File::create(folder.path().join("log"))?;
        let mut command = Command::new(&options.prometheus);
        command.arg(format!("--web.listen-address={address}"));
        command.arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| {
            format!("start Prometheus, {} of --prometheus", options.prometheus.display())
        })?;
        let mut prometheus = Self { child, address, started: Instant::now(), folder };
        wait("Prometheus to find the pods", READY_TIME_MAX, || {
            if let Some(status) = prometheus.child.try_wait()? {
                bail!("Prometheus ended with {status}: {}", log_of(prometheus.folder.path()));
            }
            Ok((prometheus.targets()? >= 7).then_some(()))
        })?;
        Ok(prometheus)
    }

    fn ask(&self, path: &str) -> anyhow::Result<Value> {
        let (status, body) = client::get(self.address, path, ANSWER_TIME_MAX)?;
        anyhow::ensure!(status == 200, "Prometheus answers {status}: {body:.100}");
        Ok(serde_json::from_str(&body)?)
    }

    /// Returns the number of targets that were scraped successfully.
    fn targets(&self) -> anyhow::Result<usize> {
        let answer = self.ask("/api/v1/targets?state=active")?;
        let targets = answer["data"]["activeTargets"].as_array().context("no targets")?;
        Ok(targets.iter().filter(|target| target["health"] == "up").count())
    }

    fn firing(&self) -> anyhow::Result<BTreeSet<Alert>> {
        let answer = self.ask("/api/v1/alerts")?;
        let alerts = answer["data"]["alerts"].as_array().context("no alerts")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        Ok(firing
            .map(|alert| (text(&alert["labels"]["alertname"]), text(&alert["labels"]["job"])))
            .collect())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // A process that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_of(folder: &Path) -> String {
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    last_lines(&log, 3).join(" | ")
}

/// Returns the rules with a short `for`. This Prometheus runs for less than a quarter of an hour,
/// so rules compare with a minute ago instead.
fn shortened(rules: &str) -> String {
    let rules = rules.replace("offset 15m", "offset 1m");
    let line = |line: &str| {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        if text.starts_with("for:") { format!("{indent}for: {FOR}") } else { line.to_owned() }
    };
    rules.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a configuration that finds pods as the chart's PodMonitor does: the job is the
/// component.
fn configuration(proxy: SocketAddr, namespace: &str) -> Value {
    let keep = |source: &str, regex: &str| json!({"source_labels": [source], "regex": regex, "action": "keep"});
    let set = |sources: &[&str], target: &str, replacement: &str| {
        json!({"source_labels": sources, "target_label": target, "replacement": replacement,
            "separator": ";", "regex": if sources.len() > 1 { "(.*);(.*)" } else { "(.*)" }})
    };
    let pod = "__meta_kubernetes_pod_name";
    let namespace_of = "__meta_kubernetes_namespace";
    let component = "__meta_kubernetes_pod_label_app_kubernetes_io_component";
    json!({
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{
            "job_name": "pods",
            "kubernetes_sd_configs": [{"role": "pod", "api_server": format!("http://{proxy}"),
                "namespaces": {"names": [namespace]}}],
            "relabel_configs": [
                keep("__meta_kubernetes_pod_container_port_name", "metrics"),
                keep("__meta_kubernetes_pod_phase", "Pending|Running|Unknown"),
                set(&[component], "job", "$1"),
                set(&[pod], "instance", "$1"),
                set(&[pod], "pod", "$1"),
                set(&[namespace_of], "namespace", "$1"),
                set(&[namespace_of, pod], "__metrics_path__",
                    "/api/v1/namespaces/$1/pods/$2:9100/proxy/metrics"),
                {"target_label": "__address__", "replacement": proxy.to_string()},
            ],
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_that_a_rule_has_to_hold_or_looks_back_is_shortened() {
        let rules = "  - alert: A\n    expr: increase(a[10m]) > b offset 15m\n    for: 10m\n";
        let short = "  - alert: A\n    expr: increase(a[10m]) > b offset 1m\n    for: 5s";
        assert_eq!(shortened(rules), short);
    }
}
