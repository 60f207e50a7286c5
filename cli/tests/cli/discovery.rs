//! Tests `tandem discovery` as a process, and geth's tools against it.
//!
//! Without the tools (`devp2p`), their part is skipped with a message.

use crate::binary;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};
use tandem_testkit::geth::devp2p;
use tempfile::TempDir;

struct Running {
    child: Child,
    enode: String,
    enr: String,
    /// Kept, so that the output has a receiver.
    lines: mpsc::Receiver<String>,
}

impl Running {
    #[allow(clippy::zombie_processes)] // waited for when it is dropped
    fn start(datadir: &Path, options: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .args(["discovery", "--discovery.addr", "127.0.0.1", "--discovery.port", "0"])
            .args(["--log.filter", "info", "--datadir"])
            .arg(datadir)
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let outputs: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                // The pipe is read to its end, so that the process never blocks on a full pipe.
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        let mut running = Self { child, enode: String::new(), enr: String::new(), lines };
        for _ in 0..5 {
            let line = running.lines.recv_timeout(Duration::from_secs(20)).expect("a log line");
            if let (Some(enode), Some(enr)) = (word(&line, "enode://"), word(&line, "enr:")) {
                (running.enode, running.enr) = (enode, enr);
                return running;
            }
        }
        panic!("no enode and ENR in the first five lines");
    }

    /// Ends the process as an operator would.
    fn stop(mut self) {
        let kill = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(kill.success());
        assert!(self.child.wait().unwrap().success(), "SIGTERM is a clean end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the word of a line that begins with `start`, without the quotes of log fields.
fn word(line: &str, start: &str) -> Option<String> {
    let rest = &line[line.find(start)?..];
    let end = rest.find(|c: char| c.is_whitespace() || c == '"' || c == '\u{1b}');
    Some(rest[..end.unwrap_or(rest.len())].to_owned())
}

/// Returns whether the tool succeeded, and what it printed on both channels.
fn run(devp2p: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(devp2p).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn it_says_who_it_is_keeps_its_key_to_itself_and_comes_back_with_it() {
    let folder = TempDir::new().unwrap();
    let datadir = folder.path().join("new");
    let running = Running::start(
        &datadir,
        &[
            "--nat",
            "extip:10.9.8.7",
            "--network",
            "hoodi",
            "--discovery.dns",
            "none",
            "--bootnodes",
            "enode://6f8a80d14311c39f35f516fa664deaaaa13e85b2f7493f37f6144d86991ec012937307647bd3b9a82abe2974e1407241d54947bbb39763a4cac9f77166ad92a0@127.0.0.1:9?discport=9",
        ],
    );
    let mode = fs::metadata(datadir.join("nodekey")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let record: tandem_discv4::Enr = running.enr.parse().unwrap();
    assert_eq!(record.ip4(), Some([10, 9, 8, 7].into()));
    assert_eq!(record.eth().map(|id| id.hash), Some([0x23, 0xaa, 0x13, 0x51]), "hoodi, BPO2");
    let key = |enode: &str| enode.split('@').next().unwrap().to_owned();
    let before = key(&running.enode);
    running.stop();
    let again = Running::start(&datadir, &[]);
    assert_eq!(key(&again.enode), before);
    again.stop();
}

#[test]
fn wrong_options_end_it_with_a_reason() {
    let folder = TempDir::new().unwrap();
    let start = |options: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["discovery", "--discovery.addr", "127.0.0.1", "--discovery.port", "0"]);
        command.arg("--datadir").arg(folder.path()).args(options);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{options:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (options, reason) in [
        (["--network", "goerli"], "expected `mainnet`, `sepolia`, `holesky` or `hoodi`"),
        (["--nat", "upnp"], "expected `any`, `none` or `extip:IP`"),
        (["--bootnodes", "enode://x"], "bootnode \"enode://x\" is neither"),
        (["--discovery.dns", "a.org"], "node list \"a.org\": not the URL of a node list"),
        (["--discovery.lookups", "fast"], "expected `kademlia`, `single` or `legacy`"),
    ] {
        let text = start(&options);
        assert!(text.contains(reason), "{text}");
    }
}

/// The suite waits 300 ms for an answer, which a busy machine may exceed.
const ATTEMPTS: usize = 3;

#[test]
fn geths_tools_are_content_with_it() {
    let Some(devp2p) = devp2p() else { return };
    let folder = TempDir::new().unwrap();
    let running = Running::start(folder.path(), &[]);
    let enode = running.enode.as_str();
    let attempt = |arguments: &[&str], good: &dyn Fn(&str) -> bool| {
        let mut text = String::new();
        for _ in 0..ATTEMPTS {
            let ok;
            (ok, text) = run(&devp2p, arguments);
            if ok && good(&text) {
                return;
            }
        }
        panic!("devp2p {arguments:?}: {text}");
    };
    attempt(&["discv4", "ping", "--addr", "127.0.0.1:0", enode], &|text| {
        text.contains("node responded to ping")
    });
    attempt(&["discv4", "requestenr", "--addr", "127.0.0.1:0", enode], &|text| {
        text.lines().any(|line| line.trim() == running.enr)
    });
    attempt(&["discv4", "resolve", "--addr", "127.0.0.1:0", &running.enr], &|text| {
        text.contains("enr:")
    });
    let nodes = folder.path().join("nodes.json");
    let crawl =
        ["discv4", "crawl", "--addr", "127.0.0.1:0", "--timeout", "3s", "--bootnodes", enode];
    let crawl: Vec<_> = crawl.into_iter().chain([nodes.to_str().unwrap()]).collect();
    attempt(&crawl, &|_| {
        fs::read_to_string(&nodes).is_ok_and(|nodes| nodes.contains(running.enr.as_str()))
    });
    attempt(&["discv4", "test", "--remote", enode], &|text| text.contains("15/15 tests passed"));
    running.stop();
}
