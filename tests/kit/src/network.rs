//! A network between a client and a server that a test can disturb.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    runtime::Handle,
    sync::{mpsc, watch},
    time::Instant,
};

/// Maximum number of pieces on their way in one direction of a connection, of 64 KiB at most.
const ON_THE_WAY_MAX: usize = 256;

/// Behaviour of the network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Network {
    /// Passes on every byte.
    Works,
    /// Accepts bytes and returns none: a host that vanished.
    Silent,
    /// Delays every byte by this time.
    Slow(Duration),
    /// Ends every connection at once.
    Cut,
}

struct State {
    network: Network,
    /// How often all connections were reset.
    resets: u64,
}

/// A network between a client and a server.
pub struct Proxy {
    /// Address that the client connects to.
    pub address: SocketAddr,
    state: watch::Sender<State>,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts a network that works, to a server that may start later. It runs on `runtime`.
    pub fn start(target: SocketAddr, runtime: &Handle) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel(State { network: Network::Works, resets: 0 });
        let connections = Arc::<AtomicUsize>::default();
        let counted = connections.clone();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((inward, _)) = listener.accept().await {
                if seen.borrow().network == Network::Cut {
                    continue;
                }
                let Ok(outward) = TcpStream::connect(target).await else { continue };
                // Before it is counted, so that a reset misses no counted connection.
                let before = seen.borrow().resets;
                let counted = Counted::new(&counted);
                tokio::spawn(carry(inward, outward, seen.clone(), before, counted));
            }
        });
        Self { address, state, connections }
    }

    /// Sets the behaviour from now on.
    pub fn set(&self, network: Network) {
        self.state.send_modify(|state| state.network = network);
    }

    /// Resets the open connections at both ends (RST), and returns their number. Writers and
    /// readers learn of it at once. Data in transit is lost.
    pub fn reset(&self) -> usize {
        let connections = self.connections.load(SeqCst);
        self.state.send_modify(|state| state.resets += 1);
        connections
    }
}

/// One connection.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, SeqCst);
        Self(connections.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

async fn carry(
    mut inward: TcpStream,
    mut outward: TcpStream,
    state: watch::Receiver<State>,
    before: u64,
    _counted: Counted,
) {
    // A network does not wait for more data before it passes on what it has.
    for stream in [&inward, &outward] {
        let _ = stream.set_nodelay(true);
    }
    let is_reset = {
        let (inward_from, inward_to) = inward.split();
        let (outward_from, outward_to) = outward.split();
        let carried = async {
            tokio::join!(
                pump(inward_from, outward_to, state.clone()),
                pump(outward_from, inward_to, state.clone())
            )
        };
        let mut state = state.clone();
        tokio::select! {
            _ = carried => false,
            reset = state.wait_for(|state| state.resets > before) => {
                let is_reset = reset.is_ok();
                drop(reset);
                is_reset
            }
        }
    };
    if is_reset {
        for stream in [&inward, &outward] {
            // Closing with zero linger resets the connection.
            let _ = stream.set_zero_linger();
        }
    }
}

/// Passes bytes on in the order in which they came. Those that are delayed hold up none that come later.
async fn pump(from: ReadHalf<'_>, to: WriteHalf<'_>, state: watch::Receiver<State>) {
    let (sender, receiver) = mpsc::channel(ON_THE_WAY_MAX);
    tokio::join!(collect(from, sender, state.clone()), deliver(receiver, to, state));
}

async fn collect(
    mut from: ReadHalf<'_>,
    to: mpsc::Sender<(Instant, Vec<u8>)>,
    mut state: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            cut = state.wait_for(|state| state.network == Network::Cut) => { drop(cut); 0 }
        };
        let delay = match state.borrow().network {
            Network::Slow(delay) => delay,
            _ => Duration::ZERO,
        };
        let piece = (Instant::now() + delay, buffer[..read].to_vec());
        if read == 0 || to.send(piece).await.is_err() {
            break;
        }
    }
}

async fn deliver(
    mut from: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut to: WriteHalf<'_>,
    mut state: watch::Receiver<State>,
) {
    while let Some((due, bytes)) = from.recv().await {
        // A timer rounds up to a millisecond, so it is not asked without a delay.
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        let passes = state.wait_for(|state| state.network != Network::Silent).await.is_ok();
        if !passes || to.write_all(&bytes).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
