//! Computation of a block's receipts root, at a time and on a thread that the policy chooses.

use alloy_primitives::{Bloom, Bytes};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::{cell::Cell, io, mem, thread::JoinHandle};
use tandem_actor::{Queued, ThreadSender, spawn, thread_queue};
use tandem_chain::{Receipt, ReceiptsTrie, receipts_root};
use tandem_primitives::B256;
use tokio_util::sync::CancellationToken;

/// Number of receipts handed to the thread at once. Waking it costs about as much as one receipt.
const PORTION: usize = 32;

/// Maximum number of portions that wait for the thread. If it falls further behind, the next
/// portion is larger.
const PORTIONS_MAX: usize = 16;

/// Computes the receipts root and the bloom filter of one block by one of the policies
/// ([`tandem_policy::ReceiptsRoot`]). All policies have the same result.
pub enum ReceiptsRooter {
    /// Computes everything at the end.
    AtEnd,
    /// Adds each receipt as it comes.
    Incremental(Box<ReceiptsTrie>),
    /// Computes on the receipts thread.
    Background(Job),
    /// Computes nothing: root and bloom filter are known.
    Known(B256, Box<Bloom>),
}

/// Root, bloom filter and encoding of the receipts of a block.
#[derive(PartialEq, Eq, Debug)]
pub struct FinishedReceipts {
    /// Receipts root.
    pub root: B256,
    /// Bloom filter.
    pub bloom: Bloom,
    /// The receipts as the database stores them, if they were encoded on the way.
    pub encoded: Option<Bytes>,
}

impl From<(B256, Bloom)> for FinishedReceipts {
    fn from((root, bloom): (B256, Bloom)) -> Self {
        Self { root, bloom, encoded: None }
    }
}

impl From<(B256, Bloom, Bytes)> for FinishedReceipts {
    fn from((root, bloom, encoded): (B256, Bloom, Bytes)) -> Self {
        Self { root, bloom, encoded: Some(encoded) }
    }
}

impl ReceiptsRooter {
    /// Accepts all receipts so far. Called for each new receipt.
    pub fn follow(&mut self, receipts: &[Receipt]) {
        match self {
            Self::AtEnd | Self::Known(..) => {}
            Self::Incremental(trie) => {
                let new = receipts.get(trie.len()..).unwrap_or_default();
                new.iter().for_each(|receipt| trie.push(receipt));
            }
            Self::Background(job) => job.follow(receipts),
        }
    }

    /// Returns root, bloom filter and encoding of all receipts of the block.
    pub fn finish(mut self, receipts: &[Receipt]) -> FinishedReceipts {
        self.follow(receipts);
        match self {
            Self::AtEnd => receipts_root(receipts).into(),
            Self::Incremental(trie) => trie.finish().into(),
            Self::Known(root, bloom) => (root, *bloom).into(),
            Self::Background(job) => match job.finish(receipts) {
                Some(finished) => finished.into(),
                None => receipts_root(receipts).into(),
            },
        }
    }
}

/// Receipts of one block for the thread.
struct Portion {
    block: u64,
    receipts: Vec<Receipt>,
    /// The block has no further receipts, and its root is requested.
    last: bool,
}

/// Thread that hashes receipts while later transactions execute.
pub struct ReceiptsThread {
    portions: ThreadSender<Portion>,
    roots: Receiver<(B256, Bloom, Bytes)>,
    blocks: Cell<u64>,
    thread: Option<JoinHandle<()>>,
}

/// Use of the thread by one block.
pub struct Job {
    block: u64,
    portions: ThreadSender<Portion>,
    roots: Receiver<(B256, Bloom, Bytes)>,
    sent: usize,
}

impl ReceiptsThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns the operating system's error if it cannot start a thread.
    pub fn start(fatal: CancellationToken) -> io::Result<Self> {
        let (portions, inbox) = thread_queue("receipts", PORTIONS_MAX);
        let (answer, roots) = bounded(1);
        let thread = spawn("receipts", fatal, move || run(&inbox, &answer))?;
        Ok(Self { portions, roots, blocks: Cell::new(0), thread: Some(thread) })
    }

    /// Begins a block. An unfinished earlier block is forgotten.
    pub fn job(&self) -> Job {
        self.blocks.set(self.blocks.get() + 1);
        let (portions, roots) = (self.portions.clone(), self.roots.clone());
        Job { block: self.blocks.get(), portions, roots, sent: 0 }
    }
}

impl Drop for ReceiptsThread {
    fn drop(&mut self) {
        let (closed, _) = thread_queue("receipts", 0);
        self.portions = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Job {
    fn follow(&mut self, receipts: &[Receipt]) {
        let new = receipts.get(self.sent..).unwrap_or_default();
        if new.len() < PORTION || self.portions.room() == 0 {
            return;
        }
        let portion = Portion { block: self.block, receipts: new.to_vec(), last: false };
        if self.portions.try_send(portion).is_ok() {
            self.sent = receipts.len();
        }
    }

    /// Returns `None` if the thread is gone.
    fn finish(self, receipts: &[Receipt]) -> Option<(B256, Bloom, Bytes)> {
        let receipts = receipts.get(self.sent..).unwrap_or_default().to_vec();
        let portion = Portion { block: self.block, receipts, last: true };
        self.portions.send(portion).ok()?;
        self.roots.recv().ok()
    }
}

fn run(portions: &Receiver<Queued<Portion>>, roots: &Sender<(B256, Bloom, Bytes)>) {
    let (mut block, mut trie) = (0, ReceiptsTrie::default());
    for portion in portions.iter().map(Queued::take) {
        if block != portion.block {
            (block, trie) = (portion.block, ReceiptsTrie::default());
        }
        portion.receipts.iter().for_each(|receipt| trie.push(receipt));
        if portion.last && roots.send(mem::take(&mut trie).finish()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, Bytes, Log};
    use tandem_chain::encode_receipts;

    fn receipts(count: usize, seed: u8) -> Vec<Receipt> {
        let log = |n: usize| {
            let topics = vec![B256::with_last_byte(n as u8), B256::with_last_byte(seed)];
            Log::new_unchecked(
                Address::with_last_byte(seed),
                topics,
                Bytes::from(vec![seed; n % 70]),
            )
        };
        let receipt = |n: usize| Receipt {
            success: !n.is_multiple_of(7),
            cumulative_gas_used: 21_000 * n as u64,
            logs: (0..n % 4).map(|more| log(n + more)).collect(),
            ..Receipt::default()
        };
        (0..count).map(receipt).collect()
    }

    /// Computes the root like the executor: after each transaction, then at the end.
    fn root_of(mut rooter: ReceiptsRooter, receipts: &[Receipt]) -> (B256, Bloom) {
        (1..=receipts.len()).for_each(|count| rooter.follow(&receipts[..count]));
        let finished = rooter.finish(receipts);
        let stored = encode_receipts(receipts);
        assert!(finished.encoded.is_none_or(|encoded| encoded == stored));
        (finished.root, finished.bloom)
    }

    #[test]
    fn every_policy_gives_the_same() {
        let thread = ReceiptsThread::start(CancellationToken::new()).unwrap();
        for count in (0..70).chain([126, 127, 128, 129, 255, 256, 257, 1000]) {
            let receipts = receipts(count, count as u8);
            let want = root_of(ReceiptsRooter::AtEnd, &receipts);
            let incremental = || ReceiptsRooter::Incremental(Box::default());
            assert!(incremental().finish(&receipts).encoded.is_some());
            assert_eq!(root_of(incremental(), &receipts), want, "{count} receipts");
            let background = ReceiptsRooter::Background(thread.job());
            assert_eq!(root_of(background, &receipts), want, "{count} receipts");
        }
    }

    #[test]
    fn a_block_that_was_given_up_leaves_nothing_to_the_next() {
        let thread = ReceiptsThread::start(CancellationToken::new()).unwrap();
        let (given_up, next) = (receipts(200, 1), receipts(100, 2));
        for followed in [0, 31, 32, 64, 200] {
            let mut rooter = ReceiptsRooter::Background(thread.job());
            (1..=followed).for_each(|count| rooter.follow(&given_up[..count]));
            drop(rooter);
            let rooter = ReceiptsRooter::Background(thread.job());
            assert_eq!(root_of(rooter, &next), receipts_root(&next), "after {followed}");
        }
    }

    #[test]
    fn without_its_thread_the_root_is_computed_at_the_end() {
        let thread = ReceiptsThread::start(CancellationToken::new()).unwrap();
        let (portions, roots) = (thread_queue("test", 1).0, bounded(1).1);
        let job = Job { portions, roots, ..thread.job() };
        let receipts = receipts(100, 3);
        assert_eq!(root_of(ReceiptsRooter::Background(job), &receipts), receipts_root(&receipts));
    }
}
