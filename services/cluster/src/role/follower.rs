//! Runs a follower: a verified copy of a leader's chain, with JSON-RPC and without the Engine API.

use super::{
    Process,
    executor::{Access, http_router_of},
    require_storage,
    services::blocking,
};
use crate::{Config, Error, public::PublicReactor};
use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_executor::{Replica, rpc::ClientInfo};
use tandem_follower::{ChainView, Deps, Follower, Leader};
use tandem_http::Methods;
use tandem_kzg::Setup;
use tandem_primitives::{B256, BlockId, Bytes, StateDiff};
use tandem_proto::{
    access,
    feed_log::JETSTREAM,
    storage::{self, BaseReads, BlockReads, BlockRef, Forkchoice},
};
use tandem_storage_writer::{FeedConfig, StorageWriter, has_database, init_copy, remove_database};
use tandem_storage_writer_client::{Client, ClientConfig, LoggedFeed};
use tokio::{runtime::Handle, task::spawn_blocking};
use tracing::{error, info, warn};

/// Time for which a follower without a database asks its leaders for genesis.
const GENESIS_WAIT: Duration = Duration::from_secs(60);

/// File in the data directory that tells the next start to make a new copy.
const OUTDATED: &str = "copy-is-outdated";

/// Pause between two rounds of these questions.
const GENESIS_PAUSE: Duration = Duration::from_secs(1);

/// Starts a follower of these leaders, storage-writers such as `http://10.0.0.7:9600`, with JSON-RPC
/// at `http`. A leader named `jetstream` is the stream to which a leader publishes its feed. A data
/// directory without a database gets one with the genesis of the first storage-writer that answers.
/// A copy that is too far behind all leaders is made anew by the next start.
///
/// # Errors
/// [`Error::Listen`], [`Error::Endpoint`], [`Error::Tls`], [`Error::StorageWriter`],
/// [`Error::Executor`]; [`Error::Storage`] when there is no database and no leader answers;
/// [`Error::NoNats`].
pub async fn follower(
    process: &mut Process,
    config: Config,
    http: SocketAddr,
    leaders: &[String],
    client: ClientInfo,
) -> Result<(), Error> {
    let mut config = config.agreed();
    // The leader has every block, so a copy need not wait for the disk.
    config.storage_writer.sync = false;
    config.storage_writer.accept_lost_blocks = true;
    // Nothing is served from it but JSON-RPC.
    config.storage_writer.feed_blocks = 0;
    config.storage_writer.feed_readers_max = 0;
    config.storage_writer.peer_states_max = 0;
    config.storage_writer.feed = FeedConfig::default();
    if leaders.iter().any(|leader| leader == JETSTREAM) && !process.bus().is_shared() {
        return Err(Error::NoNats);
    }
    let proof = process.identify(access::FOLLOWER, &config.tls)?;
    let listener = process.listen("http", http).await?;
    let mut clients = Vec::new();
    for url in leaders.iter().filter(|leader| *leader != JETSTREAM) {
        let settings = ClientConfig { connection: proof.clone().into(), ..ClientConfig::default() };
        clients.push((url.clone(), Client::connect(url, settings, &Handle::current())?));
    }
    // The setup loaded here serves the precompile of `eth_call`.
    spawn_blocking(Setup::load);
    // The base of a copy is not announced: on a bus, it would be taken for the leader's.
    let deps = tandem_storage_writer::Deps {
        fatal: process.fatal().clone(),
        ..tandem_storage_writer::Deps::default()
    };
    let (asked, settings, executor) =
        (clients.clone(), config.storage_writer.clone(), config.executor.clone());
    let datadir = config.storage_writer.datadir.clone();
    let opened = blocking(move || {
        remove_outdated(&settings.datadir)?;
        if !has_database(&settings.datadir) {
            copy_genesis(&settings.datadir, &asked)?;
        }
        let storage = StorageWriter::start(settings, deps)?;
        let replica = Arc::new(Replica::open(&executor, storage.clone())?);
        Ok((storage, replica))
    });
    let (storage, replica) = opened.await?;
    let genesis = storage.checkpoint()?.genesis.hash;
    let (bus, runtime) = (process.bus().clone(), Handle::current());
    let source = |name: &String| match clients.iter().find(|(url, _)| url == name) {
        Some((_, api)) => Leader::new(name, api.clone()),
        None => {
            let feed = LoggedFeed::new(bus.clone(), genesis, runtime.clone());
            Leader::feed_only(name, Arc::new(feed))
        }
    };
    let leaders: Vec<Leader> = leaders.iter().map(source).collect();
    let settings = config.follower.clone();
    let follower = Follower::start(
        config.follower,
        Deps {
            leaders,
            storage: storage.clone(),
            view: Arc::new(View { replica: replica.clone() }),
            fatal: process.fatal().clone(),
        },
    )?;
    let access = Access::new(&config.executor);
    let (leaving, stopping) = (process.leaving().clone(), process.stopping().clone());
    let reads = replica.reads();
    let router = http_router_of(reads, client, &access, &None, Methods::new(), &leaving);
    let public = PublicReactor::start()?;
    process.serve(public.serve(listener, router, leaving, stopping));
    require_storage(process, &storage);
    let (status, ended) = (follower.status().clone(), follower.status().clone());
    let (lag_max, silence) =
        (settings.lag_blocks_max, Duration::from_secs(settings.silence_seconds_max));
    process
        .readiness()
        .require("the leader's head", move || status.is_fresh(Instant::now(), lag_max, silence));
    process.at_end(move || {
        // First, because a call that waits for a leader would outlast the runtime.
        clients.iter().for_each(|(_, client)| client.stop());
        follower.stop();
        replica.stop();
        storage.stop();
        public.end();
        if ended.is_outdated() {
            note_outdated(&datadir, storage.is_copy());
        }
    });
    process.started();
    Ok(())
}

/// Tells the next start to make a new copy. A database that `tandem init` made is left to the operator.
fn note_outdated(datadir: &Path, is_copy: bool) {
    let folder = datadir.display();
    if !is_copy {
        return error!("the database was not made as a copy: remove {folder} by hand");
    }
    match fs::write(datadir.join(OUTDATED), "") {
        Ok(()) => warn!("the next start makes a new copy"),
        Err(error) => error!(%error, "remove {folder} by hand: the next start cannot be told to"),
    }
}

/// Removes a copy that the process before found too far behind.
fn remove_outdated(datadir: &Path) -> Result<(), Error> {
    let file = datadir.join(OUTDATED);
    if !file.exists() {
        return Ok(());
    }
    info!("the copy is too far behind and is removed");
    remove_database(datadir)?;
    fs::remove_file(&file).map_err(|source| {
        tandem_storage_writer::Error::Io { context: "remove", path: file, source }.into()
    })
}

/// Makes a database with the genesis of a leader.
fn copy_genesis(datadir: &Path, leaders: &[(String, Arc<Client>)]) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        let mut last = storage::Error::Unavailable("there is no leader".to_owned());
        for (name, leader) in leaders {
            let genesis = || -> storage::Result<_> {
                let checkpoint = leader.checkpoint()?;
                let block = leader.block(BlockRef::Hash(checkpoint.genesis.hash))?;
                let absent = storage::Error::UnknownBlock(checkpoint.genesis.hash);
                Ok((checkpoint.genesis_json, block.ok_or(absent)?))
            };
            match genesis() {
                Ok((json, block)) => {
                    info!(leader = name, genesis = %block.id, "new database with the leader's genesis");
                    return Ok(init_copy(datadir, &json, &block)?);
                }
                Err(error) => {
                    warn!(leader = name, %error, "genesis is not to be had");
                    last = error;
                }
            }
        }
        if begun.elapsed() > GENESIS_WAIT {
            return Err(last.into());
        }
        std::thread::sleep(GENESIS_PAUSE);
    }
}

/// View of the follower's chain for JSON-RPC.
struct View {
    replica: Arc<Replica>,
}

impl View {
    /// Reads the chain anew after a failure, which the log reports.
    fn hold(&self, result: Result<(), tandem_executor::Error>) {
        let Err(failure) = result else { return };
        warn!(error = %failure, "the view of the chain is read anew");
        if let Err(failure) = self.replica.reload() {
            error!(error = %failure, "the view of the chain cannot be read");
        }
    }
}

impl ChainView for View {
    fn stored(&self, block: BlockId, parent: B256, header: &Bytes, diff: Arc<StateDiff>) {
        self.hold(self.replica.stored(block, parent, header, diff));
    }

    fn chosen(&self, forkchoice: Forkchoice) {
        self.hold(self.replica.chosen(forkchoice));
    }

    fn adopted(&self) {
        self.hold(self.replica.reload());
    }

    fn behind(&self, leader: Option<BlockId>) {
        self.replica.set_target(leader.map(|leader| leader.number));
        self.hold(self.replica.follow_base());
    }
}
