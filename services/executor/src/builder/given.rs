//! Candidates that a caller names: all of them, in their order, or there is no block.

use super::{pooled::Contents, sidecars};
use crate::{
    block::fill::{Candidate, Candidates, Judgment},
    error::Error,
};
use alloy_consensus::{Transaction as _, transaction::SignerRecoverable};
use std::{collections::VecDeque, sync::Arc};
use tandem_chain::{Fork, TransactionRule, decode_transaction};
use tandem_primitives::{B256, Bytes, keccak256};
use tandem_proto::blob_validator::{BlobApi, StoredBlob};
use tokio::runtime::Runtime;

/// Candidate, its bytes and its blobs.
type Entry = (Candidate, Bytes, Vec<Arc<StoredBlob>>);

/// Transactions that the block must have.
pub struct Given {
    left: VecDeque<Entry>,
    taken: Contents,
    /// Reason why the block cannot have one of them.
    error: Option<Error>,
}

impl Given {
    /// Decodes transactions in their EIP-2718 form, recovers their senders and fetches their blobs.
    ///
    /// # Errors
    /// [`Error::CannotInclude`].
    pub fn new(
        raw: &[Bytes],
        fork: Fork,
        blobs: &dyn BlobApi,
        runtime: &Runtime,
    ) -> Result<Self, Error> {
        let prepare = |raw: &Bytes| {
            let refused = |reason: &str| cannot_include(keccak256(raw), reason);
            let transaction = decode_transaction(raw).map_err(|reason| refused(&reason))?;
            let sender = transaction.recover_signer();
            let sender = sender.map_err(|_| refused("its signature is invalid"))?;
            let sidecar = match transaction.blob_versioned_hashes() {
                Some(hashes) => sidecars::fetch(runtime, blobs, fork, hashes)
                    .ok_or_else(|| refused("its blobs are not in the pool"))?,
                None => Vec::new(),
            };
            Ok((Candidate { transaction, sender }, raw.clone(), sidecar))
        };
        let left = raw.iter().map(prepare).collect::<Result<_, Error>>()?;
        Ok(Self { left, taken: Contents::default(), error: None })
    }

    /// Returns the content of the block.
    ///
    /// # Errors
    /// [`Error::CannotInclude`] if it lacks one of the transactions.
    pub fn finish(self) -> Result<Contents, Error> {
        match (self.error, self.left.front()) {
            (Some(error), _) => Err(error),
            (None, Some((candidate, ..))) => {
                let hash = *candidate.transaction.hash();
                Err(cannot_include(hash, &TransactionRule::BlockGasLeft.to_string()))
            }
            (None, None) => Ok(self.taken),
        }
    }
}

fn cannot_include(hash: B256, reason: &str) -> Error {
    Error::CannotInclude { hash, reason: reason.to_owned() }
}

impl Candidates for Given {
    fn next(&mut self) -> Result<Option<Candidate>, Error> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.left.front().map(|(candidate, ..)| candidate.clone())),
        }
    }

    fn judged(&mut self, judgment: Judgment) {
        let Some((candidate, raw, blobs)) = self.left.pop_front() else { return };
        let hash = *candidate.transaction.hash();
        match judgment {
            Judgment::Taken => {
                self.taken.raw.push(raw);
                self.taken.blobs.extend(blobs);
            }
            Judgment::NoRoom => {
                let rule = TransactionRule::BlockGasLeft;
                self.error = Some(cannot_include(hash, &rule.to_string()));
            }
            Judgment::Refused(_, reason) => self.error = Some(cannot_include(hash, &reason)),
        }
    }
}
