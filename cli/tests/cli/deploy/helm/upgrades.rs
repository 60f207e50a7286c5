//! Upgrades: tests what Helm renders when it can query a cluster.
//!
//! The cluster is a server on this machine that knows the objects of the release. It returns them
//! to Helm's `lookup` as Kubernetes would.

use super::{FOR, Objects, chart, helm, list, run, text, values};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
};
use tandem_cluster::{Identity, TlsConfig};
use tandem_discv4::NodeKey;

/// Objects by the paths of Kubernetes' API.
type Paths = Arc<Mutex<BTreeMap<String, Value>>>;

/// Kinds that the chart looks up: version, kind, and their name in paths.
const KINDS: [(&str, &str, &str); 5] = [
    ("v1", "Secret", "secrets"),
    ("v1", "ConfigMap", "configmaps"),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "StatefulSet", "statefulsets"),
];

fn root(version: &str) -> String {
    if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") }
}

/// A cluster that answers Helm's requests.
struct FakeCluster {
    helm: PathBuf,
    address: SocketAddr,
    objects: Paths,
}

impl FakeCluster {
    /// Starts an empty cluster. Returns `None` without Helm.
    fn start() -> Option<Self> {
        let helm = helm()?;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let objects = Paths::default();
        let known = objects.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let known = known.clone();
                thread::spawn(move || answer(stream.unwrap(), &known));
            }
        });
        Some(Self { helm, address, objects })
    }

    /// Renders the chart; as an upgrade if the release exists.
    fn render(&self, flags: &[&str], set: &[&str]) -> Result<Objects, String> {
        let mut command = Command::new(&self.helm);
        command.args(["template", "tandem"]).arg(chart()).args(FOR).args(flags);
        command.args(["--dry-run=server", "--values"]).arg(values("minimal"));
        command.args(["--kube-apiserver", &format!("http://{}", self.address)]);
        for value in set {
            command.args(["--set", value]);
        }
        run(command.env("KUBECONFIG", "/dev/null")).map(|text| Objects::parse(&text))
    }

    fn install(&self, set: &[&str]) -> Objects {
        let objects = self.render(&[], set).unwrap();
        self.apply(&objects);
        objects
    }

    fn upgrade(&self, set: &[&str]) -> Objects {
        let objects = self.render(&["--is-upgrade"], set).unwrap();
        self.apply(&objects);
        objects
    }

    fn refusal(&self, flags: &[&str], set: &[&str]) -> String {
        self.render(flags, set).err().unwrap_or_else(|| panic!("{set:?} is taken"))
    }

    fn apply(&self, objects: &Objects) {
        for object in &objects.0 {
            self.put(object.clone());
        }
    }

    fn put(&self, object: Value) {
        let Some((version, _, plural)) = KINDS.iter().find(|(_, kind, _)| object["kind"] == *kind)
        else {
            return;
        };
        let name = text(&object["metadata"]["name"]);
        let path = format!("{}/namespaces/chain/{plural}/{name}", root(version));
        self.objects.lock().unwrap().insert(path, object);
    }

    /// Changes an existing object.
    fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects.lock().unwrap();
        let end = format!("/{plural}/{name}");
        let found = objects.iter_mut().find(|(path, _)| path.ends_with(&end));
        change(found.unwrap_or_else(|| panic!("there is no {end}")).1);
    }

    /// Makes the claim that Kubernetes makes for storage-writer.
    fn claim(&self) {
        let metadata = json!({"name": "data-tandem-storage-writer-0", "namespace": "chain"});
        let kind = "PersistentVolumeClaim";
        self.put(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}));
    }
}

/// Answers the requests of one connection.
fn answer(stream: TcpStream, objects: &Paths) {
    let mut lines = BufReader::new(stream);
    loop {
        let mut path = None;
        loop {
            let mut line = String::new();
            // Helm may close a connection in the midst of a request.
            match lines.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => path = path.or_else(|| line.split(' ').nth(1).map(str::to_owned)),
            }
        }
        let path = path.unwrap();
        let path = path.split('?').next().unwrap();
        let found = kinds(path).or_else(|| objects.lock().unwrap().get(path).cloned());
        let missing =
            json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
        let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
        let body = found.unwrap_or(missing).to_string();
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n");
        let length = format!("Content-Length: {}\r\n\r\n", body.len());
        if lines.get_mut().write_all((head + &length + &body).as_bytes()).is_err() {
            return;
        }
    }
}

/// Returns the list of kinds of a version.
fn kinds(path: &str) -> Option<Value> {
    let of_version = KINDS.iter().filter(|(version, _, _)| root(version) == path);
    let resources: Vec<_> = of_version
        .map(|(_, kind, name)| {
            json!({"name": name, "kind": kind, "namespaced": true, "verbs": ["get"]})
        })
        .collect();
    let version = path.rsplit("/apis/").next()?.trim_start_matches("/api/");
    (!resources.is_empty()).then(
        || json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}),
    )
}

/// Returns the value of a key in a Secret.
fn secret(objects: &Objects, name: &str, key: &str) -> String {
    let secret = objects.get("Secret", name).unwrap_or_else(|| panic!("there is no {name}"));
    String::from_utf8(BASE64.decode(text(&secret["data"][key])).unwrap()).unwrap()
}

/// Returns the Secrets with their data.
fn secrets(objects: &Objects) -> BTreeMap<String, Value> {
    let secrets = objects.of_kind("Secret");
    secrets.map(|it| (text(&it["metadata"]["name"]).to_owned(), it["data"].clone())).collect()
}

/// Returns the TLS settings with the three files of a Secret.
fn tls(objects: &Objects, name: &str, folder: &Path) -> TlsConfig {
    let file = |key: &str| {
        let path = folder.join(format!("{name}-{key}"));
        std::fs::write(&path, secret(objects, name, key)).unwrap();
        Some(path)
    };
    TlsConfig { ca: file("ca.crt"), cert: file("tls.crt"), key: file("tls.key"), reload_seconds: 0 }
}

/// Components with a certificate, and the role that it names.
const ROLES: [(&str, &str); 9] = [
    ("storage-writer", "storage-writer"),
    ("multiproof-workers", "multiproof-worker"),
    ("blob-validator", "blob-validator"),
    ("executor", "executor"),
    ("peer-table", "peer-table"),
    ("discovery", "discovery"),
    ("peer-sessions", "peer-sessions"),
    ("tx-pool", "tx-pool"),
    ("operator", "operator"),
];

#[test]
fn certificates_that_the_chart_makes_are_good_for_their_role_alone() {
    let Some(cluster) = FakeCluster::start() else { return };
    let objects = cluster.install(&[]);
    let folder = tempfile::tempdir().unwrap();
    for (component, own) in ROLES {
        let config = tls(&objects, &format!("tandem-{component}-tls"), folder.path());
        for (_, role) in ROLES {
            let identity = Identity::load(role, &config);
            assert_eq!(identity.is_ok(), role == own, "{component} as {role}: {identity:?}");
        }
    }
    assert!(objects.get("Secret", "tandem-nats-tls").is_some());
    // The authority's key reaches no pod.
    for workload in objects.workloads() {
        assert!(!workload.spec().to_string().contains("tandem-authority"));
    }
}

#[test]
fn secrets_and_certificates_stay_over_upgrades() {
    let Some(cluster) = FakeCluster::start() else { return };
    let first = cluster.install(&[]);
    let nats = |objects: &Objects| objects.workload("nats").template.clone();
    let before = (secrets(&first), nats(&first));
    assert!(before.0.len() >= 13, "{:?}", before.0.keys());
    let key = secret(&first, "tandem-node-key", "nodekey");
    assert!(NodeKey::from_bytes(const_hex::decode_to_array(&key).unwrap()).is_some());
    let second = cluster.upgrade(&["log.filter=debug"]);
    assert_eq!((secrets(&second), nats(&second)), before);
}

#[test]
fn certificates_are_renewed_by_the_same_authority() {
    let Some(cluster) = FakeCluster::start() else { return };
    let first = cluster.install(&[]);
    let cert =
        |objects: &Objects, name: &str| secret(objects, &format!("tandem-{name}-tls"), "tls.crt");
    // A certificate that is due is replaced by the next upgrade.
    cluster.change("secrets", "tandem-executor-tls", |it| {
        it["metadata"]["annotations"]["tandem/certificate-due"] = "1".into();
    });
    let second = cluster.upgrade(&[]);
    assert_ne!(cert(&second, "executor"), cert(&first, "executor"));
    assert_eq!(cert(&second, "discovery"), cert(&first, "discovery"));
    // All certificates are replaced if the operator says so, and NATS reads its own again.
    let third = cluster.upgrade(&["tls.generated.renew=May"]);
    for (component, _) in ROLES.into_iter().chain([("nats", "")]) {
        assert_ne!(cert(&third, component), cert(&second, component), "{component}");
    }
    let (before, after) = (second.workload("nats"), third.workload("nats"));
    assert_ne!(before.template["metadata"], after.template["metadata"]);
    let authority = |objects: &Objects| secret(objects, "tandem-authority", "ca.crt");
    assert_eq!(authority(&third), authority(&first));
    let fourth = cluster.upgrade(&["tls.generated.renew=May"]);
    assert_eq!(secrets(&fourth), secrets(&third));
}

#[test]
fn an_authority_is_replaced_in_three_steps_without_a_break() {
    let Some(cluster) = FakeCluster::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let load = |objects: &Objects| {
        for (component, role) in ROLES {
            let config = tls(objects, &format!("tandem-{component}-tls"), folder.path());
            Identity::load(role, &config).unwrap();
        }
    };
    let authorities = |objects: &Objects| {
        secret(objects, "tandem-executor-tls", "ca.crt").matches("BEGIN CERTIFICATE").count()
    };
    let first = cluster.install(&[]);
    // Step 1: services trust both authorities, and have certificates of the old one.
    let both = ["tls.generated.authority=2"];
    for _ in 0..2 {
        let objects = cluster.upgrade(&both);
        assert_eq!(authorities(&objects), 2);
        let cert = |objects| secret(objects, "tandem-executor-tls", "tls.crt");
        assert_eq!(cert(&objects), cert(&first));
        load(&objects);
    }
    // Step 2: services have certificates of the new authority.
    let renewed = cluster.upgrade(&[both[0], "tls.generated.renew=2"]);
    assert_eq!(authorities(&renewed), 2);
    load(&renewed);
    // Step 3: the old authority is no longer trusted.
    let last = ["tls.generated.renew=2", "tls.generated.trustPrevious=false"];
    let objects = cluster.upgrade(&[both[0], last[0], last[1]]);
    assert_eq!(authorities(&objects), 1);
    load(&objects);
    let of_old = tls(&first, "tandem-executor-tls", folder.path()).cert;
    let mut config = tls(&objects, "tandem-operator-tls", folder.path());
    config.cert = of_old;
    Identity::load("executor", &config).unwrap_err();
}

#[test]
fn another_genesis_is_refused_while_the_volume_is_there() {
    let Some(cluster) = FakeCluster::start() else { return };
    let other = ["genesis.source=configMap", "genesis.configMap.name=chain"];
    // No volume yet: a failed first install may be repeated with other values.
    cluster.install(&[]);
    cluster.upgrade(&other);
    cluster.claim();
    let said = cluster.refusal(&["--is-upgrade"], &[]);
    for part in
        ["genesis.source is dev", "data-tandem-storage-writer-0", "configMap chain/genesis.json"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    // An install on the volume of an earlier release is refused too.
    cluster.refusal(&[], &[]);
    cluster.upgrade(&other);
    // An existing database needs no genesis, and the next genesis is still compared.
    cluster.upgrade(&["genesis.source=none"]);
    cluster.refusal(&["--is-upgrade"], &[]);
    cluster.upgrade(&["genesis.acceptAnother=true"]);
    cluster.refusal(&["--is-upgrade"], &other);
}

#[test]
fn autoscaling_begins_with_the_pods_that_there_are() {
    let Some(cluster) = FakeCluster::start() else { return };
    let own = "services.multiproof-workers.autoscaling";
    let enabled = format!("{own}.enabled=true");
    cluster.install(&["services.multiproof-workers.replicas=7"]);
    let replicas = |objects: &Objects| {
        objects.workload("multiproof-workers").object["spec"]["replicas"].clone()
    };
    assert_eq!(replicas(&cluster.upgrade(&[&enabled])), 7);
    cluster
        .change("deployments", "tandem-multiproof-workers", |it| it["spec"]["replicas"] = 9.into());
    assert_eq!(replicas(&cluster.upgrade(&[&enabled])), 9);
    let most = format!("{own}.maxReplicas=5");
    assert_eq!(replicas(&cluster.upgrade(&[&enabled, &most])), 5);
    let least = format!("{own}.minReplicas=6");
    assert_eq!(replicas(&cluster.upgrade(&[&enabled, &least])), 6);
}

/// Kubernetes refuses to change a claim's template, so an upgrade with another size must not ask
/// for it.
#[test]
fn templates_of_claims_stay_as_they_are() {
    let Some(cluster) = FakeCluster::start() else { return };
    let templates = |objects: &Objects, name: &str| {
        objects.workload(name).object["spec"]["volumeClaimTemplates"].clone()
    };
    let first = cluster.install(&["services.storage-writer.persistence.size=7Gi"]);
    let size = &templates(&first, "storage-writer")[0]["spec"]["resources"]["requests"]["storage"];
    assert_eq!(size, "7Gi");
    let second = cluster.upgrade(&[
        "services.storage-writer.persistence.size=70Gi",
        "services.storage-writer.persistence.storageClass=fast",
        "nats.persistence.size=2Gi",
    ]);
    for name in ["storage-writer", "nats"] {
        assert_eq!(templates(&second, name), templates(&first, name), "{name}");
    }
}

#[test]
fn the_way_to_the_genesis_is_closed_once_the_database_is_there() {
    let Some(cluster) = FakeCluster::start() else { return };
    let digest = format!("genesis.url.sha256={}", "0".repeat(64));
    let url = ["genesis.source=url", "genesis.url.address=https://c/g.json", &digest];
    let open = |objects: &Objects| objects.get("NetworkPolicy", "tandem-genesis").is_some();
    assert!(open(&cluster.install(&url)));
    // The first start has not succeeded yet.
    cluster.claim();
    assert!(open(&cluster.upgrade(&url)));
    cluster.change("statefulsets", "tandem-storage-writer", |it| {
        it["status"] = json!({"readyReplicas": 1});
    });
    let after = cluster.render(&["--is-upgrade"], &url).unwrap();
    assert!(!open(&after));
    let always = [&url[..], &["genesis.url.egress=always"]].concat();
    assert!(open(&cluster.render(&["--is-upgrade"], &always).unwrap()));
    // A new release on the volume of the previous one.
    cluster.objects.lock().unwrap().retain(|path, _| !path.contains("/statefulsets/"));
    assert!(!open(&cluster.render(&[], &url).unwrap()));
    // There is one init container, with the service's own image.
    let init: Vec<_> = list(&after.workload("storage-writer").spec()["initContainers"]).collect();
    assert_eq!(init.len(), 1);
    assert_eq!(init[0]["image"], after.workload("storage-writer").spec()["containers"][0]["image"]);
}
