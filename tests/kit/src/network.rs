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
    sync::watch,
};

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

async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut state: watch::Receiver<State>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            cut = state.wait_for(|state| state.network == Network::Cut) => { drop(cut); 0 }
        };
        if read == 0 {
            break;
        }
        let passes = state.wait_for(|state| state.network != Network::Silent).await;
        let passes = passes.map(|state| state.network);
        if let Ok(Network::Slow(delay)) = passes {
            tokio::time::sleep(delay).await;
        }
        if passes.is_err() || to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
