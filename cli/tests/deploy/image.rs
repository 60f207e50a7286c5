//! The image: what it says of itself, and what it is made of.

use crate::{succeeds, tandem, text, yaml};
use serde_json::Value;
use std::{collections::BTreeSet, process::Command};
use tandem_cluster_tests::repository;

#[test]
fn binary_image_and_chart_are_of_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = yaml("helm/tandem/Chart.yaml");
    assert_eq!(chart["appVersion"], version);
    assert!(text("deploy/Dockerfile").contains(&format!("ARG VERSION={version}\n")));
    let said = succeeds(tandem().arg("--version"));
    let build = said.trim().strip_prefix(&format!("tandem {version} (")).expect("the version");
    let (commit, profile) = build.trim_end_matches(')').split_once(", ").expect("commit, profile");
    assert!(commit.len() == 8 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}");
    assert_eq!(profile, if cfg!(debug_assertions) { "debug" } else { "release" });
}

#[test]
fn the_bill_of_materials_names_what_is_in_the_binary() {
    let mut command = Command::new(repository().join("deploy/sbom"));
    command.env("CARGO_NET_OFFLINE", "true");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bill: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let parts = bill["components"].as_array().unwrap();
    let lock: toml::Table = text("Cargo.lock").parse().unwrap();
    let locked: BTreeSet<_> = lock["package"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["name"].as_str().unwrap(), it["version"].as_str().unwrap()))
        .collect();
    let mut named = BTreeSet::new();
    for part in parts {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str().unwrap());
        assert!(locked.contains(&(name, version)), "{name} {version} is not locked");
        assert!(named.insert((name, version)), "{name} {version} twice");
        assert!(part["licenses"][0]["expression"].is_string(), "{name} has no licence");
    }
    let has = |name: &str| named.iter().any(|(named, _)| *named == name);
    for name in ["tandem-executor", "librocksdb-sys", "revm", "tokio"] {
        assert!(has(name), "{name} is missing");
    }
    for name in ["proptest", "criterion", "tandem-cluster-tests"] {
        assert!(!has(name), "{name} is for tests");
    }
}
