//! Transactions to and from peers: what they offer is fetched, what is new here is offered to them.
//!
//! * **Offers.** A new pending transaction is sent in full to a few peers, the square root of their
//!   number, if it is small and has no blobs. All other peers that are not known to have it
//!   get its hash. A new peer gets the hashes of all pending transactions.
//! * **Fetches** ([`fetch`]). Each peer is asked for what it announced, one request at a time. An
//!   answer must have what was asked for, in the announced type and size.
//! * **Misconduct.** A peer that sends something else, a transaction that is none, or wrong blobs is
//!   reported, and loses its session. The transaction is then asked from another peer.
//! * **Overload.** News that find a queue full are dropped and counted. What is remembered of a peer
//!   is bounded.

mod fetch;
mod known;
mod link;
mod task;

pub(crate) use task::Peers;

use crate::{
    blobs::network_form,
    intake::{Batch, Judgment},
    pool::Pooled,
    service::TxPool,
};
use std::{collections::HashMap, sync::Arc};
use tandem_primitives::{B256, Bytes};
use tandem_proto::peer_sessions::{Announcement, PeerId, TransactionExchange, TransactionPeer};
use tracing::debug;

/// News for the task of the peers.
pub(crate) enum News {
    /// Transactions became pending.
    Pending(Vec<Arc<Pooled>>),
    /// A peer announced transactions.
    Announced(PeerId, Vec<Announcement>),
    /// A peer sent transactions, so it need not be told of them.
    Has(PeerId, Vec<B256>),
    /// Transactions of a peer were judged.
    Judged(PeerId, Vec<(B256, Judgment)>),
    /// A session began or ended.
    Sessions,
}

impl News {
    /// Returns whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Pending(all) => all.is_empty(),
            Self::Announced(_, all) => all.is_empty(),
            Self::Has(_, all) => all.is_empty(),
            Self::Judged(_, all) => all.is_empty(),
            Self::Sessions => false,
        }
    }
}

/// Sessions as they are now. The task compares them with those that it knows, so that no change is
/// lost.
#[derive(Default)]
pub(crate) struct Registry {
    pub sessions: HashMap<PeerId, Arc<dyn TransactionPeer>>,
    pub changes: u64,
}

impl TransactionExchange for TxPool {
    fn joined(&self, peer: Arc<dyn TransactionPeer>) {
        {
            let mut registry = self.shared.registry.lock();
            registry.sessions.insert(peer.id(), peer);
            registry.changes += 1;
        }
        self.shared.tell_peers(News::Sessions);
    }

    fn left(&self, peer: &PeerId) {
        {
            let mut registry = self.shared.registry.lock();
            registry.sessions.remove(peer);
            registry.changes += 1;
        }
        self.shared.tell_peers(News::Sessions);
    }

    fn announced(&self, peer: &PeerId, announcements: Vec<Announcement>) {
        self.shared.tell_peers(News::Announced(*peer, announcements));
    }

    fn received(&self, peer: &PeerId, transactions: Vec<Bytes>) {
        let Some(peer) = self.shared.registry.lock().sessions.get(peer).cloned() else { return };
        if self.shared.chain.is_syncing() {
            return;
        }
        if let Err(error) = self.intake.submit_batch(Batch { peer, transactions }) {
            debug!(%error, "transactions of a peer dropped");
        }
    }

    fn pooled(&self, hashes: &[B256], bytes_max: usize) -> Vec<Bytes> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for hash in hashes {
            let Some(tx) = self.shared.pool.lock().get(hash).cloned() else { continue };
            let raw = match &tx.sidecar {
                None => Some(tx.raw.clone()),
                Some(sidecar) => {
                    let stored = self.shared.blobs.get_blobs(&sidecar.versioned_hashes);
                    let stored = self.shared.reactor.block_on(stored);
                    stored.ok().and_then(|stored| network_form(&tx, sidecar, &stored))
                }
            };
            let Some(raw) = raw else { continue };
            bytes += raw.len();
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            found.push(raw);
        }
        found
    }
}
