//! Tests `tandem lab` with real nodes: its report, and that nothing of it remains.

use crate::binary;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tandem_cluster_tests::repository;
use tempfile::TempDir;

const EXPERIMENT: &str = r#"
name = "few blocks"
question = "Does it run?"
warmup = 2
gap_ms = 2
[base.config.multiproof_workers]
threads = 1
[[variant]]
name = "two workers"
[variant.config.multiproof_workers]
threads = 2
[[metric]]
name = "tandem_executor_new_payload_seconds"
labels = { status = "VALID" }
show = ["p50", "max", "count"]
[[metric]]
name = "tandem_no_such_metric"
"#;

/// Returns a folder with an experiment and an empty folder for temporary files.
fn folder(experiment: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("experiment.toml"), experiment).unwrap();
    fs::create_dir(folder.path().join("tmp")).unwrap();
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .arg("lab")
        .arg(folder.join("experiment.toml"))
        .args(arguments)
        .env("TMPDIR", folder.join("tmp"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn demo() -> String {
    repository().join("corpora/demo").display().to_string()
}

/// Returns the processes whose command line names this folder.
fn processes(folder: &Path) -> BTreeSet<u32> {
    processes_with(folder, "")
}

/// Returns the processes whose command line names this folder and also has this part.
fn processes_with(folder: &Path, part: &str) -> BTreeSet<u32> {
    let folder = folder.display().to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line);
        (line.contains(&folder) && line.contains(part)).then_some(pid)
    })
    .collect()
}

/// Asserts that neither a process nor a file is left.
fn nothing_is_left(folder: &Path) {
    assert_eq!(processes(folder), BTreeSet::new());
    assert_eq!(fs::read_dir(folder.join("tmp")).unwrap().count(), 0);
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn two_configurations_are_compared_over_two_rounds() {
    let folder = folder(EXPERIMENT);
    let json = folder.path().join("report.json").display().to_string();
    let corpus = demo();
    let arguments = ["--corpus", &corpus, "--blocks", "9", "--rounds", "2", "--json", &json];
    let output = command(folder.path(), &arguments).output().unwrap();
    let (text, errors) = texts(&output);
    assert!(output.status.success(), "{text}\n{errors}");
    nothing_is_left(folder.path());
    for part in ["18 blocks measured", "all answers VALID", "two workers", "no node has it"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }

    let report: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(report["schema"], "tandem.lab/1");
    let run = &report["runs"][0];
    let rows = run["rows"].as_array().unwrap();
    let blocks: Vec<_> =
        rows.iter().map(|row| (row["round"].as_u64(), row["number"].as_u64())).collect();
    let expected: Vec<_> =
        (0..2).flat_map(|round| (3..12).map(move |block| (Some(round), Some(block)))).collect();
    assert_eq!(blocks, expected);
    let names: Vec<_> = run["nodes"].as_array().unwrap().iter().map(|node| &node["name"]).collect();
    assert_eq!(names, ["base", "base again", "two workers"]);
    for (index, node) in run["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(node["new_payload"]["n"], 18);
        assert_eq!(node["traces"]["found"], 18, "every block's trace was there");
        let threads = if index == 2 { 2 } else { 1 };
        assert_eq!(node["config"]["multiproof_workers"]["threads"], threads);
        // The node's own clock saw these nine blocks twice, and no others.
        let figures = &run["metrics"][0]["readings"][index]["histogram"];
        assert_eq!(figures[2]["up_to"], 1.0, "{figures}");
        assert_eq!(run["metrics"][1]["readings"][index], "nothing");
        for row in rows {
            let cell = &row["nodes"][index];
            let wall = cell["new_payload_ms"].as_f64().unwrap();
            let execution = cell["trace"]["a_ms"].as_f64().unwrap();
            assert!(execution > 0.0 && execution < wall, "{row}");
        }
    }
    let variant = &run["nodes"][2];
    assert_eq!(variant["ratio"]["blocks"], 9, "two rounds of a block are one observation");
    assert!(variant["verdict"].is_string() && run["nodes"][1]["verdict"].is_null());
}

#[test]
fn another_binary_on_one_processor_is_compared_and_a_run_goes_on() {
    let variant = format!(
        "[[variant]]\nname = \"other\"\nbinary = {:?}\ncpus = \"0\"\n",
        binary().display().to_string()
    );
    let client = format!(
        "[[variant]]\nname = \"client\"\n[variant.client]\n\
         init = [{0:?}, \"init\", \"--genesis\", \"{{genesis}}\", \"--datadir\", \"{{datadir}}\"]\n\
         start = [{0:?}, \"node\", \"--disable-discovery\", \"--datadir\", \"{{datadir}}\", \
         \"--authrpc.port\", \"{{engine_port}}\", \"--http.port\", \"{{http_port}}\", \
         \"--metrics.port\", \"{{metrics_port}}\", \"--authrpc.jwtsecret\", \"{{jwt}}\"]\n",
        binary().display().to_string()
    );
    let folder = folder(&format!("{EXPERIMENT}{variant}{client}"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, rounds, corpus) = (path("report.json"), path("rounds.json"), demo());
    for (count, blocks) in [("1", 4), ("2", 8)] {
        let arguments =
            [["--corpus", &corpus, "--blocks", "4"], ["--rounds", count, "--json", &json]];
        let arguments = [&arguments.concat()[..], &["--resume", &rounds]].concat();
        let output = command(folder.path(), &arguments).output().unwrap();
        let (text, errors) = texts(&output);
        assert!(output.status.success(), "{text}\n{errors}");
        assert!(text.contains("other") && text.contains("on processors 0"), "{text}");
        let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let run = &report["runs"][0];
        assert_eq!(run["rows"].as_array().unwrap().len(), blocks);
        let nodes = run["nodes"].as_array().unwrap();
        let found: Vec<_> = nodes.iter().map(|node| &node["traces"]["found"]).collect();
        assert_eq!(found, [blocks, blocks, blocks, blocks, 0], "a client's traces are its own");
        assert_eq!((&nodes[3]["cpus"], &nodes[0]["cpus"]), (&"0".into(), &Value::Null));
        for node in nodes {
            assert!(node["version"].as_str().unwrap().starts_with("Tandem"), "{node}");
            for cost in ["cpu_ms_per_block", "context_switches_per_block", "minor_faults_per_block"]
            {
                assert!(node[cost].as_f64().is_some_and(|value| value > 0.0), "{cost}: {node}");
            }
        }
    }
    nothing_is_left(folder.path());
    // The rounds are not those of another experiment.
    let arguments = ["--corpus", &corpus, "--blocks", "5", "--resume", &rounds];
    let output = command(folder.path(), &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output).1.contains("another experiment"));
}

/// Settings that hold all state updates back until the last transaction, on tries of which nothing
/// is kept, so that the workers have much to read and to hash.
#[test]
fn the_overlap_is_gone_under_settings_that_make_it_so_and_there_otherwise() {
    let folder = folder(
        r#"
name = "sequential"
question = "Does the verdict tell a pipeline that lost its parallelism?"
warmup = 2
gap_ms = 5
[base.config.multiproof_workers]
trie_bytes_max = 1
[[variant]]
name = "held back"
[variant.config.executor]
prewarm_threads = 0
[variant.config.policies]
transition_flush = "fixed{100000}"
"#,
    );
    let (json, corpus) = (folder.path().join("report.json").display().to_string(), demo());
    let arguments = ["--corpus", &corpus, "--blocks", "30", "--json", &json];
    let mut said = Vec::new();
    // The overlap is compared, not the verdict: the demo's state root is so little work that on a
    // busy machine there is nothing to gain. Other load may hide one run's parallelism, but cannot
    // make up for what the settings rule out.
    for _ in 0..3 {
        let output = command(folder.path(), &arguments).output().unwrap();
        let (text, errors) = texts(&output);
        assert!(output.status.success(), "{text}\n{errors}");
        let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let traces = |node: usize| report["runs"][0]["nodes"][node]["traces"].clone();
        let overlap = |node: usize| traces(node)["overlap"].as_f64().unwrap();
        assert!(overlap(2) < 0.3, "{text}");
        if overlap(0) >= 0.8 {
            return;
        }
        said.push(text);
    }
    panic!("no overlap by default: {said:#?}");
}

#[test]
fn what_cannot_be_used_is_named_before_a_node_starts() {
    let corpus = demo();
    let wrong_key = EXPERIMENT.replace("threads = 2", "treads = 2");
    for (experiment, arguments, parts) in [
        (wrong_key.as_str(), &["--corpus", &corpus][..], &["\"two workers\"", "treads"][..]),
        (EXPERIMENT, &[], &["no corpus"]),
        (EXPERIMENT, &["--corpus", "/nonexistent"], &["/nonexistent"]),
    ] {
        let folder = folder(experiment);
        let output = command(folder.path(), arguments).output().unwrap();
        let (text, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{text}\n{errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{errors}");
        nothing_is_left(folder.path());
    }
}

#[test]
fn a_genesis_that_cannot_be_used_is_an_error() {
    let folder = folder(EXPERIMENT);
    let corpus = folder.path().join("corpus");
    fs::create_dir(&corpus).unwrap();
    fs::write(corpus.join("payloads.jsonl"), "").unwrap();
    fs::write(corpus.join("genesis.json"), "no json").unwrap();
    let corpus = corpus.display().to_string();
    let output = command(folder.path(), &["--corpus", &corpus]).output().unwrap();
    let (text, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{text}\n{errors}");
    assert!(errors.contains("tandem init ended") && errors.contains(&corpus), "{errors}");
    nothing_is_left(folder.path());
}

#[test]
fn a_node_that_dies_is_named_and_the_others_are_stopped() {
    let folder = folder(EXPERIMENT);
    let corpus = demo();
    let lab = command(folder.path(), &["--corpus", &corpus, "--rounds", "100"]).spawn().unwrap();
    let started = Instant::now();
    let victim = loop {
        assert!(started.elapsed() < Duration::from_secs(60), "the nodes do not start");
        match processes(&folder.path().join("tmp")).len() {
            // The third node is the variant's.
            3 => break processes_with(&folder.path().join("tmp"), "/round-0/2/"),
            _ => thread::sleep(Duration::from_millis(20)),
        }
    };
    let victim = victim.first().unwrap().to_string();
    assert!(Command::new("kill").args(["-KILL", &victim]).status().unwrap().success());
    let output = lab.wait_with_output().unwrap();
    let (text, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{text}\n{errors}");
    // The message is on standard error if the node had not listened yet.
    let said = text + &errors;
    assert!(said.contains("\"two workers\"") && said.contains("signal: 9"), "{said}");
    nothing_is_left(folder.path());
}

#[test]
fn a_signal_stops_the_nodes_too() {
    let folder = folder(EXPERIMENT);
    let corpus = demo();
    let lab = command(folder.path(), &["--corpus", &corpus, "--rounds", "100"]).spawn().unwrap();
    let started = Instant::now();
    // The command itself names the folder, and so do the nodes.
    while processes(folder.path()).len() < 4 {
        assert!(started.elapsed() < Duration::from_secs(60), "the nodes do not start");
        thread::sleep(Duration::from_millis(20));
    }
    let kill = Command::new("kill").args(["-INT", &lab.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = lab.wait_with_output().unwrap();
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("interrupted"), "{errors}");
    nothing_is_left(folder.path());
}

#[test]
fn every_experiment_of_the_project_can_be_used() {
    let mut found = 0;
    for entry in fs::read_dir(repository().join("lab")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        found += 1;
        let folder = folder(&fs::read_to_string(&path).unwrap());
        // Without a corpus, the command only reads the experiment. A relative corpus does not exist
        // here.
        let output = command(folder.path(), &[]).output().unwrap();
        let (_, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{}", path.display());
        assert!(errors.contains("corpora/demo"), "{}: {errors}", path.display());
    }
    assert!(found >= 4, "{found}");
}
