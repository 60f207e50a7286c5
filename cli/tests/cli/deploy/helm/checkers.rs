//! Runs third-party tools on the manifests: Kubernetes' own schemas, and checks of good practice.

use super::{Objects, helm, rendered};
use crate::deploy::{program, skipped};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Releases of Kubernetes whose schemas the manifests must fit.
const KUBERNETES: [&str; 3] = ["1.27", "1.32", "1.37"];

/// Third-party kinds without a schema.
const GROUPS_OF_OTHERS: [&str; 2] = ["monitoring.coreos.com/", "cert-manager.io/"];

/// Findings of kube-score that are intended.
const MEANT: [&str; 8] = [
    // The operator chooses the replicas. peer-table and discovery can only have one.
    "deployment-replicas",
    "horizontalpodautoscaler-replicas",
    // A claim, or a port of the host, is for one pod at a time. Traces in memory are lost either
    // way.
    "deployment-strategy",
    // Discovery is reached from outside in the chosen way.
    "service-type",
    // The autoscaler sets the number itself, from the cluster's state. Without a number, Kubernetes
    // would go to a single pod when autoscaling is switched on.
    "deployment-targeted-by-hpa-does-not-have-replicas-configured",
    // Volumes and layers are each bounded by themselves.
    "container-ephemeral-storage-request-and-limit",
    // A tag, equal to the chart's version, is pulled if it is missing.
    "container-image-pull-policy",
    // Liveness and readiness are two paths on one port.
    "pod-probes-identical",
];

fn write(folder: &Path, case: &str, objects: &Objects) -> PathBuf {
    let file = folder.join(format!("{case}.yaml"));
    let native = objects.0.iter().filter(|object| {
        let version = object["apiVersion"].as_str().unwrap();
        !GROUPS_OF_OTHERS.iter().any(|group| version.starts_with(group))
    });
    // JSON is YAML.
    let documents: Vec<_> = native.map(Value::to_string).collect();
    fs::write(&file, documents.join("\n---\n")).unwrap();
    file
}

/// Returns a folder beside the build output. The tools read its files for long, and those in the
/// system's temporary folder may be swept away meanwhile.
fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn manifests_fit_the_schemas_of_several_kubernetes() {
    let Some(validate) = program("kubernetes-validate") else {
        return skipped("kubernetes-validate (PyPI) is not installed (./dev helm-check does it)");
    };
    let folder = folder();
    let files: Vec<_> =
        rendered().iter().map(|(case, objects)| write(folder.path(), case, objects)).collect();
    let check = |version: &str, files: &[PathBuf]| {
        let mut command = Command::new(&validate);
        command.args(["--strict", "--quiet", "--kubernetes-version", version]).args(files);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        // A kind without a schema is a warning, not an error. A kind that fits is not mentioned.
        if output.status.success() && said.is_empty() { Ok(()) } else { Err(said) }
    };
    for version in KUBERNETES {
        check(version, &files).unwrap_or_else(|said| panic!("Kubernetes {version}: {said}"));
    }
    // The tool does find faults.
    for (wrong, what) in [
        (r#""kind": "Pod", "spec": {"containers": [{"name": "a", "imege": "b"}]}"#, "imege"),
        (r#""kind": "Pott", "spec": {}"#, "Pott"),
    ] {
        let file = folder.path().join("wrong.yaml");
        let wrong = format!(r#"{{"apiVersion": "v1", "metadata": {{"name": "a"}}, {wrong}}}"#);
        fs::write(&file, wrong).unwrap();
        let said = check(KUBERNETES[0], &[file]).expect_err(what);
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn kube_score_has_nothing_to_criticize() {
    let Some(score) = program("kube-score") else {
        return skipped("kube-score is not installed (./dev helm-check does it)");
    };
    let folder = folder();
    let criticized = |case: &str, objects: &Objects| -> Vec<String> {
        let mut command = Command::new(&score);
        command.args(["score", "--output-format", "ci", "--kubernetes-version", "v1.27"]);
        // No limits on processors: values.yaml explains the reason.
        command.args(["--ignore-container-cpu-limit"]);
        command.args(["--enable-optional-test", "container-seccomp-profile"]);
        for check in MEANT {
            command.args(["--ignore-test", check]);
        }
        let output = command.arg(write(folder.path(), case, objects)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let good = said.lines().filter(|line| line.starts_with("[OK]")).count();
        assert!(good > 100, "{case}: {said}{}", String::from_utf8_lossy(&output.stderr));
        let bad = |line: &&str| line.starts_with("[CRITICAL]") || line.starts_with("[WARNING]");
        said.lines().filter(bad).map(str::to_owned).collect()
    };
    for (case, mut objects) in rendered() {
        let found = criticized(case, &objects);
        assert!(found.is_empty(), "{case}: {found:#?}");
        // The tool does find faults.
        let executor = objects.0.iter_mut().find(|object| {
            object["kind"] == "Deployment"
                && object["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"
        });
        executor.unwrap()["spec"]["template"]["spec"]["containers"][0]["image"] =
            "tandem:latest".into();
        let found = criticized("wrong", &objects);
        assert!(found.iter().any(|line| line.contains("latest")), "{case}: {found:#?}");
    }
}

/// A chart that is installed twice, or under another name, does not collide with itself.
#[test]
fn names_follow_the_release() {
    let Some(helm) = helm() else { return };
    let objects = |set: &[&str]| Objects::parse(&super::template(&helm, "minimal", set).unwrap());
    let names = |objects: &Objects| -> BTreeMap<String, String> {
        let named = objects.0.iter().map(|object| {
            let name = super::text(&object["metadata"]["name"]);
            (format!("{} {name}", object["kind"]), name.to_owned())
        });
        named.collect()
    };
    let usual = names(&objects(&[]));
    assert!(usual.values().all(|name| name.starts_with("tandem-")), "{usual:?}");
    let other = names(&objects(&["fullnameOverride=other"]));
    assert!(other.values().all(|name| name.starts_with("other-")), "{other:?}");
    assert_eq!(usual.len(), other.len());
    let long =
        objects(&["fullnameOverride=a-name-that-is-as-long-as-no-name-of-a-release-should-be"]);
    assert!(names(&long).values().all(|name| name.len() <= 63), "{:?}", names(&long));
}
