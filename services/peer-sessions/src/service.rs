//! Wiring: the thread of the sockets, and the one beside peer-table.

use crate::{
    admission::Admission,
    api,
    bans::Bans,
    chain::{BlockSource, ChainStatus},
    config::{Config, check, static_peers, trusted_peers},
    dial::{Dialler, PeerAddress},
    error::{Error, SessionError},
    link::{Introduction, agree, greet, word},
    metrics,
    session::{Peer, PeerInfo, Surroundings, session},
    table,
    transactions::PoolLink,
};
use ::metrics::{counter, gauge};
use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};
use tandem_actor::{Running, take_idle_priority};
use tandem_discv4::{NodeKey, PublicKey};
use tandem_eth_wire::{eth::Version, snap};
use tandem_proto::{
    peer_sessions::{Direction, Misconduct, TransactionExchange},
    peer_table::PeerTableApi,
};
use tandem_rlpx::{DisconnectReason, Hello, Offer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{interval, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info};

/// Time that sessions get to tell their peers of the service's end.
const STOP_WAIT: Duration = Duration::from_millis(1500);

/// Dependencies of sessions on the rest of the node.
pub struct Deps {
    /// Identity of this node, the one that discovery announces.
    pub key: NodeKey,
    /// Name and version of this client, as peers see it.
    pub client: String,
    /// State of the own chain.
    pub chain: watch::Receiver<ChainStatus>,
    /// Blocks for peers.
    pub source: Arc<dyn BlockSource>,
    /// Pool of transactions, if there is one.
    pub transactions: Option<Arc<dyn TransactionExchange>>,
    /// peer-table, or a client of it: gets the number of connected peers, and gives candidates.
    pub table: Option<Arc<dyn PeerTableApi>>,
    /// Token cancelled when a thread panics.
    pub fatal: CancellationToken,
}

/// Running service.
pub struct PeerSessions {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
    running: Running,
}

impl PeerSessions {
    /// Binds the address for inbound sessions and starts the threads.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: Config, deps: Deps) -> Result<Arc<Self>, Error> {
        metrics::describe();
        check(&config)?;
        let (fixed, trusted) = (static_peers(&config)?, trusted_peers(&config)?);
        let trusted: HashSet<_> = trusted.into_iter().map(|peer| peer.id).collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(config.answer_threads.max(1))
            .thread_name("peer-answers")
            .on_thread_start(take_idle_priority)
            .build()?;
        let bind = |address| async move { TcpListener::bind(address).await };
        let mut listener = None;
        if config.inbound_max > 0 || !trusted.is_empty() {
            let address = config.listen;
            let bound = runtime.block_on(bind(address));
            listener = Some(bound.map_err(|error| Error::Listen { address, error })?);
        }
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let running = Running::new(deps.fatal);
        let (changed, changes) = sync_channel(1);
        let eth = Version::ALL.map(Version::offer);
        let offers: Vec<_> =
            eth.into_iter().chain(snap::Version::ALL.map(snap::Version::offer)).collect();
        let hello = Hello {
            version: tandem_rlpx::VERSION,
            client: deps.client,
            capabilities: offers.iter().map(Offer::capability).collect(),
            port: address.map_or(0, |address| address.port()),
            id: *deps.key.public(),
        };
        let mut dialler = Dialler::new(Duration::from_secs(config.redial_secs.into()));
        fixed.into_iter().for_each(|peer| dialler.add_fixed(Duration::ZERO, peer));
        let admission = Admission::new(*deps.key.public(), &config, trusted.clone());
        let shared = Arc::new(Shared {
            admission: Mutex::new(admission),
            dialler: Mutex::new(dialler),
            bans: Mutex::new(Bans::new(Duration::from_secs(config.ban_secs.into()))),
            trusted,
            peers: Mutex::default(),
            begin: Instant::now(),
            key: deps.key,
            hello,
            offers,
            chain: deps.chain,
            source: deps.source,
            transactions: deps.transactions,
            changed,
            stopping: running.stopping().clone(),
            config,
        });
        let its = shared.clone();
        running.spawn("peer-sessions", move || {
            take_idle_priority();
            runtime.block_on(its.run(listener));
        })?;
        if let Some(table) = deps.table {
            let (its, pause) = (shared.clone(), Duration::from_secs(5));
            let run = move || table::run(&its, &table, &changes, pause);
            running.spawn("peer-sessions-table", run)?;
        }
        Ok(Arc::new(Self { shared, address, running }))
    }

    /// Ends all sessions and stops the threads.
    pub fn stop(&self) {
        self.running.stop(|| self.shared.signal());
    }

    /// Returns the address on which sessions are accepted.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the established sessions.
    pub fn peers(&self) -> Vec<Peer> {
        lock(&self.shared.peers).values().cloned().collect()
    }

    /// Returns the session with a peer, if there is one.
    pub(crate) fn peer(&self, id: &PublicKey) -> Option<Peer> {
        lock(&self.shared.peers).get(id).cloned()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Dials a peer, and dials it again whenever its session has ended.
    pub fn dial(&self, peer: PeerAddress) {
        lock(&self.shared.dialler).add_fixed(self.shared.now(), peer);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that the threads and sessions share. No lock is held across a wait.
pub(crate) struct Shared {
    config: Config,
    key: NodeKey,
    hello: Hello,
    offers: Vec<Offer>,
    chain: watch::Receiver<ChainStatus>,
    source: Arc<dyn BlockSource>,
    transactions: Option<Arc<dyn TransactionExchange>>,
    admission: Mutex<Admission>,
    dialler: Mutex<Dialler>,
    bans: Mutex<Bans>,
    trusted: HashSet<PublicKey>,
    peers: Mutex<HashMap<PublicKey, Peer>>,
    begin: Instant,
    changed: SyncSender<()>,
    pub(crate) stopping: CancellationToken,
}

impl Shared {
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Returns the number of established sessions.
    pub(crate) fn connected(&self) -> usize {
        lock(&self.peers).len()
    }

    /// Returns how many more sessions there may be.
    pub(crate) fn room(&self) -> usize {
        lock(&self.admission).room()
    }

    /// Adds peers that may be dialled.
    pub(crate) fn add_candidates(&self, peers: impl Iterator<Item = PeerAddress>) {
        let (mut dialler, now) = (lock(&self.dialler), self.now());
        peers.for_each(|peer| dialler.add_candidate(now, peer));
    }

    fn ban(&self, id: PublicKey) {
        if !self.trusted.contains(&id) {
            counter!(metrics::BANNED).increment(1);
            lock(&self.bans).add(self.now(), id);
        }
    }

    /// Ends the session with a peer for its misconduct, and refuses others for a while.
    pub(crate) fn report_id(&self, id: PublicKey, misconduct: Misconduct) {
        counter!(metrics::REPORTS, "misconduct" => misconduct.name()).increment(1);
        self.ban(id);
        let peer = lock(&self.peers).get(&id).cloned();
        if let Some(peer) = peer {
            peer.dismiss(api::reason(misconduct));
        }
    }

    /// Ends this session for the peer's misconduct, as [`Self::report_id`] does.
    pub(crate) fn report(&self, peer: &Peer, misconduct: Misconduct) {
        self.report_id(peer.info().id, misconduct);
        peer.dismiss(api::reason(misconduct));
    }

    /// Says that the number of sessions may have changed.
    fn signal(&self) {
        // A signal that waits already is enough.
        let _ = self.changed.try_send(());
    }

    async fn run(self: Arc<Self>, listener: Option<TcpListener>) {
        let tasks = TaskTracker::new();
        let mut dial = interval(Duration::from_millis(self.config.dial_ms.max(10).into()));
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => break,
                accepted = accept(listener.as_ref()) => match accepted {
                    Ok((stream, address)) => self.accepted(&tasks, stream, address),
                    Err(error) => {
                        // Too many open files, for example: another try at once would fail too.
                        debug!(%error, "session not accepted");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                _ = dial.tick() => self.dial_due(&tasks),
            }
        }
        tasks.close();
        let _ = timeout(STOP_WAIT, tasks.wait()).await;
    }

    fn accepted(self: &Arc<Self>, tasks: &TaskTracker, stream: TcpStream, address: SocketAddr) {
        let ip = address.ip();
        let admitted = lock(&self.admission).begin_handshake(self.now(), ip);
        if let Err(refusal) = admitted {
            counter!(metrics::REFUSED, "limit" => refusal.label()).increment(1);
            return;
        }
        let guard = HandshakeGuard { shared: self.clone(), ip };
        tasks.spawn(self.clone().serve(stream, address, None, Some(guard)));
    }

    fn dial_due(self: &Arc<Self>, tasks: &TaskTracker) {
        let due = {
            let (admission, bans, now) = (lock(&self.admission), lock(&self.bans), self.now());
            let unwanted = |id: &PublicKey| admission.has(id) || bans.has(now, id);
            lock(&self.dialler).due(now, admission.room(), unwanted)
        };
        for peer in due {
            let shared = self.clone();
            tasks.spawn(async move {
                let within = Duration::from_millis(shared.config.connect_ms.into());
                let connected = timeout(within, TcpStream::connect(peer.address)).await;
                let mut was_connected = false;
                match connected {
                    Ok(Ok(stream)) => {
                        let serve = shared.clone().serve(stream, peer.address, Some(peer.id), None);
                        was_connected = serve.await;
                    }
                    Ok(Err(error)) => debug!(address = %peer.address, %error, "peer not reached"),
                    Err(_) => debug!(address = %peer.address, "peer not reached in time"),
                }
                lock(&shared.dialler).ended(shared.now(), &peer.id, was_connected);
            });
        }
    }

    /// Makes a session of a connection and serves it to its end. Returns whether it was established.
    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        remote: Option<PublicKey>,
        handshake: Option<HandshakeGuard>,
    ) -> bool {
        let direction = if remote.is_some() { Direction::Outbound } else { Direction::Inbound };
        // Messages are small and answers awaited.
        let _ = stream.set_nodelay(true);
        let deadline = tokio::time::Instant::now() + self.config.handshake();
        let agreed = timeout_at(deadline, agree(stream, &self.key, remote));
        let ended = |stage: &'static str, error: &SessionError| {
            counter!(metrics::ENDED, "stage" => stage, "cause" => error.label()).increment(1);
            debug!(%address, direction = word(direction), stage, %error, "session ended");
        };
        let (mut link, id) = match agreed.await.unwrap_or(Err(SessionError::Timeout("keys"))) {
            Ok(agreed) => agreed,
            Err(error) => {
                ended("keys", &error);
                return false;
            }
        };
        let chain = self.chain.borrow().clone();
        let own = Introduction { hello: &self.hello, offers: &self.offers, chain };
        let mut admitted = None;
        let admit = || {
            if lock(&self.bans).has(self.now(), &id) {
                return Err(DisconnectReason::Useless);
            }
            lock(&self.admission).admit(id, direction, address.ip())?;
            admitted = Some(AdmittedGuard { shared: self.clone(), id, direction });
            Ok(())
        };
        let greeted = greet(&mut link, id, own, deadline, admit).await.and_then(|greeting| {
            let established = lock(&self.admission).establish(id, direction);
            established.map(|()| greeting).map_err(SessionError::Local)
        });
        let greeting = match greeted {
            Ok(greeting) => greeting,
            Err(error) => {
                // The place is free before the peer is told, which may take a while.
                drop(admitted);
                if error.is_breach() {
                    self.ban(id);
                }
                ended("greeting", &error);
                link.close(&error).await;
                return false;
            }
        };
        drop(handshake);
        let info = PeerInfo {
            id,
            client: greeting.hello.client.clone(),
            address,
            direction,
            version: greeting.version,
            snap: greeting.snap.map(|snap| snap.version),
        };
        info!(%address, client = info.client, direction = word(direction), "session established");
        let around = Surroundings {
            config: self.config.clone(),
            source: self.source.clone(),
            transactions: self.transactions.clone(),
            chain: self.chain.clone(),
            stopping: self.stopping.clone(),
        };
        let (peer, work) = session(link, greeting, info, around);
        let established = EstablishedGuard::new(self.clone(), peer);
        let error = work.await;
        if error.is_breach() {
            self.ban(id);
        }
        drop(established);
        drop(admitted);
        ended("session", &error);
        true
    }
}

/// Accepts a connection, or waits for ever if none are accepted.
async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Place of an inbound handshake.
struct HandshakeGuard {
    shared: Arc<Shared>,
    ip: IpAddr,
}

impl Drop for HandshakeGuard {
    fn drop(&mut self) {
        lock(&self.shared.admission).end_handshake(self.ip);
    }
}

/// Place of a session.
struct AdmittedGuard {
    shared: Arc<Shared>,
    id: PublicKey,
    direction: Direction,
}

impl Drop for AdmittedGuard {
    fn drop(&mut self) {
        lock(&self.shared.admission).release(self.id, self.direction);
    }
}

/// Established session, among those that others see.
struct EstablishedGuard {
    shared: Arc<Shared>,
    id: PublicKey,
}

impl EstablishedGuard {
    fn new(shared: Arc<Shared>, peer: Peer) -> Self {
        let id = peer.info().id;
        let sessions = {
            let mut peers = lock(&shared.peers);
            peers.insert(id, peer.clone());
            peers.len()
        };
        gauge!(metrics::SESSIONS).set(sessions as f64);
        shared.signal();
        if let Some(pool) = &shared.transactions {
            pool.joined(Arc::new(PoolLink { peer, shared: shared.clone() }));
        }
        Self { shared, id }
    }
}

impl Drop for EstablishedGuard {
    fn drop(&mut self) {
        let sessions = {
            let mut peers = lock(&self.shared.peers);
            peers.remove(&self.id);
            peers.len()
        };
        gauge!(metrics::SESSIONS).set(sessions as f64);
        self.shared.signal();
        if let Some(pool) = &self.shared.transactions {
            pool.left(&self.id);
        }
    }
}
