//! Runs geth's suites for nodes (`devp2p rlpx`) against a `tandem node` with the chain of the suites:
//! 600 blocks through all forks from Paris to Amsterdam.

use crate::binary;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};
use tandem_cluster::load_or_create_node_key;
use tandem_cluster_tests::Running;
use tandem_testkit::geth::{devp2p, suite_chain};
use tempfile::TempDir;

/// Suite of `devp2p rlpx`.
struct Suite {
    /// Command that runs it.
    command: &'static str,
    /// Its tests, all of which must pass.
    tests: &'static [&'static str],
}

const ETH: Suite = Suite {
    command: "eth-test",
    tests: &[
        "Status",
        "MaliciousHandshake",
        "BlockRangeUpdateExpired",
        "BlockRangeUpdateFuture",
        "BlockRangeUpdateInvalid",
        "GetBlockHeaders",
        "GetNonexistentBlockHeaders",
        "SimultaneousRequests",
        "SameRequestID",
        "ZeroRequestID",
        "GetBlockAccessLists",
        "GetBlockBodies",
        "GetReceipts",
        "GetLargeReceipts",
        "LargeTxRequest",
        "Transaction",
        "InvalidTxs",
        "NewPooledTxs",
        "BlobViolations",
        "TestBlobTxWithoutSidecar",
        "TestBlobTxWithMismatchedSidecar",
        "BlobTxAvailabilityFailure",
        "GetCells",
        "BlobTxWithInvalidCells",
    ],
};

const SNAP1: Suite = Suite {
    command: "snap-test",
    tests: &["Status", "AccountRange", "GetByteCodes", "GetTrieNodes", "GetStorageRanges"],
};

const SNAP2: Suite =
    Suite { command: "snap2-test", tests: &["Status", "GetBlockAccessLists", "TrieNodesRemoved"] };

#[test]
fn geths_suite_for_eth_passes() {
    run(&ETH);
}

#[test]
fn geths_suite_for_snap_1_passes() {
    run(&SNAP1);
}

#[test]
fn geths_suite_for_snap_2_passes() {
    run(&SNAP2);
}

/// Number of attempts. The suites wait two seconds for an answer, and a tenth of one for the end of a session
/// after wrong cells, which are verified at the lowest priority. A busy machine may need longer, above
/// all for the first question about a state, for which a node that has just started computes the trie
/// diffs of 128 blocks.
const ATTEMPTS: usize = 5;

/// Runs a suite on a node of its own. Fails if a test fails or is missing, and if there is one more.
fn run(suite: &Suite) {
    let (Some(devp2p), Some(chain)) = (devp2p(), suite_chain()) else { return };
    let folder = TempDir::new().unwrap();
    let node = Node::start(folder.path(), &chain);
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let mut command = Command::new(&devp2p);
        command.args(["rlpx", suite.command, "--tap", "--chain"]).arg(&chain);
        command.args(["--node", &node.enode, "--engineapi", &node.engine]);
        let output = command.args(["--jwtsecret", &node.secret]).output().unwrap();
        said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        if suite.faults(&results(&said)).is_empty() {
            return;
        }
    }
    let faults = suite.faults(&results(&said));
    panic!("{}: {faults:#?}\n{said}\n{}", suite.command, node.running.log());
}

impl Suite {
    /// Compares results with the tests that there are.
    fn faults(&self, results: &BTreeMap<&str, bool>) -> Vec<String> {
        let mut faults = Vec::new();
        for name in self.tests {
            match results.get(name) {
                Some(true) => {}
                Some(false) => faults.push(format!("{name} fails")),
                None => faults.push(format!("{name} is no test of the suite")),
            }
        }
        let unknown = results.keys().filter(|name| !self.tests.contains(name));
        faults.extend(unknown.map(|name| format!("{name} is not known")));
        faults
    }
}

/// Returns whether each test passed, from output in TAP: `ok 1 NAME` or `not ok 1 NAME`.
fn results(tap: &str) -> BTreeMap<&str, bool> {
    let lines = tap.lines().filter_map(|line| {
        let (passed, rest) = match line.strip_prefix("not ok ") {
            Some(rest) => (false, rest),
            None => (true, line.strip_prefix("ok ")?),
        };
        let (_, name) = rest.split_once(' ')?;
        Some((name, passed))
    });
    lines.collect()
}

#[test]
fn results_are_read_from_tap() {
    let tap = "1..3\nok 1 Status\nnot ok 2 GetCells\n# ok 9 Other\nok 3 Zero\n1/3 tests failed\n";
    let want = [("GetCells", false), ("Status", true), ("Zero", true)];
    assert_eq!(results(tap), BTreeMap::from(want));
}

#[test]
fn what_fails_and_what_is_not_known_is_a_fault() {
    let suite = Suite { tests: &["A", "B"], ..ETH };
    let good = [("A", true), ("B", true)];
    assert_eq!(suite.faults(&BTreeMap::from(good)), Vec::<String>::new());
    let bad = [("A", false), ("C", true)];
    let want = ["A fails", "B is no test of the suite", "C is not known"];
    assert_eq!(suite.faults(&BTreeMap::from(bad)), want);
}

/// A node that has executed the blocks of a suite.
struct Node {
    running: Running,
    enode: String,
    /// URL of the Engine API.
    engine: String,
    /// Secret of its tokens, as hex.
    secret: String,
}

impl Node {
    fn start(folder: &Path, chain: &Path) -> Self {
        let data = folder.join("data");
        let file = |name: &str| -> PathBuf { chain.join(name) };
        let mut import = Command::new(binary());
        import.args(["import", "--datadir"]).arg(&data);
        import.arg("--genesis").arg(file("genesis.json")).arg(file("chain.rlp"));
        let output = import.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut arguments =
            vec!["node", "--disable-discovery", "--datadir", data.to_str().unwrap()];
        for port in ["--authrpc.port", "--http.port", "--metrics.port", "--sessions.port"] {
            arguments.extend([port, "0"]);
        }
        arguments.extend(["--sessions.addr", "127.0.0.1"]);
        let mut running = Running::start(binary(), folder, "node", arguments);
        let mut at = |port: &str| running.says(&format!("listening port=\"{port}\" address="));
        let (sessions, engine) = (at("sessions"), at("engine"));
        let id = *load_or_create_node_key(&data).unwrap().public();
        let secret = std::fs::read_to_string(data.join("jwt.hex")).unwrap();
        Self {
            running,
            enode: format!("enode://{id:x}@{sessions}"),
            engine: format!("http://{engine}"),
            secret: secret.trim().to_owned(),
        }
    }
}
