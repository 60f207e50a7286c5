//! Encodings of the records that are opaque to the store: pending blocks, reverse diffs, and the
//! single records of the meta table. Records that may grow start with a version byte.

use crate::{Error, error};
use std::sync::Arc;
use tandem_primitives::{
    Account, AccountUpdate, B256, BlockId, Bytes, SlotUpdate, StateDiff, U256,
};
use tandem_proto::storage::{Forkchoice, KeptBlock};

const VERSION: u8 = 1;
const EXISTS: u8 = 1;
const WIPED: u8 = 2;
/// Bytes of the two counters of an [`Arc`].
const ARC_BYTES: usize = 2 * size_of::<usize>();

/// Pending block without header, body and receipts, which have tables of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingRecord {
    /// Number and hash.
    pub id: BlockId,
    /// Hash of the parent.
    pub parent: B256,
    /// Hashes of the transactions in block order.
    pub transaction_hashes: Arc<[B256]>,
    /// State diff of the block.
    pub diff: Arc<StateDiff>,
}

impl PendingRecord {
    /// Returns the bytes that the record takes in memory, behind an [`Arc`] of its own.
    pub fn memory_bytes(&self) -> u64 {
        let structs = 3 * ARC_BYTES + size_of::<Self>() + size_of::<StateDiff>();
        (structs + self.diff.bytes() + self.transaction_hashes.len() * 32) as u64
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.diff.len() * 72);
        out.push(VERSION);
        put_block(&mut out, &self.id);
        out.extend_from_slice(self.parent.as_slice());
        put_len(&mut out, self.transaction_hashes.len());
        for hash in self.transaction_hashes.iter() {
            out.extend_from_slice(hash.as_slice());
        }
        put_updates(&mut out, &self.diff.accounts);
        put_len(&mut out, self.diff.codes.len());
        for (hash, code) in &self.diff.codes {
            out.extend_from_slice(hash.as_slice());
            put_len(&mut out, code.len());
            out.extend_from_slice(code);
        }
        out
    }

    /// Decodes the output of [`PendingRecord::encode`].
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn decode(bytes: &Bytes) -> Result<Self, Error> {
        Self::read(bytes).ok_or_else(|| error::Error::Damaged("malformed pending block".to_owned()))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        reader.version()?;
        let id = reader.block()?;
        let parent = reader.hash()?;
        let count = reader.count(32)?;
        let transaction_hashes = (0..count).map(|_| reader.hash()).collect::<Option<_>>()?;
        let accounts = reader.updates()?;
        let count = reader.count(36)?;
        let mut codes = Vec::with_capacity(count);
        for _ in 0..count {
            let hash = reader.hash()?;
            let len = reader.count(1)?;
            codes.push((hash, Bytes::copy_from_slice(reader.take(len)?)));
        }
        let diff = Arc::new(StateDiff { accounts, codes });
        reader.0.is_empty().then_some(Self { id, parent, transaction_hashes, diff })
    }
}

/// Encodes a block that waits for its execution: version, number and hash, parent, header and body.
pub fn encode_kept(block: &KeptBlock) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + block.header.len() + block.body.len());
    out.push(VERSION);
    put_block(&mut out, &block.id);
    out.extend_from_slice(block.parent.as_slice());
    for bytes in [&block.header, &block.body] {
        put_len(&mut out, bytes.len());
        out.extend_from_slice(bytes);
    }
    out
}

/// Decodes the output of `encode_kept`.
///
/// # Errors
/// [`Error::Damaged`].
pub fn decode_kept(bytes: &Bytes) -> Result<KeptBlock, Error> {
    let read = || {
        let mut reader = Reader(bytes);
        reader.version()?;
        let (id, parent) = (reader.block()?, reader.hash()?);
        let mut part = || {
            let len = reader.count(1)?;
            Some(bytes.slice_ref(reader.take(len)?))
        };
        let (header, body) = (part()?, part()?);
        reader.0.is_empty().then_some(KeptBlock { id, parent, header, body })
    };
    read().ok_or_else(|| Error::Damaged("malformed kept block".to_owned()))
}

/// Changes that undo one block of the base.
#[derive(Clone, Debug, PartialEq)]
pub struct ReverseDiff {
    /// Hash of the block that this undoes.
    pub block: B256,
    /// State before the block, in the form of updates.
    pub updates: Vec<AccountUpdate>,
}

impl ReverseDiff {
    /// Encodes the diff.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(self.block.as_slice());
        put_updates(&mut out, &self.updates);
        out
    }

    /// Decodes the output of [`ReverseDiff::encode`].
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let read = || {
            let mut reader = Reader(bytes);
            reader.version()?;
            let (block, updates) = (reader.hash()?, reader.updates()?);
            reader.0.is_empty().then_some(Self { block, updates })
        };
        read().ok_or_else(|| Error::Damaged("malformed reverse diff".to_owned()))
    }
}

/// Encodes a block's number and hash.
pub fn encode_block(block: &BlockId) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    put_block(&mut out, block);
    out
}

/// Decodes the output of `encode_block`.
pub fn decode_block(bytes: &[u8]) -> Option<BlockId> {
    let mut reader = Reader(bytes);
    let block = reader.block()?;
    reader.0.is_empty().then_some(block)
}

/// Encodes a forkchoice.
pub fn encode_forkchoice(forkchoice: &Forkchoice) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_block(&mut out, &forkchoice.head);
    for block in [forkchoice.safe, forkchoice.finalized] {
        out.push(u8::from(block.is_some()));
        put_block(&mut out, &block.unwrap_or_default());
    }
    out
}

/// Decodes the output of `encode_forkchoice`.
pub fn decode_forkchoice(bytes: &[u8]) -> Option<Forkchoice> {
    let mut reader = Reader(bytes);
    reader.version()?;
    let head = reader.block()?;
    let mut optional = || {
        let there = reader.byte()? != 0;
        let block = reader.block()?;
        Some(there.then_some(block))
    };
    let (safe, finalized) = (optional()?, optional()?);
    Some(Forkchoice { head, safe, finalized })
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u32).to_be_bytes());
}

fn put_block(out: &mut Vec<u8>, block: &BlockId) {
    out.extend_from_slice(&block.number.to_be_bytes());
    out.extend_from_slice(block.hash.as_slice());
}

fn put_updates(out: &mut Vec<u8>, updates: &[AccountUpdate]) {
    put_len(out, updates.len());
    for update in updates {
        out.extend_from_slice(update.address_hash.as_slice());
        let exists = if update.account.is_some() { EXISTS } else { 0 };
        out.push(exists | if update.wiped { WIPED } else { 0 });
        if let Some(account) = &update.account {
            let at = out.len();
            out.push(0);
            account.encode(out);
            out[at] = (out.len() - at - 1) as u8;
        }
        put_len(out, update.slots.len());
        for slot in &update.slots {
            out.extend_from_slice(slot.key.as_slice());
            let value = slot.value.to_be_bytes::<32>();
            let value = &value[slot.value.leading_zeros() / 8..];
            out.push(value.len() as u8);
            out.extend_from_slice(value);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn version(&mut self) -> Option<()> {
        (self.byte()? == VERSION).then_some(())
    }

    fn hash(&mut self) -> Option<B256> {
        self.take(32).map(B256::from_slice)
    }

    fn block(&mut self) -> Option<BlockId> {
        let number = self.take(8)?.try_into().map(u64::from_be_bytes).ok()?;
        Some(BlockId::new(number, self.hash()?))
    }

    /// Reads the number of items of at least `size` bytes each. Returns `None` when the rest is too
    /// short for them, so that a damaged length never causes a huge allocation.
    fn count(&mut self, size: usize) -> Option<usize> {
        let count = self.take(4)?.try_into().map(u32::from_be_bytes).ok()? as usize;
        (count.checked_mul(size)? <= self.0.len()).then_some(count)
    }

    fn updates(&mut self) -> Option<Vec<AccountUpdate>> {
        let count = self.count(37)?;
        let mut updates = Vec::with_capacity(count);
        for _ in 0..count {
            let address_hash = self.hash()?;
            let flags = self.byte()?;
            let account = if flags & EXISTS != 0 {
                let len = usize::from(self.byte()?);
                Some(Account::decode(self.take(len)?).ok()?)
            } else {
                None
            };
            let slot_count = self.count(33)?;
            let mut slots = Vec::with_capacity(slot_count);
            for _ in 0..slot_count {
                let key = self.hash()?;
                let len = usize::from(self.byte()?);
                let value = U256::try_from_be_slice(self.take(len)?)?;
                slots.push(SlotUpdate { key, value });
            }
            updates.push(AccountUpdate { address_hash, account, wiped: flags & WIPED != 0, slots });
        }
        Some(updates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;
    use tandem_heap::{Counting, thread::peak};

    #[global_allocator]
    static ALLOCATOR: Counting<System> = Counting(System);

    fn record() -> PendingRecord {
        let slots = vec![
            SlotUpdate { key: B256::repeat_byte(1), value: U256::ZERO },
            SlotUpdate { key: B256::repeat_byte(2), value: U256::MAX },
        ];
        let account = |n| Account { nonce: n, balance: U256::from(n), ..Account::default() };
        let update = |n: u8, account, wiped, slots| AccountUpdate {
            address_hash: B256::repeat_byte(n),
            account,
            wiped,
            slots,
        };
        PendingRecord {
            id: BlockId::new(7, B256::repeat_byte(9)),
            parent: B256::repeat_byte(8),
            transaction_hashes: [B256::repeat_byte(4), B256::repeat_byte(5)].into(),
            diff: Arc::new(StateDiff {
                accounts: vec![
                    update(1, None, true, vec![]),
                    update(2, Some(account(300)), false, slots),
                    update(3, Some(account(0)), true, vec![]),
                ],
                codes: vec![(B256::repeat_byte(6), Bytes::from_static(&[1, 2, 3]))],
            }),
        }
    }

    #[test]
    fn a_record_counts_all_that_it_holds_even_if_its_block_is_empty() {
        for hashes in [0, 3] {
            let (held, record) = peak(|| {
                Arc::new(PendingRecord {
                    id: BlockId::default(),
                    parent: B256::ZERO,
                    transaction_hashes: std::iter::repeat_n(B256::ZERO, hashes).collect(),
                    diff: Arc::default(),
                })
            });
            assert_eq!(record.memory_bytes(), held as u64, "{hashes} hashes");
        }
    }

    #[test]
    fn records_survive_their_bytes() {
        let record = record();
        let bytes = Bytes::from(record.encode());
        assert_eq!(PendingRecord::decode(&bytes).unwrap(), record);

        let reverse =
            ReverseDiff { block: B256::repeat_byte(1), updates: record.diff.accounts.clone() };
        assert_eq!(ReverseDiff::decode(&reverse.encode()).unwrap(), reverse);

        for safe in [None, Some(BlockId::new(1, B256::repeat_byte(1)))] {
            let forkchoice = Forkchoice { head: record.id, safe, finalized: None };
            assert_eq!(decode_forkchoice(&encode_forkchoice(&forkchoice)), Some(forkchoice));
        }
    }

    #[test]
    fn no_truncated_record_is_taken_for_a_whole_one() {
        let bytes = record().encode();
        for len in 0..bytes.len() {
            assert!(PendingRecord::decode(&Bytes::copy_from_slice(&bytes[..len])).is_err());
        }
    }
}
