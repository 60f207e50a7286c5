//! Which peer is asked for which announced transaction. A pure state: time is an input.
//!
//! A transaction is asked from one peer at a time. If that one does not deliver it, or delivers wrong
//! blobs, the next peer that announced it is asked. Peers often send a transaction in full a moment
//! after its announcement, so the first request waits a little; those with blobs are never sent.
//!
//! With eth/72, blobs are fetched apart from their transactions: [`Fetcher::begin_cells`] keeps the peer
//! from being asked for more than it can deliver at a time.

use super::known::Known;
use crate::intake::Judgment;
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tandem_primitives::B256;
use tandem_proto::{
    blob_validator::CellSet,
    peer_sessions::{AnnouncedBlobs, Announcement, PeerId},
};

/// Transactions that are announced and not judged yet.
const ENTRIES_MAX: usize = 1 << 16;
/// Announced transactions that wait for a request to one peer, go-ethereum's `maxTxAnnounces`.
const WAITING_MAX: usize = 4096;
/// Peers of one transaction that are remembered.
const ANNOUNCERS_MAX: usize = 8;
/// Transactions of one request, go-ethereum's `maxTxRetrievals`.
const REQUEST_MAX: usize = 256;
/// Announced bytes of one request with more than one transaction.
const REQUEST_BYTES_MAX: u64 = 128 << 10;
/// Wait before the first request, go-ethereum's `txArriveTimeout`.
const ARRIVAL: Duration = Duration::from_millis(500);
/// Longest life of an entry.
const LIFE: Duration = Duration::from_secs(120);
/// Judged transactions that are remembered, so that they are not fetched again.
const JUDGED_MAX: usize = 1 << 15;
/// Entries of one peer's queue that are looked at for one request.
const LOOKS_MAX: usize = 1024;

/// Transactions whose blobs are fetched from one peer at a time.
const CELLS_MAX: usize = 2;
/// Bytes of a blob for one of the transaction without its blobs: 131,072 for 128 proofs of 49 bytes.
const BYTES_APART: u64 = 21;

/// Bytes by which an announced size may be wrong, as in go-ethereum.
const SIZE_TOLERANCE: u64 = 8;

/// Type of blob transactions.
const BLOB_TYPE: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// May be asked for from this time on.
    Waiting(Duration),
    Asked(PeerId),
    /// Delivered by this peer, and being judged.
    Judged(PeerId),
}

/// Peer that has a transaction, in its words.
struct Announcer {
    peer: PeerId,
    kind: u8,
    bytes: u64,
    /// Whether its blobs are not among these bytes.
    is_apart: bool,
}

impl Announcer {
    /// Returns about how many bytes the peer is going to send.
    fn bytes_in_all(&self) -> u64 {
        if self.is_apart { self.bytes.saturating_mul(1 + BYTES_APART) } else { self.bytes }
    }
}

struct Entry {
    announcers: Vec<Announcer>,
    state: State,
    since: Duration,
}

#[derive(Default)]
struct Peer {
    waiting: VecDeque<B256>,
    asked: Vec<B256>,
    /// Number of transactions whose blobs are being fetched.
    cells: usize,
}

/// Fault of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// It was not asked for.
    Unasked,
    /// Type or size are not those that were announced.
    Mismatch,
}

/// Announced transactions.
pub(super) struct Fetcher {
    entries: HashMap<B256, Entry>,
    peers: HashMap<PeerId, Peer>,
    judged: Known,
}

impl Fetcher {
    pub fn new() -> Self {
        let (entries, peers) = (HashMap::new(), HashMap::new());
        Self { entries, peers, judged: Known::new(JUDGED_MAX) }
    }

    /// Adds a peer.
    pub fn join(&mut self, peer: PeerId) {
        self.peers.entry(peer).or_default();
    }

    /// Removes a peer. Others are asked for what it was asked for.
    pub fn leave(&mut self, now: Duration, peer: &PeerId) {
        let Some(Peer { waiting, asked, .. }) = self.peers.remove(peer) else { return };
        for hash in waiting.into_iter().chain(asked) {
            self.fail(now, peer, &hash);
        }
    }

    /// Notes an announcement. Returns whether it is remembered.
    pub fn announced(&mut self, now: Duration, peer: PeerId, announcement: Announcement) -> bool {
        let Announcement { kind, bytes, hash, blobs } = announcement;
        let is_apart = match blobs {
            _ if kind != BLOB_TYPE => false,
            AnnouncedBlobs::Apart(cells) if !cells.has_all(CellSet::BLOB) => return false,
            AnnouncedBlobs::Apart(_) => true,
            AnnouncedBlobs::Inside(_) => false,
        };
        let (entries, Some(queue)) = (self.entries.len(), self.peers.get_mut(&peer)) else {
            return false;
        };
        if self.judged.has(&hash) || queue.waiting.len() >= WAITING_MAX {
            return false;
        }
        let known = self.entries.get_mut(&hash);
        if known.is_none() && entries >= ENTRIES_MAX {
            return false;
        }
        let arrival = if kind == BLOB_TYPE { Duration::ZERO } else { ARRIVAL };
        let new =
            || Entry { announcers: Vec::new(), state: State::Waiting(now + arrival), since: now };
        let entry = match known {
            Some(entry) => entry,
            None => self.entries.entry(hash).or_insert_with(new),
        };
        let is_new = entry.announcers.iter().all(|known| known.peer != peer);
        if !is_new || entry.announcers.len() >= ANNOUNCERS_MAX {
            return false;
        }
        entry.announcers.push(Announcer { peer, kind, bytes, is_apart });
        queue.waiting.push_back(hash);
        true
    }

    /// Returns what peers are to be asked for now.
    pub fn due(&mut self, now: Duration) -> Vec<(PeerId, Vec<B256>)> {
        let mut requests = Vec::new();
        let is_free = |peer: &Peer| peer.asked.is_empty() && peer.cells < CELLS_MAX;
        for (id, peer) in self.peers.iter_mut().filter(|(_, peer)| is_free(peer)) {
            let (mut bytes, mut early) = (0, Vec::new());
            for _ in 0..LOOKS_MAX {
                let Some(hash) = peer.waiting.pop_front() else { break };
                let Some(entry) = self.entries.get_mut(&hash) else { continue };
                let State::Waiting(from) = entry.state else { continue };
                if from > now {
                    early.push(hash);
                    continue;
                }
                let Some(said) = entry.announcers.iter().find(|it| it.peer == *id) else {
                    continue;
                };
                bytes += said.bytes_in_all();
                let is_full = peer.asked.len() >= REQUEST_MAX || bytes > REQUEST_BYTES_MAX;
                if is_full && !peer.asked.is_empty() {
                    peer.waiting.push_front(hash);
                    break;
                }
                entry.state = State::Asked(*id);
                peer.asked.push(hash);
            }
            early.into_iter().rev().for_each(|hash| peer.waiting.push_front(hash));
            if !peer.asked.is_empty() {
                requests.push((*id, peer.asked.clone()));
            }
        }
        requests
    }

    /// Notes a peer's answer, given by hash, type and size of what it delivered. What it left out
    /// is asked from others.
    ///
    /// # Errors
    /// [`Fault`]: none of it should be used, and the peer should be reported.
    pub fn answered(
        &mut self,
        now: Duration,
        peer: &PeerId,
        delivered: &[(B256, u8, u64)],
    ) -> Result<(), Fault> {
        let Some(queue) = self.peers.get_mut(peer) else { return Ok(()) };
        let mut asked = std::mem::take(&mut queue.asked);
        let mut fault = None;
        for (hash, kind, bytes) in delivered {
            let place = asked.iter().position(|asked| asked == hash);
            let Some(place) = place else {
                fault = Some(Fault::Unasked);
                break;
            };
            let Some(entry) = self.entries.get_mut(hash) else {
                asked.swap_remove(place);
                continue;
            };
            let said = entry.announcers.iter().find(|it| it.peer == *peer);
            let fits = |said: &Announcer| {
                said.kind == *kind && said.bytes.abs_diff(*bytes) <= SIZE_TOLERANCE
            };
            if !said.is_some_and(fits) {
                fault = Some(Fault::Mismatch);
                break;
            }
            asked.swap_remove(place);
            entry.state = State::Judged(*peer);
        }
        if let Some(fault) = fault {
            for (hash, _, _) in delivered {
                self.fail(now, peer, hash);
            }
            asked.iter().for_each(|hash| self.fail(now, peer, hash));
            return Err(fault);
        }
        asked.iter().for_each(|hash| self.fail(now, peer, hash));
        Ok(())
    }

    /// Notes that the blobs of a delivered transaction are fetched from its peer.
    pub fn begin_cells(&mut self, peer: &PeerId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.cells += 1;
        }
    }

    /// Notes the end of that, whatever came of it.
    pub fn end_cells(&mut self, peer: &PeerId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.cells = peer.cells.saturating_sub(1);
        }
    }

    /// Notes the judgment on a transaction that this peer sent, asked or not.
    pub fn judged(&mut self, now: Duration, peer: &PeerId, hash: &B256, judgment: Judgment) {
        if judgment != Judgment::Settled {
            return self.fail(now, peer, hash);
        }
        self.entries.remove(hash);
        self.judged.add(hash);
    }

    /// Forgets what has been announced for long.
    pub fn expire(&mut self, now: Duration) {
        self.entries.retain(|_, entry| now.saturating_sub(entry.since) < LIFE);
    }

    /// Notes that a peer does not have the transaction, and lets the others be asked.
    fn fail(&mut self, now: Duration, peer: &PeerId, hash: &B256) {
        let Some(entry) = self.entries.get_mut(hash) else { return };
        entry.announcers.retain(|it| it.peer != *peer);
        if entry.announcers.is_empty() {
            self.entries.remove(hash);
            return;
        }
        let is_theirs = match entry.state {
            State::Waiting(_) => false,
            State::Asked(id) | State::Judged(id) => id == *peer,
        };
        if !is_theirs {
            return;
        }
        entry.state = State::Waiting(now);
        for Announcer { peer, .. } in &entry.announcers {
            if let Some(queue) = self.peers.get_mut(peer)
                && queue.waiting.len() < WAITING_MAX
            {
                queue.waiting.push_back(*hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::collections::HashSet;

    fn peer(index: u8) -> PeerId {
        PeerId::repeat_byte(index)
    }

    fn hash(index: u8) -> B256 {
        B256::repeat_byte(index)
    }

    fn announcement(index: u8) -> Announcement {
        let blobs = AnnouncedBlobs::Inside(0);
        Announcement { kind: BLOB_TYPE, bytes: 100, hash: hash(index), blobs }
    }

    const NOW: Duration = Duration::from_secs(1);

    fn fetcher(peers: u8) -> Fetcher {
        let mut fetcher = Fetcher::new();
        (0..peers).for_each(|index| fetcher.join(peer(index)));
        fetcher
    }

    #[test]
    fn a_transaction_that_is_not_delivered_is_asked_from_the_next() {
        let mut fetcher = fetcher(3);
        for index in 0..3 {
            assert!(fetcher.announced(NOW, peer(index), announcement(7)));
            assert!(!fetcher.announced(NOW, peer(index), announcement(7)), "once for each peer");
        }
        let mut asked = HashSet::new();
        for round in 0..3 {
            let due = fetcher.due(NOW);
            let [(id, hashes)] = &due[..] else { panic!("{round}: {due:?}") };
            assert_eq!(hashes, &[hash(7)]);
            assert!(asked.insert(*id), "another one");
            match round {
                0 => fetcher.leave(NOW, id),
                1 => fetcher.answered(NOW, id, &[]).unwrap(),
                _ => {
                    fetcher.answered(NOW, id, &[(hash(7), 3, 108)]).unwrap();
                    fetcher.judged(NOW, id, &hash(7), Judgment::Settled);
                }
            }
        }
        assert!(fetcher.due(NOW).is_empty() && fetcher.entries.is_empty());
        fetcher.join(peer(9));
        assert!(!fetcher.announced(NOW, peer(9), announcement(7)), "it was judged");
    }

    #[test]
    fn an_answer_must_be_what_was_announced_and_asked_for() {
        for (delivered, fault) in [
            ((hash(1), 3, 100), None),
            ((hash(1), 3, 109), Some(Fault::Mismatch)),
            ((hash(1), 3, 91), Some(Fault::Mismatch)),
            ((hash(1), 2, 100), Some(Fault::Mismatch)),
            ((hash(2), 3, 100), Some(Fault::Unasked)),
        ] {
            let mut fetcher = fetcher(2);
            fetcher.announced(NOW, peer(0), announcement(1));
            assert_eq!(fetcher.due(NOW).len(), 1);
            fetcher.announced(NOW, peer(1), announcement(1));
            assert_eq!(fetcher.answered(NOW, &peer(0), &[delivered]).err(), fault);
            let next = fetcher.due(NOW);
            assert_eq!(next.is_empty(), fault.is_none(), "{next:?}");
            if fault.is_none() {
                // With wrong blobs, the other peer is asked.
                fetcher.judged(NOW, &peer(0), &hash(1), Judgment::Invalid);
                assert_eq!(fetcher.due(NOW), [(peer(1), vec![hash(1)])]);
            }
        }
    }

    #[test]
    fn what_may_come_in_full_is_waited_for_and_requests_are_bounded() {
        let mut fetcher = fetcher(1);
        let plain = |index: u64| Announcement {
            kind: 2,
            bytes: 1 << 10,
            hash: B256::left_padding_from(&index.to_be_bytes()),
            blobs: AnnouncedBlobs::Inside(0),
        };
        (0..500).for_each(|index| assert!(fetcher.announced(NOW, peer(0), plain(index))));
        assert!(fetcher.due(NOW).is_empty());
        let later = NOW + ARRIVAL;
        assert_eq!(fetcher.due(later)[0].1.len(), 128, "128 KiB");
        assert!(fetcher.due(later).is_empty(), "one request at a time");
        (500..2 * WAITING_MAX as u64).for_each(|index| {
            fetcher.announced(NOW, peer(0), plain(index));
        });
        assert_eq!(fetcher.peers[&peer(0)].waiting.len(), WAITING_MAX);
        fetcher.expire(NOW + LIFE);
        assert!(fetcher.entries.is_empty());
    }

    /// A peer with eth/72 is asked for transactions only if it has what makes up their blobs, and not for
    /// further ones while it sends the blobs of two.
    #[test]
    fn blobs_apart_count_and_must_be_there() {
        let mut fetcher = fetcher(2);
        let apart = |index: u8, cells| {
            let blobs = AnnouncedBlobs::Apart(cells);
            Announcement { bytes: 6_500, blobs, ..announcement(index) }
        };
        let mut some = CellSet::BLOB;
        some.0[3] = 0;
        assert!(!fetcher.announced(NOW, peer(0), apart(1, some)));
        let plain = Announcement { kind: 2, ..apart(2, CellSet::default()) };
        assert!(fetcher.announced(NOW, peer(1), plain), "it has no blobs");
        for index in 3..6 {
            assert!(fetcher.announced(NOW, peer(0), apart(index, CellSet::BLOB)));
        }
        for index in 3..5 {
            // Each with its blob has more than 128 KiB.
            assert_eq!(fetcher.due(NOW), [(peer(0), vec![hash(index)])]);
            fetcher.answered(NOW, &peer(0), &[(hash(index), BLOB_TYPE, 6_500)]).unwrap();
            fetcher.begin_cells(&peer(0));
        }
        assert!(fetcher.due(NOW).is_empty());
        fetcher.end_cells(&peer(0));
        assert_eq!(fetcher.due(NOW), [(peer(0), vec![hash(5)])]);
    }

    proptest! {
        /// Whatever peers do, everything announced is asked for as long as a peer may have it, and
        /// never from two at the same time.
        #[test]
        fn every_announced_transaction_is_asked_for_until_it_is_judged(
            announcements in vec((0_u8..4, 0_u8..20), 1..80),
            delivers in vec(0_u8..4, 100),
        ) {
            let mut fetcher = fetcher(4);
            let mut offered: HashMap<B256, HashSet<PeerId>> = HashMap::new();
            for (index, tx) in announcements {
                fetcher.announced(NOW, peer(index), announcement(tx));
                offered.entry(hash(tx)).or_default().insert(peer(index));
            }
            let (mut asked, mut left) = (HashSet::new(), HashSet::new());
            for what in delivers {
                let due = fetcher.due(NOW);
                let mut now = HashSet::new();
                for (id, hashes) in &due {
                    for hash in hashes {
                        prop_assert!(now.insert(*hash), "asked from two");
                        prop_assert!(asked.insert((*id, *hash)), "asked twice");
                    }
                }
                for (id, hashes) in due {
                    let delivered: Vec<_> = hashes.iter().map(|hash| (*hash, 3, 100)).collect();
                    match what {
                        0 => {
                            fetcher.leave(NOW, &id);
                            left.insert(id);
                        }
                        1 => fetcher.answered(NOW, &id, &[]).unwrap(),
                        _ => {
                            fetcher.answered(NOW, &id, &delivered).unwrap();
                            let judgment =
                                if what == 2 { Judgment::Undecided } else { Judgment::Settled };
                            for hash in hashes {
                                fetcher.judged(NOW, &id, &hash, judgment);
                            }
                        }
                    }
                }
            }
            prop_assert!(fetcher.entries.is_empty());
            let all: HashSet<_> = asked.iter().map(|(_, hash)| *hash).collect();
            for (hash, announcers) in offered {
                prop_assert!(all.contains(&hash) || announcers.is_subset(&left), "never asked");
            }
        }
    }
}
