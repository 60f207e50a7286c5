//! Runs discovery over a peer-table in another process or in this one.

use super::{Process, services::blocking};
use crate::{
    Config, Error,
    peers::{Peers, Surroundings},
};
use std::{sync::Arc, time::Duration};
use tandem_bus::Bus;
use tandem_discv4::ForkId;
use tandem_proto::{
    access,
    event::{PEERS_DISCOVERED, PEERS_TARGET},
};
use tokio::{runtime::Handle, task::spawn_blocking, time::interval};
use tracing::info;

/// Interval at which a line reports the progress.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Starts discovery, and peer-table too unless `peer_table` is the address of one. `fork_id` is
/// announced to other nodes (EIP-2124).
///
/// # Errors
/// [`Error::Discovery`], [`Error::Endpoint`], [`Error::Threads`], [`Error::Tls`].
pub async fn discovery(
    process: &mut Process,
    config: Config,
    peer_table: Option<String>,
    fork_id: Option<ForkId>,
) -> Result<(), Error> {
    let identity = process.identify(access::DISCOVERY, &config.tls)?;
    let within = Surroundings {
        identity,
        bus: process.bus().clone(),
        // A separate bus: otherwise the client of peer-table would send over gRPC what NATS sends
        // already.
        direct: Bus::default(),
        fatal: process.fatal().clone(),
    };
    if peer_table.is_some() {
        process.beside(relay_while_apart(within.direct.clone(), within.bus.clone()));
    }
    let runtime = Handle::current();
    let start = move || match peer_table {
        Some(url) => Peers::start_over(&url, &config.discovery, fork_id, within, &runtime),
        None => Peers::start(config, fork_id, within),
    };
    let peers = Arc::new(blocking(start).await?);
    let reported = peers.clone();
    process.beside(async move {
        let mut ticks = interval(REPORT_EVERY);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            report(&reported).await;
        }
    });
    process.at_end(move || peers.stop());
    process.started();
    Ok(())
}

/// Relays events through the client of peer-table while the bus does not reach other processes.
/// `peers.discovered` goes to peer-table, and `peers.target` comes back. Around a change, an event
/// may arrive both ways, which does no harm.
async fn relay_while_apart(direct: Bus, bus: Bus) {
    let (mut discovered, mut target) =
        (bus.subscribe_here(PEERS_DISCOVERED), direct.subscribe(PEERS_TARGET));
    let apart = || !bus.is_shared() || !bus.is_connected();
    loop {
        tokio::select! {
            Some(payload) = discovered.next() => {
                if apart() {
                    direct.publish(PEERS_DISCOVERED, payload);
                }
            }
            Some(payload) = target.next() => {
                if apart() {
                    bus.publish_here(PEERS_TARGET, payload);
                }
            }
            else => return,
        }
    }
}

async fn report(peers: &Peers) {
    let status = peers.status();
    let table = peers.table();
    let Ok(Ok(stats)) = spawn_blocking(move || table.stats()).await else { return };
    info!(
        contacts = stats.contacts,
        proven = stats.proven,
        received = status.packets_received,
        sent = status.packets_sent,
        dropped = status.packets_dropped,
        "discovery",
    );
}
