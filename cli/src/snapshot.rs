//! `tandem snapshot`: snapshots of a database, in a directory or a bucket.

use crate::{
    certificates::Files,
    output::print,
    progress::{Report, Unit},
    serve::{Signals, block_on},
    service::TlsArgs,
};
use anyhow::{Context, bail, ensure};
use indicatif::{BinaryBytes, HumanDuration};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    fs::File,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_cluster::{Identity, TlsConfig};
use tandem_proto::access::OPERATOR;
use tandem_snapshot::{Created, Manifest, PARALLEL, Repository, Subject, lock_directory};
use tandem_storage_writer::{checkpoint_path, make_checkpoint, remove_checkpoint, seal_checkpoint};
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::{runtime::Handle, task::spawn_blocking};

/// Longest wait for a checkpoint, in milliseconds: storage-writer flushes its memtables for it.
const CHECKPOINT_MS_MAX: u64 = 600_000;

/// Options of `tandem snapshot`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a snapshot. Chunks that the store has already are not sent again
    Create(CreateArgs),
    /// Restore a snapshot into a data directory without a database; again after an interruption, it goes on
    Restore(RestoreArgs),
    /// List the snapshots of a store
    List {
        #[command(flatten)]
        store: StoreArgs,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Directory or bucket with snapshots.
#[derive(clap::Args)]
struct StoreArgs {
    /// Directory or bucket with the snapshots: a path, file:///PATH, s3://BUCKET/PATH, gs://BUCKET/PATH or
    /// az://CONTAINER/PATH. Credentials come from the usual environment variables, see docs/snapshots.md
    #[arg(long, value_name = "PATH|URL")]
    store: String,
}

impl StoreArgs {
    /// Opens the store. A missing directory is made if `create` is set.
    async fn open(&self, create: bool) -> anyhow::Result<Repository> {
        let address = self.store.clone();
        spawn_blocking(move || Repository::open(&address, create)).await?
    }
}

/// Options of the transfer.
#[derive(clap::Args)]
struct TransferArgs {
    /// Chunks under way at the same time, each of up to 64 MiB of memory
    #[arg(long, value_name = "N", default_value_t = PARALLEL as u8,
        value_parser = clap::value_parser!(u8).range(1..=32))]
    parallel: u8,
}

/// Options of `tandem snapshot create`.
#[derive(clap::Args)]
struct CreateArgs {
    /// Directory with the database
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// storage-writer that has the database open, such as https://127.0.0.1:9600. With https, the
    /// certificate is the operator's in `certificates` of the data directory, or that of --tls.ca,
    /// --tls.cert and --tls.key [default: none, the node is stopped]
    #[arg(long, value_name = "URL")]
    storage_writer: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    transfer: TransferArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Options of `tandem snapshot restore`.
#[derive(clap::Args)]
struct RestoreArgs {
    /// Data directory for the database; created if missing
    #[arg(long, value_name = "DIR")]
    datadir: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// Name of the snapshot, see `tandem snapshot list` [default: the one that was being restored there,
    /// otherwise the one with the newest block]
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Do not recompute the state root and check every record. The hash of each chunk is checked always
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    transfer: TransferArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs a command on snapshots. SIGINT and SIGTERM interrupt it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    tandem_cluster::install_ring();
    if let Command::Create(CreateArgs { storage_writer: Some(_), .. }) = &args.command {
        // The node at work comes first; threads that are started from here on have this priority too.
        tandem_actor::take_lowest_priority();
    }
    block_on(async {
        let mut signals = Signals::listen()?;
        let work = async {
            match args.command {
                Command::Create(args) => create(args).await,
                Command::Restore(args) => restore(args).await,
                Command::List { store, json } => list(&store, json).await,
            }
        };
        tokio::select! {
            done = work => done?,
            () = signals.any() => bail!("interrupted; the same command goes on where it was"),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Checkpoint of a data directory, removed in the end.
struct OwnCheckpoint {
    datadir: PathBuf,
    /// Held so that no other process removes the checkpoint.
    _lock: File,
}

impl OwnCheckpoint {
    /// Takes the place of the checkpoint, and removes one that a killed process left.
    fn claim(datadir: &Path) -> anyhow::Result<Self> {
        let lock = lock_directory(datadir)?;
        remove_checkpoint(datadir)?;
        Ok(Self { datadir: datadir.to_owned(), _lock: lock })
    }
}

impl Drop for OwnCheckpoint {
    fn drop(&mut self) {
        if let Err(error) = remove_checkpoint(&self.datadir) {
            eprintln!("tandem: {error}");
        }
    }
}

async fn create(args: CreateArgs) -> anyhow::Result<()> {
    let begin = Instant::now();
    let repository = args.store.open(true).await?;
    let datadir = args.datadir.clone();
    let checkpoint = spawn_blocking(move || OwnCheckpoint::claim(&datadir)).await??;
    let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    match &args.storage_writer {
        Some(url) => ask_for_checkpoint(url, &args).await?,
        None => {
            let datadir = args.datadir.clone();
            let made = spawn_blocking(move || make_checkpoint(&datadir)).await?;
            made.map_err(|error| {
                let in_use = error.is_in_use();
                let error = anyhow::Error::from(error);
                match in_use {
                    true => error.context("name the process that has it open by --storage-writer"),
                    false => error,
                }
            })?;
        }
    }
    let datadir = args.datadir.clone();
    let (folder, subject) = spawn_blocking(move || seal_checkpoint(&datadir)).await??;
    let report = Report::new(Unit::Bytes);
    let parallel = usize::from(args.transfer.parallel);
    let show = |done, total| report.show(done, total);
    let made = tandem_snapshot::create(
        &folder,
        Subject::from(&subject),
        created,
        &repository,
        parallel,
        &show,
    )
    .await?;
    report.finish();
    spawn_blocking(move || drop(checkpoint)).await?;
    let seconds = begin.elapsed().as_secs_f64();
    print(&if args.json {
        format!("{}\n", created_json(&made, seconds))
    } else {
        created_text(&made, seconds)
    })
}

/// Asks a running storage-writer for a checkpoint in its data directory.
async fn ask_for_checkpoint(url: &str, args: &CreateArgs) -> anyhow::Result<()> {
    let mut tls = TlsConfig::default();
    args.tls.apply(&mut tls);
    if url.starts_with("https://") && !tls.is_on() {
        let Files { ca, cert, key } = Files::of(&args.datadir.join("certificates"), OPERATOR);
        tls = TlsConfig { ca: Some(ca), cert: Some(cert), key: Some(key), ..tls };
    }
    let identity = Identity::load(OPERATOR, &tls)?;
    let config = ClientConfig {
        connection: identity.into(),
        write_ms_max: CHECKPOINT_MS_MAX,
        ..ClientConfig::default()
    };
    let client = Client::connect(url, config, &Handle::current())?;
    client.checkpoint_database().await.with_context(|| format!("storage-writer at {url}"))?;
    let path = checkpoint_path(&args.datadir);
    ensure!(
        path.exists(),
        "storage-writer at {url} made a checkpoint, but {} is not there: --datadir must be its data \
         directory, on the same volume. Remove the folder `checkpoint` in its data directory",
        path.display()
    );
    Ok(())
}

fn created_text(made: &Created, seconds: f64) -> String {
    let Created { name, manifest, chunks, new_chunks, new_bytes } = made;
    format!(
        "snapshot {name}: block {}, {} in {chunks} chunks; {new_chunks} of them are new, {} stored, in \
         {seconds:.0} s\n",
        manifest.subject.head.number,
        BinaryBytes(manifest.bytes()),
        BinaryBytes(*new_bytes),
    )
}

fn created_json(made: &Created, seconds: f64) -> Value {
    let mut value = summary(&made.name, &made.manifest);
    value["chunks"] = made.chunks.into();
    value["new_chunks"] = made.new_chunks.into();
    value["new_bytes"] = made.new_bytes.into();
    value["seconds"] = seconds.into();
    value
}

async fn restore(args: RestoreArgs) -> anyhow::Result<()> {
    let begin = Instant::now();
    let repository = args.store.open(false).await?;
    let datadir = args.datadir.clone();
    let before = spawn_blocking(move || tandem_snapshot::refuse_occupied(&datadir)).await??;
    let (name, manifest) = match (args.snapshot, before) {
        (None, Some(before)) => (before.name(), before),
        (Some(name), _) => {
            let manifest = repository.manifest(&name).await?;
            (name, manifest)
        }
        (None, None) => repository.newest().await?,
    };
    eprintln!("restoring snapshot {name}, {}", BinaryBytes(manifest.bytes()));
    let report = Report::new(Unit::Bytes);
    let show = |done, total| report.show(done, total);
    let parallel = usize::from(args.transfer.parallel);
    let restored =
        tandem_snapshot::restore(&args.datadir, manifest, &repository, parallel, &show).await?;
    report.finish();
    let (fetched, kept) = (restored.fetched_bytes, restored.kept_bytes);
    let transfer = begin.elapsed();
    if !args.no_verify {
        eprintln!("verifying the state and every record");
    }
    let Subject { head, .. } = restored.manifest.subject;
    let mut value = summary(&name, &restored.manifest);
    spawn_blocking(move || -> anyhow::Result<()> {
        restored.check(!args.no_verify)?;
        restored.finish()
    })
    .await??;
    let seconds = begin.elapsed();
    let verified = match args.no_verify {
        true => "not verified".to_owned(),
        false => format!("verified in {:.0} s", (seconds - transfer).as_secs_f64()),
    };
    value["fetched_bytes"] = fetched.into();
    value["kept_bytes"] = kept.into();
    value["transfer_seconds"] = transfer.as_secs_f64().into();
    value["seconds"] = seconds.as_secs_f64().into();
    value["verified"] = (!args.no_verify).into();
    print(&match args.json {
        true => format!("{value}\n"),
        false => format!(
            "block {} with state root {} restored from {name}: {} fetched and {} kept in {:.0} s, {verified}\n",
            head.number,
            head.state_root,
            BinaryBytes(fetched),
            BinaryBytes(kept),
            transfer.as_secs_f64(),
        ),
    })
}

async fn list(store: &StoreArgs, json: bool) -> anyhow::Result<()> {
    let snapshots = store.open(false).await?.list().await?;
    if json {
        let list: Value =
            snapshots.iter().map(|(name, manifest)| summary(name, manifest)).collect();
        return print(&format!("{list}\n"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut text = format!(
        "{:<32} {:>10}  {:<66}  {:>11} {:>11}  {}\n",
        "snapshot", "block", "state root", "size", "stored", "age"
    );
    for (name, manifest) in &snapshots {
        let head = &manifest.subject.head;
        let age = Duration::from_secs(now.saturating_sub(manifest.created));
        let _ = writeln!(
            text,
            "{name:<32} {:>10}  {:<66}  {:>11} {:>11}  {}",
            head.number,
            head.state_root.to_string(),
            BinaryBytes(manifest.bytes()).to_string(),
            BinaryBytes(manifest.stored_bytes).to_string(),
            HumanDuration(age),
        );
    }
    print(&text)
}

/// Returns a snapshot without the list of its files.
fn summary(name: &str, manifest: &Manifest) -> Value {
    json!({
        "name": name, "created": manifest.created, "subject": manifest.subject,
        "bytes": manifest.bytes(), "stored_bytes": manifest.stored_bytes,
        "files": manifest.files.len(),
    })
}
