//! Tests of the image: its labels and its contents.

use crate::deploy::{succeeds, tandem, text, yaml};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};
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

/// Returns the output of a script of the repository, run with this time of the sources.
fn written(script: &str, seconds: &str) -> String {
    let mut command = Command::new(repository().join(script));
    command.env("CARGO_NET_OFFLINE", "true").env("SOURCE_DATE_EPOCH", seconds);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A package of `Cargo.lock`: its version, and the checksum of its archive if it has one.
struct Locked {
    version: String,
    checksum: Option<String>,
}

fn locked() -> BTreeMap<String, Vec<Locked>> {
    let lock: toml::Table = text("Cargo.lock").parse().unwrap();
    let mut locked = BTreeMap::<_, Vec<_>>::new();
    for package in lock["package"].as_array().unwrap() {
        let value = |key| package.get(key).map(|value| value.as_str().unwrap().to_owned());
        let (name, version) = (value("name").unwrap(), value("version").unwrap());
        locked.entry(name).or_default().push(Locked { version, checksum: value("checksum") });
    }
    locked
}

#[test]
fn the_bill_of_materials_names_what_is_in_the_binary() {
    let first = written("deploy/sbom", "1700000000");
    assert_eq!(first, written("deploy/sbom", "1700000000"), "the same sources, the same bytes");
    let bill: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let serial = bill["serialNumber"].as_str().unwrap().strip_prefix("urn:uuid:").unwrap();
    let lengths: Vec<_> = serial.split('-').map(str::len).collect();
    assert_eq!((lengths, &serial[14..15]), (vec![8, 4, 4, 4, 12], "8"), "{serial}");
    let later: Value = serde_json::from_str(&written("deploy/sbom", "1700000001")).unwrap();
    assert_ne!(bill["serialNumber"], later["serialNumber"], "another bill has another number");

    let locked = locked();
    let (mut crates, mut natives) = (BTreeSet::new(), BTreeMap::new());
    for part in bill["components"].as_array().unwrap() {
        let name = part["name"].as_str().unwrap();
        assert!(part["licenses"][0]["expression"].is_string(), "{name} has no licence");
        if let Some(property) = part["properties"].get(0) {
            assert_eq!(property["name"], "tandem:bundled-by");
            natives.insert(name, part["version"].as_str());
            continue;
        }
        let version = part["version"].as_str().unwrap();
        let lock = locked.get(name).and_then(|all| all.iter().find(|it| it.version == version));
        let lock = lock.unwrap_or_else(|| panic!("{name} {version} is not locked"));
        let hash = &part["hashes"][0];
        assert_eq!(hash["content"].as_str(), lock.checksum.as_deref(), "{name} {version}");
        assert!(hash.is_null() || hash["alg"] == "SHA-256");
        assert!(crates.insert((name, version)), "{name} {version} twice");
    }
    let has = |name: &str| crates.iter().any(|(named, _)| *named == name);
    for name in ["tandem-executor", "librocksdb-sys", "revm", "tokio"] {
        assert!(has(name), "{name} is missing");
    }
    for name in ["proptest", "criterion", "tandem-cluster-tests"] {
        assert!(!has(name), "{name} is for tests");
    }
    // Libraries in other languages have their own versions, which the crates' versions name.
    for (library, name) in [
        ("RocksDB", "librocksdb-sys"),
        ("LZ4", "lz4-sys"),
        ("jemalloc", "tikv-jemalloc-sys"),
        ("Zstandard", "zstd-sys"),
    ] {
        let version = natives[library].unwrap();
        assert!(version.starts_with(|first: char| first.is_ascii_digit()), "{library} {version}");
        assert!(locked[name][0].version.ends_with(version), "{library} {version}");
    }
    for library in ["blst", "c-kzg-4844", "libsecp256k1"] {
        assert!(natives[library].is_some_and(|version| version.contains('.')), "{library}");
    }
    assert!(natives.contains_key("BoringSSL") && natives.contains_key("CRYPTOGAMS"));
    // It is inside of a RocksDB that was compiled beforehand.
    assert!(natives.contains_key("liburing") <= std::env::var_os("ROCKSDB_LIB_DIR").is_some());
    let tree = bill["dependencies"].as_array().unwrap();
    let bound: usize = tree.iter().map(|it| it["dependsOn"].as_array().unwrap().len()).sum();
    assert!(bound >= natives.len(), "each is bound to the crate that brings it");
}

#[test]
fn the_notices_have_every_crate_and_the_texts_of_their_licences() {
    let notices = written("deploy/notices", "0");
    let bill: Value = serde_json::from_str(&written("deploy/sbom", "0")).unwrap();
    for part in bill["components"].as_array().unwrap() {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str());
        let of_others = !part["hashes"].is_null();
        let line = format!("\n{name} {}, ", version.unwrap_or_default());
        assert!(!of_others || notices.contains(&line), "{name} is missing");
    }
    let texts = [
        "Permission is hereby granted, free of charge",
        "Apache License",
        "Mozilla Public License Version 2.0",
        "Redistribution and use in source and binary forms",
        "Permission to use, copy, modify, and/or distribute this software for any purpose",
        "UNICODE LICENSE V3",
        " (rocksdb)\n",
        " (depend/secp256k1)\n",
        "Yann Collet",
        "Jason Evans",
        "The Tandem developers",
    ];
    for text in texts {
        assert!(notices.contains(text), "{text} is missing");
    }
    // MPL-2.0 demands that the location of the source is stated.
    let (_, imbl) = notices.split_once("\nimbl ").unwrap();
    assert!(imbl.lines().nth(1).unwrap().trim().starts_with("https://"), "{}", &imbl[..100]);
}

#[test]
fn the_image_has_its_bill_and_its_notices_however_it_is_made() {
    let dockerfile = text("deploy/Dockerfile");
    for file in ["sbom.cdx.json", "notices.txt"] {
        let copies = dockerfile.matches(&format!(" /usr/share/doc/tandem/{file}\n")).count();
        assert_eq!(copies, 2, "{file}: compiled and prebuilt");
    }
    let offline = text("deploy/images-offline");
    assert!(offline.contains("deploy/notices >") && offline.contains("deploy/sbom >"));
    let context = text(".dockerignore");
    for file in ["deploy/sbom", "deploy/notices", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(
            context.lines().any(|line| line == format!("!{file}")),
            "{file} is not in the context"
        );
    }
}

/// Installed tools and pulled images have a version, the same in all places.
#[test]
fn tools_and_images_have_versions() {
    let mut servers = BTreeSet::new();
    let files = [
        "dev",
        "justfile",
        "deploy/images-offline",
        "deploy/Dockerfile",
        "docker-compose.yml",
        "tests/bus/src/install.rs",
    ];
    for file in files {
        let text = text(file);
        assert!(!text.contains("@latest") && !text.contains(":latest"), "{file}");
        servers.extend(text.split("nats-server/v2@").skip(1).map(|rest| {
            rest.split(|c: char| c.is_whitespace() || "\"`".contains(c)).next().unwrap().to_owned()
        }));
    }
    assert_eq!(servers.len(), 1, "{servers:?}");
    assert!(servers.first().unwrap().starts_with('v'));
    for line in text("docker-compose.yml").lines() {
        let Some((_, image)) = line.split_once("image: ") else { continue };
        let default =
            image.split_once(":-").map_or(image, |(_, default)| default.trim_end_matches('}'));
        assert!(default.contains(':'), "{line}");
    }
}

/// `cargo deny` checks all advisories where its database can be fetched; this advisory is known.
#[test]
fn no_version_of_lru_with_a_known_advisory_is_locked() {
    for lru in locked().remove("lru").unwrap_or_default() {
        let mut numbers = lru.version.split('.').map(|part| part.parse::<u32>().unwrap());
        let version = [(); 3].map(|()| numbers.next().unwrap());
        assert!(version >= [0, 18, 2], "{version:?}: RUSTSEC-2026-0002, RUSTSEC-2026-0253");
    }
}
