//! `tandem verify`: checks the database against its headers.

use std::{path::PathBuf, process::ExitCode};
use tandem_storage_writer::Report;

/// Options of `tandem verify`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory with the database of a stopped node
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Rebuild what follows from the rest of the database: trie nodes from the flat state, the
    /// indices of blocks and transactions from the bodies; then verify again
    #[arg(long)]
    repair: bool,
}

/// Verifies the database and prints what was compared, or the first difference.
#[allow(clippy::print_stdout)] // the answer of the command
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = if args.repair {
        let (before, after) = tandem_storage_writer::repair(&args.datadir)?;
        println!("before the repair\n{}\n\nafter it", render(&before));
        after
    } else {
        tandem_storage_writer::verify(&args.datadir)?
    };
    println!("{}", render(&report));
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the report as text for people.
pub fn render(report: &Report) -> String {
    let Report { base, head, accounts, slots, .. } = report;
    let looked_at = format!(
        "base {base}: {accounts} accounts, {slots} slots, {} account nodes, {} storage nodes\n\
         head {head}: {} pending blocks recomputed, {} blocks below the base looked at\n",
        report.account_nodes, report.storage_nodes, report.pending, report.blocks,
    );
    match &report.first_difference {
        None => looked_at + "no difference",
        Some(first) => {
            format!("{looked_at}{} differences, the first: {first}", report.differences)
        }
    }
}
