//! Decision for a download of a state, and its course: pivot, blocks up to it, state, end.

use crate::{
    check::{Arrived, ChainHeader},
    config::{Config, Mode},
    fetch::receipts,
    sink::{BlockSink, Pending, Prepared},
    snap::{self, Ended, ListedBlock, Progress, Surroundings},
    state::Import,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::{
    peer_sessions::PeerId,
    snap::DownloadedBlock,
    storage::{self, StateDownloads},
    sync::StateProgress,
};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tracing::{debug, info, warn};

/// Number of the highest headers that are remembered.
const RECENT_MAX: usize = 256;
/// Pause after a failure of the database.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Attempts to get the receipts of one block from some peer.
const RECEIPTS_ATTEMPTS: usize = 20;

/// Step of a download that has ended.
pub enum Step {
    /// storage-writer takes a state in, or refuses to.
    Begun(Result<(), storage::Error>),
    /// The state with this root is downloaded, or cannot be.
    State(B256, Ended),
    /// storage-writer built the tries, and the executor follows it.
    Adopted(Result<bool, storage::Error>),
}

/// Download of a state under way, or the decision for one.
pub struct SnapRun {
    config: Config,
    around: Option<Surroundings>,
    peers: watch::Sender<Vec<PeerId>>,
    /// Highest headers of the wanted chain.
    recent: BTreeMap<BlockNumber, ChainHeader>,
    progress: Option<Arc<Progress>>,
    is_decided: bool,
    /// Whether storage-writer takes a state in since before a restart, which came before anything was noted of it. Blocks
    /// may be stored already, so none can be executed.
    lacks_pivot: bool,
    /// Whether storage-writer takes the state in.
    is_begun: bool,
    has_state: bool,
    is_finishing: bool,
    /// Newest block that was stored without being executed.
    stored: Option<BlockId>,
}

impl SnapRun {
    pub fn new(
        config: Config,
        around: Option<Surroundings>,
        peers: watch::Sender<Vec<PeerId>>,
    ) -> Self {
        Self {
            config,
            around,
            peers,
            recent: BTreeMap::new(),
            progress: None,
            is_decided: false,
            lacks_pivot: false,
            is_begun: false,
            has_state: false,
            is_finishing: false,
            stored: None,
        }
    }

    /// Looks for a download that is under way from before a restart, until storage-writer answers.
    /// Returns its work.
    pub async fn resume(&mut self) -> Option<Pending<Step>> {
        let noted = loop {
            let downloads = self.around.as_ref()?.downloads.clone();
            let read = spawn_blocking(move || downloads.download_progress()).await;
            match read.unwrap_or_else(|_| Err(ended())) {
                Ok(noted) => break noted?,
                Err(error @ storage::Error::Unavailable(_)) => {
                    debug!(%error, "progress of a download not read");
                    sleep(AFTER_FAILURE).await;
                }
                Err(error) => {
                    warn!(%error, "no state can be downloaded, so all blocks are executed");
                    self.around = None;
                }
            }
        };
        let Some(progress) = Progress::read(&noted) else {
            info!("download goes on, with a pivot that is yet to be chosen");
            self.lacks_pivot = true;
            return None;
        };
        (self.is_decided, self.is_begun) = (true, true);
        info!(pivot = %progress.pivot(), permille = progress.shown().permille, "download goes on");
        self.progress = Some(Arc::new(progress));
        self.start()
    }

    /// Notes the peers that serve states.
    pub fn set_peers(&self, peers: Vec<PeerId>) {
        self.peers.send_if_modified(|before| {
            let is_new = *before != peers;
            *before = peers;
            is_new
        });
    }

    /// Notes headers of the wanted chain.
    pub fn headers(&mut self, headers: &[ChainHeader]) {
        for header in headers {
            let lowest = self.recent.first_key_value().map_or(0, |(number, _)| *number);
            if self.recent.len() == RECENT_MAX && header.id.number < lowest {
                break;
            }
            self.recent.insert(header.id.number, header.clone());
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_first();
            }
        }
    }

    /// Forgets the decision, as there is nothing to do.
    pub fn idle(&mut self) {
        if self.progress.is_none() {
            self.is_decided = false;
            self.recent.clear();
        }
    }

    /// Returns whether blocks up to the pivot have to wait before they can be stored.
    pub fn is_beginning(&self) -> bool {
        self.lacks_pivot || (self.progress.is_some() && !self.is_begun)
    }

    /// Returns the block whose state is downloaded, while a download is under way.
    pub fn pivot(&self) -> Option<BlockId> {
        self.progress.as_ref().map(|progress| progress.pivot())
    }

    /// Returns what is downloaded of the state, while that goes on.
    pub fn downloaded(&self) -> Option<StateProgress> {
        self.progress.as_ref().map(|progress| progress.shown())
    }

    /// Notes that all blocks below this one are there. After a restart that may be the pivot, too.
    pub fn note_first(&mut self, first: BlockId) {
        let is_above = |pivot: &BlockId| first.number > pivot.number;
        if self.stored.is_none() {
            self.stored = self.pivot().filter(is_above);
        }
    }

    /// Decides, once the first block is there, whether to download a state. Returns the work.
    pub fn decide(&mut self, first: BlockId, head: BlockId) -> Option<Pending<Step>> {
        if self.is_decided || self.around.is_none() {
            return None;
        }
        let highest = self.recent.last_key_value().map_or(0, |(number, _)| *number);
        let is_worth_it = self.config.mode != Mode::Full
            && head.number == 0
            && first.number == 1
            && highest >= self.config.snap_blocks_min.max(self.config.pivot_depth + 1);
        // Blocks up to the pivot are stored, never above it.
        let is_high = highest.saturating_sub(self.config.pivot_depth) + 1 >= first.number;
        let has_peers = !self.peers.borrow().is_empty();
        let is_wanted = is_worth_it || (self.lacks_pivot && is_high);
        let is_possible = is_wanted && has_peers && self.choose_pivot();
        self.is_decided = is_possible || !self.lacks_pivot;
        if !is_possible {
            return None;
        }
        self.lacks_pivot = false;
        self.begin()
    }

    /// Returns the work that makes storage-writer take a state in.
    fn begin(&self) -> Option<Pending<Step>> {
        let downloads = self.around.as_ref()?.downloads.clone();
        Some(Box::pin(async move {
            let begun = spawn_blocking(move || downloads.begin_download()).await;
            Step::Begun(begun.unwrap_or_else(|_| Err(ended())))
        }))
    }

    /// Chooses a pivot by the newest headers. Returns whether there is a new one.
    fn choose_pivot(&mut self) -> bool {
        let Some((highest, _)) = self.recent.last_key_value() else { return false };
        let number = highest.saturating_sub(self.config.pivot_depth);
        let Some(header) = self.recent.get(&number) else { return false };
        if self.pivot() == Some(header.id) {
            return false;
        }
        let Ok(decoded) = tandem_chain::decode_header(&header.rlp) else { return false };
        info!(pivot = %header.id, root = %decoded.state_root, "state is downloaded");
        let progress = match &self.progress {
            Some(before) => before.moved(header.id, decoded.state_root),
            None => Progress::begin(header.id, decoded.state_root),
        };
        self.progress = Some(Arc::new(progress));
        self.has_state = false;
        true
    }

    /// Returns the work that downloads the state.
    fn start(&self) -> Option<Pending<Step>> {
        self.start_after(Vec::new())
    }

    /// Returns the work that downloads the state, after what is there was moved on by these blocks.
    fn start_after(&self, blocks: Vec<ListedBlock>) -> Option<Pending<Step>> {
        let (around, progress) = (self.around.clone()?, self.progress.clone()?);
        let (config, root) = (self.config.clone(), progress.root());
        Some(Box::pin(async move {
            snap::move_on(&around, &config, &blocks, &progress).await;
            let ended = snap::download(around, &config, root, progress).await;
            if ended != Ended::Done {
                sleep(AFTER_FAILURE).await;
            }
            Step::State(root, ended)
        }))
    }

    /// Returns the blocks above an earlier pivot up to this one, none if they cannot be used.
    fn path_from(&self, left: BlockId) -> Vec<ListedBlock> {
        // Without a range that is done, everything is downloaded anew.
        let begun = self.progress.as_ref().filter(|progress| progress.has_ranges());
        let Some(pivot) = begun.map(|progress| progress.pivot()) else { return Vec::new() };
        let header = |number| self.recent.get(&number).map(|header| &header.rlp[..]);
        snap::path(left, pivot, header).unwrap_or_default()
    }

    /// Takes the end of a step. Returns the next work, if there is any.
    pub fn ended(&mut self, step: Step, sink: &Arc<dyn BlockSink>) -> Option<Pending<Step>> {
        match step {
            Step::Begun(Ok(())) => {
                self.is_begun = true;
                self.start()
            }
            Step::Begun(Err(error)) => {
                warn!(%error, "no state can be downloaded, so all blocks are executed");
                self.progress = None;
                None
            }
            // The pivot has moved meanwhile.
            Step::State(root, _) if self.progress.as_ref().is_some_and(|it| it.root() != root) => {
                self.start()
            }
            Step::State(_, Ended::Done) => {
                self.has_state = true;
                if let Some(StateProgress { accounts, slots, codes, .. }) = self.downloaded() {
                    info!(accounts, slots, codes, "state downloaded");
                }
                self.finish(sink)
            }
            Step::State(_, Ended::Stale) => {
                let left = self.pivot();
                // Without a newer head, the peers may yet have it again.
                if !self.choose_pivot() {
                    info!("no peer has the state, waiting for a newer head");
                    return self.start();
                }
                self.start_after(left.map(|left| self.path_from(left)).unwrap_or_default())
            }
            Step::State(_, Ended::Failed) => self.start(),
            Step::State(_, Ended::Broken) => self.begin_again(),
            Step::Adopted(Ok(true)) => {
                self.progress = None;
                (self.is_begun, self.is_finishing) = (false, false);
                None
            }
            Step::Adopted(Ok(false)) => {
                self.is_finishing = false;
                self.finish(sink)
            }
            Step::Adopted(Err(error)) => {
                warn!(%error, "the downloaded state cannot be used, downloading it again");
                self.is_finishing = false;
                self.begin_again()
            }
        }
    }

    /// Forgets what is done.
    fn begin_again(&mut self) -> Option<Pending<Step>> {
        let (pivot, root) = self.progress.as_ref().map(|it| (it.pivot(), it.root()))?;
        self.progress = Some(Arc::new(Progress::begin(pivot, root)));
        self.has_state = false;
        self.start()
    }

    /// Returns the work that makes the pivot base and head, once state and blocks are there.
    pub fn finish(&mut self, sink: &Arc<dyn BlockSink>) -> Option<Pending<Step>> {
        let pivot = self.pivot()?;
        if !self.has_state || self.is_finishing || self.stored != Some(pivot) {
            return None;
        }
        self.is_finishing = true;
        let (downloads, sink) = (self.around.as_ref()?.downloads.clone(), sink.clone());
        Some(Box::pin(async move {
            let finished = spawn_blocking(move || match downloads.download_progress()? {
                Some(_) => downloads.finish_download(pivot),
                // Done already, but the executor did not follow.
                None => Ok(()),
            });
            match finished.await.unwrap_or_else(|_| Err(ended())) {
                Ok(()) => {
                    let adopted = sink.adopt().await;
                    if !adopted {
                        sleep(AFTER_FAILURE).await;
                    }
                    Step::Adopted(Ok(adopted))
                }
                Err(error) => {
                    sleep(AFTER_FAILURE).await;
                    Step::Adopted(Err(error))
                }
            }
        }))
    }

    /// Notes that a block was stored without being executed. One at the height of the pivot that is
    /// not the pivot shows that the chain has left it.
    pub fn stored(&mut self, block: BlockId) {
        self.stored = Some(block);
        let left = self.pivot().is_some_and(|pivot| pivot.number == block.number && pivot != block);
        if left && self.choose_pivot() {
            info!("the chain has left the pivot");
        }
    }

    /// Returns the work that stores a block of the chain up to the pivot.
    pub fn store(&self, id: BlockId, arrived: Arrived) -> Pending<Option<Prepared>> {
        let Some(around) = self.around.clone() else { return Box::pin(async { None }) };
        Box::pin(async move {
            let Arrived { block, receipts: found } = arrived;
            let block = match block {
                Ok(block) => block,
                Err(undecodable) => {
                    let (latest_valid, rule) =
                        (Some(undecodable.parent), undecodable.error.describe());
                    let invalid = Import::Invalid { latest_valid, rule };
                    let prepared: Prepared = Box::new(|| Box::pin(async { invalid }));
                    return Some(prepared);
                }
            };
            let header =
                ChainHeader { id, parent: block.header.parent_hash, rlp: block.header_rlp.clone() };
            let found = match found {
                Some(found) => found,
                None => receipts_of(&around, header).await?,
            };
            let stored = DownloadedBlock {
                id,
                header: block.header_rlp,
                body: block.body_rlp,
                receipts: found,
            };
            let downloads: Arc<dyn StateDownloads> = around.downloads;
            let prepared: Prepared = Box::new(move || {
                Box::pin(async move {
                    match spawn_blocking(move || downloads.put_blocks(&[stored])).await {
                        Ok(Ok(())) => Import::Done,
                        Ok(Err(error)) => {
                            warn!(block = %id, %error, "block not stored");
                            Import::Failed
                        }
                        Err(_) => Import::Failed,
                    }
                })
            });
            Some(prepared)
        })
    }
}

fn ended() -> storage::Error {
    storage::Error::Unavailable("the thread of a call has ended".to_owned())
}

/// Fetches the receipts of a block that came without them: the pivot was below it then.
async fn receipts_of(
    around: &Surroundings,
    header: ChainHeader,
) -> Option<tandem_primitives::Bytes> {
    let hash: B256 = header.id.hash;
    for attempt in 0..RECEIPTS_ATTEMPTS {
        let peers = around.peers.borrow().clone();
        if let Some(peer) = peers.get(attempt % peers.len().max(1)) {
            let found = receipts(&*around.sessions, *peer, vec![header.clone()]).await;
            if let Some(found) = found.ok().and_then(|mut found| found.remove(&hash)) {
                return Some(found);
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    None
}
