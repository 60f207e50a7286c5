//! A network that can be cut.

use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Runtime,
    sync::watch,
};

/// What the network does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Network {
    Works,
    /// Takes bytes and gives none: a host that vanished.
    Silent,
    /// Takes so long with whatever comes.
    #[allow(dead_code, reason = "not every test that has a network slows it down")]
    Slow(Duration),
    /// Ends every connection at once.
    Cut,
}

/// A network between a client and a server.
pub struct Proxy {
    pub address: SocketAddr,
    state: watch::Sender<Network>,
}

impl Proxy {
    pub fn start(target: SocketAddr, runtime: &Runtime) -> Self {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (state, seen) = watch::channel(Network::Works);
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((inward, _)) = listener.accept().await {
                if *seen.borrow() == Network::Cut {
                    continue;
                }
                let Ok(outward) = TcpStream::connect(target).await else { continue };
                let (inward_from, inward_to) = inward.into_split();
                let (outward_from, outward_to) = outward.into_split();
                tokio::spawn(pump(inward_from, outward_to, seen.clone()));
                tokio::spawn(pump(outward_from, inward_to, seen.clone()));
            }
        });
        Self { address, state }
    }

    pub fn set(&self, state: Network) {
        self.state.send_replace(state);
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<Network>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            cut = state.wait_for(|state| *state == Network::Cut) => { drop(cut); 0 }
        };
        if read == 0 {
            return;
        }
        let passes = state.wait_for(|state| *state != Network::Silent).await.map(|state| *state);
        if let Ok(Network::Slow(delay)) = passes {
            tokio::time::sleep(delay).await;
        }
        if passes.is_err() || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
