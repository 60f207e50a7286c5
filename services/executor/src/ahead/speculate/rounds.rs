//! Execution ahead in rounds, for state that is far away: in another process, or on a disk.
//!
//! ```text
//!   fibers   0 ──●                    ●━━ runs   ● parks at a read
//!            1 ──────●  one call:  ●━━━━●
//!            2 ─●       3 keys     ●━ done ── 4 ──●   …
//!            3   waits for 2's sender: only its reads
//! ```
//!
//! Every transaction is in flight at once. A call of storage-writer for all parked reads is made
//! once each fiber waits, or once there are enough. So a block takes as many calls as its longest
//! chain of dependent reads, however many reads it has.

use super::{
    fiber::{Fiber, Output, Stack},
    job::{Job, Runner},
    status::Claim,
};
use crate::{
    metrics as names,
    state::parent::{StateKey, StateValue},
};
use alloy_primitives::map::{HashMap, HashSet};
use metrics::histogram;
use std::{sync::Arc, time::Instant};
use tracing::{debug, info_span};

/// Maximum number of fibers of a thread.
const FIBERS_MAX: usize = 256;
/// Number of parked reads that leave together in a block's first round. It doubles from round to
/// round, because the engine waits for the first transactions.
const KEYS_FIRST: usize = 32;
/// Number of keys beyond those of parked reads with which a round leaves.
const KEYS_MAX: usize = 1_024;

/// Stacks that a thread keeps for its next block.
pub type Stacks = Vec<Stack>;

/// One thread's fibers of one block.
struct Rounds<'a> {
    job: &'a Arc<Job>,
    stacks: &'a mut Stacks,
    runner: Runner,
    idle: Vec<Fiber>,
    parked: Vec<(StateKey, Fiber)>,
    /// Further keys of the next round.
    wanted: HashSet<StateKey>,
    /// Number of parked reads that leave together.
    full: usize,
    calls: u64,
}

/// Works on a block until nothing is left.
pub fn work(job: &Arc<Job>, stacks: &mut Stacks) {
    let mut rounds = Rounds {
        job,
        stacks,
        runner: job.runner(),
        idle: Vec::new(),
        parked: Vec::new(),
        wanted: HashSet::default(),
        full: KEYS_FIRST,
        calls: 0,
    };
    while rounds.start_all() || rounds.is_waiting() {
        if rounds.is_waiting() {
            rounds.read();
        }
    }
    rounds.end();
}

impl Rounds<'_> {
    /// Starts transactions until all wait or enough are parked. If none is parked, waits for one
    /// that can be started. Returns false if nothing is left.
    fn start_all(&mut self) -> bool {
        while self.parked.len() < self.full && self.wanted.len() < KEYS_MAX {
            let claim = match self.job.claim_ahead() {
                Claim::Later | Claim::Nothing => match self.job.next_to_read() {
                    Some(index) => {
                        self.look_for_reads(index);
                        continue;
                    }
                    None if self.is_waiting() => return true,
                    None => self.job.claim_or_wait(&mut self.runner),
                },
                claim => claim,
            };
            match claim {
                Claim::Run(index) => self.start(index),
                // The parked reads are more urgent.
                Claim::Recover(_) if self.is_waiting() => return true,
                Claim::Recover(index) => {
                    self.job.senders.get(index);
                }
                Claim::Later => {}
                Claim::Nothing => return false,
            }
        }
        true
    }

    /// Returns whether the next round has keys.
    fn is_waiting(&self) -> bool {
        !self.parked.is_empty() || !self.wanted.is_empty()
    }

    fn start(&mut self, index: usize) {
        let fresh = || Fiber::new(self.job.clone(), self.stacks.pop());
        let fiber = self.idle.pop().map_or_else(fresh, Ok);
        match fiber {
            Ok(mut fiber) => {
                let output = fiber.run(index);
                self.sort(fiber, output);
            }
            Err(error) => {
                debug!(%error, "no fiber");
                self.job.deliver(&mut self.runner, index, None);
            }
        }
    }

    fn look_for_reads(&mut self, index: usize) {
        self.wanted.extend(self.job.look_for_reads(&mut self.runner, index, false));
    }

    /// Makes one call for all parked reads, and continues their fibers in the block's order.
    fn read(&mut self) {
        let mut parked = std::mem::take(&mut self.parked);
        if self.job.is_closed() {
            self.wanted.clear();
            self.stacks.extend(parked.into_iter().filter_map(|(_, fiber)| fiber.end()));
            return;
        }
        self.job.tell(&mut self.runner);
        self.wanted.extend(self.job.take_wanted());
        let mut places: HashMap<StateKey, usize> = HashMap::default();
        let mut keys = Vec::new();
        for key in parked.iter().map(|(key, _)| *key).chain(self.wanted.drain()) {
            places.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len() - 1
            });
        }
        self.calls += 1;
        self.full = (self.full * 2).min(FIBERS_MAX);
        let values = self.call(&keys);
        parked.sort_by_key(|(_, fiber)| fiber.index());
        for (key, mut fiber) in parked {
            let value = values.get(places[&key]).cloned().flatten();
            let output = fiber.answer(value);
            self.sort(fiber, output);
        }
    }

    /// If the call fails, each fiber reads for itself.
    fn call(&self, keys: &[StateKey]) -> Vec<Option<StateValue>> {
        let _span = info_span!("read_round", round = self.calls, keys = keys.len()).entered();
        let started = Instant::now();
        let values = self.job.read_together(keys);
        histogram!(names::ROUND_SECONDS).record(started.elapsed());
        histogram!(names::ROUND_KEYS).record(keys.len() as f64);
        values
    }

    fn sort(&mut self, fiber: Fiber, output: Output) {
        match output {
            Output::Parked(key) => {
                // A key that the next round brings anyway says nothing about those behind it.
                let mut is_foretold = self.wanted.contains(&key);
                if !is_foretold {
                    let found = self.job.look_for_reads(&mut self.runner, fiber.index(), true);
                    is_foretold = found.contains(&key);
                    self.wanted.extend(found);
                }
                self.job.note_parked(is_foretold);
                self.parked.push((key, fiber));
            }
            Output::Done(done) => {
                self.job.deliver(&mut self.runner, fiber.index(), done);
                self.idle.push(fiber);
            }
        }
    }

    fn end(mut self) {
        histogram!(names::ROUNDS).record(self.calls as f64);
        self.stacks.extend(self.idle.drain(..).filter_map(Fiber::end));
        self.stacks.truncate(FIBERS_MAX);
    }
}
