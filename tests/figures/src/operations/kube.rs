//! A driver of Kubernetes: `kubectl` and `helm` as processes, each with a bounded time.

use super::release::{OPTIONAL_ROLES, ROLES};
use crate::client;
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tandem_testkit::last_lines;

/// Longest time of a command that does not wait for anything.
pub const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the removal of a namespace.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest wait for an answer of a pod.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause between two checks of a condition.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A namespace of a cluster, created at the start and removed with everything in it at the end.
pub struct Kube {
    namespace: String,
    kubeconfig: PathBuf,
}

/// The properties of a pod that the trials need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub component: String,
    pub node: String,
    /// Identifier of the first container at its runtime, without the runtime's name.
    pub container: String,
    pub ready: bool,
    /// Whether the pod is being deleted.
    pub leaves: bool,
}

impl Pod {
    fn read(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = pod["status"]["conditions"].as_array();
        let ready = conditions.is_some_and(|all| {
            all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        let container = text(&pod["status"]["containerStatuses"][0]["containerID"]);
        Self {
            name: text(&pod["metadata"]["name"]),
            component: text(&pod["metadata"]["labels"]["app.kubernetes.io/component"]),
            node: text(&pod["spec"]["nodeName"]),
            container: container.rsplit('/').next().unwrap_or_default().to_owned(),
            ready,
            leaves: !pod["metadata"]["deletionTimestamp"].is_null(),
        }
    }
}

impl Kube {
    /// Creates the namespace; one left over from an earlier run is removed first.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn start(kubeconfig: &Path, namespace: &str) -> anyhow::Result<Self> {
        let kube = Self { namespace: namespace.to_owned(), kubeconfig: kubeconfig.to_owned() };
        kube.kubectl(&["get", "--raw", "/readyz"])
            .with_context(|| format!("ask the cluster of {}", kubeconfig.display()))?;
        let gone = ["delete", "namespace", namespace, "--ignore-not-found", "--wait=true"];
        kube.run("kubectl", &gone, None, REMOVAL_TIME_MAX)?;
        kube.kubectl(&["create", "namespace", namespace])?;
        Ok(kube)
    }

    /// Returns the name of the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the kubeconfig file, which names the cluster.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs `kubectl` in the namespace and returns its output.
    ///
    /// # Errors
    /// If it fails or takes longer than a minute.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.run("kubectl", arguments, None, COMMAND_TIME_MAX)
    }

    /// Runs `kubectl` in the namespace with another time limit.
    ///
    /// # Errors
    /// If it fails or takes longer than `time_max`.
    pub fn kubectl_for(&self, arguments: &[&str], time_max: Duration) -> anyhow::Result<String> {
        self.run("kubectl", arguments, None, time_max)
    }

    /// Creates or changes objects.
    ///
    /// # Errors
    /// As for [`Kube::kubectl`].
    pub fn apply(&self, objects: &Value) -> anyhow::Result<()> {
        let input = objects.to_string();
        let arguments = ["apply", "--filename", "-"];
        self.run("kubectl", &arguments, Some(input.as_bytes()), COMMAND_TIME_MAX).map(drop)
    }

    /// Runs `helm` in the namespace.
    ///
    /// # Errors
    /// If it fails or takes longer than `time_max`.
    pub fn helm(&self, arguments: &[&str], time_max: Duration) -> anyhow::Result<String> {
        self.run("helm", arguments, None, time_max)
    }

    fn run(
        &self,
        program: &str,
        arguments: &[&str],
        input: Option<&[u8]>,
        time_max: Duration,
    ) -> anyhow::Result<String> {
        let mut command = Command::new(program);
        command.args(["--namespace", &self.namespace]).args(arguments);
        command.env("KUBECONFIG", &self.kubeconfig);
        run(&mut command, input, time_max)
    }

    /// Returns an object or a list as JSON.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn get(&self, what: &[&str]) -> anyhow::Result<Value> {
        let text = self.kubectl(&[&["get", "--output", "json"], what].concat())?;
        serde_json::from_str(&text).context("parse what kubectl printed")
    }

    /// Returns the pods of services and bus, in the order of their names.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let list = self.get(&["pods"])?;
        let pods = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let pods = pods.iter().map(Pod::read);
        let of_services = ROLES.iter().chain(&OPTIONAL_ROLES);
        let is_service = |pod: &Pod| of_services.clone().any(|role| *role == pod.component);
        Ok(pods.filter(is_service).collect())
    }

    /// Returns the pods of one role that are not being deleted.
    ///
    /// # Errors
    /// As for [`Kube::pods`].
    pub fn pods_of(&self, role: &str) -> anyhow::Result<Vec<Pod>> {
        let pods = self.pods()?.into_iter();
        Ok(pods.filter(|pod| pod.component == role && !pod.leaves).collect())
    }

    /// Sets the number of pods of a workload, such as `deployment/tandem-executor`.
    ///
    /// # Errors
    /// As for [`Kube::kubectl`].
    pub fn scale(&self, workload: &str, replicas: usize) -> anyhow::Result<()> {
        self.kubectl(&["scale", workload, &format!("--replicas={replicas}")]).map(drop)
    }

    /// Creates a Secret or a ConfigMap of one file.
    ///
    /// # Errors
    /// As for [`Kube::kubectl`].
    pub fn put_file(&self, kind: &str, name: &str, key: &str, text: &str) -> anyhow::Result<()> {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        let field = if kind == "Secret" { "stringData" } else { "data" };
        object[field] = json!({key: text});
        self.apply(&object)
    }
}

/// A `kubectl proxy`: offers the API server, and through it each port of each pod, on a loopback
/// port.
pub struct Proxy {
    child: Child,
    address: SocketAddr,
}

impl Proxy {
    /// Starts the process and waits until it prints its address.
    ///
    /// # Errors
    /// If it ends before.
    pub fn start(kubeconfig: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("kubectl");
        command.args(["proxy", "--port=0"]).env("KUBECONFIG", kubeconfig);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("start kubectl proxy")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("read kubectl proxy")?;
        let read = BufReader::new(stdout).read_line(&mut line);
        let address = line.trim().rsplit(' ').next().and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("kubectl proxy says `{}` ({read:?}) instead of its address", line.trim());
        };
        Ok(Self { child, address })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests a path from a port of a pod and returns status and body.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn ask_pod(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
        path: &str,
    ) -> anyhow::Result<(u16, String)> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}");
        client::get(self.address, &path, ANSWER_TIME_MAX)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A process that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Kube {
    fn drop(&mut self) {
        // The next run removes any remains after an error.
        let _ = self.kubectl(&[
            "delete",
            "namespace",
            &self.namespace,
            "--ignore-not-found",
            "--wait=false",
        ]);
    }
}

/// Runs a program to its end and returns its standard output. At the time limit it is killed.
///
/// # Errors
/// If it cannot be started, fails or takes too long; the error has the end of its messages.
pub fn run(
    command: &mut Command,
    input: Option<&[u8]>,
    time_max: Duration,
) -> anyhow::Result<String> {
    let name = format!("{:?}", command.get_program()).replace('"', "");
    let (mut out, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(out.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A program that ended before it read all input explains itself by its status.
        let _ = stdin.write_all(input);
    }
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > time_max {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut text = [String::new(), String::new()];
    for (file, text) in [&mut out, &mut errors].into_iter().zip(&mut text) {
        file.rewind()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        *text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let [out, errors] = text;
    let Some(status) = status else {
        let end = last_lines(&errors, 3).join(" | ");
        bail!("{name} took longer than {} s: {end}", time_max.as_secs())
    };
    if !status.success() {
        bail!("{name} failed: {}", last_lines(&format!("{out}{errors}"), 3).join(" | "));
    }
    Ok(out)
}

/// Waits until `look` returns a value; its errors count as no value.
///
/// # Errors
/// If the time is over; the error has the awaited condition and the last error.
pub fn wait<T>(
    what: &str,
    time_max: Duration,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        let error = match look() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if started.elapsed() > time_max {
            let text = format!("waited {} s for {what}", time_max.as_secs());
            return Err(match error {
                Some(error) => error.context(text),
                None => anyhow::anyhow!(text),
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_or_takes_too_long_is_an_error_with_its_last_lines() {
        let shell = |script: &str, time_max: Duration| {
            run(Command::new("sh").args(["-c", script]), Some(b"in"), time_max)
        };
        assert_eq!(shell("cat", COMMAND_TIME_MAX).unwrap(), "in");
        let error = shell("echo why >&2; exit 3", COMMAND_TIME_MAX).unwrap_err();
        assert_eq!(error.to_string(), "sh failed: why");
        let error = shell("exec sleep 60", Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().starts_with("sh took longer than"), "{error}");
    }

    #[test]
    fn a_pod_is_read_from_what_kubectl_prints() {
        let pod = json!({"metadata": {"name": "a-1", "deletionTimestamp": "now",
                "labels": {"app.kubernetes.io/component": "executor"}},
            "spec": {"nodeName": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"containerID": "containerd://abc"}]}});
        let read = Pod::read(&pod);
        assert_eq!((read.component.as_str(), read.container.as_str()), ("executor", "abc"));
        assert!(read.ready && read.leaves);
        assert!(!Pod::read(&json!({})).ready);
    }

    #[test]
    fn a_wait_ends_with_the_value_or_with_the_last_error() {
        let mut looks = 0;
        let value = wait("a value", COMMAND_TIME_MAX, || {
            looks += 1;
            Ok((looks > 1).then_some(looks))
        });
        assert_eq!(value.unwrap(), 2);
        let error = wait::<()>("it", Duration::ZERO, || bail!("no cluster")).unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 0 s for it: no cluster");
    }
}
