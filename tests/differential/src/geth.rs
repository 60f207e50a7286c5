//! geth's opinion: `evm t8n`, a process for each case, or `t8n-server`, a process for each thread.

use crate::case::{CHAIN_ID, Case, GENESIS_TIME};
use alloy_primitives::{B256, Bloom, Bytes, U64, U256};
use alloy_rlp::Encodable;
use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
};

/// Results of a block, under the names of geth.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Geth {
    pub state_root: B256,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
    pub gas_used: U64,
    pub current_base_fee: U256,
    pub current_excess_blob_gas: U64,
    pub blob_gas_used: U64,
    #[serde(default)]
    pub requests: Vec<Bytes>,
    pub block_access_list: Bytes,
    /// Transactions that are invalid.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// Receipts, for the report of a disagreement.
    #[serde(default)]
    pub receipts: Value,
}

/// An invalid transaction.
#[derive(Deserialize, Debug)]
pub struct Rejected {
    /// Place among all transactions.
    pub index: usize,
    /// Reason.
    pub error: String,
}

/// Returns the path of a program such as `evm`, from `PATH` or Go's folder.
pub fn find(
    program: &str,
    path: Option<&std::ffi::OsStr>,
    home: Option<&std::ffi::OsStr>,
) -> Option<PathBuf> {
    let mut folders: Vec<_> =
        path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    folders.extend(home.map(|home| PathBuf::from(home).join("go/bin")));
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns the input of `evm t8n`.
pub fn input(case: &Case, genesis_hash: B256) -> Value {
    let mut list = Vec::new();
    let items: usize = case.transactions.iter().map(item_len).sum();
    alloy_rlp::Header { list: true, payload_length: items }.encode(&mut list);
    for raw in &case.transactions {
        // A legacy transaction is an RLP list itself, the others are strings.
        if raw[0] >= 0xc0 { list.extend_from_slice(raw) } else { raw.encode(&mut list) }
    }
    json!({
        "alloc": case.alloc_json(),
        "env": {
            "currentCoinbase": case.beneficiary,
            "currentGasLimit": format!("{:#x}", case.gas_limit),
            "currentNumber": "0x1",
            "currentTimestamp": format!("{:#x}", case.timestamp),
            "currentRandom": case.prev_randao,
            "currentDifficulty": "0x0",
            "parentTimestamp": format!("{GENESIS_TIME:#x}"),
            "parentBaseFee": format!("{:#x}", case.base_fee),
            "parentGasUsed": "0x0",
            "parentGasLimit": format!("{:#x}", case.gas_limit),
            "parentExcessBlobGas": format!("{:#x}", case.excess_blob_gas),
            "parentBlobGasUsed": "0x0",
            "parentBeaconBlockRoot": case.beacon_root,
            "slotNumber": format!("{:#x}", case.slot),
            "blockHashes": {"0x0": genesis_hash},
            "withdrawals": case.withdrawals,
        },
        "txsRlp": Bytes::from(list),
    })
}

fn item_len(raw: &Bytes) -> usize {
    if raw[0] >= 0xc0 { raw.len() } else { raw.length() }
}

/// Program that executes blocks as geth does.
#[derive(Clone, Debug)]
pub enum Evm {
    /// Path of geth's `evm`, which is started for each block.
    Process(PathBuf),
    /// Path of `tools/t8n-server`, which runs the code of `evm t8n` for one block after the other.
    Server(PathBuf),
}

/// geth, as one thread asks it.
pub enum Oracle {
    /// geth's `evm`.
    Process(PathBuf),
    /// A running `t8n-server`.
    Server(Server),
}

impl Oracle {
    /// Starts the server, if there is to be one.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(evm: &Evm) -> anyhow::Result<Self> {
        Ok(match evm {
            Evm::Process(path) => Self::Process(path.clone()),
            Evm::Server(path) => Self::Server(Server::start(path)?),
        })
    }

    /// Executes a block.
    ///
    /// # Errors
    /// If the process fails, or answers in another form.
    pub fn transition(&mut self, input: &Value) -> anyhow::Result<Geth> {
        let text = match self {
            Self::Process(path) => run(path, input)?,
            Self::Server(server) => server.ask(input)?,
        };
        /// Output of `evm t8n`. The server says in `error` why there is none.
        #[derive(Deserialize)]
        struct Answer {
            result: Option<Geth>,
            error: Option<String>,
        }
        let shown = || format!("evm's answer {}", String::from_utf8_lossy(&text));
        let answer: Answer = serde_json::from_slice(&text).with_context(shown)?;
        if let Some(error) = answer.error {
            bail!("t8n-server: {error}");
        }
        answer.result.with_context(shown)
    }
}

/// Returns the command with the flags that `evm t8n` and the server share.
fn with_flags(mut command: Command) -> Command {
    command
        .args(["--state.fork=Amsterdam", "--state.reward=-1"])
        .arg(format!("--state.chainid={CHAIN_ID}"))
        .args(["--input.alloc=stdin", "--input.env=stdin", "--input.txs=stdin"])
        .args(["--output.result=stdout", "--output.alloc=", "--output.body="])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Runs `evm t8n`, and returns its output.
fn run(evm: &Path, input: &Value) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new(evm);
    command.arg("t8n").stderr(Stdio::piped());
    let mut child =
        with_flags(command).spawn().with_context(|| format!("start {}", evm.display()))?;
    let mut stdin = child.stdin.take().context("the process has no input")?;
    let text = input.to_string();
    let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().context("wait for evm")?;
    // A process that gives up early closes its input; its error says more.
    let _ = writer.join();
    if !output.status.success() {
        bail!("evm t8n: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// A running `t8n-server`. It ends when it is dropped.
pub struct Server {
    child: Child,
    /// `None` once the server is to end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    fn start(path: &Path) -> anyhow::Result<Self> {
        let mut command = with_flags(Command::new(path));
        // The threads of the comparison share the processors already.
        command.env("GOMAXPROCS", "1");
        let mut child = command.spawn().with_context(|| format!("start {}", path.display()))?;
        let requests = Some(child.stdin.take().context("the server has no input")?);
        let answers = BufReader::new(child.stdout.take().context("the server has no output")?);
        Ok(Self { child, requests, answers })
    }

    fn ask(&mut self, input: &Value) -> anyhow::Result<Vec<u8>> {
        let requests = self.requests.as_mut().context("the server ends")?;
        // The text of a JSON value has no line break, and the server reads all of it first.
        requests.write_all(format!("{input}\n").as_bytes()).context("ask t8n-server")?;
        let mut line = Vec::new();
        self.answers.read_until(b'\n', &mut line).context("read t8n-server's answer")?;
        ensure!(line.ends_with(b"\n"), "t8n-server ended, its standard error says why");
        Ok(line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
