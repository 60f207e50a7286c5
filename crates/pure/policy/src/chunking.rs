use crate::text;
use std::num::NonZeroU32;

/// Maximum number of chunks per worker in one dispatch: idle workers gain nothing from more chunks.
const CHUNKS_PER_WORKER_MAX: usize = 4;

/// Whether the keys of one dispatch are split into chunks, each a separate job for some worker.
///
/// A chunk costs one more job and gives work to another worker. Under `while-idle`, a large batch
/// that arrives while the workers are busy stays whole. It keeps one of them busy for long, so the
/// next batch stays whole as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Chunking {
    /// Splits whenever there is more than one chunk's worth.
    #[default]
    Always,
    /// Splits only when more than one worker is idle, or when the dispatch is so large that it is
    /// split anyway.
    WhileIdle,
    /// Makes one job of each dispatch.
    Never,
}

/// Plan for splitting one dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPlan {
    /// Number of keys in each chunk except the last one, which has the rest; at least 1.
    pub chunk: usize,
    /// Whether the dispatch stayed whole only because the workers were busy.
    pub skipped_because_busy: bool,
}

impl ChunkPlan {
    /// Returns the number of chunks that `targets` keys become: none for no keys.
    #[must_use]
    pub fn chunks(&self, targets: usize) -> usize {
        targets.div_ceil(self.chunk)
    }
}

impl Chunking {
    /// Plans how to split `targets` keys into chunks of `chunk_targets`, while `idle_workers` of
    /// the workers are idle. Chunks are larger where there would be more than four for each of the
    /// `workers`.
    ///
    /// Under [`Chunking::WhileIdle`], more than `force_chunk_targets` keys are split even when the
    /// workers are busy; 0 disables this limit.
    #[must_use]
    pub fn plan(
        self,
        chunk_targets: NonZeroU32,
        force_chunk_targets: u32,
        targets: usize,
        idle_workers: usize,
        workers: usize,
    ) -> ChunkPlan {
        let most = CHUNKS_PER_WORKER_MAX.saturating_mul(workers.max(1));
        let chunk = (chunk_targets.get() as usize).max(targets.div_ceil(most));
        let whole = ChunkPlan { chunk: targets.max(1), skipped_because_busy: false };
        let cut = ChunkPlan { chunk, skipped_because_busy: false };
        let forced = force_chunk_targets > 0 && targets > force_chunk_targets as usize;
        match self {
            _ if targets <= chunk => whole,
            Self::Always => cut,
            Self::WhileIdle if idle_workers > 1 || forced => cut,
            Self::WhileIdle => ChunkPlan { skipped_because_busy: true, ..whole },
            Self::Never => whole,
        }
    }
}

text::words!(Chunking, "chunking", Always => "always", WhileIdle => "while-idle", Never => "never");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(policy: Chunking, force: u32, targets: usize, idle: usize) -> (usize, bool) {
        let plan = policy.plan(NonZeroU32::new(5).unwrap(), force, targets, idle, 64);
        (plan.chunks(targets), plan.skipped_because_busy)
    }

    #[test]
    fn each_policy_cuts_by_its_rule() {
        assert_eq!(plan(Chunking::Always, 300, 12, 0), (3, false));
        assert_eq!(plan(Chunking::Always, 300, 5, 8), (1, false), "one chunk's worth");
        assert_eq!(plan(Chunking::WhileIdle, 300, 12, 2), (3, false));
        assert_eq!(plan(Chunking::WhileIdle, 300, 12, 1), (1, true), "one idle worker is too few");
        assert_eq!(plan(Chunking::WhileIdle, 300, 300, 0), (1, true));
        assert_eq!(plan(Chunking::WhileIdle, 300, 301, 0), (61, false), "so many are cut anyway");
        assert_eq!(plan(Chunking::WhileIdle, 0, 5000, 0), (1, true), "but not without a limit");
        assert_eq!(plan(Chunking::WhileIdle, 300, 4, 0), (1, false), "nothing was skipped");
        assert_eq!(plan(Chunking::Never, 300, 5000, 8), (1, false));
        assert_eq!(plan(Chunking::Never, 300, 0, 8), (0, false));
    }

    #[test]
    fn there_are_four_chunks_for_each_worker_at_most() {
        let chunks = |targets, workers| {
            let plan = Chunking::Always.plan(NonZeroU32::new(5).unwrap(), 0, targets, 0, workers);
            (plan.chunk, plan.chunks(targets))
        };
        assert_eq!(chunks(20, 1), (5, 4));
        assert_eq!(chunks(21, 1), (6, 4));
        assert_eq!(chunks(1_000, 1), (250, 4));
        assert_eq!(chunks(1_000, 2), (125, 8));
        assert_eq!(chunks(1_000, 64), (5, 200));
        assert_eq!(chunks(1_000, 0), (250, 4));
    }

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [Chunking::Always, Chunking::WhileIdle, Chunking::Never] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "idle".parse::<Chunking>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `idle` for `chunking`; expected `always`, `while-idle` or `never`"
        );
    }

    proptest! {
        #[test]
        fn every_key_is_in_a_chunk(
            policy in prop_oneof![Just(Chunking::Always), Just(Chunking::WhileIdle), Just(Chunking::Never)],
            chunk in 1u32..,
            force: u32,
            targets: usize,
            idle: usize,
            workers: usize,
        ) {
            let plan = policy.plan(NonZeroU32::new(chunk).unwrap(), force, targets, idle, workers);
            prop_assert!(plan.chunk >= 1);
            prop_assert_eq!(plan.chunks(targets) == 0, targets == 0);
            let whole = plan.chunks(targets) <= 1;
            prop_assert!(whole || plan.chunk >= chunk as usize);
            let most = workers.max(1).saturating_mul(4);
            prop_assert!(plan.chunk == chunk as usize || plan.chunks(targets) <= most);
            prop_assert!(!plan.skipped_because_busy || (whole && policy == Chunking::WhileIdle));
        }
    }
}
