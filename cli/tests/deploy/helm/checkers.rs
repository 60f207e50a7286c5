//! Tools of others that know Kubernetes: its own schemas, and what is thought to be good practice.

use super::{Objects, helm, rendered};
use crate::{program, skipped, succeeds};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, process::Command};

/// Releases of Kubernetes whose schemas the manifests must fit.
const KUBERNETES: [&str; 3] = ["1.27", "1.32", "1.37"];

/// Kinds of others, for which there is no schema.
const GROUPS_OF_OTHERS: [&str; 2] = ["monitoring.coreos.com/", "cert-manager.io/"];

/// What kube-score says is wrong and is meant so.
const MEANT: [&str; 4] = [
    // No limits on processors: values.yaml says why.
    "container-resources",
    // Of volumes and layers, which are bounded each by itself.
    "container-ephemeral-storage-request-and-limit",
    // A tag, the same as the chart's version, is pulled where it is missing.
    "container-image-pull-policy",
    // Liveness and readiness are two questions on one port.
    "pod-probes-identical",
];

fn write(folder: &Path, case: &str, objects: &Objects) -> std::path::PathBuf {
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

#[test]
fn manifests_fit_the_schemas_of_several_kubernetes() {
    let Some(validate) = program("kubernetes-validate") else {
        return skipped("kubernetes-validate (PyPI) is not installed (./dev helm-check does it)");
    };
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> =
        rendered().iter().map(|(case, objects)| write(folder.path(), case, objects)).collect();
    for version in KUBERNETES {
        let mut command = Command::new(&validate);
        command.args(["--strict", "--quiet", "--kubernetes-version", version]).args(&files);
        succeeds(&mut command);
    }
    // It does find what is wrong.
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "imege": "b"}]}}"#).unwrap();
    let output = Command::new(&validate).arg("--strict").arg(&wrong).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn kube_score_has_nothing_to_criticize() {
    let Some(score) = program("kube-score") else {
        return skipped("kube-score is not installed (./dev helm-check does it)");
    };
    let folder = tempfile::tempdir().unwrap();
    for (case, objects) in rendered() {
        let file = write(folder.path(), case, &objects);
        let mut command = Command::new(&score);
        command.args(["score", "--output-format", "ci", "--kubernetes-version", "v1.27"]);
        for check in MEANT {
            command.args(["--ignore-test", check]);
        }
        let said = succeeds(command.arg(&file));
        let wrong: Vec<_> = said.lines().filter(|line| line.starts_with("[CRITICAL]")).collect();
        assert!(wrong.is_empty(), "{case}: {wrong:#?}");
    }
}

/// A chart that is installed twice, or under another name, does not trip over itself.
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
