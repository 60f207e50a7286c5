//! `tandem conformance`: runs the test vectors that Ethereum clients share.

use anyhow::Context as _;
use std::{fs, net::SocketAddr, num::NonZeroUsize, path::PathBuf, process::ExitCode, thread};
use tandem_conformance::{Filter, Options, Sample};

/// Options of `tandem conformance`.
#[derive(clap::Args)]
pub struct Args {
    /// Fixture files, or folders of them; the format of a file selects its suite
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write every case, its outcome and its time to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only cases whose name or path contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Match the filter against the whole name of a case
    #[arg(long, requires = "filter")]
    exact: bool,
    /// List the cases without running them
    #[arg(long)]
    list: bool,
    /// Run only N of M cases, chosen by the hash of their names: always the same ones
    #[arg(long, value_name = "N/M")]
    sample: Option<Sample>,
    /// Seed of the sample; another seed chooses another sample
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "sample")]
    seed: u64,
    /// Number of cases to run at once [default: the machine's cores]
    #[arg(long, value_name = "COUNT")]
    threads: Option<NonZeroUsize>,
    /// Send the exchanges of execution-apis to the JSON-RPC port of a running node that has their chain, such
    /// as a follower's, and run nothing else
    #[arg(long, value_name = "IP:PORT")]
    rpc: Option<SocketAddr>,
}

/// Runs the cases and prints the table. Exit code 0 if something passed and nothing failed, 2 if a
/// path cannot be read.
#[allow(clippy::print_stdout)] // the answer of the command
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let filter = args.filter.map(|text| match args.exact {
        true => Filter::Exact(text),
        false => Filter::Contains(text),
    });
    let options = Options {
        paths: args.paths,
        filter,
        sample: args.sample.map(|sample| Sample { seed: args.seed, ..sample }),
        list: args.list,
        threads: args.threads.unwrap_or_else(cores).get(),
        rpc: args.rpc,
    };
    let report = match tandem_conformance::run(&options) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("tandem: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_vec(&report.json())?;
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    print!("{}", report.text());
    Ok(if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
