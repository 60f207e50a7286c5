//! Loop of sync: carries out what the state decides, and tells it what came of it.

use crate::{
    check::{Arrived, Undecodable},
    config::Config,
    fetch::{Answer, fetch},
    metrics as names,
    pace::Pace,
    service::Deps,
    sink::{BlockSink, Chosen, Pending, Prepared},
    snap::Surroundings,
    snap_run::{SnapRun, Step},
    state::{Action, Import, RequestId, Stage, State},
};
use futures_util::{StreamExt, stream::FuturesOrdered};
use metrics::{counter, gauge};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{B256, BlockId};
use tandem_proto::peer_sessions::{self, PeerSessionsApi, Session};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Time between looks at deadlines and at the list of sessions.
const TICK: Duration = Duration::from_millis(100);

/// Time between two calls for the list of sessions, once there are any.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// Number of blocks in the engine's mailbox. More would make a payload wait.
const EXECUTING_MAX: usize = 2;

/// Number of kept blocks after which they are executed, so that storage-writer drops none.
const KEPT_MAX: u32 = 32;

/// Time between two questions whether a head was reached.
const WORKING_WAIT: Duration = Duration::from_millis(200);

/// Number of those questions before sync begins again.
const WORKING_MAX: u32 = 600;

/// Result of work beside the loop.
enum Event {
    Answered(RequestId, Answer),
    Sessions(peer_sessions::Result<Vec<Session>>),
    Head(Chosen),
    Reached(B256, Chosen),
    Snap(Step),
    Nothing,
}

pub struct Actor {
    config: Config,
    sessions: Arc<dyn PeerSessionsApi>,
    sink: Arc<dyn BlockSink>,
    goal: watch::Receiver<Option<B256>>,
    state: State<Arrived>,
    snap: SnapRun,
    begin: Instant,
    tasks: JoinSet<Event>,
    /// Blocks that are being prepared, in order.
    preparing: FuturesOrdered<Pending<(BlockId, Option<Prepared>)>>,
    /// Blocks that the engine has, in order.
    executing: FuturesOrdered<Pending<(BlockId, Import)>>,
    /// Blocks executed and kept since the head moved.
    executed: u32,
    kept: u32,
    /// Whether a block is becoming the head.
    is_leading: bool,
    listed: Option<Duration>,
    is_listing: bool,
    has_peers: bool,
    /// Whether the last call for the list failed.
    is_cut_off: bool,
    pace: Pace,
    /// Blocks that wait while kept ones are executed.
    held: VecDeque<(BlockId, Arrived)>,
}

impl Actor {
    pub fn new(config: Config, deps: Deps) -> Self {
        let Deps { sessions, sink, downloads, goal, fatal: _ } = deps;
        let state = State::new(config.limits());
        let (states_from, peers) = watch::channel(Vec::new());
        let around = downloads.map(|downloads| Surroundings {
            sessions: sessions.clone(),
            downloads,
            peers,
        });
        let snap = SnapRun::new(config.clone(), around, states_from);
        Self {
            config,
            sessions,
            sink,
            goal,
            state,
            snap,
            begin: Instant::now(),
            tasks: JoinSet::new(),
            preparing: FuturesOrdered::new(),
            executing: FuturesOrdered::new(),
            executed: 0,
            kept: 0,
            is_leading: false,
            listed: None,
            is_listing: false,
            has_peers: false,
            is_cut_off: false,
            pace: Pace::default(),
            held: VecDeque::new(),
        }
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    pub async fn run(mut self, stopping: CancellationToken) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched = true;
        tokio::select! {
            () = stopping.cancelled() => return,
            resumed = self.snap.resume() => self.snap_work(resumed),
        }
        let goal = *self.goal.borrow_and_update();
        self.state.set_goal(goal);
        loop {
            self.act();
            let (preparing, executing) = (!self.preparing.is_empty(), self.executing.len());
            // Blocks that are only stored are stored one after the other.
            let executing_max = if self.snap.pivot().is_some() { 1 } else { EXECUTING_MAX };
            tokio::select! {
                () = stopping.cancelled() => break,
                changed = self.goal.changed(), if watched => {
                    watched = changed.is_ok();
                    let goal = *self.goal.borrow_and_update();
                    self.state.set_goal(goal);
                }
                Some(event) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    // A task that panicked is a request without an answer, which has a deadline.
                    self.take(event.unwrap_or(Event::Nothing));
                }
                Some((block, prepared)) = self.preparing.next(),
                    if preparing && executing < executing_max => self.execute(block, prepared),
                Some((block, import)) = self.executing.next(), if executing > 0 => {
                    self.imported(block, import);
                }
                _ = tick.tick(), if self.is_busy() => self.look(),
            }
        }
        self.sink.show(None);
    }

    /// Returns whether time alone may change something.
    fn is_busy(&self) -> bool {
        self.state.goal().is_some()
            || self.pace.is_shown()
            || !self.tasks.is_empty()
            || !self.preparing.is_empty()
            || !self.executing.is_empty()
    }

    /// Looks at what time alone changes.
    fn look(&mut self) {
        let now = self.now();
        let every = if self.has_peers { LIST_EVERY } else { TICK };
        let is_due = self.listed.is_none_or(|listed| listed + every <= now);
        if is_due && !self.is_listing && self.state.goal().is_some() {
            (self.listed, self.is_listing) = (Some(now), true);
            let sessions = self.sessions.clone();
            self.tasks.spawn(async move { Event::Sessions(sessions.sessions().await) });
        }
        let mut progress = self.state.progress();
        progress.downloaded = self.snap.downloaded();
        if progress.downloaded.is_some() {
            progress.stage = Stage::State;
        }
        let is_starved = self.executing.is_empty() && self.preparing.is_empty();
        if progress.stage == Stage::Blocks && is_starved {
            counter!(names::STARVED).increment(TICK.as_millis() as u64);
        }
        if let Some(shown) = self.pace.look(now, &progress, || self.sink.head().number) {
            self.sink.show(shown);
        }
    }

    /// Returns the sessions that can be asked: none without peer-sessions. Logs the change.
    fn listed(&mut self, listed: peer_sessions::Result<Vec<Session>>) -> Vec<Session> {
        let was_cut_off = std::mem::replace(&mut self.is_cut_off, listed.is_err());
        match listed {
            Ok(sessions) => {
                if was_cut_off {
                    info!(sessions = sessions.len(), "peers can be asked again");
                }
                sessions
            }
            Err(error) => {
                if !was_cut_off {
                    warn!(%error, "no peer can be asked for blocks");
                }
                Vec::new()
            }
        }
    }

    fn act(&mut self) {
        for action in self.state.actions(self.now()) {
            match action {
                Action::Ask { request, peer, wanted } => {
                    let (sessions, sink) = (self.sessions.clone(), self.sink.clone());
                    let receipts_to = self.snap.pivot().map(|pivot| pivot.number);
                    let asked = fetch(sessions, sink, request, peer, wanted, receipts_to);
                    self.tasks.spawn(async move {
                        let (request, answer) = asked.await;
                        Event::Answered(request, answer)
                    });
                }
                Action::Report(peer, misconduct) => {
                    let name = misconduct.name();
                    info!(%peer, misconduct = name, "peer reported");
                    counter!(names::REPORTS, "misconduct" => name).increment(1);
                    let sessions = self.sessions.clone();
                    self.tasks.spawn(async move {
                        if let Err(error) = sessions.report(peer, misconduct).await {
                            warn!(%error, "peer not reported");
                        }
                        Event::Nothing
                    });
                }
                Action::Import(id, block) => self.held.push_back((id, block)),
                Action::Apply(head) => self.reach(head),
                Action::Condemn(invalid) => {
                    let verdict = &invalid.verdict;
                    warn!(culprit = %verdict.culprit, rule = verdict.rule, "the chain is invalid");
                    let condemned = self.sink.condemn(invalid);
                    self.tasks.spawn(async move {
                        condemned.await;
                        Event::Nothing
                    });
                }
            }
        }
        self.prepare();
    }

    /// Begins to prepare blocks, unless kept ones have to be executed first.
    fn prepare(&mut self) {
        if let Some(&(first, _)) = self.held.front() {
            let work = self.snap.decide(first, self.sink.head());
            self.snap_work(work);
            self.snap.note_first(first);
            let work = self.snap.finish(&self.sink);
            self.snap_work(work);
        }
        while self.kept < KEPT_MAX
            && let Some((id, arrived)) = self.held.pop_front()
        {
            let pivot = self.snap.pivot();
            let is_above = pivot.is_some_and(|pivot| id.number > pivot.number);
            // One above is executed once its parent's state is there.
            if is_above || self.snap.is_beginning() {
                self.held.push_front((id, arrived));
                break;
            }
            if pivot.is_some() {
                self.begin(id, self.snap.store(id, arrived));
                continue;
            }
            let prepared: Pending<Option<Prepared>> = match arrived.block {
                Ok(block) => self.sink.prepare(block),
                Err(Undecodable { parent, error }) => {
                    let (latest_valid, rule) = (Some(parent), error.describe());
                    let invalid = Import::Invalid { latest_valid, rule };
                    Box::pin(async move {
                        let prepared: Prepared = Box::new(|| Box::pin(async { invalid }));
                        Some(prepared)
                    })
                }
            };
            self.begin(id, prepared);
        }
    }

    fn begin(&mut self, id: BlockId, prepared: Pending<Option<Prepared>>) {
        let task = tokio::spawn(prepared);
        self.preparing.push_back(Box::pin(async move { (id, task.await.ok().flatten()) }));
    }

    /// Begins work on a state.
    fn snap_work(&mut self, work: Option<Pending<Step>>) {
        if let Some(work) = work {
            self.tasks.spawn(async move { Event::Snap(work.await) });
        }
    }

    fn execute(&mut self, block: BlockId, prepared: Option<Prepared>) {
        let import = prepared.map(|execute| execute());
        self.executing.push_back(Box::pin(async move {
            let import = match import {
                Some(import) => import.await,
                None => Import::Failed,
            };
            (block, import)
        }));
    }

    fn imported(&mut self, block: BlockId, import: Import) {
        let is_stored = self.snap.pivot().is_some_and(|pivot| block.number <= pivot.number);
        match &import {
            Import::Done if is_stored => {
                self.snap.stored(block);
                let work = self.snap.finish(&self.sink);
                self.snap_work(work);
            }
            Import::Done => {
                counter!(names::BLOCKS).increment(1);
                self.executed += 1;
            }
            Import::Kept => self.kept += 1,
            Import::Invalid { .. } => {}
            // The state begins again, with what waits here.
            Import::Failed => self.held.clear(),
        }
        let is_due = self.executed >= self.config.head_every.max(1) || self.kept >= KEPT_MAX;
        if is_due && !self.is_leading && matches!(import, Import::Done | Import::Kept) {
            (self.is_leading, self.executed) = (true, 0);
            self.lead(block);
        }
        self.state.imported(self.now(), block, import);
    }

    /// Makes a block the head, so that the base follows and memory does not grow.
    fn lead(&mut self, block: BlockId) {
        let sink = self.sink.clone();
        self.tasks.spawn(async move {
            let chosen = until_chosen(|| sink.make_head(block)).await;
            Event::Head(chosen)
        });
    }

    fn reach(&mut self, head: B256) {
        let sink = self.sink.clone();
        self.tasks.spawn(async move {
            let chosen = until_chosen(|| sink.reach(head)).await;
            Event::Reached(head, chosen)
        });
    }

    fn take(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Answered(request, answer) => match answer {
                Answer::Headers(headers, known) => {
                    self.snap.headers(&headers);
                    self.state.headers(now, request, headers, known);
                }
                Answer::Bodies(blocks) => self.state.bodies(now, request, blocks),
                Answer::Impossible(culprit) => self.state.impossible(now, request, culprit),
                Answer::Failed(failure) => self.state.failed(now, request, failure),
            },
            Event::Sessions(listed) => {
                let sessions = self.listed(listed);
                (self.is_listing, self.has_peers) = (false, !sessions.is_empty());
                gauge!(names::PEERS).set(sessions.len() as f64);
                let with_states = sessions.iter().filter(|it| it.snap_version.is_some());
                self.snap.set_peers(with_states.map(|session| session.id).collect());
                let peers = sessions.into_iter().map(|session| (session.id, session.range));
                self.state.set_peers(peers);
            }
            Event::Head(chosen) => {
                (self.is_leading, self.kept) = (false, 0);
                if chosen == Chosen::Failed {
                    warn!("the newest block did not become the head");
                }
            }
            Event::Reached(head, chosen) => {
                self.kept = 0;
                self.executed = 0;
                if chosen == Chosen::Done {
                    info!(%head, "synchronised");
                    self.snap.idle();
                }
                self.state.applied(now, head, chosen == Chosen::Done);
            }
            Event::Snap(step) => {
                let work = self.snap.ended(step, &self.sink);
                self.snap_work(work);
            }
            Event::Nothing => {}
        }
    }
}

/// Asks for a head until it was reached, or for too long.
async fn until_chosen(choose: impl Fn() -> Pending<Chosen>) -> Chosen {
    for _ in 0..WORKING_MAX {
        match choose().await {
            Chosen::Working => sleep(WORKING_WAIT).await,
            chosen => return chosen,
        }
    }
    Chosen::Failed
}
