//! Choice among candidates that come best first: which of them the block still has room for, and
//! which are of no use any more. Pure.
//!
//! Gas is not counted here, as only the execution knows what is left.

use crate::block::fill::Judgment;
use alloy_consensus::Transaction as _;
use alloy_rlp::length_of_length;
use std::collections::HashSet;
use tandem_chain::{Transaction, TransactionRule};
use tandem_primitives::Address;

/// Maximum number of candidates of one build that do not get into the block.
pub const MISSES_MAX: usize = 5_000;

/// Room of a block.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Number of blobs.
    pub blobs: u64,
    /// RLP bytes of transactions.
    pub bytes: usize,
}

/// Choice for one block.
pub struct Selection {
    room: Room,
    /// Senders of which no further transaction can be in the block.
    closed: HashSet<Address>,
    misses: usize,
    /// Candidate that is being executed.
    tried: Option<(Address, Room)>,
}

impl Selection {
    /// Begins a block with this room.
    pub fn new(room: Room) -> Self {
        Self { room, closed: HashSet::new(), misses: 0, tried: None }
    }

    /// Returns whether no further candidate is to be looked at.
    pub fn is_over(&self) -> bool {
        self.misses >= MISSES_MAX
    }

    /// Returns whether the candidate is to be executed. If so, [`Selection::judged`] must follow. A
    /// candidate without room leaves it to smaller ones of other senders.
    pub fn admits(&mut self, sender: Address, transaction: &Transaction, raw_len: usize) -> bool {
        if self.closed.contains(&sender) {
            return false;
        }
        let needs =
            Room { blobs: transaction.blob_count().unwrap_or_default(), bytes: rlp_len(raw_len) };
        if needs.blobs > self.room.blobs || needs.bytes > self.room.bytes {
            self.close(sender);
            return false;
        }
        self.tried = Some((sender, needs));
        true
    }

    /// Ends a sender's transactions, because one is missing.
    pub fn close(&mut self, sender: Address) {
        self.misses += 1;
        self.closed.insert(sender);
    }

    /// Learns what became of the candidate that was admitted last.
    pub fn judged(&mut self, judgment: Judgment) {
        let Some((sender, needs)) = self.tried.take() else { return };
        match judgment {
            Judgment::Taken => {
                self.room.blobs -= needs.blobs;
                self.room.bytes -= needs.bytes;
            }
            // It is in a block already, and the ones behind it are not: the pool has not heard of
            // the head.
            Judgment::Refused(TransactionRule::NonceTooLow, _) => self.misses += 1,
            Judgment::NoRoom | Judgment::Refused(..) => self.close(sender),
        }
    }
}

/// Returns an upper bound of the bytes of a transaction in the block's list: typed ones are wrapped
/// in a string.
fn rlp_len(raw_len: usize) -> usize {
    raw_len + length_of_length(raw_len)
}

#[cfg(test)]
mod tests;
