//! Peers as sync sees them: which blocks they have, how fast they are, and what they did wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tandem_primitives::{B256, BlockNumber};
use tandem_proto::peer_sessions::{BlockRange, Misconduct, PeerId};

/// Bytes a second that a peer is believed to send before it has answered.
const RATE_AT_FIRST: f64 = 256.0 * 1024.0;

/// Seconds of a peer's time that one request for bodies should take.
const SECONDS_PER_REQUEST: f64 = 0.5;

/// Time for which a peer is not asked for a hash again that it did not know.
const UNKNOWN_REST: Duration = Duration::from_secs(3);

/// Time for which a peer is not asked after an answer without any of the blocks.
const EMPTY_REST: Duration = Duration::from_secs(1);

/// Time for which a peer with too many requests is not asked.
const BUSY_REST: Duration = Duration::from_millis(300);

/// Number of answers without any of the blocks, in a row, that a peer may give.
const EMPTY_MAX: u32 = 3;

/// Number of requests in a row that a peer may leave without an answer.
const LATE_MAX: u32 = 2;

/// Failure of a request that is no fault of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The peer is no longer there.
    Gone,
    /// The peer has too many requests already.
    Busy,
    /// The peer did not answer in time.
    Late,
    /// The peer sent data that its hash disproves.
    Lie,
}

#[derive(Debug)]
struct Peer {
    range: BlockRange,
    in_flight: u32,
    /// Bytes a second.
    rate: f64,
    late: u32,
    empty: u32,
    rests_until: Duration,
    /// Hash that the peer did not know, and the time from which it may be asked again.
    unknown: Option<(B256, Duration)>,
}

/// All peers that may be asked.
#[derive(Debug, Default)]
pub struct Peers {
    peers: BTreeMap<PeerId, Peer>,
    /// Peers that were reported, while they are still listed.
    reported: BTreeSet<PeerId>,
    reports: Vec<(PeerId, Misconduct)>,
}

impl Peers {
    /// Takes over the list of sessions. Peers that are no longer listed are forgotten.
    pub fn set(&mut self, sessions: impl IntoIterator<Item = (PeerId, BlockRange)>) {
        let mut before = std::mem::take(&mut self.peers);
        let reported = std::mem::take(&mut self.reported);
        for (id, range) in sessions {
            if reported.contains(&id) {
                self.reported.insert(id);
                continue;
            }
            let mut peer = before.remove(&id).unwrap_or(Peer {
                range,
                in_flight: 0,
                rate: RATE_AT_FIRST,
                late: 0,
                empty: 0,
                rests_until: Duration::ZERO,
                unknown: None,
            });
            peer.range = range;
            self.peers.insert(id, peer);
        }
    }

    /// Returns the number of peers that may be asked.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns the highest block that a peer claims to have.
    pub fn highest(&self) -> Option<BlockNumber> {
        self.peers.values().map(|peer| peer.range.latest).max()
    }

    /// Takes the reports that are due.
    pub fn take_reports(&mut self) -> Vec<(PeerId, Misconduct)> {
        std::mem::take(&mut self.reports)
    }

    /// Returns the peer to ask for the header with this hash: the fastest with the fewest requests.
    pub fn for_header(
        &self,
        now: Duration,
        per_peer_max: u32,
        hash: B256,
        except: &[PeerId],
    ) -> Option<PeerId> {
        self.choose(now, per_peer_max, except, |peer| {
            peer.unknown.is_none_or(|(unknown, until)| unknown != hash || until <= now)
        })
    }

    /// Returns the peer to ask for the body of this block.
    pub fn for_body(
        &self,
        now: Duration,
        per_peer_max: u32,
        number: BlockNumber,
        except: &[PeerId],
    ) -> Option<PeerId> {
        self.choose(now, per_peer_max, except, |peer| {
            // The newest block is told from time to time only, so a peer may have more.
            peer.range.earliest <= number
        })
    }

    fn choose(
        &self,
        now: Duration,
        per_peer_max: u32,
        except: &[PeerId],
        fits: impl Fn(&Peer) -> bool,
    ) -> Option<PeerId> {
        let able = self.peers.iter().filter(|(id, peer)| {
            let max = if peer.late > 0 { 1 } else { per_peer_max };
            peer.in_flight < max && peer.rests_until <= now && !except.contains(id) && fits(peer)
        });
        let best = able.min_by(|(_, a), (_, b)| {
            let load = |peer: &Peer| (peer.late, peer.in_flight);
            load(a).cmp(&load(b)).then(b.rate.total_cmp(&a.rate))
        });
        best.map(|(id, _)| *id)
    }

    /// Returns how many bytes to ask this peer for at once.
    pub fn bytes_per_request(&self, id: &PeerId) -> f64 {
        let peer = self.peers.get(id);
        peer.map_or(0.0, |peer| if peer.late > 0 { 0.0 } else { peer.rate * SECONDS_PER_REQUEST })
    }

    /// Notes that a request to this peer began.
    pub fn asked(&mut self, id: &PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.in_flight += 1;
        }
    }

    fn ended(&mut self, id: &PeerId) -> Option<&mut Peer> {
        let peer = self.peers.get_mut(id)?;
        peer.in_flight = peer.in_flight.saturating_sub(1);
        Some(peer)
    }

    /// Notes an answer of use.
    pub fn answered(&mut self, id: &PeerId, bytes: usize, took: Duration) {
        let Some(peer) = self.ended(id) else { return };
        (peer.late, peer.empty) = (0, 0);
        let rate = bytes as f64 / took.as_secs_f64().max(1e-3);
        peer.rate = peer.rate * 0.7 + rate * 0.3;
    }

    /// Notes that the peer did not know a header.
    pub fn lacks_header(&mut self, now: Duration, id: &PeerId, hash: B256) {
        let Some(peer) = self.ended(id) else { return };
        peer.unknown = Some((hash, now + UNKNOWN_REST));
    }

    /// Notes that the peer sent none of the bodies. A peer that said that it has them is of no use
    /// after a few such answers.
    pub fn lacks_bodies(&mut self, now: Duration, id: &PeerId, number: BlockNumber) {
        let Some(peer) = self.ended(id) else { return };
        peer.rests_until = now + EMPTY_REST;
        if number <= peer.range.latest {
            peer.empty += 1;
            if peer.empty >= EMPTY_MAX {
                self.report(id, Misconduct::Useless);
            }
        }
    }

    /// Notes a request that failed.
    pub fn failed(&mut self, now: Duration, id: &PeerId, failure: Failure) {
        let Some(peer) = self.ended(id) else { return };
        match failure {
            Failure::Gone => {
                self.peers.remove(id);
            }
            Failure::Busy => peer.rests_until = now + BUSY_REST,
            Failure::Late => {
                peer.late += 1;
                if peer.late >= LATE_MAX {
                    self.report(id, Misconduct::Slow);
                }
            }
            Failure::Lie => self.report(id, Misconduct::Invalid),
        }
    }

    fn report(&mut self, id: &PeerId, misconduct: Misconduct) {
        if self.peers.remove(id).is_some() {
            self.reported.insert(*id);
            self.reports.push((*id, misconduct));
        }
    }
}
