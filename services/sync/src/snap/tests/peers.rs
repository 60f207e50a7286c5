//! Peers that serve states, or lie.

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    Honest,
    /// Has no state.
    Empty,
    /// Never answers.
    Silent,
    LeavesOut,
    Changes,
    Adds,
    CutsProof,
    Swaps,
    OtherKind,
    /// Sends one range without its leaves, and is honest from then on.
    BreaksOffOnce,
}

pub const LIARS: [Peer; 6] =
    [Peer::LeavesOut, Peer::Changes, Peer::Adds, Peer::CutsProof, Peer::Swaps, Peer::OtherKind];

/// Peers that all read the same databases.
pub struct Peers {
    pub kinds: Vec<Peer>,
    pub sources: Mutex<Vec<Arc<StorageWriter>>>,
    pub random: Mutex<Random>,
    /// Answers after which honest peers have no state any more.
    pub left: AtomicU64,
    pub answered: AtomicU64,
    /// Requests for short answers, which look for what differs.
    pub repairs: AtomicU64,
    /// Access lists by block.
    pub lists: Mutex<HashMap<B256, Bytes>>,
    pub reported: Mutex<BTreeSet<PeerId>>,
    pub has_broken_off: AtomicBool,
}

/// Returns the id of a peer by its place.
pub fn id(at: usize) -> PeerId {
    PeerId::repeat_byte(at as u8 + 1)
}

impl Peers {
    pub fn new(kinds: Vec<Peer>, source: &Arc<StorageWriter>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            kinds,
            sources: Mutex::new(vec![source.clone()]),
            random: Mutex::new(Random(seed)),
            left: AtomicU64::new(u64::MAX),
            answered: AtomicU64::new(0),
            repairs: AtomicU64::new(0),
            lists: Mutex::default(),
            reported: Mutex::default(),
            has_broken_off: AtomicBool::new(false),
        })
    }

    fn answer(&self, peer: PeerId, request: StateRequest) -> Result<Fetched, Error> {
        let kind = self.kinds[usize::from(peer[0]) - 1];
        let mut random = self.random.lock().unwrap();
        let none = Fetched::State(StateItems::none(&request));
        if kind == Peer::Silent {
            return Err(Error::Timeout);
        }
        if kind == Peer::Empty || self.left.load(Relaxed) == 0 {
            return Ok(none);
        }
        self.left.fetch_sub(1, Relaxed);
        self.answered.fetch_add(1, Relaxed);
        // Short answers, so that a small state needs many.
        let mut request = request;
        match &mut request {
            StateRequest::Accounts { bytes, .. }
            | StateRequest::Slots { bytes, .. }
            | StateRequest::Codes { bytes, .. }
            | StateRequest::Nodes { bytes, .. } => {
                self.repairs.fetch_add(u64::from(*bytes < 100_000), Relaxed);
                *bytes = (*bytes).min(500 + random.below(4000));
            }
        }
        let sources = self.sources.lock().unwrap();
        let items = sources.iter().map(|source| source.state_items(&request).unwrap());
        let none = StateItems::none(&request);
        let mut items = items.into_iter().find(|items| *items != none).unwrap_or(none);
        if let StateItems::Accounts { leaves, .. } = &mut items
            && kind == Peer::BreaksOffOnce
            && !leaves.is_empty()
            && !self.has_broken_off.swap(true, Relaxed)
        {
            leaves.clear();
        }
        Ok(Fetched::State(lie(kind, items, &mut random)))
    }
}

impl Peers {
    fn access_lists(&self, peer: PeerId, hashes: &[B256]) -> Result<Fetched, Error> {
        let lists = self.lists.lock().unwrap();
        // Fewer than were asked for, as if they were long.
        let mut found: Vec<_> =
            hashes.iter().map(|hash| lists.get(hash).cloned()).take(3).collect();
        match self.kinds[usize::from(peer[0]) - 1] {
            Peer::Honest | Peer::BreaksOffOnce => Ok(Fetched::AccessLists(found)),
            Peer::Silent => Err(Error::Timeout),
            Peer::Empty => Ok(Fetched::AccessLists(Vec::new())),
            // The session has an earlier version of eth.
            Peer::OtherKind => Err(Error::Refused("needs eth/71".to_owned())),
            _ => {
                found[0] = Some(Bytes::from_static(&[0xc0, 0xc0]));
                Ok(Fetched::AccessLists(found))
            }
        }
    }
}

fn lie(kind: Peer, mut items: StateItems, random: &mut Random) -> StateItems {
    let (leaves, proof) = match &mut items {
        StateItems::Accounts { leaves, proof } => (leaves, proof),
        StateItems::Slots { tries, proof } if !tries.is_empty() => {
            let at = random.below(tries.len() as u64) as usize;
            (&mut tries[at], proof)
        }
        StateItems::Codes(codes) if !codes.is_empty() && LIARS.contains(&kind) => {
            codes[0] = Bytes::from_static(b"no code");
            return items;
        }
        _ => return items,
    };
    let at = random.below(leaves.len().max(1) as u64) as usize;
    match kind {
        Peer::Honest | Peer::Empty | Peer::Silent | Peer::BreaksOffOnce => {}
        Peer::LeavesOut if at + 1 < leaves.len() => drop(leaves.remove(at)),
        Peer::Changes if !leaves.is_empty() => {
            let mut value = leaves[at].value.to_vec();
            *value.last_mut().unwrap() ^= 1;
            leaves[at].value = value.into();
        }
        Peer::Swaps if at + 1 < leaves.len() => leaves.swap(at, at + 1),
        Peer::CutsProof if !proof.is_empty() => drop(proof.remove(0)),
        Peer::Adds if !leaves.is_empty() => {
            let Leaf { mut key, value } = leaves[at].clone();
            key[31] = key[31].wrapping_add(1);
            leaves.insert(at + 1, Leaf { key, value });
        }
        _ => return StateItems::Nodes(Vec::new()),
    }
    items
}

impl PeerSessionsApi for Peers {
    fn sessions(&self) -> Pending<Vec<Session>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn fetch(&self, peer: PeerId, fetch: Fetch) -> Pending<Fetched> {
        let answer = match fetch {
            Fetch::State(request) => self.answer(peer, request),
            Fetch::AccessLists(hashes) => self.access_lists(peer, &hashes),
            other => panic!("{other:?}"),
        };
        Box::pin(async {
            tokio::task::yield_now().await;
            answer
        })
    }

    fn report(&self, peer: PeerId, misconduct: Misconduct) -> Pending<()> {
        assert_eq!(misconduct, Misconduct::Invalid);
        self.reported.lock().unwrap().insert(peer);
        Box::pin(ready(Ok(())))
    }
}
