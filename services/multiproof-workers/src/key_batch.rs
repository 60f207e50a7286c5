//! Keys of several updates, gathered to be requested together.

use std::time::{Duration, Instant};
use tandem_policy::{Batch, Batching, Next};
use tandem_primitives::WalkTarget;

/// Number of keys at which a batch is due, whatever the policy.
const KEYS_MAX: usize = 8_192;

/// Keys whose paths are missing, of the updates since the last request. The policy decides when
/// they are requested.
#[derive(Default)]
pub struct KeyBatch {
    pub targets: Vec<WalkTarget>,
    /// Number of updates so far; 0 when there is no batch.
    updates: usize,
    /// Time of the first update, if the policy depends on time.
    since: Option<Instant>,
}

impl KeyBatch {
    /// Counts one more update.
    pub fn add_update(&mut self, batching: Batching) {
        self.updates += 1;
        if self.updates == 1 && matches!(batching, Batching::Window { .. }) {
            self.since = Some(Instant::now());
        }
    }

    /// Returns the time that the batch may wait for more while `queued` messages wait. Zero means
    /// that it is due now. `None` means that there is no batch, or that the next message joins it.
    pub fn due_in(&self, batching: Batching, queued: usize) -> Option<Duration> {
        if self.updates == 0 {
            return None;
        }
        let targets = self.targets.len();
        if targets >= KEYS_MAX {
            return Some(Duration::ZERO);
        }
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        match batching.next(Batch { messages: self.updates, targets, queued, elapsed }) {
            Next::Dispatch => Some(Duration::ZERO),
            Next::Take => None,
            // There are no keys to wait with.
            Next::Wait(_) if targets == 0 => Some(Duration::ZERO),
            Next::Wait(time) => Some(time),
        }
    }

    /// Ends the batch, whose keys the caller takes. Returns the number of its updates.
    pub fn end(&mut self) -> usize {
        self.since = None;
        std::mem::take(&mut self.updates)
    }

    /// Drops the batch with its keys.
    pub fn clear(&mut self) {
        self.end();
        self.targets.clear();
    }
}
