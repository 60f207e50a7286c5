//! Wiring: the socket and two threads, one for packets and one that asks peer-table.

use crate::{Config, Error, actor::Actor, events::Publisher, key, metrics, state::State, table};
use std::{
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Instant, SystemTime, UNIX_EPOCH},
};
use tandem_actor::{mailbox, spawn};
use tandem_bus::Bus;
use tandem_discv4::{Endpoint, Enr, ForkId, Node, NodeUrl};
use tandem_proto::{
    discovery::{DiscoveryApi, Status},
    event::PEERS_TARGET,
    peer_table::PeerTableApi,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Questions that may wait for peer-table; more are refused.
const QUESTIONS: usize = 256;

/// What discovery needs from the rest of the cluster.
pub struct Deps {
    /// peer-table, or a client of it.
    pub table: Arc<dyn PeerTableApi>,
    /// Where contacts are published and the target is heard.
    pub bus: Bus,
    /// The fork id to announce (EIP-2124), `None` to announce none.
    pub fork_id: Option<ForkId>,
    /// Cancelled when a thread panics.
    pub fatal: CancellationToken,
}

/// Discovery, running.
pub struct Discovery {
    status: Arc<Mutex<Status>>,
    fork_id: watch::Sender<Option<ForkId>>,
    stop: CancellationToken,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Discovery {
    /// Binds the socket, loads or makes the node key, and starts. Does not wait for anybody.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(config: &Config, deps: Deps) -> Result<Arc<Self>, Error> {
        metrics::describe();
        let key = key::load_or_create(&config.datadir)?;
        let bootnodes = bootnodes(&config.bootnodes)?;
        let address = SocketAddr::new(config.addr, config.port);
        let what = || Error::io(format!("bind discovery to udp {address}"));
        let socket = UdpSocket::bind(address).map_err(what())?;
        socket.set_nonblocking(true).map_err(what())?;
        let bound = socket.local_addr().map_err(what())?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Milliseconds rise faster than changes of the record, so no restart falls behind.
        let (seq, seed) = (unix.as_millis() as u64, rand::random());
        let state = State::new(config, key, bound, bootnodes, deps.fork_id, seq, seed)?;
        info!(enode = state.url(), enr = %state.enr(), udp = %bound, "discovery started");

        let status = Arc::new(Mutex::new(initial_status(&state, bound)));
        let stop = CancellationToken::new();
        let (questions, inbox) = mailbox("discovery-table", QUESTIONS);
        let (answer_sender, answers) = mpsc::channel(QUESTIONS);
        let (fork_id, fork_ids) = watch::channel(deps.fork_id);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(Error::io("start a runtime"))?;
        let socket = {
            let _entered = runtime.enter();
            tokio::net::UdpSocket::from_std(socket).map_err(what())?
        };
        let actor = Actor {
            state,
            socket,
            bound,
            questions,
            answers,
            target: deps.bus.subscribe(PEERS_TARGET),
            fork_id: fork_ids,
            publisher: Publisher::new(deps.bus),
            status: status.clone(),
            stop: stop.clone(),
            started: Instant::now(),
        };
        let table = deps.table;
        let failed = || Error::io("start a thread");
        let asking = spawn("discovery-table", deps.fatal.clone(), move || {
            table::run(&inbox, &table, &answer_sender);
        });
        let deciding = spawn("discovery", deps.fatal, move || runtime.block_on(actor.run()));
        let threads = vec![deciding.map_err(failed())?, asking.map_err(failed())?];
        Ok(Arc::new(Self { status, fork_id, stop, threads: Mutex::new(threads) }))
    }

    /// Announces another fork id from now on.
    pub fn set_fork_id(&self, fork_id: ForkId) {
        self.fork_id.send_replace(Some(fork_id));
    }

    /// Stops and waits for the threads. What was learned is with peer-table.
    pub fn stop(&self) {
        self.stop.cancel();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl DiscoveryApi for Discovery {
    fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn initial_status(state: &State, bound: SocketAddr) -> Status {
    Status {
        id: *state.enr().key(),
        bound,
        external: state.external(),
        enode: state.url(),
        enr: state.enr().to_string(),
        bonded: 0,
        completion_permille: 0,
        packets_received: 0,
        packets_sent: 0,
        packets_dropped: 0,
    }
}

fn bootnodes(texts: &[String]) -> Result<Vec<Node>, Error> {
    texts.iter().map(|text| bootnode(text).ok_or_else(|| Error::Bootnode(text.clone()))).collect()
}

fn bootnode(text: &str) -> Option<Node> {
    if let Ok(NodeUrl(node)) = text.parse() {
        return Some(node);
    }
    let enr: Enr = text.trim().parse().ok()?;
    let (ip, udp_port, tcp_port) = match enr.ip4() {
        Some(ip) => (ip.into(), enr.udp4()?, enr.tcp4()),
        None => (enr.ip6()?.into(), enr.udp6()?, enr.tcp6()),
    };
    let endpoint = Endpoint { ip, udp_port, tcp_port: tcp_port.unwrap_or(0) };
    Some(Node { key: *enr.key(), endpoint })
}
