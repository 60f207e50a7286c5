//! Tests the chart `helm/tandem` against Helm, against Kubernetes' rules, and against the binary.
//!
//! The tests use what Helm renders from the values in `helm/tandem/ci`. Without Helm, a line says
//! so, and an earlier rendering takes its place: `helm/tandem/golden`.

mod checkers;
mod dev_chain;
mod followers;
mod golden;
mod local;
mod nats;
mod peers;
mod pods;
mod readme;
mod refusals;
mod rules;
mod sizes;
mod start;
mod traffic;
mod tx_executors;
mod upgrades;
mod writers;

use crate::deploy::{
    compose::{OPTIONAL, SERVICES},
    program, skipped,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tandem_cluster_tests::repository;

/// Values files: `helm/tandem/ci/NAME-values.yaml`.
const CASES: [&str; 7] =
    ["minimal", "production", "external", "tls", "no-discovery", "sixteen-workers", "ipv6"];

/// Cases whose rendering is kept in the repository.
const KEPT: [&str; 2] = ["minimal", "production"];

/// Namespace and Kubernetes release; Helm's default for the release depends on how Helm was built.
const FOR: [&str; 4] = ["--namespace", "chain", "--kube-version", "1.30.0"];

/// Placeholder for content that differs from one rendering to the next.
const MADE: &str = "made at the install";

fn chart() -> PathBuf {
    repository().join("helm/tandem")
}

fn values(case: &str) -> PathBuf {
    chart().join(format!("ci/{case}-values.yaml"))
}

/// Returns the path of Helm. Prints a line if it is not installed.
fn helm() -> Option<PathBuf> {
    let found = program("helm");
    if found.is_none() {
        skipped("helm is not installed (./dev does it where Go is there)");
    }
    found
}

/// Returns the standard output of a command of Helm, or its standard error if it fails.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Runs `helm template` on the chart with the values of a case and additional ones.
fn template(helm: &Path, case: &str, set: &[&str]) -> Result<String, String> {
    let mut command = Command::new(helm);
    command.args(["template", "tandem"]).arg(chart()).args(FOR).arg("--values").arg(values(case));
    for value in set {
        command.args(["--set", value]);
    }
    run(&mut command)
}

/// Returns the objects of each case, rendered now or, without Helm, earlier.
fn rendered() -> BTreeMap<&'static str, Objects> {
    match helm() {
        Some(helm) => {
            let render =
                |case| template(&helm, case, &[]).unwrap_or_else(|error| panic!("{case}: {error}"));
            CASES.map(|case| (case, Objects::parse(&render(case)))).into()
        }
        None => KEPT.map(|case| (case, Objects::parse(&golden::kept(case)))).into(),
    }
}

/// Manifests.
struct Objects(Vec<Value>);

impl Objects {
    fn parse(text: &str) -> Self {
        let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        assert!(objects.len() > 10, "{} objects", objects.len());
        Self(objects)
    }

    fn of_kind<'a>(&'a self, kind: &str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of_kind(kind).find(|object| object["metadata"]["name"] == name)
    }

    /// Returns all workloads with their pod templates: Deployments, StatefulSets, Jobs, and single
    /// pods.
    fn workloads(&self) -> impl Iterator<Item = Workload<'_>> {
        self.0.iter().filter_map(|object| {
            let template = match object["kind"].as_str()? {
                "Deployment" | "StatefulSet" | "Job" => &object["spec"]["template"],
                "Pod" => object,
                _ => return None,
            };
            Some(Workload { object, template })
        })
    }

    /// Returns the workload of a component.
    fn workload(&self, component: &str) -> Workload<'_> {
        let found = self.workloads().find(|workload| workload.component() == component);
        found.unwrap_or_else(|| panic!("there is no {component}"))
    }
}

/// An object with pods.
#[derive(Clone, Copy)]
struct Workload<'a> {
    object: &'a Value,
    template: &'a Value,
}

impl<'a> Workload<'a> {
    fn name(self) -> &'a str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    fn component(self) -> &'a str {
        self.labels()["app.kubernetes.io/component"].as_str().unwrap()
    }

    fn labels(self) -> &'a Value {
        &self.template["metadata"]["labels"]
    }

    fn spec(self) -> &'a Value {
        &self.template["spec"]
    }

    /// Returns the containers, init containers first.
    fn containers(self) -> impl Iterator<Item = &'a Value> {
        list(&self.spec()["initContainers"]).chain(list(&self.spec()["containers"]))
    }

    fn is_ours(self) -> bool {
        SERVICES.contains(&self.component()) || OPTIONAL.contains(&self.component())
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Returns whether labels match a selector (`matchLabels`, or a Service's).
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().expect("a selector");
    !selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value)
}

/// Returns whether generated files are to be rewritten instead of compared.
fn updates() -> bool {
    std::env::var_os("TANDEM_UPDATE").is_some_and(|value| value == "1")
}

/// Compares a file of the repository with the text that is generated for it.
fn is_up_to_date(path: &Path, want: &str) {
    if updates() {
        fs::write(path, want).unwrap();
    }
    let have = fs::read_to_string(path).unwrap_or_default();
    if have == want {
        return;
    }
    let mut lines = have.lines().zip(want.lines()).enumerate();
    let first = lines.find(|(_, (have, want))| have != want);
    panic!(
        "{} is not up to date (TANDEM_UPDATE=1 writes it): of {} lines now {}, first other one: {first:?}",
        path.display(),
        have.lines().count(),
        want.lines().count(),
    );
}
