//! geth's commands: `geth` as a peer of sessions, and `devp2p` with its suites for nodes.
//!
//! They come from `go install github.com/ethereum/go-ethereum/cmd/geth@v1.17.8`, and `…/cmd/devp2p@v1.17.8`.

use serde_json::Value;
use std::{
    env,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_primitives::Bytes;

/// Longest wait for the start of geth, and for its end.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Returns whether geth is on the PATH. Says so if it is not, because the test is skipped then.
pub fn is_installed() -> bool {
    let is_there = Command::new("geth").arg("version").output().is_ok();
    if !is_there {
        skip("geth is not installed");
    }
    is_there
}

/// Says why a test is skipped. Not by a macro: its output is captured in tests that pass.
fn skip(why: &str) {
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}

/// Returns `devp2p`. Says so if it is not there, because the test is skipped then.
pub fn devp2p() -> Option<PathBuf> {
    program("devp2p")
}

/// Returns a program on the PATH, where Go installs it, or where `./dev` does.
fn program(name: &str) -> Option<PathBuf> {
    let home = PathBuf::from(env::var_os("HOME")?);
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = [home.join("go/bin"), home.join(".cache/tandem/tools/bin")];
    let folders = env::split_paths(&path).chain(installed);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed (./dev does it if there is Go)"));
    }
    found
}

/// Returns the folder with the chain that the suites of `devp2p rlpx` expect of a node: genesis,
/// blocks and state. It is a part of the source, which Go keeps after it has installed `devp2p`.
/// Says so if it is not there, because the test is skipped then.
pub fn suite_chain() -> Option<PathBuf> {
    let modules = match env::var_os("GOMODCACHE") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env::var_os("HOME")?).join("go/pkg/mod"),
    };
    let source = modules.join("github.com/ethereum/go-ethereum@v1.17.8");
    let chain = source.join("cmd/devp2p/internal/ethtest/testdata");
    if !chain.is_dir() {
        skip(&format!("the source of devp2p is not in {}", source.display()));
        return None;
    }
    Some(chain)
}

/// Runs a command of geth on the data of a name in this folder, and returns what it prints.
pub fn run(folder: &Path, name: &str, command: &str, args: &[&Path]) -> Vec<u8> {
    let mut geth = Command::new("geth");
    geth.args([command, "--datadir"]).arg(folder.join(name)).args(args);
    let out = geth.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "geth {command}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// Makes the data of a name in this folder: a genesis file, and blocks as RLP that geth checks and
/// executes. A block that geth refuses ends the import; its log says why.
pub fn import(folder: &Path, name: &str, genesis: &str, blocks: impl Iterator<Item = Bytes>) {
    let [genesis_file, chain_file] =
        ["genesis.json", "chain.rlp"].map(|file| folder.join(format!("{name}-{file}")));
    std::fs::write(&genesis_file, genesis).unwrap();
    std::fs::write(&chain_file, blocks.flatten().collect::<Vec<u8>>()).unwrap();
    run(folder, name, "init", &[&genesis_file]);
    run(folder, name, "import", &[&chain_file]);
}

/// Process of geth, ended with the test.
pub struct Geth {
    process: Child,
    ipc: PathBuf,
}

impl Geth {
    /// Starts geth on the data of a name in this folder. Its console answers when this returns.
    pub fn start(folder: &Path, name: &str, args: &[&str]) -> Self {
        Self::start_by(Command::new("geth"), folder, name, args)
    }

    /// As [`Geth::start`], by a command that ends in `geth`, such as one that limits it.
    pub fn start_by(mut command: Command, folder: &Path, name: &str, args: &[&str]) -> Self {
        // A socket's path must be short.
        let ipc = folder.join(name).with_extension("ipc");
        // A process that was killed has left it.
        let _ = std::fs::remove_file(&ipc);
        let log = File::create(folder.join(name).with_extension("log")).unwrap();
        let process = command
            .args(["--datadir".as_ref(), folder.join(name).as_os_str()])
            .args(["--ipcpath".as_ref(), ipc.as_os_str()])
            .args(["--authrpc.port", "0", "--nodiscover", "--nat", "none", "--verbosity", "4"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut geth = Self { process, ipc };
        geth.wait("start", |geth| geth.ipc.exists());
        geth
    }

    /// Evaluates an expression in geth's console, and returns its JSON.
    pub fn eval(&self, expression: &str) -> Value {
        let expression = format!("console.log(JSON.stringify({expression}))");
        let out = Command::new("geth")
            .args(["attach".as_ref(), "--exec".as_ref(), expression.as_ref(), self.ipc.as_os_str()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let line = text.lines().next().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|_| panic!("{expression}: {text}"))
    }

    /// Returns the URL of this node: `enode://KEY@ADDRESS`.
    pub fn enode(&self) -> String {
        let url = self.eval("admin.nodeInfo.enode");
        url.as_str().unwrap().split('?').next().unwrap().to_owned()
    }

    /// Ends the process as an operator does, so that its database is complete.
    pub fn end(&mut self) {
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        self.wait("end", |geth| geth.process.try_wait().unwrap().is_some());
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn wait(&mut self, what: &str, mut is_there: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + WAIT_MAX;
        while !is_there(self) {
            assert!(Instant::now() < end, "waited for geth's {what}");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Geth {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
