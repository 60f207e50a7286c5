//! Encoding and hashing of many nodes at a time.

use crate::{
    keccak::hash_batch,
    nibbles::DEPTH_MAX,
    node::{NodeId, Place},
    order::Order,
};
use std::sync::Mutex;
use tandem_primitives::B256;

/// A level with at least this many dirty nodes is shared out over the rayon pool. Measured: below,
/// handing work to other threads costs more than it saves.
pub(crate) const PARALLEL_MIN: usize = 4096;

/// Nodes that are encoded, hashed and settled at a time: few enough that their RLP stays in the
/// cache nearest to the processor, many enough to keep the lanes full.
pub(crate) const CHUNK: usize = 256;

/// Bytes of a node's RLP for which there is room from the start.
const RLP_LEN: usize = 160;

/// A dirty node: where the slot that holds it lies, and its path.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Position of its trie among those that are hashed together.
    pub trie: u32,
    pub place: Place,
    pub id: NodeId,
    /// Where the path starts in [`Scratch::paths`].
    pub path: u32,
    pub depth: u8,
}

/// Encoded nodes with their hashes.
#[derive(Debug, Default)]
pub struct Batch {
    pub rlp: Vec<u8>,
    /// Where each node ends in `rlp`.
    pub ends: Vec<u32>,
    pub hashes: Vec<B256>,
}

/// Buffers that changing and hashing a trie needs; kept by the caller, so that thousands of small tries share
/// one set.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Dirty nodes by depth.
    pub(crate) levels: Vec<Vec<Job>>,
    /// Paths of the dirty nodes, one nibble a byte; a short one may be followed by nibbles that are
    /// none of it.
    pub(crate) paths: Vec<u8>,
    pub(crate) batch: Batch,
    /// Positions in the diff of changes that do not hold any more.
    pub(crate) void: Vec<u32>,
    /// What the threads fill.
    pub(crate) parts: Vec<Batch>,
    pub(crate) order: Order,
}

impl Batch {
    /// Encodes and hashes these nodes.
    pub(crate) fn fill(&mut self, jobs: &[Job], encode: impl Fn(&Job, &mut Vec<u8>)) {
        self.rlp.clear();
        self.ends.clear();
        self.rlp.reserve(jobs.len() * RLP_LEN);
        self.ends.reserve(jobs.len());
        for job in jobs {
            encode(job, &mut self.rlp);
            self.ends.push(self.rlp.len() as u32);
        }
        hash_batch(&self.rlp, &self.ends, &mut self.hashes);
    }

    /// The nodes in order, each with its hash.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &B256)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .zip(&self.hashes)
            .map(|((start, &end), hash)| (&self.rlp[start as usize..end as usize], hash))
    }
}

impl Scratch {
    /// Lists a dirty node, at this path as far as its depth.
    #[inline]
    pub(crate) fn push(&mut self, mut job: Job, path: &[u8; DEPTH_MAX]) {
        let depth = usize::from(job.depth);
        if self.levels.len() <= depth {
            self.levels.resize_with(depth + 1, Vec::new);
        }
        job.path = self.paths.len() as u32;
        // Of a fixed length as nearly all are, a copy is two instructions.
        match path.first_chunk::<8>() {
            Some(start) if depth <= 8 => self.paths.extend_from_slice(start),
            _ => self.paths.extend_from_slice(&path[..depth]),
        }
        self.levels[depth].push(job);
    }

    /// Encodes and hashes these nodes of one level, on all threads, and gives the results on in
    /// pieces.
    pub(crate) fn hash_parallel<'a>(
        parts: &'a mut Vec<Batch>,
        jobs: &[Job],
        encode: impl Fn(&Job, &mut Vec<u8>) + Sync,
    ) -> &'a [Batch] {
        let count = jobs.len().div_ceil(CHUNK);
        if parts.len() < count {
            parts.resize_with(count, Batch::default);
        }
        let parts = &mut parts[..count];
        let rest = Mutex::new(parts.iter_mut().zip(jobs.chunks(CHUNK)));
        let work = || {
            while let Some((batch, jobs)) = rest.lock().ok().and_then(|mut rest| rest.next()) {
                batch.fill(jobs, &encode);
            }
        };
        // The caller takes its share instead of sleeping until others are done.
        rayon::in_place_scope(|scope| {
            for _ in 1..rayon::current_num_threads().min(count) {
                scope.spawn(|_| work());
            }
            work();
        });
        parts
    }
}
