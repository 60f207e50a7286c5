//! Runs a process that keeps a verified copy of a leader's chain. A follower serves JSON-RPC from it, without
//! the Engine API. With a port for calls it can be promoted, and then is the leading storage-writer. One of
//! several storage-writers leads, or keeps such a copy and can be promoted.

use super::{
    Process,
    executor::{Access, http_router_of},
    from_snapshot::restore_first,
    lead::{follow_lease, lease_settings},
    promotion::{Candidate, follow_promotion, publish_when_led},
    require_storage,
    services::{blocking, server},
    stream_end::CatchUp,
};
use crate::{Config, Error, public::PublicReactor, start::persisted};
use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_executor::{Replica, rpc::ClientInfo};
use tandem_follower::{ChainView, Deps, Follower, Leader, Status};
use tandem_http::Methods;
use tandem_primitives::{B256, BlockId, Bytes, StateDiff};
use tandem_proto::{
    access,
    feed_log::JETSTREAM,
    storage::{self, BaseReads, BlockReads, BlockRef, Forkchoice, Leadership},
};
use tandem_storage_writer::{
    FeedConfig, StartsAs, StorageWriter, has_database, init_copy, remove_database, restore_path,
};
use tandem_storage_writer_client::{Client, ClientConfig, LoggedFeed};
use tandem_tx_pool_client as tx_pool;
use tokio::{net::TcpListener, runtime::Handle};
use tracing::{error, info, warn};

/// Time for which a follower without a database asks its leaders for genesis.
const GENESIS_WAIT: Duration = Duration::from_secs(60);

/// File in the data directory that tells the next start to make a new copy.
const OUTDATED: &str = "copy-is-outdated";

/// Pause between two rounds of these questions.
const GENESIS_PAUSE: Duration = Duration::from_secs(1);

/// Addresses that a follower calls.
#[derive(Clone, Debug)]
pub struct FollowerLinks {
    /// storage-writers to follow, such as `http://10.0.0.7:9600`. One named `jetstream` is the stream to
    /// which a leader publishes its feed.
    pub leaders: Vec<String>,
    /// tx-pool to which the transactions of users go; none to refuse them.
    pub tx_pool: Option<String>,
}

/// Use of a copy.
struct Plan {
    /// Role that it calls others in.
    role: &'static str,
    /// Address of JSON-RPC, and what it says about the client; `None` without JSON-RPC.
    http: Option<(SocketAddr, ClientInfo)>,
    /// tx-pool for JSON-RPC.
    tx_pool: Option<String>,
    /// Address of its calls as a storage-writer, `None` if it cannot be promoted.
    grpc: Option<SocketAddr>,
    starts_as: StartsAs,
}

/// Starts a follower with JSON-RPC at `http`. A data directory without a database gets that of a snapshot,
/// if the settings name a place with some, or else one with the genesis of the first leader that answers.
/// A copy that is too far behind all leaders is made anew by the next start. With `grpc`, the address for
/// its calls as a storage-writer, it can be promoted, and then publishes its feed if the settings say so;
/// the stream is one of its leaders. One that was promoted leads at once.
///
/// # Errors
/// [`Error::Listen`], [`Error::Endpoint`], [`Error::Tls`], [`Error::StorageWriter`],
/// [`Error::Executor`]; [`Error::Snapshot`]; [`Error::Storage`] when there is no database and no
/// leader answers, or the copy was promoted and has no address for calls; [`Error::NoNats`];
/// [`Error::Lease`], [`Error::LeaseReplicas`], [`Error::LeaseWithoutNats`].
pub async fn follower(
    process: &mut Process,
    config: Config,
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    links: FollowerLinks,
    client: ClientInfo,
) -> Result<(), Error> {
    let mut config = config.agreed();
    config.storage_writer.history_blocks = config.follower.history_blocks;
    let FollowerLinks { leaders, tx_pool } = links;
    let http = Some((http, client));
    let plan = Plan { role: access::FOLLOWER, http, tx_pool, grpc, starts_as: StartsAs::Follower };
    start(process, config, leaders, plan).await
}

/// Starts one of several storage-writers, with its calls at `grpc`. It leads if its database is no copy and it
/// knows of no other leader, or if it was promoted. Otherwise it keeps a copy of the chain of the one that
/// leads, one of `others`, and can be promoted, by hand or by lease. It ends when another one leads in its
/// place, and follows from its next start on.
///
/// # Errors
/// As for [`follower`].
pub async fn one_of_storage_writers(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
    others: &[String],
) -> Result<(), Error> {
    let plan = Plan {
        role: access::STORAGE_WRITER,
        http: None,
        tx_pool: None,
        grpc: Some(grpc),
        starts_as: StartsAs::Either,
    };
    start(process, config, others.to_vec(), plan).await
}

async fn start(
    process: &mut Process,
    mut config: Config,
    mut leaders: Vec<String>,
    plan: Plan,
) -> Result<(), Error> {
    let Plan { role, http, tx_pool, grpc, starts_as } = plan;
    config.storage_writer.starts_as = starts_as;
    if grpc.is_none() {
        // Nothing is served from it but JSON-RPC.
        config.storage_writer.feed_blocks = 0;
        config.storage_writer.feed_readers_max = 0;
        config.storage_writer.peer_states_max = 0;
    }
    let is_shared = process.bus().is_shared();
    if grpc.is_none() || !is_shared {
        if grpc.is_some() && config.storage_writer.feed.is_published() {
            warn!("no NATS: if this follower is promoted, it does not publish its blocks");
        }
        config.storage_writer.feed = FeedConfig::default();
    }
    let feed = config.storage_writer.feed.clone();
    if feed.is_published() && !leaders.iter().any(|leader| leader == JETSTREAM) {
        // It has what a leader that is gone had acknowledged.
        leaders.push(JETSTREAM.to_owned());
    }
    if leaders.iter().any(|leader| leader == JETSTREAM) && !is_shared {
        return Err(Error::NoNats);
    }
    let lead = config.storage_writer.lead.clone();
    // A follower that takes no calls cannot lead.
    let lease = lease_settings(&lead)?.filter(|_| grpc.is_some());
    let proof = process.identify(role, &config.tls)?;
    let http = match http {
        Some((address, client)) => Some((process.listen("http", address).await?, client)),
        None => None,
    };
    let calls = match grpc {
        Some(address) => {
            Some(process.listen_grpc("grpc", address, access::STORAGE_WRITER, &config.tls).await?)
        }
        None => None,
    };
    let mut clients = Vec::new();
    for url in leaders.iter().filter(|leader| *leader != JETSTREAM) {
        let settings = ClientConfig { connection: proof.clone().into(), ..ClientConfig::default() };
        clients.push((url.clone(), Client::connect(url, settings, &Handle::current())?));
    }
    let pool = match tx_pool {
        Some(url) => {
            let settings =
                tx_pool::ClientConfig { connection: proof.clone().into(), ..Default::default() };
            Some(tx_pool::Client::connect(&url, settings, &Handle::current())?)
        }
        None => None,
    };
    let deps = tandem_storage_writer::Deps {
        on_persisted: persisted(process.bus().clone()),
        fatal: process.fatal().clone(),
    };
    let (asked, settings) = (clients.clone(), config.storage_writer.clone());
    let executor = http.is_some().then(|| config.executor.clone());
    let datadir = config.storage_writer.datadir.clone();
    let removed = datadir.clone();
    blocking(move || remove_outdated(&removed)).await?;
    if let Some(address) = &config.follower.snapshot
        && (!has_database(&datadir) || restore_path(&datadir).exists())
    {
        restore_first(address, &datadir, &clients).await?;
    }
    let opened = blocking(move || {
        if !has_database(&settings.datadir) {
            copy_genesis(&settings.datadir, &asked)?;
        }
        let storage = StorageWriter::start(settings, deps)?;
        let replica = match executor {
            Some(executor) => {
                let history = storage.clone();
                Some(Arc::new(Replica::open(&executor, storage.clone(), Some(history))?))
            }
            None => None,
        };
        Ok((storage, replica))
    });
    let (storage, replica) = opened.await?;
    if let (Some(replica), Some(pool)) = (&replica, pool) {
        replica.use_pool(pool);
    }
    let genesis = storage.checkpoint()?.genesis.hash;
    let (bus, runtime) = (process.bus().clone(), Handle::current());
    let source = |name: &String| match clients.iter().find(|(url, _)| url == name) {
        Some((_, api)) => Leader::new(name, api.clone()),
        None => {
            let feed = LoggedFeed::new(bus.clone(), genesis, runtime.clone());
            Leader::feed_only(name, Arc::new(feed))
        }
    };
    let sources: Vec<Leader> = leaders.iter().map(source).collect();
    let settings = config.follower.clone();
    let standing = storage.standing();
    let leads = standing.borrow().leads();
    let follower = match leads {
        true => None,
        false => Some(Follower::start(
            config.follower,
            Deps {
                leaders: sources,
                storage: storage.clone(),
                view: Arc::new(View { replica: replica.clone() }),
                fatal: process.fatal().clone(),
            },
        )?),
    };
    match calls {
        Some((listener, identity)) => {
            let candidate = Arc::new(Candidate {
                storage: storage.clone(),
                follower: follower.clone(),
                leaders: clients.iter().map(|(_, client)| client.clone()).collect(),
                lag_blocks_max: settings.lag_blocks_max,
                started: Instant::now(),
                lease,
                fatal: process.fatal().clone(),
            });
            let catch_up = feed.is_published().then(|| {
                CatchUp::new(LoggedFeed::new(bus.clone(), genesis, runtime.clone()), feed.acks)
            });
            let right = follow_lease(process, &lead, &candidate, catch_up)?;
            if let Some(right) = right.as_ref().filter(|_| http.is_none()) {
                let (held, standing) = (right.held(), standing.clone());
                process.readiness().require("the lease of the lead", move || {
                    *held.borrow() || !standing.borrow().leads()
                });
            }
            let server = server(&storage, identity, candidate, right);
            process.serve(server.serve(listener, process.stopping().clone()));
            let urls: Vec<_> = clients.iter().map(|(url, _)| url.clone()).collect();
            follow_promotion(process, &storage, replica.as_ref(), &urls, &proof);
            publish_when_led(process, &storage);
        }
        None if leads => {
            let text = "this copy was promoted: it needs --grpc.port to lead".to_owned();
            return Err(storage::Error::Refused(text).into());
        }
        None => {}
    }
    let public = match (http, &replica) {
        (Some((listener, client)), Some(replica)) => {
            Some(serve_json_rpc(process, &config.executor, replica, listener, client)?)
        }
        _ => None,
    };
    require_storage(process, &storage);
    let (lag_max, silence) =
        (settings.lag_blocks_max, Duration::from_secs(settings.silence_seconds_max));
    let status = follower.as_ref().map(|follower| follower.status().clone());
    process.readiness().require("the leader's head", move || {
        let is_fresh = |status: &Status| status.is_fresh(Instant::now(), lag_max, silence);
        standing.borrow().leads() || status.as_ref().is_some_and(is_fresh)
    });
    process.at_end(move || {
        // First, because a call that waits for a leader would outlast the runtime.
        clients.iter().for_each(|(_, client)| client.stop());
        if let Some(follower) = &follower {
            follower.stop();
        }
        if let Some(replica) = replica {
            replica.stop();
        }
        storage.stop();
        if let Some(public) = public {
            public.end();
        }
        if follower.is_some_and(|follower| follower.status().is_outdated()) {
            note_outdated(&datadir, storage.is_copy());
        }
    });
    process.started();
    Ok(())
}

/// Serves JSON-RPC from a copy, on threads of its own.
fn serve_json_rpc(
    process: &mut Process,
    config: &tandem_executor::Config,
    replica: &Replica,
    listener: TcpListener,
    client: ClientInfo,
) -> Result<PublicReactor, Error> {
    let access = Access::new(config);
    let (leaving, stopping) = (process.leaving().clone(), process.stopping().clone());
    let router = http_router_of(replica.reads(), client, &access, &None, Methods::new(), &leaving);
    let public = PublicReactor::start()?;
    process.serve(public.serve(listener, router, leaving, stopping));
    Ok(public)
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

/// View of the follower's chain for JSON-RPC, if there is any.
struct View {
    replica: Option<Arc<Replica>>,
}

impl View {
    /// Changes the view.
    fn change(&self, change: impl FnOnce(&Replica) -> Result<(), tandem_executor::Error>) {
        if let Some(replica) = &self.replica {
            Self::hold(replica, change(replica));
        }
    }

    /// Reads the chain anew after a failure, which the log reports.
    fn hold(replica: &Replica, result: Result<(), tandem_executor::Error>) {
        let Err(failure) = result else { return };
        warn!(error = %failure, "the view of the chain is read anew");
        if let Err(failure) = replica.reload() {
            error!(error = %failure, "the view of the chain cannot be read");
        }
    }
}

impl ChainView for View {
    fn stored(&self, block: BlockId, parent: B256, header: &Bytes, diff: Arc<StateDiff>) {
        self.change(|replica| replica.stored(block, parent, header, diff));
    }

    fn chosen(&self, forkchoice: Forkchoice) {
        self.change(|replica| replica.chosen(forkchoice));
    }

    fn adopted(&self) {
        self.change(Replica::reload);
    }

    fn behind(&self, leader: Option<BlockId>) {
        self.change(|replica| {
            replica.set_target(leader.map(|leader| leader.number));
            replica.follow_base()
        });
    }
}
