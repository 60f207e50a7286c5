//! `tandem init`: a genesis into an empty data directory.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_storage_writer::Progress;

/// Options of `tandem init`.
#[derive(clap::Args)]
pub struct Args {
    /// Genesis in geth's format, .json or .json.gz
    #[arg(long, value_name = "FILE")]
    genesis: PathBuf,
    /// Directory to write the database to; made when missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Leave a database alone that a running service has open, and succeed, without looking which
    /// genesis it is of: for a step before the start that may come again while the service runs
    #[arg(long)]
    unless_in_use: bool,
}

/// Writes the genesis.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match write(&args.genesis, &args.datadir) {
        Err(error) if args.unless_in_use && is_in_use(&error) => {
            eprintln!("{}: the database is in use, nothing was done", args.datadir.display());
        }
        written => written?,
    }
    Ok(ExitCode::SUCCESS)
}

fn is_in_use(error: &anyhow::Error) -> bool {
    error.downcast_ref::<tandem_storage_writer::Error>().is_some_and(|error| error.is_in_use())
}

/// Writes the genesis, or checks that the directory was made from it. Progress goes to standard
/// error when that is a terminal.
pub fn write(genesis: &Path, datadir: &Path) -> anyhow::Result<()> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{msg:9} {bar:32} {percent}%  {elapsed}") {
        bar.set_style(style);
    }
    let done = tandem_storage_writer::init(genesis, datadir, |progress| show(&bar, progress))
        .with_context(|| format!("init {} from {}", datadir.display(), genesis.display()))?;
    bar.finish_and_clear();
    let verb = if done.already { "is there already" } else { "written" };
    eprintln!(
        "genesis {} {verb}: {} accounts, {} slots",
        done.genesis.hash, done.accounts, done.slots
    );
    Ok(())
}

fn show(bar: &ProgressBar, progress: Progress) {
    let (message, position, total) = match progress {
        Progress::Reading { bytes, total } => ("reading", bytes, total),
        Progress::Building { accounts, total } => ("building", accounts, total),
        Progress::Flushing => ("flushing", 1, 1),
    };
    bar.set_message(message);
    bar.set_length(total);
    bar.set_position(position);
}
