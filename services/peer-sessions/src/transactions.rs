//! Transactions on a session: what the peer says goes to the pool, and the pool's news to the peer.
//!
//! Messages have a transaction as the network encodes it: a legacy one as the list that it is, a
//! typed one as a string. The pool sees the bytes inside (EIP-2718).
//!
//! From eth/72 on (EIP-8070), a transaction travels without its blobs, and sizes are announced without
//! them. Who wants the blobs asks for their cells.

use crate::{error::SessionError, service::Shared, session::Peer};
use alloy_rlp::{Encodable as _, Header};
use std::{collections::HashMap, sync::Arc};
use tandem_actor::TaskSender;
use tandem_eth_wire::{
    eth::{self, Message, Version},
    limits::{ANSWER_BYTES_SOFT, POOLED_TRANSACTIONS_MAX},
};
use tandem_primitives::{B128, B256, Bytes};
use tandem_proto::{
    blob_validator::CellSet,
    peer_sessions::{
        AnnouncedBlobs, Announcement, Error, Found, Gossip, Misconduct, Part, PeerId, Pending,
        Result, TransactionCells, TransactionExchange, TransactionPeer, Wanted,
    },
};
use tokio::{sync::oneshot, time::Instant};

/// Requests for transactions to one peer under way.
const REQUESTS_MAX: usize = 2;

/// Bytes of the header of a string, at most.
const STRING_HEADER_MAX: usize = 5;

type Reply = oneshot::Sender<Result<Found>>;

/// News of the pool for a session.
pub(crate) enum News {
    Gossip(Gossip),
    Request(Wanted, Reply),
}

/// Session, as the pool sees it.
pub(crate) struct PoolLink {
    pub(crate) peer: Peer,
    pub(crate) shared: Arc<Shared>,
}

impl TransactionPeer for PoolLink {
    fn id(&self) -> PeerId {
        self.peer.info().id
    }

    fn send(&self, gossip: Gossip) -> Result<()> {
        self.peer.tell(News::Gossip(gossip))
    }

    fn request(&self, wanted: Wanted) -> Pending<Found> {
        let (reply, answer) = oneshot::channel();
        let (items, version) = (wanted.hashes.len(), self.peer.info().version);
        let sent = if !(1..=POOLED_TRANSACTIONS_MAX).contains(&items) {
            let reason = format!("{items} items; expected 1 to {POOLED_TRANSACTIONS_MAX}");
            Err(Error::Refused(reason))
        } else if matches!(wanted.part, Part::Cells(_)) && version < Version::Eth72 {
            let got = version.number();
            Err(Error::Refused(format!("cells need eth/72; the session has eth/{got}")))
        } else {
            self.peer.tell(News::Request(wanted, reply))
        };
        Box::pin(async move {
            sent?;
            answer.await.unwrap_or(Err(Error::Gone))
        })
    }

    fn report(&self, misconduct: Misconduct) {
        self.shared.report(&self.peer, misconduct);
    }
}

/// The session's side of the exchange.
pub(crate) struct Transactions {
    exchange: Option<Arc<dyn TransactionExchange>>,
    peer: PeerId,
    version: Version,
    pending: HashMap<u64, Asked>,
}

/// Request under way.
struct Asked {
    sent: Instant,
    part: Part,
    reply: Reply,
}

impl Transactions {
    pub fn new(
        exchange: Option<Arc<dyn TransactionExchange>>,
        peer: PeerId,
        version: Version,
    ) -> Self {
        Self { exchange, peer, version, pending: HashMap::new() }
    }

    /// Returns whether no request is under way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether there is room for a further request.
    pub fn has_room(&self) -> bool {
        self.pending.len() < REQUESTS_MAX
    }

    /// Returns when the oldest request under way was sent.
    pub fn oldest(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.sent).min()
    }

    /// Returns the message that passes news on, and whether it is a request, which has this id.
    pub fn message(&mut self, id: u64, news: News) -> (Message, bool) {
        match news {
            News::Gossip(gossip) => (message(gossip, self.version), false),
            News::Request(Wanted { hashes, part }, reply) => {
                self.pending.insert(id, Asked { sent: Instant::now(), part, reply });
                let message = match part {
                    Part::Cells(CellSet(cells)) => {
                        Message::GetCells { id, hashes, cells: B128::from(cells) }
                    }
                    Part::WithBlobs | Part::WithoutBlobs => {
                        Message::GetPooledTransactions { id, hashes }
                    }
                };
                (message, true)
            }
        }
    }

    /// Tells those who wait for an answer that it did not come in time.
    pub fn give_up(&mut self) {
        for (_, pending) in self.pending.drain() {
            // The asker may have gone.
            let _ = pending.reply.send(Err(Error::Timeout));
        }
    }

    /// Hands over transactions that the peer sent without a request.
    pub fn received(&self, transactions: Vec<Bytes>) -> Result<(), SessionError> {
        let transactions = transactions.iter().map(unwrapped).collect::<Result<_, _>>()?;
        if let Some(exchange) = &self.exchange {
            exchange.received(&self.peer, transactions);
        }
        Ok(())
    }

    /// Hands over what the peer says that it has, with these cells of the blobs.
    pub fn announced(&self, announcements: Vec<eth::Announcement>, cells: B128) {
        let Some(exchange) = &self.exchange else { return };
        let blobs = match self.version >= Version::Eth72 {
            true => AnnouncedBlobs::Apart(CellSet(cells.0)),
            false => AnnouncedBlobs::Inside(0),
        };
        let announcement = |it: eth::Announcement| {
            let eth::Announcement { kind, bytes, hash } = it;
            Announcement { kind, bytes, hash, blobs }
        };
        exchange.announced(&self.peer, announcements.into_iter().map(announcement).collect());
    }

    /// Hands an answer with transactions to its asker.
    pub fn take(&mut self, id: u64, transactions: Vec<Bytes>) -> Result<(), SessionError> {
        let fits = |asked: &Asked| !matches!(asked.part, Part::Cells(_));
        let Some(Asked { reply, .. }) = self.pending.remove(&id).filter(fits) else {
            return Err(SessionError::Unexpected("transactions that were not asked for"));
        };
        let transactions = transactions.iter().map(unwrapped).collect::<Result<_, _>>()?;
        // The asker may have gone.
        let _ = reply.send(Ok(Found::Transactions(transactions)));
        Ok(())
    }

    /// Hands an answer with cells to its asker.
    pub fn take_cells(
        &mut self,
        id: u64,
        transactions: Vec<eth::TransactionCells>,
        cells: B128,
    ) -> Result<(), SessionError> {
        let fits = |asked: &Asked| asked.part == Part::Cells(CellSet(cells.0));
        let Some(Asked { reply, .. }) = self.pending.remove(&id).filter(fits) else {
            return Err(SessionError::Unexpected("cells that were not asked for"));
        };
        let of_one = |it: eth::TransactionCells| {
            let eth::TransactionCells { hash, cells } = it;
            TransactionCells { hash, cells }
        };
        // The asker may have gone.
        let _ = reply.send(Ok(Found::Cells(transactions.into_iter().map(of_one).collect())));
        Ok(())
    }

    /// Returns a function that reads the answer to a request for transactions, and may block.
    pub fn answer(&self, id: u64, hashes: Vec<B256>) -> impl FnOnce() -> Message + Send + use<> {
        let part = match self.version >= Version::Eth72 {
            true => Part::WithoutBlobs,
            false => Part::WithBlobs,
        };
        let found = self.found(Wanted { hashes, part });
        move || {
            let found = found().map(Found::into_transactions).unwrap_or_default();
            Message::PooledTransactions { id, transactions: found.iter().map(wrapped).collect() }
        }
    }

    /// Returns a function that reads the answer to a request for cells, and may block.
    pub fn answer_cells(
        &self,
        id: u64,
        hashes: Vec<B256>,
        cells: B128,
    ) -> impl FnOnce() -> Message + Send + use<> {
        let found = self.found(Wanted { hashes, part: Part::Cells(CellSet(cells.0)) });
        move || {
            let found = found().map(Found::into_cells).unwrap_or_default();
            let of_one = |it: TransactionCells| {
                let TransactionCells { hash, cells } = it;
                eth::TransactionCells { hash, cells }
            };
            Message::Cells { id, transactions: found.into_iter().map(of_one).collect(), cells }
        }
    }

    fn found(&self, wanted: Wanted) -> impl FnOnce() -> Option<Found> + Send + use<> {
        let exchange = self.exchange.clone();
        move || exchange.map(|exchange| exchange.pooled(&wanted, ANSWER_BYTES_SOFT))
    }
}

/// Returns the message that tells a peer.
fn message(gossip: Gossip, version: Version) -> Message {
    match gossip {
        Gossip::Transactions(all) => Message::Transactions(all.iter().map(wrapped).collect()),
        Gossip::Announcements(all) => {
            let is_apart = version >= Version::Eth72;
            let announcement = |it: Announcement| {
                let Announcement { kind, bytes, hash, blobs } = it;
                let bytes = match blobs {
                    AnnouncedBlobs::Inside(blobs) if is_apart => bytes.saturating_sub(blobs),
                    _ => bytes,
                };
                eth::Announcement { kind, bytes, hash }
            };
            let cells = if is_apart { CellSet::ALL } else { CellSet::default() };
            Message::Announcements {
                transactions: all.into_iter().map(announcement).collect(),
                cells: B128::from(cells.0),
            }
        }
    }
}

/// Sends news to a session's task, if it keeps up.
pub(crate) fn tell(news: &TaskSender<News>, what: News) -> Result<()> {
    news.try_send(what).map_err(|error| match error {
        tandem_actor::SendError::Full => Error::Busy,
        tandem_actor::SendError::Closed => Error::Gone,
    })
}

/// Returns a transaction as messages have it.
fn wrapped(raw: &Bytes) -> Bytes {
    if raw.first().is_none_or(|&first| first >= 0xc0) {
        return raw.clone();
    }
    let mut out = Vec::with_capacity(raw.len() + STRING_HEADER_MAX);
    raw[..].encode(&mut out);
    out.into()
}

/// Returns the transaction in an item of a message.
fn unwrapped(item: &Bytes) -> Result<Bytes, SessionError> {
    if item.first().is_some_and(|&first| first >= 0xc0) {
        return Ok(item.clone());
    }
    let mut rest = &item[..];
    let content = Header::decode_bytes(&mut rest, false);
    let content = content.ok().filter(|content| content.first().is_some_and(|it| *it < 0x80));
    let content = content.ok_or(SessionError::Unexpected("an item that is no transaction"))?;
    Ok(item.slice_ref(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_comes_out_as_it_went_in() {
        let list = Bytes::from_static(&[0xc2, 1, 2]);
        let typed = Bytes::from(vec![2; 300]);
        for raw in [list, typed, Bytes::from_static(&[3])] {
            assert_eq!(unwrapped(&wrapped(&raw)).unwrap(), raw);
        }
        for item in [&[][..], &[0x80], &[0x81, 0xc0], &[0x82, 2]] {
            assert!(unwrapped(&Bytes::copy_from_slice(item)).is_err(), "{item:?}");
        }
    }
}
