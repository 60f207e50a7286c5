//! Blocks from the newest executed one up: their headers, and the bodies of the lowest ones.

use super::{RequestId, spans::Spans};
use crate::check::ChainHeader;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use tandem_primitives::{B256, BlockId, BlockNumber};

/// Branch of headers above a block that is executed.
#[derive(Debug)]
pub struct Line<B> {
    /// Newest executed block.
    anchor: BlockId,
    /// Headers above the anchor.
    spans: Spans,
    /// Blocks that the executor has, without its answer.
    handed: VecDeque<BlockId>,
    /// Blocks above those.
    window: VecDeque<Slot<B>>,
    /// Number of slots at the front of the window that were seen to be asked for or there.
    busy: usize,
    body_bytes: usize,
}

#[derive(Debug)]
struct Slot<B> {
    header: ChainHeader,
    /// Requests under way, with the time of the newest.
    asked: Vec<RequestId>,
    since: Duration,
    /// The block, with the bytes of its body.
    here: Option<(B, usize)>,
}

impl<B> Slot<B> {
    fn is_wanted(&self) -> bool {
        self.here.is_none() && self.asked.is_empty()
    }

    fn ask(&mut self, now: Duration, request: RequestId) -> ChainHeader {
        self.asked.push(request);
        self.since = now;
        self.header.clone()
    }
}

impl<B> Line<B> {
    /// Returns the line above an executed block. Takes over bodies of the line before.
    pub fn new(anchor: BlockId, spans: Spans, before: Option<Self>) -> Self {
        let mut line = Self {
            anchor,
            spans,
            handed: VecDeque::new(),
            window: VecDeque::new(),
            busy: 0,
            body_bytes: 0,
        };
        let Some(before) = before else { return line };
        let mut bodies: BTreeMap<B256, (B, usize)> = before
            .window
            .into_iter()
            .filter_map(|slot| slot.here.map(|here| (slot.header.id.hash, here)))
            .collect();
        if !bodies.is_empty() {
            line.look_ahead(bodies.len());
            for slot in &mut line.window {
                slot.here = bodies.remove(&slot.header.id.hash);
                line.body_bytes += slot.here.as_ref().map_or(0, |(_, bytes)| *bytes);
            }
        }
        line
    }

    /// Returns the newest executed block.
    pub fn anchor(&self) -> BlockId {
        self.anchor
    }

    /// Returns the highest block.
    pub fn top(&self) -> BlockId {
        self.spans.top().unwrap_or(self.anchor)
    }

    /// Returns whether all blocks are executed.
    pub fn is_done(&self) -> bool {
        self.spans.top().is_none()
    }

    /// Returns the number of bodies that wait.
    pub fn bodies(&self) -> usize {
        self.window.iter().filter(|slot| slot.here.is_some()).count()
    }

    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    pub fn loaded(&self) -> usize {
        self.spans.loaded()
    }

    /// Returns whether this block is on the line, or is its anchor.
    pub fn has(&self, block: BlockId) -> bool {
        block == self.anchor || self.spans.has(block)
    }

    pub fn missing(&self, max: usize) -> impl Iterator<Item = (BlockId, u64)> {
        self.spans.missing(max)
    }

    pub fn fill(&mut self, top: BlockId, headers: &[ChainHeader]) {
        self.spans.fill(top, headers);
    }

    /// Returns the hashes known above the anchor, if the culprit is among them.
    pub fn known_above_anchor(&self, culprit: B256) -> Vec<B256> {
        let above = self.spans.known_from(self.anchor.number + 1);
        let blocks: Vec<B256> = above.map(|block| block.hash).collect();
        match blocks.iter().position(|hash| *hash == culprit) {
            Some(place) => blocks[place..].to_vec(),
            None => Vec::new(),
        }
    }

    /// Replaces what is above a block of the line.
    pub fn replace_above(&mut self, fork: BlockId, above: Spans) {
        self.spans.cut_above(fork.number);
        self.spans.append(above);
        self.handed.retain(|block| block.number <= fork.number);
        while let Some(slot) = self.window.pop_back_if(|slot| slot.header.id.number > fork.number) {
            self.body_bytes -= slot.here.map_or(0, |(_, bytes)| bytes);
        }
        self.busy = self.busy.min(self.window.len());
    }

    fn next_number(&self) -> BlockNumber {
        self.anchor.number + self.handed.len() as u64 + 1
    }

    /// Adds blocks to the window, as far as their headers are in memory.
    pub fn look_ahead(&mut self, max: usize) {
        while self.window.len() < max {
            let number = self.next_number() + self.window.len() as u64;
            let Some(header) = self.spans.header(number) else { return };
            let header = header.clone();
            let since = Duration::ZERO;
            self.window.push_back(Slot { header, asked: Vec::new(), since, here: None });
        }
    }

    /// Returns whether this is the block that the executor gets next.
    pub fn is_next(&self, number: BlockNumber) -> bool {
        self.window.front().is_some_and(|slot| slot.header.id.number == number)
    }

    /// Returns the number of the lowest block that no peer was asked for.
    pub fn first_wanted(&mut self) -> Option<BlockNumber> {
        while self.window.get(self.busy).is_some_and(|slot| !slot.is_wanted()) {
            self.busy += 1;
        }
        self.window.get(self.busy).map(|slot| slot.header.id.number)
    }

    /// Returns blocks that no peer was asked for, from [`Self::first_wanted`] on.
    pub fn take_wanted(
        &mut self,
        now: Duration,
        request: RequestId,
        count: usize,
    ) -> Vec<ChainHeader> {
        let wanted = self.window.iter_mut().skip(self.busy).filter(|slot| slot.is_wanted());
        let ask = |slot: &mut Slot<B>| slot.ask(now, request);
        wanted.take(count).map(ask).collect()
    }

    /// Returns the number of the block that the executor waits for, the requests for it that are
    /// under way, and the time of the newest.
    pub fn awaited(&self) -> Option<(BlockNumber, Vec<RequestId>, Duration)> {
        let slot = self.window.front()?;
        let is_asked = slot.here.is_none() && !slot.asked.is_empty();
        is_asked.then(|| (slot.header.id.number, slot.asked.clone(), slot.since))
    }

    /// Returns the block that the executor waits for, and some above it, to ask another peer.
    pub fn take_awaited(
        &mut self,
        now: Duration,
        request: RequestId,
        count: usize,
    ) -> Vec<ChainHeader> {
        let missing = self.window.iter_mut().take(count).filter(|slot| slot.here.is_none());
        missing.map(|slot| slot.ask(now, request)).collect()
    }

    fn slot(&mut self, id: BlockId) -> Option<(usize, &mut Slot<B>)> {
        let front = self.window.front()?.header.id.number;
        let place = id.number.checked_sub(front)? as usize;
        let slot = self.window.get_mut(place).filter(|slot| slot.header.id == id)?;
        Some((place, slot))
    }

    /// Notes that a request has ended.
    pub fn not_asked(&mut self, request: RequestId, blocks: &[BlockId]) {
        for id in blocks {
            let Some((place, slot)) = self.slot(*id) else { continue };
            slot.asked.retain(|asked| *asked != request);
            if slot.is_wanted() {
                self.busy = self.busy.min(place);
            }
        }
    }

    /// Takes a block with its body.
    pub fn arrived(&mut self, id: BlockId, block: B, bytes: usize) {
        let Some((_, slot)) = self.slot(id) else { return };
        if slot.here.is_none() {
            slot.here = Some((block, bytes));
            self.body_bytes += bytes;
        }
    }

    /// Returns the next block for the executor, unless it has `max` already.
    pub fn hand_out(&mut self, max: usize) -> Option<(BlockId, B)> {
        if self.handed.len() >= max {
            return None;
        }
        let slot = self.window.pop_front_if(|slot| slot.here.is_some())?;
        let (block, bytes) = slot.here?;
        self.busy = self.busy.saturating_sub(1);
        self.body_bytes -= bytes;
        self.handed.push_back(slot.header.id);
        Some((slot.header.id, block))
    }

    /// Notes an answer of the executor. Returns whether the block is on the line.
    pub fn answered(&mut self, block: BlockId) -> bool {
        let is_next = self.handed.front() == Some(&block);
        if is_next {
            self.handed.pop_front();
        }
        is_next
    }

    /// Moves the anchor to a block that was executed.
    pub fn executed(&mut self, block: BlockId) {
        self.anchor = block;
        self.spans.drop_through(block.number);
    }
}
