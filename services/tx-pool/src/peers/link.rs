//! News that wait for one peer, and the transactions that it knows already.

use super::known::Known;
use crate::{metrics, pool::Pooled};
use ::metrics::counter;
use std::{collections::VecDeque, sync::Arc};
use tandem_admission::blobs_len;
use tandem_primitives::{B256, Bytes};
use tandem_proto::peer_sessions::{AnnouncedBlobs, Announcement, Gossip, TransactionPeer};

/// Hashes that a peer is known to know.
const KNOWN_MAX: usize = 1 << 13;
/// Announcements of one message: the specification's recommendation.
const ANNOUNCEMENTS_MAX: usize = 4096;
/// Announcements that wait for one peer. The oldest is dropped for a new one.
const WAITING_MAX: usize = 2 * ANNOUNCEMENTS_MAX;
/// Bytes of transactions sent in full in one message, go-ethereum's `maxTxPacketSize`.
const PACKET_BYTES_MAX: usize = 100 << 10;
/// Bytes of transactions in full that wait for one peer; further ones are announced.
const FULL_BYTES_MAX: usize = 4 * PACKET_BYTES_MAX;
/// Bytes of a transaction that is sent in full, go-ethereum's `txMaxBroadcastSize`.
const DIRECT_BYTES_MAX: usize = 4096;

/// Peer with its news. News wait here as long as its session does not take them.
pub(super) struct Link {
    pub peer: Arc<dyn TransactionPeer>,
    known: Known,
    full: VecDeque<Bytes>,
    full_bytes: usize,
    hashes: VecDeque<Announcement>,
}

impl Link {
    pub fn new(peer: Arc<dyn TransactionPeer>) -> Self {
        let (full, hashes) = (VecDeque::new(), VecDeque::new());
        Self { peer, known: Known::new(KNOWN_MAX), full, full_bytes: 0, hashes }
    }

    /// Notes that the peer has a transaction.
    pub fn knows(&mut self, hash: &B256) {
        self.known.add(hash);
    }

    /// Queues a transaction that the peer is not known to have, in full if it is small and
    /// `is_direct`.
    pub fn offer(&mut self, tx: &Pooled, is_direct: bool) {
        if !self.known.add(&tx.hash) {
            return;
        }
        let bytes = tx.raw.len();
        let is_small = tx.sidecar.is_none() && bytes <= DIRECT_BYTES_MAX;
        if is_direct && is_small && self.full_bytes + bytes <= FULL_BYTES_MAX {
            self.full_bytes += bytes;
            return self.full.push_back(tx.raw.clone());
        }
        if self.hashes.len() >= WAITING_MAX {
            counter!(metrics::DROPPED_NEWS).increment(1);
            self.hashes.pop_front();
        }
        let (kind, bytes) = (tx.kind, tx.network_bytes as u64);
        let blobs = tx.sidecar.as_ref().map_or(0, |sidecar| {
            blobs_len(tx.raw.len(), sidecar.wrapper, sidecar.versioned_hashes.len())
        });
        let blobs = AnnouncedBlobs::Inside(blobs as u64);
        self.hashes.push_back(Announcement { kind, bytes, hash: tx.hash, blobs });
    }

    /// Sends what waits, as far as the session takes it.
    pub fn flush(&mut self) {
        while !self.full.is_empty() {
            let mut bytes = 0;
            let fits = |raw: &&Bytes| {
                bytes += raw.len();
                bytes <= PACKET_BYTES_MAX
            };
            let packet: Vec<_> = self.full.iter().take_while(fits).cloned().collect();
            let count = packet.len();
            if self.peer.send(Gossip::Transactions(packet)).is_err() {
                return;
            }
            counter!(metrics::ANNOUNCED, "direction" => "full").increment(count as u64);
            self.full_bytes -= self.full.drain(..count).map(|raw| raw.len()).sum::<usize>();
        }
        while !self.hashes.is_empty() {
            let part: Vec<_> = self.hashes.iter().take(ANNOUNCEMENTS_MAX).copied().collect();
            let count = part.len();
            if self.peer.send(Gossip::Announcements(part)).is_err() {
                return;
            }
            counter!(metrics::ANNOUNCED, "direction" => "out").increment(count as u64);
            self.hashes.drain(..count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use tandem_admission::Fees;
    use tandem_primitives::{Address, U256};
    use tandem_proto::peer_sessions::{Error, Found, Misconduct, PeerId, Pending, Wanted};

    /// Session that takes so many more messages.
    struct Session {
        room: Mutex<usize>,
        sent: Mutex<Vec<Gossip>>,
    }

    impl TransactionPeer for Session {
        fn id(&self) -> PeerId {
            PeerId::ZERO
        }

        fn send(&self, gossip: Gossip) -> Result<(), Error> {
            let mut room = self.room.lock();
            *room = room.checked_sub(1).ok_or(Error::Busy)?;
            self.sent.lock().push(gossip);
            Ok(())
        }

        fn request(&self, _: Wanted) -> Pending<Found> {
            Box::pin(std::future::ready(Err(Error::Gone)))
        }

        fn report(&self, _: Misconduct) {}
    }

    fn tx(index: u64, bytes: usize) -> Pooled {
        Pooled {
            hash: B256::left_padding_from(&index.to_be_bytes()),
            sender: Address::ZERO,
            nonce: index,
            kind: 2,
            gas: 1,
            fees: Fees { tip: 1, cap: 1, blob_cap: None },
            cost: U256::ZERO,
            raw: vec![2; bytes].into(),
            network_bytes: bytes,
            sidecar: None,
            authorities: Vec::new(),
        }
    }

    /// A burst far beyond what the session takes at once arrives as a whole, once.
    #[test]
    fn news_wait_for_a_busy_session_and_nothing_is_told_twice() {
        let session = Arc::new(Session { room: Mutex::new(0), sent: Mutex::default() });
        let mut link = Link::new(session.clone());
        link.knows(&tx(0, 1).hash);
        for index in 0..3_000 {
            // Every third is sent in full as long as there is room for that.
            link.offer(&tx(index, 1_000), index % 3 == 0);
            link.offer(&tx(index, 1_000), true);
            link.flush();
        }
        link.offer(&tx(5_000, 5_000), true);
        assert!(session.sent.lock().is_empty());
        for _ in 0..20 {
            *session.room.lock() = 1;
            link.flush();
        }
        let (mut full, mut hashes) = (0, 0);
        for gossip in session.sent.lock().iter() {
            match gossip {
                Gossip::Transactions(all) => {
                    assert!(all.iter().map(|raw| raw.len()).sum::<usize>() <= PACKET_BYTES_MAX);
                    full += all.len();
                }
                Gossip::Announcements(all) => hashes += all.len(),
            }
        }
        assert_eq!((full, full + hashes), (FULL_BYTES_MAX / 1_000, 3_000));
    }

    #[test]
    fn what_waits_is_bounded() {
        let session = Arc::new(Session { room: Mutex::new(0), sent: Mutex::default() });
        let mut link = Link::new(session);
        (0..3 * WAITING_MAX as u64).for_each(|index| link.offer(&tx(index, 10), false));
        assert_eq!(link.hashes.len(), WAITING_MAX);
        assert_eq!(link.hashes[0].hash, tx(2 * WAITING_MAX as u64, 10).hash);
    }
}
