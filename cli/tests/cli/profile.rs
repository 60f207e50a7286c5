//! Tests `tandem profile` on files, on a node whose build takes no profiles, and without any.

use crate::binary;
use std::{
    fs,
    process::{Command, Output},
};
use tandem_cluster_tests::{Corpus, Running};
use tandem_profile::Profile;
use tempfile::TempDir;

fn profile(arguments: &[&str]) -> Output {
    Command::new(binary()).arg("profile").args(arguments).output().unwrap()
}

#[test]
fn a_file_is_read_and_written_again_with_its_flame_graph() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // Two samples of 10 ms: a function of the trie, called by one of tokio.
    let pprof = include_bytes!("profile/two-samples.pb");
    fs::write(path("in.pb"), pprof).unwrap();
    let (svg, out) = (path("flame.svg"), path("out.pb.gz"));
    let output = profile(&[&path("in.pb"), "--flamegraph", &svg, "--out", &out]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "2.0 s, 2 samples of 10.0 ms: 0.02 s of processor time, 0.01 processors\n",
        "   100.0     100.0      0.02      0.02  State root (tries)\n",
        "     0.0     100.0      0.00      0.02  Task scheduling\n",
        "    100.0      0.02  worker\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    assert!(
        fs::read_to_string(&svg).unwrap().contains("<title>tandem_trie::node::hash: 1 samples")
    );
    let (read, written) = (Profile::parse(pprof), Profile::parse(&fs::read(&out).unwrap()));
    assert_eq!(read.unwrap().samples(), written.unwrap().samples());

    fs::write(path("bad.pb"), "no profile").unwrap();
    let output = profile(&[&path("bad.pb")]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("bad.pb: decode a profile"), "{text}");
}

#[test]
fn a_build_without_the_feature_says_so_and_nobody_is_an_error() {
    let (folder, corpus) = (TempDir::new().unwrap(), Corpus::demo());
    let (datadir, genesis) = (folder.path().join("data"), corpus.genesis());
    let given = [
        ["node", "--datadir", datadir.to_str().unwrap()],
        ["--disable-discovery", "--genesis", genesis.to_str().unwrap()],
        ["--authrpc.port=0", "--http.port=0", "--metrics.port=0"],
    ];
    let mut node = Running::start(binary(), folder.path(), "node", given.concat());
    let metrics = node.says("listening port=\"metrics\" address=");
    let output = profile(&["--seconds", "1", "--metrics", &format!("http://{metrics}")]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let said = "HTTP 501: this build takes no profiles: build with --features profiling";
    assert!(text.contains(said), "{text}");
    drop(node);
    // Port 1 of the loopback interface answers with a reset.
    let output = profile(&["--seconds", "1", "--metrics", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
}
