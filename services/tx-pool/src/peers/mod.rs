//! Transactions to and from peers: what they offer is fetched, what is new here is offered to them.
//!
//! * **Offers.** A new pending transaction is sent in full to a few peers, the square root of their
//!   number, if it is small and has no blobs. All other peers that are not known to have it
//!   get its hash. A new peer gets the hashes of all pending transactions.
//! * **Fetches** ([`fetch`]). Each peer is asked for what it announced, one request at a time. An
//!   answer must have what was asked for, in the announced type and size.
//! * **Blobs.** A peer with eth/72 sends a transaction without its blobs (EIP-8070). The half of their
//!   cells that is the blobs themselves is asked for next, from the same peer; who announced fewer is not
//!   asked. So this node always has whole blobs, and offers all cells.
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
    blobs::{cells_of, network_form},
    intake::{Batch, Judgment},
    pool::{Pooled, SidecarRef},
    service::{Shared, TxPool},
};
use std::{collections::HashMap, sync::Arc};
use tandem_primitives::{B256, Bytes};
use tandem_proto::{
    blob_validator::{CELLS, CellSet, StoredBlob},
    peer_sessions::{
        Announcement, Found, Part, PeerId, TransactionCells, TransactionExchange, TransactionPeer,
        Wanted,
    },
};
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

    fn pooled(&self, wanted: &Wanted, bytes_max: usize) -> Found {
        let Wanted { hashes, part } = wanted;
        let found = |hash: &B256| self.shared.pool.lock().get(hash).cloned();
        let mut bytes = 0;
        let mut fits = |more: usize| {
            let is_first = bytes == 0;
            bytes += more;
            is_first || bytes <= bytes_max
        };
        match part {
            Part::WithBlobs | Part::WithoutBlobs => {
                let with_blobs = *part == Part::WithBlobs;
                // Blobs that are left out are read nevertheless.
                let bytes_of = |tx: &Pooled| match &tx.sidecar {
                    Some(_) if !with_blobs => tx.network_bytes / 4,
                    _ => tx.network_bytes,
                };
                let all = hashes.iter().filter_map(found).take_while(|tx| fits(bytes_of(tx)));
                Found::Transactions(
                    all.filter_map(|tx| self.shared.network_form(&tx, with_blobs)).collect(),
                )
            }
            Part::Cells(cells) if cells.is_empty() => Found::Cells(Vec::new()),
            Part::Cells(cells) => {
                let all = hashes.iter().filter_map(found).filter(|tx| tx.sidecar.is_some());
                // Its blobs are read and extended as a whole, however few cells are wanted.
                let bytes_of =
                    |tx: &Pooled| tx.network_bytes.max(2 * tx.network_bytes * cells.len() / CELLS);
                let all = all.take_while(|tx| fits(bytes_of(tx)));
                Found::Cells(all.filter_map(|tx| self.shared.cells(&tx, *cells)).collect())
            }
        }
    }
}

impl Shared {
    /// Returns the transaction as a peer gets it, `None` if its blobs are not there. Blocks.
    fn network_form(&self, tx: &Pooled, with_blobs: bool) -> Option<Bytes> {
        let Some(sidecar) = &tx.sidecar else { return Some(tx.raw.clone()) };
        network_form(tx, sidecar, &self.stored_blobs(sidecar)?, with_blobs)
    }

    /// Returns these cells of the transaction's blobs, `None` if it has none or they are not there.
    /// Blocks.
    fn cells(&self, tx: &Pooled, cells: CellSet) -> Option<TransactionCells> {
        let stored = self.stored_blobs(tx.sidecar.as_ref()?)?;
        // Extending blobs takes milliseconds of a processor, of which peers get one at most.
        let _one = self.extending.lock();
        Some(TransactionCells { hash: tx.hash, cells: cells_of(&stored, cells)? })
    }

    fn stored_blobs(&self, sidecar: &SidecarRef) -> Option<Vec<Option<Arc<StoredBlob>>>> {
        self.reactor.block_on(self.blobs.get_blobs(&sidecar.versioned_hashes)).ok()
    }
}
