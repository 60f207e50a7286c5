//! Rules on which package may import which, and the few rules of style that a machine can check.
#![forbid(unsafe_code)]
#![cfg(test)]
#![allow(clippy::unwrap_used)]

mod claims;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().other_options(vec!["--offline".into()]).exec().unwrap()
}

/// Returns the folder of the workspace.
fn root() -> PathBuf {
    metadata().workspace_root.into_std_path_buf()
}

/// Returns the folder of a package, relative to the workspace.
fn place(metadata: &Metadata, package: &Package) -> String {
    let folder = package.manifest_path.parent().unwrap();
    folder.strip_prefix(&metadata.workspace_root).unwrap().to_string()
}

/// Returns whether a package in folder `from` may import one of our packages in folder `to`.
fn may_import(from: &str, to: &str) -> bool {
    let pure = to.starts_with("crates/pure/");
    let kit = to.starts_with("crates/kit/");
    let client = to.starts_with("crates/clients/");
    match from {
        "proto" => pure,
        "tracing/telemetry" => false,
        // The rule of the verdict is the executor's too.
        "tracing/overlap" => to == "crates/pure/verdict",
        "services/cluster" => to != "cli" && !to.starts_with("tests/"),
        "cli" => {
            let tools = to.starts_with("tracing/") || to.starts_with("tools/");
            // The tools of the CLI receive the events and make the calls.
            to.starts_with("services/") || client || to == "proto" || tools || pure || kit
        }
        "tools/bloat" | "tools/snapshot" => to == "services/storage-writer" || pure,
        "tools/conformance" => {
            let called = to.starts_with("services/") || to == "proto";
            called || to == "tracing/telemetry" || pure || kit
        }
        _ if from.starts_with("crates/pure/") => pure,
        _ if from.starts_with("crates/kit/") => {
            // The server checks tokens, and its errors quote JSON in brief.
            let of_http = ["crates/kit/auth", "crates/pure/json"].contains(&to);
            let of_all = ["tracing/telemetry", "crates/pure/primitives"].contains(&to);
            of_all || (from == "crates/kit/http" && of_http)
        }
        _ if from.starts_with("crates/clients/") => {
            pure || kit || to == "proto" || to == "tracing/telemetry"
        }
        // Both ends of a contract may compute the same things.
        "services/blob-validator" if to == "crates/clients/blob-validator" => true,
        _ if from.starts_with("services/") => {
            pure || kit || to == "proto" || to == "tracing/telemetry"
        }
        // Below the services: a change in one of them compiles none of this again.
        "tests/kit" => pure || to == "proto",
        _ => from.starts_with("tests/"),
    }
}

/// Returns whether the tests of a folder may use a package that its code may not import.
fn tests_may_import(from: &str, to: &str) -> bool {
    let helpers = ["tests/heap", "tests/disk"].contains(&to);
    match from {
        _ if from.starts_with("crates/") => helpers || to == "tests/kit",
        "proto" | "tracing/overlap" => helpers || to == "tests/kit",
        // Their tests prove blocks, and copy states, over real storage.
        "services/multiproof-workers" | "services/sync" | "services/follower"
            if to == "services/storage-writer" =>
        {
            true
        }
        "services/cluster" | "cli" => to.starts_with("tests/"),
        // Their tests call them as clients do.
        _ if from.starts_with("services/") => {
            helpers || to == "tests/kit" || to.starts_with("crates/clients/")
        }
        _ => from.starts_with("tests/"),
    }
}

/// External crates that only one of our packages may name: all other packages go through that one.
const DOORS: [(&str, &str); 11] = [
    ("rocksdb", "crates/kit/store"),
    ("librocksdb-sys", "crates/kit/store"),
    ("async-nats", "crates/kit/bus"),
    ("nkeys", "crates/kit/bus"),
    ("opentelemetry", "tracing/telemetry"),
    ("c-kzg", "crates/pure/kzg"),
    ("rustls", "crates/kit/rpc"),
    ("tokio-rustls", "crates/kit/rpc"),
    ("rcgen", "crates/kit/rpc"),
    ("object_store", "tools/snapshot"),
    ("reqwest", "tools/snapshot"),
];

#[test]
fn imports_follow_the_layers() {
    let metadata = metadata();
    let places: Vec<_> = metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (package.name.to_string(), place(&metadata, package)))
        .collect();
    let mut wrong = BTreeSet::new();
    for package in metadata.workspace_packages() {
        let from = place(&metadata, package);
        for dependency in &package.dependencies {
            let in_tests = dependency.kind == DependencyKind::Development;
            if let Some((_, to)) = places.iter().find(|(name, _)| *name == dependency.name)
                && !may_import(&from, to)
                && !(in_tests && tests_may_import(&from, to))
            {
                let by = if in_tests { "in its tests" } else { "in its code" };
                wrong.insert(format!("{from} imports {to} {by}"));
            }
            if in_tests {
                continue;
            }
            for (name, door) in DOORS {
                let same = dependency.name == name
                    || dependency.name.starts_with(&format!("{name}_"))
                    || dependency.name.starts_with(&format!("{name}-"));
                if same && from != door {
                    wrong.insert(format!(
                        "{from} imports {}, whose door is {door}",
                        dependency.name
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_store_is_written_by_storage_writer_alone() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        let uses = package.dependencies.iter().any(|dependency| {
            dependency.name == "tandem-store" && dependency.kind != DependencyKind::Development
        });
        let from = place(&metadata, package);
        assert!(!uses || from == "services/storage-writer", "{from} imports the store");
    }
}

/// Returns every source file of the project with its path relative to the root.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                walk(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    let root = root();
    let mut files = Vec::new();
    for folder in ["crates", "proto", "services", "tools", "tracing", "cli", "tests"] {
        walk(&root.join(folder), &mut files);
    }
    assert!(files.len() > 50, "the scan found the sources");
    let relative = |path: &Path| path.strip_prefix(&root).unwrap().to_owned();
    files.iter().map(|path| (relative(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn libraries_take_no_ambient_input_and_no_queue_is_unbounded() {
    // In pieces, so that this file does not match itself.
    let banned = [
        (["env", "::var("].concat(), "cli", "an environment variable is a flag of the binary"),
        (["unbounded", "_channel("].concat(), "", "every queue has a bound"),
        (["channel::", "unbounded("].concat(), "", "every queue has a bound"),
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        if path.starts_with("tests") || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        // Cargo passes a build script its input through the environment.
        if path.ends_with("build.rs") {
            continue;
        }
        for (word, except, reason) in &banned {
            if text.contains(word.as_str()) && (except.is_empty() || !path.starts_with(except)) {
                wrong.push(format!("{}: {word}: {reason}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn pure_crates_have_no_clock_and_no_io() {
    let banned = ["std::time::Instant", "SystemTime", "std::fs", "std::net", "tokio"];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let tests = path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "benches")));
        if !path.starts_with("crates/pure") || tests {
            continue;
        }
        for word in banned.iter().filter(|word| text.contains(**word)) {
            wrong.push(format!("{}: {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_file_tells_one_story() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 600)
        .collect();
    assert!(long.is_empty(), "past 500 lines a file is usually two: {long:?}");
}

#[test]
fn no_crate_takes_a_file_of_another() {
    let root = root();
    // In pieces, so that this file does not match itself.
    let attribute = ["#[", "path = \""].concat();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let package = |file: &Path| {
            let has_manifest = |folder: &&Path| folder.join("Cargo.toml").exists();
            file.ancestors().skip(1).find(has_manifest).map(Path::to_owned)
        };
        let file = root.join(&path);
        for taken in text.split(&attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
            let taken = file.parent().unwrap().join(taken).canonicalize().unwrap();
            if package(&taken) != package(&file) {
                wrong.push(format!("{} takes {}", path.display(), taken.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn all_services_live_in_the_same_way() {
    let recipe = [
        "    running: Running,\n",
        "    pub fn start(config: Config, deps: Deps) -> ",
        "    pub fn stop(&self) {\n",
    ];
    let services = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with("services") && path.ends_with("src/service.rs"));
    let mut seen = 0;
    for (path, text) in services {
        for part in recipe {
            assert!(text.contains(part), "{} lacks `{}`", path.display(), part.trim());
        }
        seen += 1;
    }
    assert_eq!(seen, 11, "docs/CONTRIBUTING.md, the life of a service");
}

#[test]
fn comments_begin_with_their_subject() {
    const FORBIDDEN: [&str; 9] =
        ["Of", "Those", "What", "Whose", "Where", "As whom", "Who", "Nobody", "The same"];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark));
            let first =
                !before.starts_with("//") || before.trim_start_matches(['/', '!']).is_empty();
            before = line;
            let Some(comment) = comment.filter(|_| first).and_then(|it| it.strip_prefix(' '))
            else {
                continue;
            };
            let begins = |word: &&str| {
                let rest = comment.strip_prefix(*word);
                rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
            };
            if FORBIDDEN.iter().any(begins) {
                wrong.push(format!("{}:{}: {comment}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "a comment names its subject first: {wrong:#?}");
}

#[test]
fn unsafe_code_is_in_few_crates() {
    const WITH: [&str; 5] =
        ["crates/pure/trie", "crates/kit/store", "tracing/telemetry", "cli", "tests/heap"];
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        let from = place(&metadata, package);
        if WITH.contains(&from.as_str()) {
            continue;
        }
        let roots = package.targets.iter().map(|target| &target.src_path);
        for root in
            roots.filter(|root| root.ends_with("src/lib.rs") || root.ends_with("src/main.rs"))
        {
            let text = fs::read_to_string(root).unwrap();
            assert!(text.contains("#![forbid(unsafe_code)]"), "{root}");
        }
    }
}
