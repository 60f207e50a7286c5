//! The chart, installed in a namespace of its own, with a consensus client that calls it.

use super::{
    Options,
    kube::{COMMAND_TIME_MAX, Kube, Pod, Proxy, run, wait},
    load::Load,
};
use crate::{
    blocks::write_genesis,
    client::{Client, sum_of},
};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Name of the release; the names of its objects begin with it.
pub const RELEASE: &str = "tandem";
/// Longest time of an installation, and of any return to normal.
pub const READY_TIME_MAX: Duration = Duration::from_secs(180);
/// Longest time of a call that checks whether the release serves.
const ASK_TIME_MAX: Duration = Duration::from_secs(2);
/// Time without a failed call after which a fault counts as over.
const CALM: Duration = Duration::from_secs(4);
/// Shortest time that each fault is watched: longer than the client waits for an answer.
const WATCH_MIN: Duration = Duration::from_secs(12);

/// The eight services and the bus.
pub const ROLES: [&str; 9] = [
    "storage-writer",
    "multiproof-workers",
    "blob-validator",
    "executor",
    "peer-table",
    "discovery",
    "peer-sessions",
    "tx-pool",
    "nats",
];

/// Services of which there need be none.
pub const OPTIONAL_ROLES: [&str; 1] = ["tx-executor"];

/// Secret of the Engine API: any 32 bytes.
const SECRET: &str = "5aaf00d5aaf00d5aaf00d5aaf00d5aaf00d5aaf00d5aaf00d5aaf00d5aaf00d5";

/// A running release, and the access to it.
pub struct Release<'a> {
    pub kube: Kube,
    pub options: &'a Options,
    pub proxy: Proxy,
    values: Value,
    folder: TempDir,
}

impl<'a> Release<'a> {
    /// Creates the namespace with genesis and secret. The chart is not installed yet.
    ///
    /// # Errors
    /// If there is no cluster, or it refuses.
    pub fn prepare(options: &'a Options, name: &str, values: &Value) -> anyhow::Result<Self> {
        let kube = Kube::start(options.kubeconfig()?, &format!("tandem-figures-{name}"))?;
        let proxy = Proxy::start(kube.kubeconfig())?;
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        let genesis = folder.path().join("genesis.json");
        write_genesis(&genesis)?;
        kube.put_file("ConfigMap", "genesis", "genesis.json", &fs::read_to_string(genesis)?)?;
        kube.put_file("Secret", "engine", "jwt.hex", SECRET)?;
        fs::write(folder.path().join("jwt.hex"), SECRET)?;
        let mut all = usual_values(options);
        merge(&mut all, values);
        Ok(Self { kube, options, proxy, values: all, folder })
    }

    /// Installs the chart and waits until it serves.
    ///
    /// # Errors
    /// If it does not.
    pub fn install(options: &'a Options, name: &str, values: &Value) -> anyhow::Result<Self> {
        let release = Self::prepare(options, name, values)?;
        release.helm("install", &json!({}), READY_TIME_MAX)?;
        release.expose()?;
        release.wait_until_ready()?;
        Ok(release)
    }

    /// Runs `helm install` or `helm upgrade` with `--wait` and returns the time it took. `change`
    /// overrides the values of the release, for this call only.
    ///
    /// # Errors
    /// If helm reports a failure.
    pub fn helm(
        &self,
        command: &str,
        change: &Value,
        time_max: Duration,
    ) -> anyhow::Result<Duration> {
        let mut values = self.values.clone();
        merge(&mut values, change);
        let file = self.folder.path().join("values.json");
        fs::write(&file, values.to_string())?;
        let (file, chart) = (file.display().to_string(), self.options.chart.display().to_string());
        let seconds = format!("{}s", time_max.as_secs());
        let mut arguments = vec![command, RELEASE, &chart, "--values", &file];
        let more = self.options.values.as_ref().map(|file| file.display().to_string());
        if let Some(more) = &more {
            arguments.extend(["--values", more]);
        }
        arguments.extend(["--wait", "--timeout", &seconds]);
        let begun = Instant::now();
        self.kube.helm(&arguments, time_max + COMMAND_TIME_MAX)?;
        Ok(begun.elapsed())
    }

    /// Returns the number of the newest revision that was deployed.
    ///
    /// # Errors
    /// If there is none.
    pub fn last_deployed(&self) -> anyhow::Result<String> {
        let text = self.kube.helm(&["history", RELEASE, "--output", "json"], COMMAND_TIME_MAX)?;
        let revisions: Vec<Value> = serde_json::from_str(&text)?;
        let good = |revision: &&Value| {
            matches!(revision["status"].as_str(), Some("deployed" | "superseded"))
        };
        let last = revisions.iter().rfind(good).context("no revision was deployed")?;
        Ok(last["revision"].to_string())
    }

    /// Creates a Service of type NodePort with the selector of the chart's own. The client may then
    /// be outside of the cluster and is routed like one inside.
    ///
    /// # Errors
    /// If the cluster refuses.
    pub fn expose(&self) -> anyhow::Result<()> {
        let selector = json!({"app.kubernetes.io/instance": RELEASE,
            "app.kubernetes.io/component": "executor"});
        self.kube.apply(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "figures"},
            "spec": {"type": "NodePort", "selector": selector,
                "ports": [{"name": "engine", "port": 8551, "targetPort": "engine"}]}}))
    }

    /// Returns the address of the Engine API, on the first node that is not `avoided`.
    ///
    /// # Errors
    /// If the Service or a node is missing.
    pub fn engine(&self, avoided: Option<&str>) -> anyhow::Result<SocketAddr> {
        let service = self.kube.get(&["service", "figures"])?;
        let port = service["spec"]["ports"][0]["nodePort"].as_u64().context("no node port")?;
        let address = self.node_address(avoided)?;
        format!("{address}:{port}").parse().context("parse a node's address")
    }

    /// Returns the address of the first node that is not `avoided`.
    ///
    /// # Errors
    /// If there is none.
    pub fn node_address(&self, avoided: Option<&str>) -> anyhow::Result<String> {
        let nodes = self.kube.get(&["nodes"])?;
        let nodes = nodes["items"].as_array().context("no nodes")?;
        let addresses = nodes
            .iter()
            .filter(|node| node["metadata"]["name"].as_str() != avoided)
            .filter_map(|node| node["status"]["addresses"].as_array());
        let mut internal = addresses
            .flatten()
            .filter(|address| address["type"] == "InternalIP")
            .filter_map(|address| address["address"].as_str());
        Ok(internal.next().context("no node with an internal address")?.to_owned())
    }

    /// Returns the file with the secret of the Engine API.
    pub fn secret(&self) -> PathBuf {
        self.folder.path().join("jwt.hex")
    }

    /// Starts the consensus client.
    ///
    /// # Errors
    /// If the Engine API does not answer.
    pub fn load(&self) -> anyhow::Result<Load> {
        self.load_avoiding(None)
    }

    /// Starts the consensus client, which enters the cluster through another node than `avoided`.
    ///
    /// # Errors
    /// As for [`Release::load`].
    pub fn load_avoiding(&self, avoided: Option<&str>) -> anyhow::Result<Load> {
        let load = Load::start(self.engine(avoided)?, &self.secret())?;
        wait("the first blocks", READY_TIME_MAX, || Ok(load.is_flowing(CALM).then_some(())))?;
        Ok(load)
    }

    /// Returns number and hash of the head.
    ///
    /// # Errors
    /// If the Engine API does not answer.
    pub fn head(&self) -> anyhow::Result<Value> {
        let mut engine = Client::engine(self.engine(None)?, &self.secret(), ASK_TIME_MAX)?;
        let block = engine.call("eth_getBlockByNumber", &json!(["latest", false]))?;
        Ok(json!([block["number"], block["hash"]]))
    }

    /// Waits until the Engine API answers through the Service and all pods are ready. An executor
    /// that waits only for the right to write counts as ready: versions differ in that.
    ///
    /// # Errors
    /// If the wait takes longer than three minutes.
    pub fn wait_until_ready(&self) -> anyhow::Result<()> {
        wait("the pods to be ready", READY_TIME_MAX, || Ok(self.is_ready()?.then_some(())))?;
        wait("the Engine API to answer", READY_TIME_MAX, || self.head().map(Some)).map(drop)
    }

    /// Returns whether each role has a pod and all pods are ready.
    fn is_ready(&self) -> anyhow::Result<bool> {
        let pods = self.kube.pods()?;
        let count = |role: &str| pods.iter().filter(|pod| pod.component == role).count() as u64;
        let executors = self.values["services"]["executor"]["replicas"].as_u64().unwrap_or(1);
        Ok(ROLES.iter().all(|role| count(role) > 0)
            && count("executor") == executors
            && pods.iter().any(|pod| pod.component == "executor" && pod.ready)
            && pods.iter().all(|pod| !pod.leaves && (pod.ready || self.stands_by(pod))))
    }

    /// Returns whether an executor waits only for the right to write.
    fn stands_by(&self, pod: &Pod) -> bool {
        let waits = |text: &str| text.trim().ends_with("waiting for: the right to write");
        pod.component == "executor" && self.readiness(pod).is_ok_and(|(_, text)| waits(&text))
    }

    /// Returns the pod of the executor that has the right to write: the number of its payloads
    /// grows.
    ///
    /// # Errors
    /// If there is none within three minutes.
    pub fn active_executor(&self) -> anyhow::Result<Pod> {
        wait("an executor that executes", READY_TIME_MAX, || {
            let pods = self.kube.pods_of("executor")?;
            if let [only] = pods.as_slice() {
                return Ok(Some(only.clone()));
            }
            let before: Vec<_> = pods.iter().map(|pod| self.payloads(pod)).collect();
            std::thread::sleep(Duration::from_secs(1));
            let active = pods.iter().zip(before).find(|(pod, before)| self.payloads(pod) > *before);
            Ok(active.map(|(pod, _)| pod.clone()))
        })
    }

    /// Returns the number of payloads that an executor has executed, 0 while it does not answer.
    fn payloads(&self, pod: &Pod) -> f64 {
        let name = "tandem_executor_execution_seconds_count";
        self.metric(pod, name).unwrap_or(0.0)
    }

    /// Returns the sum of a metric over its labels.
    ///
    /// # Errors
    /// If the pod does not answer.
    pub fn metric(&self, pod: &Pod, name: &str) -> anyhow::Result<f64> {
        let (_, text) = self.proxy.ask_pod(self.kube.namespace(), &pod.name, 9100, "/metrics")?;
        Ok(sum_of(&text, name).unwrap_or(0.0))
    }

    /// Asks a pod whether it is ready, and returns the status and the reason.
    ///
    /// # Errors
    /// If the pod does not answer.
    pub fn readiness(&self, pod: &Pod) -> anyhow::Result<(u16, String)> {
        self.proxy.ask_pod(self.kube.namespace(), &pod.name, 9100, "/readyz")
    }

    /// Deletes a pod as `kubectl delete` does by default.
    ///
    /// # Errors
    /// If the cluster refuses.
    pub fn delete(&self, pod: &Pod) -> anyhow::Result<()> {
        self.kube.kubectl(&["delete", "pod", &pod.name, "--wait=false"]).map(drop)
    }

    /// Ends the process of a pod at once. Uses SIGKILL if a program for that was given, otherwise a
    /// delete without a grace period.
    ///
    /// # Errors
    /// If that fails.
    pub fn kill(&self, pod: &Pod) -> anyhow::Result<()> {
        let Some(program) = &self.options.signal else {
            let arguments = ["delete", "pod", &pod.name, "--grace-period=0", "--force"];
            return self.kube.kubectl(&[&arguments[..], &["--wait=false"]].concat()).map(drop);
        };
        hook(program, &[&pod.node, &pod.container, "SIGKILL"])
    }

    /// Watches a fault, which `act` brings about. The fault is over when the release is ready again
    /// and the client sees no more failed calls.
    ///
    /// # Errors
    /// If it is not over within three minutes.
    pub fn fault(
        &self,
        load: &Load,
        act: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<super::load::Window> {
        let from = Instant::now();
        act()?;
        wait("the end of the fault", READY_TIME_MAX, || {
            let is_over = from.elapsed() > WATCH_MIN && load.is_flowing(CALM) && self.is_ready()?;
            Ok(is_over.then_some(()))
        })?;
        Ok(load.since(from))
    }
}

/// A release that is installed when the first figure needs it.
pub struct Stage<'a> {
    options: &'a Options,
    name: &'static str,
    values: Value,
    running: Option<(Release<'a>, Load)>,
}

impl<'a> Stage<'a> {
    /// Returns a stage whose release is not installed yet.
    pub fn new(options: &'a Options, name: &'static str, values: Value) -> Self {
        Self { options, name, values, running: None }
    }

    /// Returns the release and the client that calls it.
    ///
    /// # Errors
    /// If the release cannot be installed.
    pub fn get(&mut self) -> anyhow::Result<(&mut Release<'a>, &Load)> {
        if self.running.is_none() {
            let release = Release::install(self.options, self.name, &self.values)?;
            let load = release.load()?;
            self.running = Some((release, load));
        }
        let (release, load) = self.running.as_mut().context("nothing is installed")?;
        Ok((release, load))
    }
}

/// Runs a user's program that acts on a node.
///
/// # Errors
/// If it fails.
pub fn hook(program: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    ensure!(!arguments.iter().any(|argument| argument.is_empty()), "{arguments:?}: one is empty");
    run(Command::new(program).args(arguments), None, COMMAND_TIME_MAX).map(drop)
}

/// Returns the values of every trial. Small requests let all pods fit into small nodes, and onto
/// one of them while another is drained. Network policies admit client and Prometheus from outside.
fn usual_values(options: &Options) -> Value {
    let (repository, tag) = options.image.rsplit_once(':').unwrap_or((&options.image, "latest"));
    let anywhere = json!([{"ipBlock": {"cidr": "0.0.0.0/0"}}]);
    let small = json!({"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}});
    let services: serde_json::Map<_, _> = ROLES
        .iter()
        .filter(|role| **role != "nats")
        .map(|role| ((*role).to_owned(), small.clone()))
        .collect();
    json!({
        "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
        "nats": {"image": options.nats_image},
        "jaeger": {"enabled": false},
        "genesis": {"source": "configMap", "configMap": {"name": "genesis"}},
        "engine": {"existingSecret": "engine"},
        "services": services,
        "networkPolicies": {"engineFrom": anywhere, "metricsFrom": anywhere},
    })
}

/// Overrides the values of `into` with those of `from`. A null value removes the key, so that the
/// chart's own value holds.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_above_others_change_what_they_name_alone() {
        let mut values = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        merge(&mut values, &json!({"a": {"c": [3], "b": null, "e": {"f": 1}}}));
        assert_eq!(values, json!({"a": {"c": [3], "e": {"f": 1}}, "d": 1}));
    }
}
