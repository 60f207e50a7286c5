//! Tests `tandem top` with a running node, without one, and on a terminal.

mod terminal;

use crate::binary;
use std::process::{Child, Command, Output, Stdio};
use tandem_cluster_tests::{Corpus, Endpoints, Running, send_head, send_payload};
use tempfile::TempDir;

fn top(arguments: &[&str]) -> Child {
    Command::new(binary())
        .arg("top")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns the text between two marks.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let found = text.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    found.unwrap_or_else(|| panic!("{before:?}, then {after:?}, in\n{text}")).0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_shown_with_its_payloads_and_how_they_overlapped() {
    let (folder, corpus) = (TempDir::new().unwrap(), Corpus::demo());
    let (datadir, secret) = (folder.path().join("data"), folder.path().join("jwt.hex"));
    let genesis = corpus.genesis();
    let given = [
        ["node", "--datadir", datadir.to_str().unwrap()],
        ["--disable-discovery", "--genesis", genesis.to_str().unwrap()],
        ["--trace.level=stage", "--authrpc.jwtsecret", secret.to_str().unwrap()],
        ["--authrpc.port=0", "--http.port=0", "--metrics.port=0"],
    ];
    let mut node = Running::start(binary(), folder.path(), "node", given.concat());
    let mut at = |port: &str| node.says(&format!("listening port=\"{port}\" address="));
    let (engine, http, metrics) = (at("engine"), at("http"), at("metrics"));
    let endpoints = Endpoints::new(engine.parse().unwrap(), http.parse().unwrap(), secret.clone());
    let mut engine = endpoints.engine();
    // Six seconds lie between the looks, in which the node counts its processor time at least once.
    let mut top = top(&["--once", "--metrics", &format!("http://{metrics}")]);
    let (mut blocks, mut last) = (corpus.payloads(), None);
    let mut sent = 0;
    while top.try_wait().unwrap().is_none() {
        // The last block again, once there are no more, so that newPayload is called all the time.
        let block = blocks.next().or(last).unwrap();
        send_payload(&mut engine, &block).await.unwrap();
        send_head(&mut engine, block.hash).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        last = Some(block);
        sent += 1;
    }
    let output = top.wait_with_output().unwrap();
    let (text, errors) = texts(&output);
    assert!(output.status.success(), "{text}\n{errors}");
    eprintln!("{sent} payloads\n{text}");
    assert!(text.starts_with("tandem top   1 of 1 process   "), "{text}");
    let per_second: f64 =
        between(&text, "\n", " a second").rsplit('\n').next().unwrap().parse().unwrap();
    assert!(per_second > 0.0, "{text}");
    let p95: f64 = between(&text, "p95 ", " ms").parse().unwrap();
    assert!(p95 > 0.0, "{text}");
    let head: u64 = between(&text, "\nhead ", " ").parse().unwrap();
    assert!((1..=corpus.blocks as u64).contains(&head), "{text}");
    // Each recent payload has a bar, with work on both sides.
    let bars: Vec<_> =
        text.lines().filter(|line| line.contains(" ms  ") && line.contains('█')).collect();
    assert!(!bars.is_empty(), "{text}");
    let verdicts = ["PARALLEL", "CONCURRENT", "PARTIAL", "SEQUENTIAL", "no weight"];
    assert!(bars.iter().any(|bar| verdicts.iter().any(|verdict| bar.contains(verdict))), "{text}");
    assert!(text.contains("\nstate reads: "), "{text}");
    for service in ["executor ", "multiproof-workers ", "storage-writer "] {
        let line = text.lines().find(|line| line.starts_with(service));
        assert!(line.is_some_and(|line| line.contains(" cores ")), "{service}in\n{text}");
    }
    assert!(node.terminate().0.success());
}

#[test]
fn nobody_there_and_no_terminal_are_said() {
    let nobody = ["--once", "--interval", "0.2", "--metrics", "http://127.0.0.1:1"];
    for (arguments, reason) in [
        (&nobody[..], "no answer from http://127.0.0.1:1"),
        (&[], "there is no terminal; --once prints text"),
    ] {
        let output = top(arguments).wait_with_output().unwrap();
        let (text, errors) = texts(&output);
        assert_eq!((output.status.code(), &*text), (Some(1), ""), "{errors}");
        assert!(errors.contains(reason), "{errors}");
    }
    let output = top(&["--metrics", "a:9100"]).wait_with_output().unwrap();
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("expected http://HOST:PORT"), "{errors}");
}
