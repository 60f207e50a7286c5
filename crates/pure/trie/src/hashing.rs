//! Encoding and hashing of many nodes at a time.

use crate::{
    encode::Room,
    keccak::hash_spans,
    nibbles::Path,
    node::{NodeId, Place},
    order::Order,
};
use std::{ops::Range, sync::Mutex};
use tandem_primitives::{B256, TrieDiff};

/// Number of dirty nodes from which a level is split over the rayon pool. Measured: below it,
/// handing work to other threads costs more than it saves.
pub(crate) const PARALLEL_MIN: usize = 4096;

/// Number of nodes that are encoded, hashed and settled at a time. Their RLP must stay in the
/// nearest cache, and the lanes must be full.
pub(crate) const CHUNK: usize = 256;

/// Dirty node: location of the slot that holds it, and its path down to the depth of its level.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Position of the node's trie among the tries that are hashed together.
    pub trie: u32,
    pub place: Place,
    pub id: NodeId,
    pub path: Path,
}

/// Dirty nodes, by depth.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    pub jobs: Vec<Vec<Job>>,
    /// Paths of the nodes at great depths.
    pub long: Vec<B256>,
}

impl Levels {
    /// Returns the nodes at a depth.
    #[inline]
    pub fn at(&mut self, depth: usize) -> &mut Vec<Job> {
        level(&mut self.jobs, depth)
    }
}

/// Returns the nodes at a depth.
#[inline]
pub(crate) fn level(jobs: &mut Vec<Vec<Job>>, depth: usize) -> &mut Vec<Job> {
    if jobs.len() <= depth {
        jobs.resize_with(depth + 1, Vec::new);
    }
    &mut jobs[depth]
}

/// Encoded nodes, each behind its path, with their hashes.
#[derive(Debug, Default)]
pub struct Batch {
    /// Buffer that is overwritten from batch to batch, and longer than the nodes need.
    bytes: Vec<u8>,
    nodes: Vec<Encoded>,
    hashes: Vec<B256>,
}

/// Location of a node in a batch.
#[derive(Clone, Copy, Debug)]
struct Encoded {
    /// Start of the node's path.
    start: u32,
    path_len: u8,
    rlp_len: u16,
}

impl Encoded {
    #[inline]
    fn rlp(&self) -> std::ops::Range<usize> {
        let start = self.start as usize + usize::from(self.path_len);
        start..start + usize::from(self.rlp_len)
    }
}

impl Batch {
    /// Encodes and hashes these nodes of one level.
    pub(crate) fn fill(
        &mut self,
        jobs: &[Job],
        depth: usize,
        long: &[B256],
        encode: impl Fn(&Job, &mut Room, usize) -> usize,
    ) {
        self.nodes.clear();
        self.nodes.reserve(jobs.len());
        let mut start = 0;
        for job in jobs {
            if self.bytes.len() < start + size_of::<Room>() {
                self.bytes.resize(2 * start + size_of::<Room>(), 0);
            }
            let Some(room) = self.bytes[start..].first_chunk_mut() else { continue };
            job.path.write(depth, long, room);
            let end = encode(job, room, depth);
            let (path_len, rlp_len) = (depth as u8, (end - depth) as u16);
            self.nodes.push(Encoded { start: start as u32, path_len, rlp_len });
            start += end;
        }
        let Self { bytes, nodes, hashes } = self;
        hash_spans(bytes, nodes.len(), |at| nodes[at].rlp(), hashes);
    }

    /// Appends some of the nodes to a diff.
    pub fn give(&self, nodes: Range<usize>, owner: Option<B256>, diff: &mut TrieDiff) {
        let nodes = &self.nodes[nodes];
        let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { return };
        let bytes = &self.bytes[first.start as usize..last.rlp().end];
        diff.extend(owner, bytes, nodes.iter().map(|node| (node.path_len, node.rlp_len)));
    }

    /// Returns path, RLP and hash of a node.
    #[inline]
    pub fn node(&self, at: usize) -> (&[u8], &[u8], &B256) {
        let (start, rlp) = (self.nodes[at].start as usize, self.nodes[at].rlp());
        (&self.bytes[start..rlp.start], &self.bytes[rlp], &self.hashes[at])
    }
}

/// Buffers for changing and hashing a trie. The caller keeps them, so thousands of small tries
/// share one set.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) levels: Levels,
    pub(crate) batch: Batch,
    /// Positions in the diff of changes that no longer hold.
    pub(crate) void: Vec<u32>,
    /// Batches that the threads fill.
    pub(crate) parts: Vec<Batch>,
    pub(crate) order: Order,
}

impl Scratch {
    /// Encodes and hashes these nodes of one level on all threads. Returns the filled batches in
    /// order.
    pub(crate) fn hash_parallel<'a>(
        parts: &'a mut Vec<Batch>,
        jobs: &[Job],
        fill: impl Fn(&mut Batch, &[Job]) + Sync,
    ) -> &'a [Batch] {
        let count = jobs.len().div_ceil(CHUNK);
        if parts.len() < count {
            parts.resize_with(count, Batch::default);
        }
        let parts = &mut parts[..count];
        let rest = Mutex::new(parts.iter_mut().zip(jobs.chunks(CHUNK)));
        let work = || {
            while let Some((batch, jobs)) = rest.lock().ok().and_then(|mut rest| rest.next()) {
                fill(batch, jobs);
            }
        };
        // The caller takes its share instead of sleeping until the other threads are done.
        rayon::in_place_scope(|scope| {
            for _ in 1..rayon::current_num_threads().min(count) {
                scope.spawn(|_| work());
            }
            work();
        });
        parts
    }
}
