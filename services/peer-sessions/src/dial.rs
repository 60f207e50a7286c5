//! Decides which peers are dialled, and when. No I/O and no clock.

use std::{collections::HashMap, net::SocketAddr, time::Duration};
use tandem_discv4::PublicKey;

/// Number of candidates that are remembered.
const CANDIDATES_MAX: usize = 1024;

/// Number of peers that are being dialled at one time.
const DIALS_MAX: usize = 16;

/// Longest time between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Peer that can be dialled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerAddress {
    /// Public key that the peer has to prove.
    pub id: PublicKey,
    /// Address of its RLPx port.
    pub address: SocketAddr,
}

struct Entry {
    address: SocketAddr,
    /// Whether the peer is from the configuration, and stays.
    fixed: bool,
    failures: u32,
    next: Duration,
    dialling: bool,
}

/// Peers to dial.
pub(crate) struct Dialler {
    entries: HashMap<PublicKey, Entry>,
    redial: Duration,
}

impl Dialler {
    /// Makes a dialler that waits `redial` after an attempt.
    pub(crate) fn new(redial: Duration) -> Self {
        Self { entries: HashMap::new(), redial }
    }

    /// Adds a peer that stays, to be dialled at once.
    pub(crate) fn add_fixed(&mut self, now: Duration, peer: PeerAddress) {
        self.insert(now, peer, true);
    }

    /// Adds a candidate. One that is known keeps its waiting time. If there is no room, those that
    /// could not be reached make room.
    pub(crate) fn add_candidate(&mut self, now: Duration, peer: PeerAddress) {
        if self.entries.contains_key(&peer.id) {
            return;
        }
        if self.entries.len() >= CANDIDATES_MAX {
            let stays = |entry: &Entry| entry.fixed || entry.dialling || entry.failures == 0;
            self.entries.retain(|_, entry| stays(entry));
        }
        if self.entries.len() < CANDIDATES_MAX {
            self.insert(now, peer, false);
        }
    }

    fn insert(&mut self, next: Duration, PeerAddress { id, address }: PeerAddress, fixed: bool) {
        let entry = Entry { address, fixed, failures: 0, next, dialling: false };
        self.entries.insert(id, entry);
    }

    /// Returns the peers whose turn it is, peers of the configuration first. With those that are
    /// being dialled they are at most `room`. Leaves out peers that are `unwanted`, because they
    /// are connected or banned. [`Self::ended`] has to follow for each.
    pub(crate) fn due(
        &mut self,
        now: Duration,
        room: usize,
        unwanted: impl Fn(&PublicKey) -> bool,
    ) -> Vec<PeerAddress> {
        let dialling = |(id, entry): &(&PublicKey, &Entry)| entry.dialling && !unwanted(id);
        let dialling = self.entries.iter().filter(dialling).count();
        let room = room.min(DIALS_MAX).saturating_sub(dialling);
        let waits = |(id, entry): &(&PublicKey, &mut Entry)| {
            !entry.dialling && entry.next <= now && !unwanted(id)
        };
        let mut due: Vec<_> = self.entries.iter_mut().filter(waits).collect();
        due.sort_by_key(|(_, entry)| (!entry.fixed, entry.next));
        due.truncate(room);
        let begin = |(id, entry): (&PublicKey, &mut Entry)| {
            entry.dialling = true;
            PeerAddress { id: *id, address: entry.address }
        };
        due.into_iter().map(begin).collect()
    }

    /// Notes the end of an attempt, or of its session.
    pub(crate) fn ended(&mut self, now: Duration, id: &PublicKey, was_connected: bool) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.dialling = false;
        entry.failures = if was_connected { 0 } else { entry.failures.saturating_add(1) };
        let wait = self.redial.saturating_mul(1 << entry.failures.saturating_sub(1).min(16));
        entry.next = now + wait.min(WAIT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NONE: [u16; 0] = [];

    fn peer(number: u16) -> PeerAddress {
        let id = PublicKey::left_padding_from(&number.to_be_bytes());
        PeerAddress { id, address: ([127, 0, 0, 1], number).into() }
    }

    fn due(dialler: &mut Dialler, now: Duration, room: usize) -> Vec<u16> {
        let due = dialler.due(now, room, |_| false);
        due.into_iter().map(|peer| peer.address.port()).collect()
    }

    #[test]
    fn peers_of_the_configuration_come_first_and_none_twice() {
        let mut dialler = Dialler::new(SECOND);
        dialler.add_candidate(SECOND, peer(1));
        dialler.add_fixed(SECOND, peer(2));
        assert_eq!(due(&mut dialler, Duration::ZERO, 9), NONE);
        assert_eq!(due(&mut dialler, SECOND, 1), [2]);
        assert_eq!(due(&mut dialler, SECOND, 1), NONE, "the room is taken");
        assert_eq!(due(&mut dialler, SECOND, 9), [1]);
        assert_eq!(due(&mut dialler, SECOND, 9), NONE);
    }

    #[test]
    fn a_peer_that_fails_is_dialled_more_and_more_rarely() {
        let mut dialler = Dialler::new(SECOND);
        dialler.add_fixed(Duration::ZERO, peer(1));
        let mut now = Duration::ZERO;
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600] {
            assert_eq!(due(&mut dialler, now, 9), [1]);
            dialler.ended(now, &peer(1).id, false);
            dialler.add_candidate(now, peer(1));
            now += SECOND * wait - Duration::from_millis(1);
            assert_eq!(due(&mut dialler, now, 9), NONE, "after {wait}");
            now += Duration::from_millis(1);
        }
        assert_eq!(due(&mut dialler, now, 9), [1]);
        dialler.ended(now, &peer(1).id, true);
        assert_eq!(due(&mut dialler, now + SECOND, 9), [1], "a session has been there");
    }

    #[test]
    fn candidates_are_bounded_and_connected_ones_left_alone() {
        let mut dialler = Dialler::new(SECOND);
        dialler.add_fixed(SECOND * 9, peer(9999));
        (0..3000).for_each(|number| dialler.add_candidate(SECOND, peer(number)));
        assert_eq!(dialler.entries.len(), CANDIDATES_MAX);
        assert!(dialler.entries.contains_key(&peer(9999).id));
        assert!(dialler.due(SECOND, 9, |_| true).is_empty());
        assert_eq!(due(&mut dialler, SECOND, 99).len(), DIALS_MAX);
        assert_eq!(due(&mut dialler, SECOND, 99), NONE);
        (0..9).for_each(|number| dialler.ended(SECOND, &peer(number).id, false));
        (3000..3002).for_each(|number| dialler.add_candidate(SECOND, peer(number)));
        assert!(dialler.entries.contains_key(&peer(3001).id), "it has the place of another");
        assert!(dialler.entries.len() <= CANDIDATES_MAX);
    }
}
