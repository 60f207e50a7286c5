//! Runs pods as processes with exactly the arguments of their containers, on a [`Local`] machine.

use super::{Workload, list, local::Local, text};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};
use tandem_bus_tests::eventually;
use tandem_cluster_tests::signal;

/// Programs of the images.
pub struct Programs {
    pub tandem: PathBuf,
    pub nats_server: PathBuf,
}

impl Programs {
    /// Returns the program of an image.
    fn of(&self, image: &str) -> Option<&Path> {
        let name = image.rsplit('/').next()?.split([':', '@']).next()?;
        match name {
            "tandem" => Some(&self.tandem),
            "nats" => Some(&self.nats_server),
            _ => None,
        }
    }
}

/// A running pod with one container.
pub struct Pod {
    pub name: String,
    pub ip: Ipv4Addr,
    container: Value,
    child: Child,
    log: PathBuf,
    grace: Duration,
}

impl Pod {
    /// Starts the pod of a workload: runs the init containers to their end, then its own container.
    /// Returns `None` if there is no program for its image.
    pub fn start(
        local: &Local,
        programs: &Programs,
        workload: Workload<'_>,
        index: usize,
    ) -> Option<Self> {
        let name = format!("{}-{index}", workload.name());
        let ip = match index {
            0 => local.first(workload.component()),
            _ => local.address(),
        };
        let spec = workload.spec();
        let container = list(&spec["containers"]).next().expect("a container").clone();
        programs.of(text(&container["image"]))?;
        let folders = folders(local, &name, ip, workload);
        for before in list(&spec["initContainers"]) {
            let place = Place { local, programs, pod: &name, ip, folders: &folders };
            let (status, log) = place.run(before);
            assert!(status.success(), "{name}: {}: {status}\n{log}", before["name"]);
        }
        let place = Place { local, programs, pod: &name, ip, folders: &folders };
        let (mut command, log) = place.command(&container);
        let child = command.spawn().unwrap();
        let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        Some(Self { name, ip, container, child, log, grace: Duration::from_secs(grace) })
    }

    /// Waits until a probe succeeds.
    pub fn becomes(&mut self, probe: &str) {
        let what = format!("{probe} of {}", self.name);
        eventually(&what, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{} ended: {ended:?}\n{}", self.name, self.log());
            self.probe(probe).then_some(())
        });
    }

    /// Runs a probe once.
    pub fn probe(&self, probe: &str) -> bool {
        let get = &self.container[probe]["httpGet"];
        let ports = list(&self.container["ports"]);
        let mut ports = ports.filter(|port| port["name"] == get["port"]);
        let port = ports.next().expect("the port of the probe")["containerPort"].as_u64().unwrap();
        let address = SocketAddr::from((self.ip, port as u16));
        status(address, text(&get["path"])).is_some_and(|code| (200..400).contains(&code))
    }

    /// Ends the pod with SIGTERM, as the kubelet does. The pod must not need to be killed.
    pub fn stop(&mut self) {
        let begun = std::time::Instant::now();
        signal(self.child.id(), rustix::process::Signal::TERM);
        let status = eventually(&self.name, || self.child.try_wait().unwrap());
        let took = begun.elapsed();
        assert!(status.success(), "{}: {status}\n{}", self.name, self.log());
        assert!(took < self.grace, "{} took {took:?} to end", self.name);
    }

    /// Returns everything that the pod has written.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs all containers of a pod in turn to their end, and returns their output.
pub fn run_to_end(local: &Local, programs: &Programs, workload: Workload<'_>) -> String {
    let (name, ip) = (workload.name(), local.first(workload.component()));
    let folders = folders(local, name, ip, workload);
    let mut logs = String::new();
    for container in workload.containers() {
        let place = Place { local, programs, pod: name, ip, folders: &folders };
        let (status, log) = place.run(container);
        assert!(status.success(), "{name}: {}: {status}\n{log}", container["name"]);
        logs += &log;
    }
    logs
}

/// Returns the folders of a pod's volumes by name.
fn folders(
    local: &Local,
    pod: &str,
    ip: Ipv4Addr,
    workload: Workload<'_>,
) -> BTreeMap<String, PathBuf> {
    let claims = list(&workload.object["spec"]["volumeClaimTemplates"]);
    let claims = claims.map(|claim| serde_json::json!({"name": claim["metadata"]["name"]}));
    let volumes = list(&workload.spec()["volumes"]).cloned().chain(claims);
    volumes.map(|it| (text(&it["name"]).to_owned(), local.volume(pod, ip, &it))).collect()
}

/// Environment in which a container runs.
struct Place<'a> {
    local: &'a Local,
    programs: &'a Programs,
    pod: &'a str,
    ip: Ipv4Addr,
    folders: &'a BTreeMap<String, PathBuf>,
}

impl Place<'_> {
    /// Runs a container to its end, and returns its status and output.
    fn run(&self, container: &Value) -> (ExitStatus, String) {
        let (mut command, log) = self.command(container);
        let status = command.status().unwrap();
        (status, fs::read_to_string(log).unwrap())
    }

    /// Returns the command of a container: the program of its image with its arguments, and only
    /// its variables.
    fn command(&self, container: &Value) -> (Command, PathBuf) {
        assert!(container["command"].is_null(), "images have an entry point");
        let program = self.programs.of(text(&container["image"])).expect("the image's program");
        let log =
            self.local.folder().join(format!("{}-{}.log", self.pod, text(&container["name"])));
        let file = File::create(&log).unwrap();
        let arguments = list(&container["args"]).map(|word| self.here(container, text(word)));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(self.environment(container))
            .current_dir(self.local.folder())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        (command, log)
    }

    fn environment(&self, container: &Value) -> BTreeMap<String, String> {
        let mut found = BTreeMap::<String, String>::new();
        for variable in list(&container["env"]) {
            let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            let mut value = match field {
                Some("status.podIP") => self.ip.to_string(),
                Some("metadata.name") => self.pod.to_owned(),
                Some("metadata.namespace") => "tandem".to_owned(),
                Some("spec.nodeName") => "node-0".to_owned(),
                Some(other) => panic!("{other} is not known here"),
                None => text(&variable["value"]).to_owned(),
            };
            for (name, earlier) in &found {
                value = value.replace(&format!("$({name})"), earlier);
            }
            let value = self.here(container, &value);
            found.insert(text(&variable["name"]).to_owned(), value);
        }
        found
    }

    /// Translates mounted folders, listen addresses and called addresses in a word to those of this
    /// machine.
    fn here(&self, container: &Value, word: &str) -> String {
        let mut word = self.local.with_addresses(word);
        if word == "0.0.0.0" {
            return self.ip.to_string();
        }
        for mount in list(&container["volumeMounts"]) {
            let path = text(&mount["mountPath"]);
            let folder = self.folders[text(&mount["name"])].to_str().unwrap();
            let within = |rest: &str| rest.is_empty() || rest.starts_with('/');
            let flag = word.find('=').map_or(0, |at| at + 1);
            for start in [0, flag] {
                if word[start..].strip_prefix(path).is_some_and(within) {
                    word = format!("{}{folder}{}", &word[..start], &word[start + path.len()..]);
                    break;
                }
            }
        }
        word
    }
}

/// Returns the status of the answer to a GET, if there is one.
fn status(address: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}
