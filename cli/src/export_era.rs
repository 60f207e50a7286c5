//! `tandem export-era`: writes history files.

use crate::{hashed::Hashed, import::CHECKSUMS};
use anyhow::{Context, ensure};
use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_cluster::{Cluster, Config, Export};
use tandem_era::Format;
use tandem_primitives::B256;

/// Options of `tandem export-era`.
///
/// Writes the canonical chain into history files of 8192 blocks, and their SHA-256 into
/// checksums.txt. A file has its name only when it is complete: NETWORK-EPOCH-ROOT.era1, or
/// NETWORK-EPOCH-ROOT-noproofs.ere.
#[derive(clap::Args)]
pub struct Args {
    /// Directory for the files
    #[arg(value_name = "DIR")]
    out: PathBuf,
    /// Directory with the database of a stopped node
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    /// First block, with which an epoch begins
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    first: u64,
    /// Last block [default: the head]
    #[arg(long, value_name = "NUMBER")]
    last: Option<u64>,
    /// Format: era1 has only blocks from before the merge
    #[arg(long, value_enum, default_value_t = Kind::Ere)]
    format: Kind,
    /// Name of the network in the names of files [default: by the chain id, else unknown]
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    Era1,
    Ere,
}

/// Writes the files.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let cluster =
        Cluster::start(Config::default().at(&args.datadir)).context("start the services")?;
    let result = export(args, &cluster);
    crate::serve::reactor()?.block_on(cluster.stop());
    result.map(|()| ExitCode::SUCCESS)
}

fn export(args: &Args, cluster: &Cluster) -> anyhow::Result<()> {
    let (handle, storage) = (cluster.handle(), cluster.storage());
    let head = handle.chain().head().number;
    let last = args.last.unwrap_or(head);
    ensure!(last <= head, "last block {last}; expected at most the head, {head}");
    ensure!(args.first <= last, "first block {}; expected at most the last, {last}", args.first);
    let network = args.network.clone().unwrap_or_else(|| network(handle.spec().chain_id()).into());
    let (format, profile) = match args.format {
        Kind::Era1 => (Format::Era1, ""),
        Kind::Ere => (Format::Ere, "-noproofs"),
    };
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let mut export = Export::new(&*storage, format, args.first..=last)?;
    let mut sums = String::new();
    while let Some(epoch) = export.epoch() {
        let part = args.out.join(format!("{network}-{epoch:05}.part"));
        let (root, sum) = write(&mut export, &part).with_context(|| part.display().to_string())?;
        let digits = &format!("{root:x}")[..8];
        let name = format!("{network}-{epoch:05}-{digits}{profile}.{}", format.extension());
        fs::rename(&part, args.out.join(&name)).with_context(|| name.clone())?;
        eprintln!("{name}");
        sums += &format!("{sum}\n");
    }
    let list = args.out.join(CHECKSUMS);
    fs::write(&list, sums).with_context(|| list.display().to_string())
}

/// Writes a file. Returns its root and its SHA-256.
fn write(export: &mut Export<'_>, path: &Path) -> anyhow::Result<(B256, B256)> {
    let mut out = Hashed::new(BufWriter::new(File::create(path)?));
    let written = export.write(&mut out)?;
    let (file, sum) = out.finish();
    file.get_ref().sync_all()?;
    Ok((written.root, sum))
}

/// Returns the name of a network, as other clients have it in the names of files.
fn network(chain_id: u64) -> &'static str {
    match chain_id {
        1 => "mainnet",
        11_155_111 => "sepolia",
        560_048 => "hoodi",
        _ => "unknown",
    }
}
