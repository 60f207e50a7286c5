//! `tandem import`: imports blocks from files.

use crate::{download::copy, init, serve::reactor};
use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_cluster::{BlockFile, Cluster, Config, Imported, import};
use tandem_primitives::B256;

/// List of the checksums of a directory's history files.
pub const CHECKSUMS: &str = "checksums.txt";

/// Options of `tandem import`.
///
/// A file holds the RLP of the blocks in sequence, as geth's export writes it, in gzip or not, or
/// is a history file, era1 or ere. Of a directory, all history files are imported, in the order of
/// their names. A history file is checked as a whole before its first block is imported: its
/// headers are a chain, with the file's accumulator and name, and checksums.txt beside it is right.
/// Known blocks are skipped. The last block becomes the head. Every block is executed, and
/// everything is checked except the seal of proof of work.
#[derive(clap::Args)]
pub struct Args {
    /// Files with blocks, in order, or directories with history files
    #[arg(value_name = "PATH", required = true)]
    files: Vec<PathBuf>,
    /// Directory with the database of a stopped node
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// Genesis in geth's format, written first if the directory is empty
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
}

/// Imports the files. Exit code 0 if every block was valid.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = args.files.iter().map(|path| files_at(path));
    let files = files.collect::<anyhow::Result<Vec<_>>>()?.concat();
    if let Some(genesis) = &args.genesis {
        init::write(genesis, &args.datadir)?;
    }
    let cluster =
        Cluster::start(Config::default().at(&args.datadir)).context("start the services")?;
    let reactor = reactor()?;
    let result = files.iter().try_for_each(|path| {
        reactor.block_on(import_file(&cluster, path)).with_context(|| path.display().to_string())
    });
    let head = cluster.handle().chain().head();
    reactor.block_on(cluster.stop());
    eprintln!("head is block {head}");
    result.map(|()| ExitCode::SUCCESS)
}

/// Returns the files that a path names. Those of a directory have the checksums that it states.
fn files_at(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let read = || -> io::Result<Vec<PathBuf>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut files = read().with_context(|| path.display().to_string())?;
    let is_history = |file: &PathBuf| {
        let extension = file.extension().and_then(OsStr::to_str);
        extension.is_some_and(|extension| matches!(extension, "era1" | "ere"))
    };
    files.retain(is_history);
    files.sort();
    ensure!(!files.is_empty(), "{}: no history files, *.era1 or *.ere", path.display());
    let list = path.join(CHECKSUMS);
    if list.exists() {
        check_sums(&files, &list).with_context(|| list.display().to_string())?;
    }
    Ok(files)
}

/// Compares files with a list that has the SHA-256 of each on a line, in the order of their names.
fn check_sums(files: &[PathBuf], list: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(list)?;
    let sums: Vec<_> = text.split_whitespace().collect();
    let (sums_len, files_len) = (sums.len(), files.len());
    ensure!(sums_len == files_len, "{sums_len} checksums; expected {files_len}, one for each file");
    for (file, want) in files.iter().zip(sums) {
        let got = B256::from(copy(&mut File::open(file)?, io::sink(), u64::MAX)?).to_string();
        ensure!(got == want, "{}: SHA-256 {got}; expected {want}", file.display());
    }
    Ok(())
}

/// Checks that a history file has the root in its name: `NETWORK-EPOCH-ROOT.era1` with the first
/// eight digits. A file with another kind of name is taken as it is.
fn check_name(path: &Path, root: B256) -> anyhow::Result<()> {
    let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let Some(want) = name.split('-').nth(2) else { return Ok(()) };
    let got = &format!("{root:x}")[..8];
    ensure!(want == got, "the blocks have the root {got}; the file's name says {want}");
    Ok(())
}

async fn import_file(cluster: &Cluster, path: &Path) -> anyhow::Result<()> {
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let length = fs::metadata(path).context("open")?.len();
    // The unpacked length of a packed file is not known in advance.
    let bar = ProgressBar::with_draw_target(
        (!packed).then_some(length),
        ProgressDrawTarget::stderr_with_hz(5),
    );
    let template = match packed {
        true => "{spinner} {bytes} unpacked  {msg}  {elapsed}",
        false => "{bar:32} {percent}%  {msg}  {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let mut file = BlockFile::open(path)?;
    if let Some(root) = file.root() {
        check_name(path, root)?;
    }
    let result = import(&cluster.handle(), &mut file, |done: Imported, offset| {
        bar.set_position(offset);
        if let Some(last) = done.last {
            bar.set_message(format!("block {}", last.number));
        }
    })
    .await;
    bar.finish_and_clear();
    let done = result?;
    eprintln!("{}: {} blocks imported, {} known", path.display(), done.new, done.known);
    Ok(())
}
