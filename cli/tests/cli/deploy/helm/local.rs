//! A machine that stands in for a cluster: maps the names in manifests to files and loopback
//! addresses.
//!
//! Each pod gets an address of its own in 127.0.0.0/8, so that all ports are those of the
//! manifests. In a container's arguments and variables, only locations are rewritten: mounted
//! folders, names of services, and `0.0.0.0`, which becomes the pod's address.

use super::{MADE, Objects, list, selects, text};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Contents of a ConfigMap or Secret by key.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The machine.
pub struct Local {
    pub objects: Objects,
    folder: TempDir,
    network: [u8; 2],
    addresses: Cell<u8>,
    /// Contents of ConfigMaps and Secrets that replace, or are missing from, the manifests.
    given: BTreeMap<String, Files>,
    /// Address of the first pod of each component.
    components: BTreeMap<String, Ipv4Addr>,
}

impl Local {
    /// Returns a machine for these manifests. These ConfigMaps and Secrets replace those of the
    /// manifests.
    pub fn new(objects: Objects, given: BTreeMap<String, Files>) -> Self {
        let network = loop {
            let network = [rand::random_range(64..=126), rand::random()];
            let [a, b] = network;
            // Another test that runs beside this one may have taken the network.
            if TcpListener::bind((Ipv4Addr::new(127, a, b, 1), 9100)).is_ok() {
                break network;
            }
        };
        let folder = TempDir::new().unwrap();
        let (addresses, components) = (Cell::new(0), BTreeMap::new());
        let mut local = Self { objects, folder, network, addresses, given, components };
        let names: Vec<_> =
            local.objects.workloads().map(|workload| workload.component().to_owned()).collect();
        for name in names {
            let address = local.address();
            local.components.insert(name, address);
        }
        local
    }

    /// Replaces a ConfigMap or Secret of the manifests.
    pub fn give(&mut self, name: &str, files: Files) {
        self.given.insert(name.to_owned(), files);
    }

    /// Returns the folder of all files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the address of the first pod of a component.
    pub fn first(&self, component: &str) -> Ipv4Addr {
        self.components[component]
    }

    /// Returns an address that no pod has.
    pub fn address(&self) -> Ipv4Addr {
        let [a, b] = self.network;
        self.addresses.set(self.addresses.get() + 1);
        Ipv4Addr::new(127, a, b, self.addresses.get())
    }

    /// Replaces the names and ports of services, such as `tandem-nats:4222`, in a text.
    pub fn with_addresses(&self, text_before: &str) -> String {
        let mut out = text_before.to_owned();
        for service in self.objects.of_kind("Service") {
            let name = format!("://{}:", text(&service["metadata"]["name"]));
            let Some((before, after)) = out.split_once(&name) else { continue };
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let (port, rest) = after.split_at(digits);
            let port: u64 = port.parse().unwrap();
            let spec = &service["spec"];
            let served = list(&spec["ports"]).find(|it| it["port"] == port);
            let served = served.unwrap_or_else(|| panic!("{name} has no port {port}"));
            let mut workloads = self.objects.workloads();
            let workload =
                workloads.find(|it| selects(&spec["selector"], it.labels())).expect("pods");
            let opened = list(&workload.spec()["containers"][0]["ports"]);
            let mut opened = opened.filter(|it| it["name"] == served["targetPort"]);
            let target = opened.next().expect("a port of that name")["containerPort"].as_u64();
            let (ip, target) = (self.first(workload.component()), target.unwrap());
            out = format!("{before}://{ip}:{target}{rest}");
        }
        out
    }

    /// Returns the contents of a ConfigMap or Secret.
    pub fn files(&self, kind: &str, name: &str) -> Files {
        if let Some(given) = self.given.get(name) {
            return given.clone();
        }
        let object = self.objects.get(kind, name);
        let object = object.unwrap_or_else(|| panic!("there is no {kind} {name}"));
        let data = object["data"].as_object().unwrap().iter();
        let decode = |value: &str| match kind {
            "Secret" if value != MADE => BASE64.decode(value).unwrap(),
            _ => value.as_bytes().to_vec(),
        };
        let mut files: Files =
            data.map(|(key, value)| (key.clone(), decode(text(value)))).collect();
        if files.values().any(|value| value == MADE.as_bytes()) {
            make_secrets(name, &mut files);
        }
        files
    }

    /// Makes the folder of a volume for a pod. Files that outlive restarts are under the name of
    /// the pod.
    pub fn volume(&self, pod: &str, ip: Ipv4Addr, volume: &Value) -> PathBuf {
        let folder = self.folder().join(pod).join(text(&volume["name"]));
        fs::create_dir_all(&folder).unwrap();
        let mut sources: Vec<&Value> = list(&volume["projected"]["sources"]).collect();
        if sources.is_empty() {
            sources.push(volume);
        }
        for source in sources {
            let (kind, source) = match (&source["configMap"], &source["secret"]) {
                (Value::Null, Value::Null) => continue,
                (Value::Null, secret) => ("Secret", secret),
                (map, _) => ("ConfigMap", map),
            };
            let name = source.get("name").or(source.get("secretName")).expect("a name");
            let files = self.files(kind, text(name));
            let items: Vec<(String, String)> = match source["items"].as_array() {
                Some(items) => items
                    .iter()
                    .map(|item| (text(&item["key"]).to_owned(), text(&item["path"]).to_owned()))
                    .collect(),
                None => files.keys().map(|key| (key.clone(), key.clone())).collect(),
            };
            for (key, path) in items {
                let path = folder.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let contents =
                    files.get(&key).unwrap_or_else(|| panic!("{kind} {name} has no {key}"));
                // The configuration of a server names addresses and folders too.
                let contents = match path.extension().is_some_and(|it| it == "conf") {
                    true => self.server_config(pod, ip, contents),
                    false => contents.clone(),
                };
                fs::write(path, contents).unwrap();
            }
        }
        folder
    }

    fn server_config(&self, pod: &str, ip: Ipv4Addr, contents: &[u8]) -> Vec<u8> {
        let folder = |name: &str| self.folder().join(pod).join(name);
        let contents = String::from_utf8(contents.to_vec()).unwrap();
        let contents = contents.replace("0.0.0.0", &ip.to_string());
        let contents = contents.replace("\"/data\"", &format!("{:?}", folder("data")));
        let config = format!("\"{}/", folder("config").display());
        contents.replace("\"/etc/nats/", &config).into_bytes()
    }
}

/// Makes the secrets that the chart makes at the install and the manifests lack: the same each time,
/// as several pods mount some of them.
fn make_secrets(name: &str, files: &mut Files) {
    let mut list = String::new();
    for (key, value) in files.iter_mut() {
        let made = const_hex::encode(Sha256::digest(format!("{name} {key}")));
        if key != "passwords.conf" {
            list += &format!("{}_password: {made:?}\n", key.replace('-', "_"));
        }
        *value = made.into_bytes();
    }
    if let Some(passwords) = files.get_mut("passwords.conf") {
        *passwords = list.into_bytes();
    }
}
