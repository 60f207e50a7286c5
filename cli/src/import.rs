//! `tandem import`: imports blocks from files.

use crate::{init, serve::reactor};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_cluster::{BlockFile, Cluster, Config, Imported, import};

/// Options of `tandem import`.
///
/// A file holds the RLP of the blocks in sequence, as geth's export writes it; gzip is recognised.
/// Known blocks are skipped. The last block becomes the head. Everything is checked except the seal
/// of proof of work.
#[derive(clap::Args)]
pub struct Args {
    /// Files with blocks, in order
    #[arg(value_name = "FILE", required = true)]
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
    if let Some(genesis) = &args.genesis {
        init::write(genesis, &args.datadir)?;
    }
    let cluster =
        Cluster::start(Config::default().at(&args.datadir)).context("start the services")?;
    let reactor = reactor()?;
    let result = args.files.iter().try_for_each(|path| {
        reactor.block_on(import_file(&cluster, path)).with_context(|| path.display().to_string())
    });
    let head = cluster.handle().chain().head();
    reactor.block_on(cluster.stop());
    eprintln!("head is block {head}");
    result.map(|()| ExitCode::SUCCESS)
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
    let mut file = BlockFile::open(path).context("open")?;
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
