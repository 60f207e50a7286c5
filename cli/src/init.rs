//! `tandem init`: writes a genesis into an empty data directory.

use crate::download::{Remote, copy, same};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tandem_storage_writer::{Progress, has_database};

/// Name of a downloaded genesis in the data directory, until the database is made from it.
const DOWNLOAD: &str = "genesis.download";

/// Options of `tandem init`.
#[derive(clap::Args)]
pub struct Args {
    /// Genesis in geth's format, .json or .json.gz
    #[arg(long, value_name = "FILE", required_unless_present = "genesis_url")]
    genesis: Option<PathBuf>,
    /// Address of the genesis instead, http:// or https://. It is fetched only if the directory has
    /// no database; otherwise nothing is done
    #[arg(long, value_name = "URL", conflicts_with = "genesis")]
    genesis_url: Option<String>,
    /// Certificates (PEM) of the authorities that may vouch for that address [default: the public ones]
    #[arg(long, value_name = "FILE", requires = "genesis_url")]
    genesis_ca: Option<PathBuf>,
    /// Maximum number of bytes to fetch
    #[arg(long, value_name = "N", default_value_t = 16 << 30, requires = "genesis_url")]
    genesis_bytes_max: u64,
    /// Longest time for the download
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, requires = "genesis_url")]
    genesis_seconds_max: u64,
    /// Directory to write the database to; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Succeed without any change if a running service has the database open, whatever its genesis.
    /// For a step before the start that may be repeated while the service runs
    #[arg(long)]
    unless_in_use: bool,
    /// Name of this one of several storage-writers, which ends in its number, such as storage-writer-2. Only
    /// number 0 makes a database; the others will copy it from the one that leads
    #[arg(long, value_name = "NAME", value_parser = number_of)]
    replica: Option<u32>,
    /// Expected SHA-256 of the genesis file in hex, for one that was downloaded
    #[arg(long, value_name = "HEX", value_parser = digest)]
    sha256: Option<[u8; 32]>,
}

fn digest(text: &str) -> Result<[u8; 32], String> {
    const_hex::decode_to_array(text).map_err(|_| "expected 64 hex digits".to_owned())
}

/// Returns the number at the end of a replica's name.
fn number_of(name: &str) -> Result<u32, String> {
    let number = name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    number.ok_or_else(|| {
        "expected a name with a number at its end, such as storage-writer-0".to_owned()
    })
}

/// Writes the genesis.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(number) = args.replica.filter(|number| *number > 0) {
        eprintln!("number {number} of several: no database is made, it will be a copy");
        return Ok(ExitCode::SUCCESS);
    }
    let written = match (&args.genesis, &args.genesis_url) {
        (Some(genesis), _) => {
            if let Some(want) = &args.sha256 {
                check(genesis, want)?;
            }
            write(genesis, &args.datadir)
        }
        (None, Some(url)) => fetch(args, url),
        // Unreachable: the flags require one of them.
        (None, None) => Ok(()),
    };
    match written {
        Err(error) if args.unless_in_use && is_in_use(&error) => {
            eprintln!("{}: the database is in use, nothing was done", args.datadir.display());
        }
        written => written?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Downloads the genesis and writes it, if there is no database yet.
fn fetch(args: &Args, url: &str) -> anyhow::Result<()> {
    let datadir = &args.datadir;
    if has_database(datadir) {
        eprintln!("{}: the database is there already, {url} is not asked", datadir.display());
        return Ok(());
    }
    fs::create_dir_all(datadir).with_context(|| format!("create {}", datadir.display()))?;
    let remote = Remote {
        url,
        ca: args.genesis_ca.as_deref(),
        bytes_max: args.genesis_bytes_max,
        time_max: Duration::from_secs(args.genesis_seconds_max),
    };
    let downloaded = remote.fetch(&datadir.join(DOWNLOAD), args.sha256.as_ref())?;
    write(downloaded.path(), datadir)
}

/// Returns an error if the file has another digest.
fn check(file: &Path, want: &[u8; 32]) -> anyhow::Result<()> {
    let context = || format!("read {}", file.display());
    let mut reader = File::open(file).with_context(context)?;
    let have = copy(&mut reader, io::sink(), u64::MAX).with_context(context)?;
    same(&file.display().to_string(), &have, want)
}

fn is_in_use(error: &anyhow::Error) -> bool {
    error.downcast_ref::<tandem_storage_writer::Error>().is_some_and(|error| error.is_in_use())
}

/// Writes the genesis, or checks that the directory was made from it. Shows progress on standard
/// error if that is a terminal.
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
        assert_eq!(digest("ba78").unwrap_err(), "expected 64 hex digits");
    }
}
