//! Parts of recent states for peers. Each state that is asked for has a place with a thread of the
//! class idle. It holds a snapshot of the base and the changes of the blocks above, so the state
//! stays the same while the chain goes on. Peers that download a state need it for some minutes.
//!
//! * **Bounds.** There are [`Config::peer_states_max`](crate::Config::peer_states_max) places. A state
//!   leaves its place after a minute without a question, when its block is [`BLOCKS_BEHIND_MAX`]
//!   blocks behind the head, or for another state if it was not asked for in the last
//!   [`CONTESTED`]. Questions wait in a queue of [`QUESTIONS_MAX`] for each place.
//! * **Memory.** A place has an index of the nodes that changed above the base. The nodes themselves
//!   are in the trie diffs of the pending blocks, which stay in memory as long as the place needs
//!   them.

mod answer;
mod tries;

use crate::{
    Error, body, metrics,
    service::StorageWriter,
    shared::{Shared, record},
};
use ::metrics::{gauge, histogram};
use answer::{answer, codes};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Running, take_idle_priority};
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::{
    snap::{StateItems, StateRequest},
    storage::{self, StateRanges},
};
use tracing::{debug, warn};
use tries::StateTries;

/// Distance from the head at which a state is given up: the specification wants 128 blocks.
const BLOCKS_BEHIND_MAX: u64 = 256;
/// Time without a question after which a state leaves its place.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Time without a question after which a state may lose its place to another one.
const CONTESTED: Duration = Duration::from_secs(10);
/// Number of questions that wait for a state.
const QUESTIONS_MAX: usize = 16;
/// Number of state roots of recent blocks that are remembered.
const ROOTS_MAX: usize = 1024;

/// Question about the state after a block.
struct Question {
    block: BlockId,
    root: B256,
    request: StateRequest,
    reply: Sender<Result<StateItems, Error>>,
}

/// Place of a state.
struct Place {
    root: Option<B256>,
    asked: Instant,
    questions: Sender<Question>,
}

/// States that peers ask for.
pub struct ServedStates {
    places: Mutex<Vec<Place>>,
    /// State roots by block hash.
    roots: Mutex<HashMap<B256, B256>>,
}

impl ServedStates {
    /// Starts a thread for each place.
    ///
    /// # Errors
    /// When the operating system cannot create a thread.
    pub fn start(shared: &Arc<Shared>, running: &Running) -> io::Result<Self> {
        let mut places = Vec::new();
        for number in 0..shared.config.peer_states_max {
            let (questions, asked) = bounded(QUESTIONS_MAX);
            let shared = shared.clone();
            running.spawn(&format!("peer-state-{number}"), move || {
                take_idle_priority();
                serve(&shared, &asked);
            })?;
            places.push(Place { root: None, asked: Instant::now(), questions });
        }
        Ok(Self { places: Mutex::new(places), roots: Mutex::default() })
    }

    /// Lets the threads end.
    pub fn stop(&self) {
        self.places.lock().clear();
    }

    /// Returns the recent canonical block with this state root, `None` if there is none.
    fn block_with(&self, shared: &Shared, root: B256) -> Result<Option<BlockId>, Error> {
        let recent: Vec<BlockId> = {
            let state = shared.state.lock();
            let base = state.chain.base();
            let above = (base.number + 1..).zip(state.chain.path());
            let above = above.map(|(number, hash)| BlockId::new(number, *hash));
            [base].into_iter().chain(above).collect()
        };
        let mut roots = self.roots.lock();
        if roots.len() > ROOTS_MAX {
            roots.clear();
        }
        let view = shared.store.view();
        for block in recent.into_iter().rev() {
            let known = match roots.get(&block.hash) {
                Some(known) => *known,
                None => {
                    let read = body::header(&view, block.hash)?.state_root;
                    roots.insert(block.hash, read);
                    read
                }
            };
            if known == root {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Returns the queue of the place of a state, which gets one if it has none. Returns `None` if
    /// the state is unknown, or all places are taken.
    fn place_of(
        &self,
        shared: &Shared,
        root: B256,
    ) -> Result<Option<(BlockId, Sender<Question>)>, Error> {
        let block = self.block_with(shared, root)?;
        let now = Instant::now();
        let mut places = self.places.lock();
        let known = places.iter().position(|place| place.root == Some(root));
        let at = match (known, block) {
            (Some(at), _) => at,
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let idle = |place: &Place| place.root.map(|_| now.duration_since(place.asked));
                let oldest = places
                    .iter()
                    .enumerate()
                    .max_by_key(|(_, place)| idle(place).unwrap_or(Duration::MAX));
                match oldest {
                    Some((at, place)) if idle(place).is_none_or(|idle| idle > CONTESTED) => at,
                    _ => return Ok(None),
                }
            }
        };
        places[at].root = Some(root);
        places[at].asked = now;
        // A state whose block is no longer recent is asked for by its place alone.
        Ok(Some((block.unwrap_or_default(), places[at].questions.clone())))
    }

    fn items(&self, shared: &Shared, request: &StateRequest) -> storage::Result<StateItems> {
        let Some(root) = request.root() else { return Ok(codes(shared, request)?) };
        let Some((block, questions)) = self.place_of(shared, root)? else {
            return Ok(StateItems::none(request));
        };
        let (reply, answer) = bounded(1);
        let question = Question { block, root, request: request.clone(), reply };
        match questions.try_send(question) {
            Ok(()) => {}
            // The state is in use by many, and the asker may ask others.
            Err(TrySendError::Full(_)) => return Ok(StateItems::none(request)),
            Err(TrySendError::Disconnected(_)) => return Err(stopping()),
        }
        Ok(answer.recv().map_err(|_| stopping())??)
    }
}

fn stopping() -> storage::Error {
    storage::Error::Unavailable("storage-writer is stopping".to_owned())
}

impl StateRanges for StorageWriter {
    fn state_items(&self, request: &StateRequest) -> storage::Result<StateItems> {
        self.shared.needs_state()?;
        let started = Instant::now();
        let items = self.served.items(&self.shared, request)?;
        histogram!(metrics::STATE_ITEMS_SECONDS).record(started.elapsed());
        Ok(items)
    }
}

/// Answers the questions of a place, one state after the other.
fn serve(shared: &Shared, asked: &Receiver<Question>) {
    let mut next = asked.recv().ok();
    while let Some(question) = next {
        next = match StateTries::open(shared, question.block, question.root) {
            Ok(Some(tries)) => {
                gauge!(metrics::PEER_STATES).increment(1);
                let next = serve_state(shared, &tries, question, asked);
                gauge!(metrics::PEER_STATES).decrement(1);
                next
            }
            opened => {
                let none = Ok(StateItems::none(&question.request));
                // The asker may have gone.
                let _ = question.reply.send(opened.and(none));
                asked.recv().ok()
            }
        };
    }
}

/// Answers questions about one state. Returns the first question about another one, `None` when the
/// service stops.
fn serve_state(
    shared: &Shared,
    tries: &StateTries<'_>,
    first: Question,
    asked: &Receiver<Question>,
) -> Option<Question> {
    debug!(block = %tries.block(), "state opened for peers");
    let mut question = first;
    loop {
        let head = shared.state.lock().chain.forkchoice().head.number;
        if head > tries.block().number + BLOCKS_BEHIND_MAX {
            let _ = question.reply.send(Ok(StateItems::none(&question.request)));
        } else {
            let answer = answer(tries, &question.request);
            if let Err(error) = &answer {
                warn!(block = %tries.block(), %error, "part of a state cannot be read");
            }
            let _ = question.reply.send(answer);
        }
        question = match asked.recv_timeout(IDLE_MAX) {
            Ok(next) if next.root == tries.root() => next,
            Ok(next) => return Some(next),
            Err(RecvTimeoutError::Timeout) => return asked.recv().ok(),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
    }
}

/// Returns wanted codes that pending blocks deployed, by hash.
fn pending_codes(shared: &Shared, wanted: &HashSet<B256>) -> Result<HashMap<B256, Bytes>, Error> {
    let blocks: Vec<_> = {
        let state = shared.state.lock();
        state.chain.path().filter_map(|hash| state.chain.get(hash)).cloned().collect()
    };
    let view = shared.store.view();
    let mut found = HashMap::new();
    for block in blocks {
        // A block without a record has entered the base meanwhile.
        let Ok(record) = record(&view, &block) else { continue };
        for (hash, code) in &record.diff.codes {
            if wanted.contains(hash) {
                found.insert(*hash, code.clone());
            }
        }
    }
    Ok(found)
}
