//! Wiring: the socket and two threads, one for packets and one that asks peer-table.

use crate::{
    Config, Error,
    actor::{Actor, Source},
    dns,
    events::Publisher,
    key, metrics,
    report::Reporter,
    state::State,
    table,
    udp::Datagram,
};
use std::{
    future::Future,
    net::{IpAddr, SocketAddr, UdpSocket},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};
use tandem_actor::{Running, mailbox};
use tandem_bus::Bus;
use tandem_discv4::{Endpoint, Enr, ForkId, ListWalk, Node, NodeKey, NodeUrl};
use tandem_proto::{
    discovery::{DiscoveryApi, Status},
    event::PEERS_TARGET,
    peer_table::PeerTableApi,
};
use tokio::{
    runtime::Runtime,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Number of questions that may wait for peer-table; further ones are refused.
const QUESTIONS: usize = 256;

/// Dependencies of discovery on the rest of the cluster.
pub struct Deps {
    /// peer-table, or a client of it.
    pub table: Arc<dyn PeerTableApi>,
    /// Bus on which contacts are published and the target is received.
    pub bus: Bus,
    /// Fork id to announce (EIP-2124), `None` to announce none.
    pub fork_id: Option<ForkId>,
    /// Token cancelled when a thread panics.
    pub fatal: CancellationToken,
}

/// Running discovery.
pub struct Discovery {
    status: Arc<Mutex<Status>>,
    fork_id: watch::Sender<Option<ForkId>>,
    running: Running,
}

/// Checks that discovery could start with these settings, without binding or reading anything.
///
/// # Errors
/// [`Error::NoDiscv5`], [`Error::Bootnode`], [`Error::NodeList`].
pub fn check(config: &Config) -> Result<(), Error> {
    read(config).map(drop)
}

/// Returns the bootnodes and node lists that the settings name.
fn read(config: &Config) -> Result<(Vec<Node>, Option<ListWalk>), Error> {
    if config.discv5 && cfg!(not(feature = "discv5")) {
        return Err(Error::NoDiscv5);
    }
    Ok((bootnodes(config)?, dns::lists(config)?))
}

impl Discovery {
    /// Binds the socket, loads or creates the node key, and starts. Waits for no other service.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(config: Config, deps: Deps) -> Result<Arc<Self>, Error> {
        metrics::describe();
        let (bootnodes, lists) = read(&config)?;
        let key = key::load_or_create(&config.datadir)?;
        let address = SocketAddr::new(config.addr, config.port);
        let what = || Error::io(format!("bind discovery to udp {address}"));
        let socket = UdpSocket::bind(address).map_err(what())?;
        socket.set_nonblocking(true).map_err(what())?;
        let bound = socket.local_addr().map_err(what())?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Milliseconds rise faster than the record changes, so no restart uses an old number.
        let (seq, seed) = (unix.as_millis() as u64, rand::random());
        let state = State::new(&config, key.clone(), bound, bootnodes, deps.fork_id, seq, seed)?;
        info!(enode = state.url(), enr = %state.enr(), udp = %bound, "discovery started");

        let reporter = Reporter::new(&state, bound);
        let status = reporter.status();
        let running = Running::new(deps.fatal);
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
            Arc::new(tokio::net::UdpSocket::from_std(socket).map_err(what())?)
        };
        let beside = if config.discv5 {
            start_v5(&config, &key, &runtime, &socket, &reporter, &deps.bus)?
        } else {
            None
        };
        let (frames, beside) = beside.unzip();
        let mut actor = Actor {
            state,
            socket,
            frames,
            outgoing: Vec::new(),
            bound,
            questions,
            answers,
            lists: None,
            target: deps.bus.subscribe(PEERS_TARGET),
            fork_id: fork_ids,
            publisher: Publisher::new(deps.bus),
            reporter,
            stop: running.stopping().clone(),
            started: Instant::now(),
        };
        actor.lists = start_lists(&config, lists, &running)?;
        let (table, stopping) = (deps.table, running.stopping().clone());
        let asking = move || table::run(&inbox, &table, &answer_sender);
        let deciding = move || {
            runtime.block_on(async {
                match beside {
                    Some(beside) => {
                        tokio::join!(actor.run(), beside(stopping));
                    }
                    None => actor.run().await,
                }
            });
        };
        let spawned = running.spawn("discovery-table", asking);
        spawned.and_then(|()| running.spawn("discovery", deciding)).map_err(no_thread())?;
        Ok(Arc::new(Self { status, fork_id, running }))
    }

    /// Announces another fork id from now on.
    pub fn set_fork_id(&self, fork_id: ForkId) {
        self.fork_id.send_if_modified(|known| known.replace(fork_id) != Some(fork_id));
    }

    /// Stops and waits for the threads. peer-table keeps what was learned.
    pub fn stop(&self) {
        self.running.stop(|| {});
    }
}

impl DiscoveryApi for Discovery {
    fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Future that runs beside the loop until the token is cancelled.
type Beside = Box<dyn FnOnce(CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Starts discv5, which reads the socket from now on. Returns the source of v4's packets, and the
/// future to run.
#[cfg(feature = "discv5")]
fn start_v5(
    config: &Config,
    key: &NodeKey,
    runtime: &Runtime,
    socket: &Arc<tokio::net::UdpSocket>,
    reporter: &Reporter,
    bus: &Bus,
) -> Result<Option<(mpsc::Receiver<Datagram>, Beside)>, Error> {
    let (bootnodes, records) = (bootnode_texts(config), reporter.records());
    let v5 = crate::v5::V5::start(config, key, socket.clone(), records, &bootnodes, bus);
    let (v5, frames) = runtime.block_on(v5)?;
    Ok(Some((frames, Box::new(|stop| Box::pin(v5.run(stop))))))
}

#[cfg(not(feature = "discv5"))]
fn start_v5(
    _: &Config,
    _: &NodeKey,
    _: &Runtime,
    _: &Arc<tokio::net::UdpSocket>,
    _: &Reporter,
    _: &Bus,
) -> Result<Option<(mpsc::Receiver<Datagram>, Beside)>, Error> {
    Ok(None)
}

/// Starts the thread that asks DNS, if there are lists. It ends at the stop, whatever DNS is doing.
fn start_lists(
    config: &Config,
    lists: Option<ListWalk>,
    running: &Running,
) -> Result<Option<Source>, Error> {
    let Some(walk) = lists else { return Ok(None) };
    let (requests, requested) = mpsc::channel(1);
    let (answered, answers) = mpsc::channel(1);
    let lists =
        dns::Lists { walk, server: config.dns_server, requests: requested, answers: answered };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(Error::io("start a runtime"))?;
    let stopping = running.stopping().clone();
    let run = move || {
        runtime.block_on(stopping.run_until_cancelled(lists.run()));
    };
    running.spawn("discovery-dns", run).map_err(no_thread())?;
    Ok(Some((requests, answers)))
}

/// Returns the error of a thread that the operating system cannot create.
fn no_thread() -> impl FnOnce(std::io::Error) -> Error {
    Error::io("start a thread")
}

fn bootnodes(config: &Config) -> Result<Vec<Node>, Error> {
    let read =
        |text: &str| bootnode(text, config.addr).ok_or_else(|| Error::Bootnode(text.to_owned()));
    bootnode_texts(config).into_iter().map(read).collect()
}

/// Returns the nodes to begin with: the given ones, otherwise the network's.
fn bootnode_texts(config: &Config) -> Vec<&str> {
    match config.network {
        Some(network) if config.bootnodes.is_empty() => network.bootnodes().collect(),
        _ => config.bootnodes.iter().map(String::as_str).collect(),
    }
}

fn bootnode(text: &str, bound: IpAddr) -> Option<Node> {
    if let Ok(NodeUrl(node)) = text.parse() {
        return Some(node);
    }
    node_of(&text.trim().parse().ok()?, bound)
}

/// Returns the node of a record; `None` if it names no endpoint. If there are two addresses, it
/// takes the one that a socket bound to `bound` reaches. A socket that reaches both takes IPv4.
pub fn node_of(enr: &Enr, bound: IpAddr) -> Option<Node> {
    let four = || Some((enr.ip4()?.into(), enr.udp4()?, enr.tcp4()));
    let six = || Some((enr.ip6()?.into(), enr.udp6()?, enr.tcp6()));
    let (ip, udp_port, tcp_port) = match bound {
        IpAddr::V6(ip) if !ip.is_unspecified() => six().or_else(four)?,
        IpAddr::V4(_) | IpAddr::V6(_) => four().or_else(six)?,
    };
    let endpoint = Endpoint { ip, udp_port, tcp_port: tcp_port.unwrap_or(0) };
    Some(Node { key: *enr.key(), endpoint })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;
    use std::collections::BTreeSet;
    use tandem_discv4::EnrBuilder;

    #[test]
    fn the_bootnodes_of_every_network_can_be_asked_and_are_no_others() {
        let mut all = BTreeSet::new();
        for network in Network::ALL {
            let config = Config { network: Some(network), ..Config::default() };
            let nodes = bootnodes(&config).unwrap();
            assert_eq!(nodes.len(), network.bootnodes().count());
            assert!(nodes.len() >= 2, "{network}");
            for Node { key, endpoint } in nodes {
                assert!(all.insert(key), "{network} has a bootnode of another network");
                assert!(endpoint.udp_port != 0 && !endpoint.ip.is_unspecified());
            }
            let own = "enode://6f8a80d14311c39f35f516fa664deaaaa13e85b2f7493f37f6144d86991ec012937307647bd3b9a82abe2974e1407241d54947bbb39763a4cac9f77166ad92a0@10.3.58.6:30303?discport=30301";
            let config = Config { bootnodes: vec![own.to_owned()], ..config };
            assert_eq!(bootnodes(&config).unwrap().len(), 1, "given ones replace the network's");
            assert_eq!(network.name().parse(), Ok(network));
        }
        assert!(bootnodes(&Config::default()).unwrap().is_empty());
    }

    #[test]
    fn of_two_addresses_the_one_is_taken_that_the_socket_reaches() {
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let four = EnrBuilder::new(1).endpoint(ip("5.5.5.5"), 4, 0);
        let both = four.clone().endpoint(ip("2001:db8::5"), 6, 0).sign(&key).unwrap();
        let taken = |enr: &Enr, bound| node_of(enr, ip(bound)).map(|node| node.endpoint.udp_port);
        assert_eq!(["0.0.0.0", "10.0.0.1", "::"].map(|bound| taken(&both, bound)), [Some(4); 3]);
        assert_eq!(taken(&both, "2001:db8::1"), Some(6));
        assert_eq!(taken(&four.sign(&key).unwrap(), "2001:db8::1"), Some(4), "better than none");
        assert_eq!(taken(&EnrBuilder::new(1).sign(&key).unwrap(), "::"), None);
    }
}
