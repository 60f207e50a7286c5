//! `tandem init`: a genesis into an empty data directory.

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::Read,
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
    /// What the genesis file must be, its SHA-256 in hex: for one that was downloaded
    #[arg(long, value_name = "HEX", value_parser = digest)]
    sha256: Option<[u8; 32]>,
}

fn digest(text: &str) -> Result<[u8; 32], String> {
    const_hex::decode_to_array(text).map_err(|_| "want 64 hex digits".to_owned())
}

/// Writes the genesis.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(want) = &args.sha256 {
        check(&args.genesis, want)?;
    }
    match write(&args.genesis, &args.datadir) {
        Err(error) if args.unless_in_use && is_in_use(&error) => {
            eprintln!("{}: the database is in use, nothing was done", args.datadir.display());
        }
        written => written?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a file that is another one.
fn check(file: &Path, want: &[u8; 32]) -> anyhow::Result<()> {
    let context = || format!("read {}", file.display());
    let mut reader = File::open(file).with_context(context)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match reader.read(&mut buffer).with_context(context)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    let have: [u8; 32] = hasher.finalize().into();
    ensure!(
        have == *want,
        "{}: its SHA-256 is {}, not {}",
        file.display(),
        const_hex::encode(have),
        const_hex::encode(want)
    );
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_another_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("genesis.json");
        std::fs::write(&file, "abc").unwrap();
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        check(&file, &digest(abc).unwrap()).unwrap();
        std::fs::write(&file, "abd").unwrap();
        let error = check(&file, &digest(abc).unwrap()).unwrap_err().to_string();
        assert!(error.contains("genesis.json") && error.contains(abc), "{error}");
        assert_eq!(digest("ba78").unwrap_err(), "want 64 hex digits");
    }
}
