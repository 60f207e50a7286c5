//! Thread beside peer-table, whose calls block: it reports connected peers, and fetches candidates.

use crate::{dial::PeerAddress, service::Shared};
use rand::Rng;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};
use tandem_primitives::B256;
use tandem_proto::peer_table::PeerTableApi;
use tracing::debug;

/// Number of candidates that are asked for at once.
const CANDIDATES: usize = 16;

/// Works until the service stops. A signal on `changed` says that the number of sessions may have
/// changed.
pub(crate) fn run(
    shared: &Shared,
    table: &Arc<dyn PeerTableApi>,
    changed: &Receiver<()>,
    pause: Duration,
) {
    while !shared.stopping.is_cancelled() {
        // A report is repeated with each pause: peer-table may have restarted.
        if let Err(error) = table.set_connected(shared.connected() as u32) {
            debug!(%error, "connected peers not reported");
        }
        if shared.room() > 0 {
            add_candidates(shared, table);
        }
        if changed.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
    }
    // No session outlives the service.
    let _ = table.set_connected(0);
}

fn add_candidates(shared: &Shared, table: &Arc<dyn PeerTableApi>) {
    let target = B256::from(rand::rng().random::<[u8; 32]>());
    match table.closest(target, CANDIDATES) {
        Ok(contacts) => {
            let dialable = contacts.into_iter().filter(|contact| contact.tcp_port != 0);
            shared.add_candidates(dialable.map(|contact| PeerAddress {
                id: contact.id,
                address: SocketAddr::new(contact.ip, contact.tcp_port),
            }));
        }
        Err(error) => debug!(%error, "no candidates"),
    }
}
