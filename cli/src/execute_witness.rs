//! `tandem execute-witness`: executes real blocks, each with the part of the state that it needs.

use anyhow::{Context, bail};
use flate2::read::MultiGzDecoder;
use serde::Serialize;
use std::{
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::{Block, ChainSpec};
use tandem_executor::stateless::{
    Ancestors, AssumedAbsent, Gaps, Input, Report, decode_block, execute_on_witness,
};

/// Arguments of `tandem execute-witness`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files with a block and its witness as JSON, plain or compressed with gzip
    ///
    /// Either an object with `chainId`, `block` (RLP) or `engine` (`method`, `params`), and
    /// `witness` (`state`, `codes`, `headers`), or the answer of `debug_executionWitness`.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the results as JSON; without a file, to standard output instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    json: Option<Option<PathBuf>>,
    /// Genesis file of the chain, for chains other than mainnet, Sepolia, Holesky and Hoodi
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    /// Chain of a witness that does not name one [default: mainnet]
    #[arg(long, value_name = "ID", conflicts_with = "genesis")]
    chain_id: Option<u64>,
    /// The block as debug_getRawBlock returns it, for a witness without one; one FILE only
    #[arg(long, value_name = "FILE")]
    block: Option<PathBuf>,
    /// Execute each block N times and report the median times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Demand proof of everything
    ///
    /// Without this, an account is taken not to exist if the witness proves neither its presence
    /// nor its absence: older versions of geth omit proofs of absence. A file with
    /// `syntheticParent` is trusted for the state that the block starts from. The result lists what
    /// was trusted (`valid*`). An author of both block and witness could abuse that: an omitted
    /// account reads as empty.
    #[arg(long)]
    strict: bool,
}

/// Result of one file. Hashes, roots and gas are those of the header; if execution computed others,
/// `error` names them.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<BlockInfo>,
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    computed: Option<Computed>,
    /// Rule that the block breaks, or reason why it could not be executed.
    error: Option<String>,
    /// Accounts that were taken not to exist although the witness does not prove it.
    assumed_absent: Vec<Absent>,
    /// Whether the file only claims the state that the block starts from. No header of the parent
    /// binds that state to the block.
    parent_claimed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    witness: Option<Counts>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockInfo {
    chain_id: u64,
    number: u64,
    hash: String,
    fork: String,
    transactions: usize,
    gas_used: u64,
}

/// An account that was taken not to exist.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Absent {
    /// `keccak256(address)`: the position of the account in the trie.
    address_hash: String,
    /// Path at which the proof of the account ends, one digit per nibble.
    path: String,
    /// Hash of the node at that path, which the witness lacks.
    missing_node: String,
}

impl From<&AssumedAbsent> for Absent {
    fn from(AssumedAbsent { address_hash, node }: &AssumedAbsent) -> Self {
        let (address_hash, missing_node) = (address_hash.to_string(), node.hash.to_string());
        Self { path: address_hash[..2 + node.depth].to_string(), address_hash, missing_node }
    }
}

impl Row {
    /// Returns whether the block was executed on proved state only.
    fn is_proved(&self) -> bool {
        self.assumed_absent.is_empty() && !self.parent_claimed
    }
}

/// Results of execution.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Computed {
    state_root: String,
    receipts_root: String,
    gas_used: u64,
    requests_hash: Option<String>,
}

/// Times in milliseconds; medians if the block was executed several times.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct Times {
    /// Reading the file, decoding block and witness.
    decode_ms: f64,
    /// Hashing nodes and codes, linking headers.
    load_ms: f64,
    /// Rules, EVM, receipts.
    execute_ms: f64,
    /// Computing the state root from the changes.
    root_ms: f64,
    runs: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    nodes: usize,
    codes: usize,
    account_reads: u64,
    slot_reads: u64,
    code_reads: u64,
}

/// Explanation of `valid*`.
const BELIEVED: &str = "valid* holds only if what the lines marked * say is true, which the witness \
    does not prove (--strict refuses such blocks).";

/// Runs the command. Exit code 0 if every block is what its header says, otherwise 1.
///
/// # Errors
/// Returns an error if nothing could be tried, or if the JSON cannot be written.
#[allow(clippy::print_stdout)] // the answer of the command
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.block.is_some() && args.files.len() > 1 {
        bail!("--block is for one FILE");
    }
    let spec = args.genesis.as_deref().map(read_genesis).transpose()?;
    let to_stdout = matches!(args.json, Some(None));
    let mut rows = Vec::with_capacity(args.files.len());
    if !to_stdout {
        println!("{}", heading());
    }
    for file in &args.files {
        let row = execute(file, args, spec.as_ref());
        if !to_stdout {
            println!("{}", render(&row));
        }
        rows.push(row);
    }
    let failed = rows.iter().filter(|row| !row.valid).count();
    match &args.json {
        Some(None) => println!("{}", serde_json::to_string_pretty(&rows)?),
        Some(Some(path)) => {
            let json = serde_json::to_vec_pretty(&rows)?;
            std::fs::write(path, json).with_context(|| format!("write {}", path.display()))?;
        }
        None => {}
    }
    if !to_stdout {
        if rows.iter().any(|row| row.valid && !row.is_proved()) {
            println!("{BELIEVED}");
        }
        println!("{} blocks: {} valid, {failed} not", rows.len(), rows.len() - failed);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Executes one file. Errors go into the row, and the next file follows.
fn execute(file: &Path, args: &Args, spec: Option<&ChainSpec>) -> Row {
    let mut row = Row { file: file.display().to_string(), ..Row::default() };
    if let Err(error) = try_execute(file, args, spec, &mut row) {
        row.error = Some(format!("{error:#}"));
    }
    row
}

fn try_execute(
    file: &Path,
    args: &Args,
    spec: Option<&ChainSpec>,
    row: &mut Row,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let text = String::from_utf8(read(file)?).context("not UTF-8")?;
    let Input { chain_id, block, witness } = Input::parse(&text)?;
    drop(text);
    let block = match &args.block {
        Some(path) => decode_block(&read(path)?).with_context(|| path.display().to_string())?,
        None => block.context("no block in it; give it with --block")?,
    };
    let chain_id = spec.map(ChainSpec::chain_id).or(args.chain_id).or(chain_id).unwrap_or(1);
    let spec = match spec {
        Some(spec) => spec.clone(),
        None => ChainSpec::for_chain_id(chain_id)
            .with_context(|| format!("chain {chain_id} is not known; give its --genesis"))?,
    };
    let decode = started.elapsed();
    let block = Arc::new(block);
    row.block = Some(info(&spec, &block));
    row.parent_claimed = matches!(witness.ancestors, Ancestors::Claimed { .. });
    if args.strict && row.parent_claimed {
        bail!("the state before the block is only claimed: the witness lacks its parent's header");
    }
    let gaps = if args.strict { Gaps::Refuse } else { Gaps::AssumeAbsent };
    let mut reports = Vec::new();
    for _ in 0..args.repeat {
        reports.push(execute_on_witness(&spec, &block, &witness, gaps)?);
    }
    row.times = Some(times(decode, &reports));
    let Some(report) = reports.pop() else { return Ok(()) };
    row.valid = report.fault.is_none();
    row.error = report.fault.map(|fault| fault.to_string());
    row.assumed_absent = report.assumed.iter().map(Absent::from).collect();
    row.computed = report.computed.map(|computed| Computed {
        state_root: computed.state_root.to_string(),
        receipts_root: computed.receipts_root.to_string(),
        gas_used: computed.gas_used,
        requests_hash: computed.requests_hash.map(|hash| hash.to_string()),
    });
    row.witness = Some(Counts {
        nodes: report.nodes,
        codes: witness.codes.len(),
        account_reads: report.reads.accounts,
        slot_reads: report.reads.slots,
        code_reads: report.reads.codes,
    });
    Ok(())
}

fn info(spec: &ChainSpec, block: &Block) -> BlockInfo {
    BlockInfo {
        chain_id: spec.chain_id(),
        number: block.id.number,
        hash: block.id.hash.to_string(),
        fork: match spec.blob_fork_of(&block.header) {
            Some(number) => format!("BPO{number}"),
            None => spec.fork_of(&block.header).to_string(),
        },
        transactions: block.transactions.len(),
        gas_used: block.header.gas_used,
    }
}

fn times(decode: Duration, reports: &[Report]) -> Times {
    let median = |part: fn(&Report) -> Duration| {
        let mut all: Vec<Duration> = reports.iter().map(part).collect();
        all.sort_unstable();
        all.get(all.len() / 2).map_or(0.0, |&time| milliseconds(time))
    };
    Times {
        decode_ms: milliseconds(decode),
        load_ms: median(|report| report.timings.load),
        execute_ms: median(|report| report.timings.execute),
        root_ms: median(|report| report.timings.root),
        runs: reports.len() as u32,
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Returns the bytes of a file, decompressed if they are gzip.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut all = Vec::new();
    MultiGzDecoder::new(bytes.as_slice())
        .read_to_end(&mut all)
        .with_context(|| format!("decompress {}", path.display()))?;
    Ok(all)
}

fn read_genesis(path: &Path) -> anyhow::Result<ChainSpec> {
    let text = String::from_utf8(read(path)?).context("not UTF-8")?;
    ChainSpec::from_genesis_json(&text).with_context(|| format!("genesis {}", path.display()))
}

fn heading() -> String {
    format!(
        "{:>10}  {:<16}  {:>4}  {:>11}  {:>9}  {:>9}  {:>9}  verdict",
        "block", "fork", "txs", "gas", "load ms", "exec ms", "root ms",
    )
}

fn render(row: &Row) -> String {
    let mut line = match &row.block {
        Some(block) => format!(
            "{:>10}  {:<16}  {:>4}  {:>11}",
            block.number, block.fork, block.transactions, block.gas_used
        ),
        None => format!("{:>10}  {:<16}  {:>4}  {:>11}", "-", "-", "-", "-"),
    };
    line += &match &row.times {
        Some(Times { load_ms, execute_ms, root_ms, .. }) => {
            format!("  {load_ms:>9.2}  {execute_ms:>9.2}  {root_ms:>9.2}")
        }
        None => format!("  {:>9}  {:>9}  {:>9}", "-", "-", "-"),
    };
    line += match row.valid {
        true if row.is_proved() => "  valid",
        true => "  valid*",
        false => "  FAILED",
    };
    if let Some(error) = &row.error {
        line += &format!("\n    {}: {error}", row.file);
    }
    for Absent { address_hash, path, missing_node } in &row.assumed_absent {
        line += &format!(
            "\n    * account {address_hash} does not exist (no node {missing_node} at {path})"
        );
    }
    if row.valid && row.parent_claimed {
        line += "\n    * the state before the block is the one claimed (no header of the parent)";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Write;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(more: &[&str]) -> Args {
        Cli::parse_from(["execute-witness"].iter().chain(more)).args
    }

    fn fixture(name: &str) -> PathBuf {
        let folder = "../tools/conformance/fixtures/mainnet-witness";
        Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name)
    }

    #[test]
    fn a_block_is_valid_also_in_gzip_and_several_times() {
        let file = fixture("mainnet_21429992.json");
        let row = execute(&file, &args(&["FILE", "--strict", "--repeat", "3"]), None);
        assert!(row.valid && row.error.is_none() && row.assumed_absent.is_empty(), "{row:?}");
        assert_eq!(row.times.unwrap().runs, 3);
        assert_eq!(row.computed.unwrap().gas_used, row.block.unwrap().gas_used);

        let mut gzip = tempfile::NamedTempFile::new().unwrap();
        let mut encoder = flate2::write::GzEncoder::new(&mut gzip, flate2::Compression::fast());
        encoder.write_all(&std::fs::read(&file).unwrap()).unwrap();
        encoder.finish().unwrap();
        assert!(execute(gzip.path(), &args(&["FILE", "--json"]), None).valid);
    }

    #[test]
    fn what_is_assumed_stands_in_the_row_and_is_refused_when_strict() {
        let file = fixture("hoodi_1151683.json");
        let row = execute(&file, &args(&["FILE"]), None);
        assert!(row.valid && !row.parent_claimed, "{row:?}");
        let strict = execute(&file, &args(&["FILE", "--strict"]), None);
        assert!(!strict.valid && strict.assumed_absent.is_empty());
        let [Absent { address_hash, path, missing_node }] = &row.assumed_absent[..] else {
            panic!("{row:?}");
        };
        assert!(address_hash.starts_with(path) && path.len() == "0x00".len());
        assert_eq!(
            strict.error.unwrap(),
            format!("the witness lacks node {missing_node} at path {path} of the account trie")
        );
        let line = render(&row);
        assert!(line.contains("valid*") && line.contains(&format!("* account {address_hash}")));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["assumedAbsent"][0]["missingNode"], missing_node.as_str());
        assert_eq!(json["assumedAbsent"][0]["addressHash"], address_hash.as_str());
        assert_eq!(json["assumedAbsent"][0]["path"], path.as_str());
    }

    #[test]
    fn a_parent_that_is_only_claimed_is_said_and_refused_when_strict() {
        let file = fixture("holesky_2971844.json");
        let row = execute(&file, &args(&["FILE"]), None);
        assert!(row.valid && row.parent_claimed && row.assumed_absent.is_empty(), "{row:?}");
        let line = render(&row);
        assert!(line.contains("valid*") && line.contains("* the state before the block"));
        let strict = execute(&file, &args(&["FILE", "--strict"]), None);
        assert!(!strict.valid && strict.error.unwrap().contains("only claimed"));
    }

    #[test]
    fn what_cannot_be_executed_says_why() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(br#"{"state":[],"codes":[],"headers":[]}"#).unwrap();
        for (path, want) in [
            (Path::new("/nowhere"), "read /nowhere"),
            (file.path(), "no block in it; give it with --block"),
        ] {
            let row = execute(path, &args(&["FILE"]), None);
            assert!(!row.valid && row.error.as_ref().unwrap().starts_with(want), "{row:?}");
            assert!(render(&row).contains("FAILED"));
        }
        let genesis = r#"{"config":{"chainId":7,"terminalTotalDifficulty":0},"difficulty":"0x0",
            "gasLimit":"0x1388"}"#;
        let spec = ChainSpec::from_genesis_json(genesis).unwrap();
        let row = execute(&fixture("hoodi_1151683.json"), &args(&["FILE"]), Some(&spec));
        assert!(!row.valid, "of another chain: {row:?}");
    }
}
