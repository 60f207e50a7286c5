//! Senders recovered from signatures, ahead of execution: a few tasks walk through the block in
//! order, and execution takes each sender when it gets there, recovering it itself if it is first.

use alloy_consensus::transaction::SignerRecoverable;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tandem_chain::{Block, is_merged};
use tandem_primitives::Address;
use tracing::{Span, info_span};

/// The senders of one block.
#[derive(Clone)]
pub struct Senders(Arc<Inner>);

struct Inner {
    block: Arc<Block>,
    /// `None` inside: the signature is invalid.
    senders: Box<[OnceLock<Option<Address>>]>,
    next: AtomicUsize,
}

impl Senders {
    /// Starts to recover the block's senders on the rayon pool, leaving cores to execution.
    pub fn recover(block: Arc<Block>) -> Self {
        let count = block.transactions.len();
        let senders = (0..count).map(|_| OnceLock::new()).collect();
        let inner = Arc::new(Inner { block, senders, next: AtomicUsize::new(0) });
        let tasks = (rayon::current_num_threads() / 2).max(1).min(count);
        for _ in 0..tasks {
            let (inner, parent) = (inner.clone(), Span::current());
            rayon::spawn(move || {
                let _span = info_span!(parent: &parent, "recover_senders").entered();
                while let index = inner.next.fetch_add(1, Relaxed)
                    && index < inner.senders.len()
                {
                    inner.get(index);
                }
            });
        }
        Self(inner)
    }

    /// The sender of the transaction at this position, `None` when its signature is invalid.
    ///
    /// # Panics
    /// When the block has no transaction at this position.
    pub fn get(&self, index: usize) -> Option<Address> {
        self.0.get(index)
    }
}

impl Inner {
    fn get(&self, index: usize) -> Option<Address> {
        *self.senders[index].get_or_init(|| {
            let transaction = &self.block.transactions[index];
            // A high `s` was valid once (EIP-2): before the merge `validate_body` looks at it.
            match is_merged(&self.block.header) {
                true => transaction.recover_signer().ok(),
                false => transaction.recover_signer_unchecked().ok(),
            }
        })
    }
}
