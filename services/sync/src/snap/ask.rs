//! Questions to the peers that serve states: whom to ask, and what becomes of those who do not
//! answer, or lie.

use super::check::Fault;
use crate::metrics as names;
use metrics::{counter, histogram};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tandem_proto::{
    peer_sessions::{Error, Fetch, Fetched, Misconduct, PeerId, PeerSessionsApi},
    snap::{StateItems, StateRequest},
};
use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::timeout,
};
use tracing::{debug, info};

/// Time after which the list of peers is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Time for which a peer is left alone that is busy or gone.
const REST: Duration = Duration::from_secs(1);

/// No peer has what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

/// Asker of the peers that serve states.
pub struct Asker {
    sessions: Arc<dyn PeerSessionsApi>,
    peers: watch::Receiver<Vec<PeerId>>,
    requests_per_peer_max: u32,
    uses: Mutex<Uses>,
    /// Notified when a request ends.
    ended: Notify,
}

#[derive(Default)]
struct Uses {
    under_way: HashMap<PeerId, u32>,
    resting: HashMap<PeerId, Instant>,
    /// Peers that do not have what was asked for.
    without: HashSet<PeerId>,
    /// Peers of which one answer was wrong, and when it came.
    doubted: HashMap<PeerId, Instant>,
}

impl Asker {
    pub fn new(
        sessions: Arc<dyn PeerSessionsApi>,
        peers: watch::Receiver<Vec<PeerId>>,
        requests_per_peer_max: u32,
    ) -> Self {
        let uses = Mutex::default();
        Self { sessions, peers, requests_per_peer_max, uses, ended: Notify::new() }
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one peer after the other for a part of the state until an answer is right. Waits while there
    /// are none.
    ///
    /// # Errors
    /// [`Stale`] when no peer has the state.
    pub async fn ask<T: Send + 'static>(
        &self,
        kind: &'static str,
        request: StateRequest,
        check: impl Fn(StateItems) -> Result<T, Fault> + Clone + Send + 'static,
    ) -> Result<T, Stale> {
        let check = move |fetched| match fetched {
            Fetched::State(items) => check(items),
            _ => Err(Fault::Lie),
        };
        self.fetch(kind, Fetch::State(request), check).await
    }

    /// As [`Self::ask`], for anything that peers have.
    ///
    /// # Errors
    /// [`Stale`] when no peer has it.
    pub async fn fetch<T: Send + 'static>(
        &self,
        kind: &'static str,
        fetch: Fetch,
        check: impl Fn(Fetched) -> Result<T, Fault> + Clone + Send + 'static,
    ) -> Result<T, Stale> {
        // A peer whose answer was wrong is asked the same again: the second answer settles whether it lies.
        let mut doubted = None;
        loop {
            let Some(peer) = self.choose(doubted.take())? else {
                // Either a request ends, or peers come.
                let _ = timeout(LOOK_EVERY, self.ended.notified()).await;
                continue;
            };
            let asked = Instant::now();
            let answer = self.sessions.fetch(peer, fetch.clone()).await;
            histogram!(names::REQUEST_SECONDS, "kind" => kind).record(asked.elapsed());
            // Before the check, so that the peer has something to do meanwhile.
            self.release(peer);
            let outcome = match answer {
                Ok(fetched) => {
                    let check = check.clone();
                    // A panic of the check is a fault of this node, and another peer is asked.
                    let checked = spawn_blocking(move || check(fetched)).await;
                    checked.unwrap_or(Err(Fault::Absent)).map_err(Some)
                }
                Err(Error::Busy | Error::Gone | Error::Timeout | Error::Unavailable(_)) => {
                    Err(None)
                }
                // The session's protocols do not have the request.
                Err(Error::Refused(_)) => Err(Some(Fault::Absent)),
            };
            let word = match &outcome {
                Ok(_) => "full",
                Err(Some(Fault::Absent)) => "empty",
                Err(Some(Fault::Lie)) => "lie",
                Err(None) => "gone",
            };
            counter!(names::REQUESTS, "kind" => kind, "outcome" => word).increment(1);
            match outcome {
                Ok(checked) => return Ok(checked),
                Err(fault) if !self.avoid(peer, fault, asked) => {
                    doubted = (fault == Some(Fault::Lie)).then_some(peer);
                }
                Err(_) => {
                    info!(%peer, kind, misconduct = "invalid", "peer reported");
                    counter!(names::REPORTS, "misconduct" => "invalid").increment(1);
                    if let Err(error) = self.sessions.report(peer, Misconduct::Invalid).await {
                        debug!(%error, "peer not reported");
                    }
                }
            }
        }
    }

    /// Takes the `preferred` peer if it can be asked, otherwise the one with the fewest requests under way. Returns `None` if
    /// no peer can be asked now.
    fn choose(&self, preferred: Option<PeerId>) -> Result<Option<PeerId>, Stale> {
        let peers = self.peers.borrow();
        let mut uses = self.uses();
        if !peers.is_empty() && peers.iter().all(|peer| uses.without.contains(peer)) {
            return Err(Stale);
        }
        let now = Instant::now();
        uses.resting.retain(|_, until| *until > now);
        let load = |peer: &PeerId| uses.under_way.get(peer).copied().unwrap_or(0);
        let free = peers.iter().filter(|peer| {
            load(peer) < self.requests_per_peer_max
                && !uses.without.contains(*peer)
                && !uses.resting.contains_key(*peer)
        });
        let chosen = free.min_by_key(|peer| (Some(**peer) != preferred, load(peer))).copied();
        if let Some(peer) = chosen {
            *uses.under_way.entry(peer).or_default() += 1;
        }
        Ok(chosen)
    }

    /// Notes that a request is not under way any more.
    fn release(&self, peer: PeerId) {
        let mut uses = self.uses();
        if let Some(load) = uses.under_way.get_mut(&peer) {
            *load -= 1;
            if *load == 0 {
                uses.under_way.remove(&peer);
            }
        }
        drop(uses);
        self.ended.notify_waiters();
    }

    /// Asks a peer no more, or, without a fault of its own, not for a while. `asked` is when it was asked. Returns whether
    /// it lies.
    ///
    /// One wrong answer is no lie yet: geth (1.17.8) breaks a range off, or sends its last account without a value, if the
    /// state becomes too old for it meanwhile. The next answer is empty then.
    fn avoid(&self, peer: PeerId, fault: Option<Fault>, asked: Instant) -> bool {
        let mut uses = self.uses();
        match fault {
            Some(Fault::Lie) if uses.doubted.get(&peer).is_none_or(|doubted| asked < *doubted) => {
                uses.doubted.entry(peer).or_insert_with(Instant::now);
                false
            }
            Some(fault) => {
                uses.without.insert(peer);
                fault == Fault::Lie
            }
            None => {
                uses.resting.insert(peer, Instant::now() + REST);
                false
            }
        }
    }
}
