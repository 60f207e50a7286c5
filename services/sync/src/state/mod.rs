//! Decisions of sync, without I/O and clock: what to ask from which peer, what to execute next, and
//! what to say of a chain that turns out to be invalid.
//!
//! ```text
//!             goal ──► extension: headers, from the goal down, until they meet …
//!                          ▼
//!  executed ── anchor ── line: headers from the newest executed block up ── top
//!                 └── window: bodies of its lowest blocks ── handed to the executor in order
//! ```
//!
//! A new goal never disturbs the line. Its headers are fetched down to the line and put on top. If
//! the goal is on another branch, they replace the line above the fork.

mod extension;
mod line;
mod peers;
mod spans;
#[cfg(test)]
mod tests;
mod words;

pub use peers::Failure;
pub use spans::SPAN_HEADERS_MAX;
pub use words::{Action, Import, Invalid, Limits, Progress, RequestId, Stage, Verdict, Wanted};

use crate::check::ChainHeader;
use extension::{Extension, Met};
use line::Line;
use peers::Peers;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use tandem_primitives::{B256, BlockId};
use tandem_proto::peer_sessions::{BlockRange, PeerId};

/// Number of culprits that are remembered.
const CULPRITS_MAX: usize = 64;

/// Number of blocks that one invalid block makes invalid by name. The blocks above them follow from
/// their parents.
const CONDEMNED_MAX: usize = 256;

/// Maximum number of peers that are asked for the same data at the same time.
const ASKED_MAX: usize = 3;

/// Number of bodies that another peer is asked for when the first of them is late.
const ASKED_AGAIN: usize = 4;

/// Pause after a failure of the executor.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Bytes of an answer that a peer should not exceed: the protocol's recommendation, 2 MiB.
const ANSWER_BYTES: f64 = (2 << 20) as f64;

#[derive(PartialEq, Eq, Debug)]
enum Purpose {
    /// Headers of the extension.
    Extend { hash: B256 },
    /// Headers of the line that left the memory.
    Fill { top: BlockId },
    /// Bodies of the line.
    Bodies { blocks: Vec<BlockId> },
}

#[derive(Debug)]
struct Request {
    peer: PeerId,
    purpose: Purpose,
    since: Duration,
}

/// State of the synchronisation. `B` is a block with its body, checked.
#[derive(Debug)]
pub struct State<B> {
    limits: Limits,
    peers: Peers,
    /// Newest head that is wanted.
    goal: Option<B256>,
    extension: Option<Extension>,
    line: Option<Line<B>>,
    requests: BTreeMap<RequestId, Request>,
    next_request: RequestId,
    /// Invalid blocks with their verdict, oldest first.
    culprits: VecDeque<Invalid>,
    /// Goal that was given to the caller as executed.
    applied: Option<B256>,
    actions: Vec<Action<B>>,
    /// Time until which no goal is followed, after a failure of the executor.
    paused_until: Duration,
    /// Average bytes of a body.
    body_bytes: f64,
}

impl<B> State<B> {
    /// Returns the state of a node that wants nothing yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            peers: Peers::default(),
            goal: None,
            extension: None,
            line: None,
            requests: BTreeMap::new(),
            next_request: 0,
            culprits: VecDeque::new(),
            applied: None,
            actions: Vec::new(),
            paused_until: Duration::ZERO,
            body_bytes: 16.0 * 1024.0,
        }
    }

    /// Sets the wanted head; `None` if the chain follows the head without sync.
    pub fn set_goal(&mut self, goal: Option<B256>) {
        if self.goal == goal {
            return;
        }
        (self.goal, self.applied) = (goal, None);
        if goal.is_none() {
            self.reset();
        }
    }

    /// Returns the wanted head.
    pub fn goal(&self) -> Option<B256> {
        self.goal
    }

    /// Takes over the list of peers.
    pub fn set_peers(&mut self, sessions: impl IntoIterator<Item = (PeerId, BlockRange)>) {
        self.peers.set(sessions);
    }

    /// Takes headers that a peer sent, highest first, with the right hashes. `known` is the place of
    /// the highest one that is executed; the number of headers stands for the parent of the last.
    pub fn headers(
        &mut self,
        now: Duration,
        request: RequestId,
        headers: Vec<ChainHeader>,
        known: Option<usize>,
    ) {
        let Some(Request { peer, purpose, since }) = self.requests.remove(&request) else { return };
        let Some(first) = headers.first() else {
            if let Purpose::Extend { hash } | Purpose::Fill { top: BlockId { hash, .. } } = purpose
            {
                self.peers.lacks_header(now, &peer, hash);
            }
            return;
        };
        let bytes = headers.iter().map(|header| header.rlp.len()).sum();
        self.peers.answered(&peer, bytes, now.saturating_sub(since));
        match purpose {
            Purpose::Extend { hash } if hash == first.id.hash => self.extend(now, headers, known),
            Purpose::Fill { top } => {
                if let Some(line) = &mut self.line {
                    line.fill(top, &headers);
                }
            }
            _ => {}
        }
    }

    /// Takes blocks whose bodies a peer sent, with the bytes of each.
    pub fn bodies(&mut self, now: Duration, request: RequestId, blocks: Vec<(BlockId, B, usize)>) {
        let Some(Request { peer, purpose, since }) = self.requests.remove(&request) else { return };
        let Purpose::Bodies { blocks: wanted } = purpose else { return };
        if let Some(line) = &mut self.line {
            line.not_asked(request, &wanted);
        }
        if blocks.is_empty() {
            let number = wanted.first().map_or(0, |block| block.number);
            self.peers.lacks_bodies(now, &peer, number);
            return;
        }
        let bytes: usize = blocks.iter().map(|(_, _, bytes)| bytes).sum();
        self.peers.answered(&peer, bytes, now.saturating_sub(since));
        let average = bytes as f64 / blocks.len() as f64;
        self.body_bytes = (self.body_bytes * 0.8 + average * 0.2).max(64.0);
        if let Some(line) = &mut self.line {
            blocks.into_iter().for_each(|(id, block, bytes)| line.arrived(id, block, bytes));
        }
    }

    /// Notes that a request failed.
    pub fn failed(&mut self, now: Duration, request: RequestId, failure: Failure) {
        let Some(Request { peer, purpose, .. }) = self.requests.remove(&request) else { return };
        if let (Purpose::Bodies { blocks }, Some(line)) = (&purpose, &mut self.line) {
            line.not_asked(request, blocks);
        }
        self.peers.failed(now, &peer, failure);
    }

    /// Takes the verdict that no valid chain has a header with this hash, although the hashes lead
    /// to it. The peer that sent it is not at fault.
    pub fn impossible(&mut self, now: Duration, request: RequestId, culprit: B256) {
        let Some(Request { peer, purpose, since }) = self.requests.remove(&request) else { return };
        self.peers.answered(&peer, 0, now.saturating_sub(since));
        let next = self.extension.as_ref().map(Extension::next);
        if matches!(purpose, Purpose::Extend { hash } if Some(hash) == next) {
            let rule = format!("header {culprit} cannot be part of a chain");
            self.condemn_extension(Verdict { culprit, latest_valid: None, rule });
        }
    }

    /// Takes the executor's answer to a block. Answers come in the order of the blocks.
    pub fn imported(&mut self, now: Duration, block: BlockId, import: Import) {
        let Some(line) = &mut self.line else { return };
        if !line.answered(block) {
            return;
        }
        match import {
            Import::Done | Import::Kept => line.executed(block),
            // The executor's chain is another one than it was: begin from what it knows now.
            Import::Failed => self.begin_again(now),
            Import::Invalid { latest_valid, rule } => {
                self.condemn_line(Verdict { culprit: block.hash, latest_valid, rule });
            }
        }
    }

    /// Notes whether the executor made the goal its head.
    pub fn applied(&mut self, now: Duration, goal: B256, done: bool) {
        if self.applied == Some(goal) && !done {
            self.begin_again(now);
        }
    }

    fn begin_again(&mut self, now: Duration) {
        self.paused_until = now + AFTER_FAILURE;
        self.reset();
    }

    /// Returns the progress.
    pub fn progress(&self) -> Progress {
        let line = self.line.as_ref();
        let extending = self.extension.as_ref();
        let goal = line.map(|line| line.top().number);
        Progress {
            stage: match (self.goal, line) {
                (None, _) => Stage::Idle,
                (Some(_), Some(line)) if !line.is_done() => Stage::Blocks,
                (Some(_), Some(_)) if extending.is_none() => Stage::Blocks,
                (Some(_), _) => Stage::Headers,
            },
            current: line.map(|line| line.anchor().number),
            highest: extending.and_then(Extension::top).or(goal).or(self.peers.highest()),
            lowest_header: extending.and_then(Extension::bottom),
            bodies: line.map_or(0, Line::bodies),
            body_bytes: line.map_or(0, Line::body_bytes),
            headers: line.map_or(0, Line::loaded) + extending.map_or(0, Extension::loaded),
            peers: self.peers.len(),
            requests: self.requests.len(),
            downloaded: None,
        }
    }

    /// Returns what to do now. Requests that are overdue end.
    pub fn actions(&mut self, now: Duration) -> Vec<Action<B>> {
        self.expire(now);
        self.choose_extension(now);
        self.ask_for_extension(now);
        self.ask_for_fills(now);
        self.ask_for_bodies(now);
        let imports_max = self.limits.imports_max;
        if let Some(line) = &mut self.line {
            while let Some((id, block)) = line.hand_out(imports_max) {
                self.actions.push(Action::Import(id, block));
            }
            let anchor = line.anchor().hash;
            if self.goal == Some(anchor) && self.applied != Some(anchor) {
                self.applied = Some(anchor);
                self.actions.push(Action::Apply(anchor));
            }
        }
        let reports = self.peers.take_reports().into_iter();
        self.actions.extend(reports.map(|(peer, misconduct)| Action::Report(peer, misconduct)));
        std::mem::take(&mut self.actions)
    }

    fn expire(&mut self, now: Duration) {
        let overdue = |request: &Request| request.since + self.limits.request <= now;
        let late: Vec<RequestId> =
            self.requests.iter().filter(|(_, it)| overdue(it)).map(|(id, _)| *id).collect();
        for request in late {
            self.failed(now, request, Failure::Late);
        }
    }

    fn choose_extension(&mut self, now: Duration) {
        let Some(goal) = self.goal.filter(|_| self.paused_until <= now) else { return };
        if let Some(extension) = &self.extension {
            let is_other = extension.goal() != goal;
            if !is_other || !extension.is_stalled(now, self.limits.stalled) {
                return;
            }
            // No peer has the headers of the old goal any more, or none yet.
            self.extension = None;
        }
        if self.line.as_ref().is_some_and(|line| line.top().hash == goal) {
            return;
        }
        if let Some(invalid) = self.culprits.iter().find(|it| it.blocks.contains(&goal)) {
            let verdict = invalid.verdict.clone();
            self.actions.push(Action::Condemn(Invalid { verdict, blocks: vec![goal] }));
            self.goal = None;
            self.reset();
            return;
        }
        self.extension = Some(Extension::new(goal, now));
    }

    fn ask_for_extension(&mut self, now: Duration) {
        let Some(extension) = &self.extension else { return };
        let hash = extension.next();
        self.ask_for_headers(now, Purpose::Extend { hash }, hash, SPAN_HEADERS_MAX);
    }

    fn ask_for_fills(&mut self, now: Duration) {
        let Some(line) = &self.line else { return };
        let missing: Vec<_> = line.missing(self.limits.headers_max).take(4).collect();
        for (top, limit) in missing {
            self.ask_for_headers(now, Purpose::Fill { top }, top.hash, limit);
        }
    }

    /// Asks a peer for headers from this hash down, if none was asked for them or all are late.
    fn ask_for_headers(&mut self, now: Duration, purpose: Purpose, start: B256, limit: u64) {
        let same = self.requests.values().filter(|it| it.purpose == purpose);
        let asked: Vec<_> = same.map(|it| (it.peer, it.since)).collect();
        if !self.is_another_due(now, &asked) {
            return;
        }
        let except: Vec<_> = asked.iter().map(|(peer, _)| *peer).collect();
        let per_peer = self.limits.requests_per_peer_max + 1;
        let Some(peer) = self.peers.for_header(now, per_peer, start, &except) else { return };
        self.ask(now, peer, purpose, Wanted::Headers { start, limit });
    }

    /// Returns whether one more peer is asked for the same data.
    fn is_another_due(&self, now: Duration, asked: &[(PeerId, Duration)]) -> bool {
        let newest = asked.iter().map(|(_, since)| *since).max();
        newest.is_none_or(|since| asked.len() < ASKED_MAX && since + self.limits.hedge <= now)
    }

    fn ask_for_bodies(&mut self, now: Duration) {
        if let Some(line) = &mut self.line {
            line.look_ahead(self.limits.blocks_ahead_max);
        }
        self.ask_again_for_first_body(now);
        while let Some(line) = &mut self.line {
            let Some(first) = line.first_wanted() else { return };
            let is_body = |it: &&Request| matches!(it.purpose, Purpose::Bodies { .. });
            let under_way = self.requests.values().filter(is_body).count();
            let expected = (under_way + 1) as f64 * ANSWER_BYTES + line.body_bytes() as f64;
            // The block that the executor waits for is always fetched.
            if expected > self.limits.body_bytes_max as f64 && !line.is_next(first) {
                return;
            }
            let per_peer = self.limits.requests_per_peer_max;
            let Some(peer) = self.peers.for_body(now, per_peer, first, &[]) else { return };
            let bytes = self.peers.bytes_per_request(&peer).min(ANSWER_BYTES * 0.75);
            let count = (bytes / self.body_bytes) as usize;
            let count = count.clamp(1, self.limits.bodies_per_request_max);
            let headers = line.take_wanted(now, self.next_request, count);
            self.ask_for(now, peer, headers);
        }
    }

    /// Asks another peer for the body that the executor waits for, if the first one is late.
    fn ask_again_for_first_body(&mut self, now: Duration) {
        let Some(line) = &mut self.line else { return };
        let Some((number, under_way, since)) = line.awaited() else { return };
        let asked = under_way.iter().filter_map(|request| self.requests.get(request));
        let asked: Vec<_> = asked.map(|request| (request.peer, since)).collect();
        if !self.is_another_due(now, &asked) {
            return;
        }
        let except: Vec<_> = asked.iter().map(|(peer, _)| *peer).collect();
        let per_peer = self.limits.requests_per_peer_max + 1;
        let Some(peer) = self.peers.for_body(now, per_peer, number, &except) else { return };
        let Some(line) = &mut self.line else { return };
        let headers = line.take_awaited(now, self.next_request, ASKED_AGAIN);
        self.ask_for(now, peer, headers);
    }

    fn ask_for(&mut self, now: Duration, peer: PeerId, headers: Vec<ChainHeader>) {
        let blocks = headers.iter().map(|header| header.id).collect();
        self.ask(now, peer, Purpose::Bodies { blocks }, Wanted::Bodies(headers));
    }

    fn ask(&mut self, now: Duration, peer: PeerId, purpose: Purpose, wanted: Wanted) {
        let request = self.next_request;
        self.next_request += 1;
        self.peers.asked(&peer);
        self.requests.insert(request, Request { peer, purpose, since: now });
        self.actions.push(Action::Ask { request, peer, wanted });
    }

    /// Takes headers of the extension, and puts it on the line where they meet.
    fn extend(&mut self, now: Duration, headers: Vec<ChainHeader>, known: Option<usize>) {
        let Some(mut extension) = self.extension.take() else { return };
        if extension.next() != headers[0].id.hash {
            self.extension = Some(extension);
            return;
        }
        for (place, header) in headers.iter().enumerate() {
            let found = self.culprits.iter().find(|it| it.verdict.culprit == header.id.hash);
            if let Some(verdict) = found.map(|invalid| invalid.verdict.clone()) {
                extension.add(now, &headers[..=place], self.limits.headers_max);
                self.extension = Some(extension);
                self.condemn_extension(verdict);
                return;
            }
        }
        let met = extension.meet(self.line.as_ref(), &headers, known);
        let count = match met {
            Met::Line(count, _) | Met::Executed(count, _) => count,
            Met::Nothing | Met::Bottom => headers.len(),
        };
        extension.add(now, &headers[..count], self.limits.headers_max);
        match met {
            Met::Line(_, fork) => {
                if let Some(line) = &mut self.line {
                    line.replace_above(fork, extension.into_spans());
                }
            }
            Met::Executed(_, anchor) => {
                let spans = extension.into_spans();
                let before = self.line.take();
                self.line = Some(Line::new(anchor, spans, before));
            }
            Met::Nothing => self.extension = Some(extension),
            Met::Bottom => {
                let lowest = headers[count - 1].id.hash;
                self.extension = Some(extension);
                let rule = format!("the chain begins with another genesis block, {lowest}");
                let verdict = Verdict { culprit: lowest, latest_valid: None, rule };
                self.condemn_extension(verdict);
            }
        }
    }

    /// Says that the blocks of the extension are invalid, and gives its goal up.
    fn condemn_extension(&mut self, verdict: Verdict) {
        let Some(extension) = self.extension.take() else { return };
        let goal = extension.goal();
        let blocks = extension.known_hashes().filter(|hash| *hash != goal);
        self.condemn(verdict, goal, blocks);
    }

    /// Says that the blocks of the line from an invalid one up are invalid, and gives the line up.
    /// Headers of a newer goal go on, until they meet the invalid block or another branch.
    fn condemn_line(&mut self, verdict: Verdict) {
        let Some(line) = self.line.take() else { return };
        let goal = line.top().hash;
        let blocks = line.known_above_anchor(verdict.culprit).into_iter();
        self.condemn(verdict, goal, blocks.filter(|hash| *hash != goal));
    }

    fn condemn(&mut self, verdict: Verdict, goal: B256, above: impl Iterator<Item = B256>) {
        let above = above.filter(|hash| *hash != verdict.culprit);
        let blocks = [verdict.culprit, goal].into_iter().chain(above).take(CONDEMNED_MAX);
        let mut invalid = Invalid { blocks: blocks.collect(), verdict };
        if invalid.verdict.culprit == goal {
            invalid.blocks.remove(0);
        }
        self.culprits.push_back(invalid.clone());
        if self.culprits.len() > CULPRITS_MAX {
            self.culprits.pop_front();
        }
        self.actions.push(Action::Condemn(invalid));
        self.applied = None;
        if self.goal == Some(goal) {
            self.goal = None;
            self.reset();
        }
    }

    /// Forgets all headers and bodies. The next steps begin from what is executed.
    fn reset(&mut self) {
        (self.extension, self.line, self.applied) = (None, None, None);
    }
}
