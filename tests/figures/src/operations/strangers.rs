//! Other pods of the cluster, without certificate, password or token of the release.

use super::{
    Options,
    kube::{Kube, Proxy, wait},
    neighbour::service_of,
    probe::{Kind, Target, call_all, summary},
    release::{RELEASE, Release},
};
use crate::{
    client::sum_of,
    figure::{Figure, Limit, Report},
};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::time::Duration;

/// Ports of the release that accept calls, with the role behind each.
const PORTS: [(&str, u16); 6] = [
    ("storage-writer", 9600),
    ("multiproof-workers", 9601),
    ("peer-table", 9602),
    ("blob-validator", 9603),
    ("nats", 4222),
    ("executor", 8551),
];
/// Time that strangers have to be let in.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures the figures.
pub fn measure(options: &Options, report: &mut Report) {
    report.measure("strangers: calls from a node, policies as shipped", || {
        calls(options, "strangers", true, "strangers: calls from a node, policies as shipped")
    });
    report.measure("strangers: calls from a node, no network policies", || {
        calls(options, "open", false, "strangers: calls from a node, no network policies")
    });
    report.measure("strangers: services that take an executor or worker of another pod", || {
        pods(options)
    });
}

/// Returns values without the trials' own policies: the chart's default admissions.
fn values(has_policies: bool) -> Value {
    json!({"networkPolicies": {"enabled": has_policies, "engineFrom": null, "metricsFrom": null}})
}

/// Calls each port of the release through a Service of type NodePort, as any process of the network
/// can if no policy is enforced.
fn calls(
    options: &Options,
    namespace: &str,
    has_policies: bool,
    name: &str,
) -> anyhow::Result<Vec<Figure>> {
    let release = Release::prepare(options, namespace, &values(has_policies))?;
    release.helm("install", &json!({}), super::release::READY_TIME_MAX)?;
    let mut targets = Vec::new();
    let address = release.node_address(None)?;
    for (role, port) in PORTS {
        let service = format!("open-{role}");
        let selector = json!({"app.kubernetes.io/instance": RELEASE,
            "app.kubernetes.io/component": role});
        release.kube.apply(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": service},
            "spec": {"type": "NodePort", "selector": selector,
                "ports": [{"port": port, "targetPort": port}]}}))?;
        let service = release.kube.get(&["service", &service])?;
        let port = service["spec"]["ports"][0]["nodePort"].as_u64().context("no node port")?;
        let kind = match role {
            "nats" => Kind::Nats,
            "executor" => Kind::Engine,
            role => Kind::Grpc(service_of(role).to_owned()),
        };
        targets.push(Target { kind, address: format!("{address}:{port}").parse()? });
    }
    // Without a wait a node might not know its ports yet, and all calls would seem refused.
    std::thread::sleep(Duration::from_secs(3));
    let (through, note) = summary(&call_all(&targets)?);
    Ok(vec![Figure::new(name, through as f64, Limit::Exactly(0.0)).note(note)])
}

/// Runs an executor and a worker in another namespace that know only the addresses of the release.
/// The release's own executor is scaled down meanwhile, so that the right to write is free.
fn pods(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let name = "strangers: services that take an executor or worker of another pod";
    let release = Release::prepare(options, "host", &values(false))?;
    release.helm("install", &json!({}), super::release::READY_TIME_MAX)?;
    release.kube.scale("deployment/tandem-executor", 0)?;
    let kube = Kube::start(release.kube.kubeconfig(), "tandem-figures-stranger")?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "jwt"},
        "stringData": {"jwt.hex": "11".repeat(32)}});
    kube.apply(&secret)?;
    let host = release.kube.namespace();
    let at = |role: &str, port: u16| format!("http://tandem-{role}.{host}:{port}");
    let storage = format!("--storage-writer={}", at("storage-writer", 9600));
    let nats = format!("--nats=nats://tandem-nats.{host}:4222");
    let roles = [
        (
            "executor",
            vec![
                "executor".to_owned(),
                storage.clone(),
                format!("--blob-validator={}", at("blob-validator", 9603)),
                format!("--worker={}", at("multiproof-workers", 9601)),
                "--authrpc.jwtsecret=/jwt/jwt.hex".to_owned(),
                nats.clone(),
            ],
        ),
        (
            "worker",
            vec![
                "multiproof-worker".to_owned(),
                storage,
                "--worker-id=stranger".to_owned(),
                "--advertise=http://10.0.0.1:9601".to_owned(),
                nats,
            ],
        ),
    ];
    for (role, arguments) in &roles {
        kube.apply(&pod(options, role, arguments))?;
    }
    let mut taken = Vec::new();
    let mut said = Vec::new();
    for (role, _) in &roles {
        let stranger = Stranger { kube: &kube, proxy: &release.proxy, role };
        let let_in =
            wait("a stranger to be let in", PATIENCE, || Ok(stranger.is_let_in()?.then_some(())));
        if let_in.is_ok() {
            taken.push(format!("storage-writer takes the {role}"));
        }
        if stranger.metric("tandem_bus_connected") > 0.0 {
            taken.push(format!("NATS takes the {role}"));
        }
        said.push(stranger.last_words());
    }
    let note = taken.into_iter().chain(said).collect::<Vec<_>>();
    let (count, note) = (note.len() - roles.len(), note.join("; "));
    Ok(vec![Figure::new(name, count as f64, Limit::Exactly(0.0)).note(note)])
}

fn pod(options: &Options, role: &str, arguments: &[String]) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": role},
    "spec": {
        "enableServiceLinks": false,
        "automountServiceAccountToken": false,
        "volumes": [{"name": "jwt", "secret": {"secretName": "jwt"}}],
        "containers": [{
            "name": role, "image": options.image, "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "env": [{"name": "TANDEM_METRICS_ADDR", "value": "0.0.0.0"},
                {"name": "TANDEM_METRICS_PORT", "value": "9100"}],
            "volumeMounts": [{"name": "jwt", "mountPath": "/jwt", "readOnly": true}],
        }],
    }})
}

/// A pod of another namespace.
struct Stranger<'a> {
    kube: &'a Kube,
    proxy: &'a Proxy,
    role: &'a str,
}

impl Stranger<'_> {
    fn ask(&self, path: &str) -> anyhow::Result<(u16, String)> {
        self.proxy.ask_pod(self.kube.namespace(), self.role, 9100, path)
    }

    /// Returns whether it is connected to storage-writer: it is ready, or waits for something else.
    fn is_let_in(&self) -> anyhow::Result<bool> {
        let (status, text) = self.ask("/readyz")?;
        let answers = status == 200 || text.contains("waiting for");
        Ok(answers && !text.contains("storage-writer"))
    }

    fn metric(&self, name: &str) -> f64 {
        self.ask("/metrics").ok().and_then(|(_, text)| sum_of(&text, name)).unwrap_or(0.0)
    }

    /// Returns its current state, or the end of its log.
    fn last_words(&self) -> String {
        if let Ok((status, text)) = self.ask("/readyz")
            && (status == 200 || text.contains("waiting for"))
        {
            return format!("{}: {status} {}", self.role, text.trim());
        }
        let log = self.kube.kubectl(&["logs", self.role, "--tail=1"]).unwrap_or_default();
        format!("{}: {:.120}", self.role, log.trim())
    }
}
