//! The tables with their keys and values, and the encoding of both.
//!
//! Keys are big-endian or plain bytes, so that byte order is key order.

use crate::options::Tuning;
use alloy_primitives::{B256, Bytes, U256};
use tandem_primitives::{Account, BlockId, BlockNumber};

/// One table of the store.
pub trait Table: 'static {
    /// Name of its column family.
    const NAME: &'static str;
    /// Tuning of its column family.
    #[doc(hidden)]
    const TUNING: Tuning;
    /// A key.
    type Key<'a>: Copy;
    /// A value as it is written.
    type Write<'a>;
    /// A value as it is read.
    type Read: Send;

    /// Appends the bytes of a key.
    fn encode_key(key: Self::Key<'_>, out: &mut Vec<u8>);
    /// Appends the bytes of a value.
    fn encode_value(value: Self::Write<'_>, out: &mut Vec<u8>);
    /// Decodes a value; `None` if it is malformed.
    fn decode_value(bytes: &[u8]) -> Option<Self::Read>;
}

/// Defines a table whose values are stored unchanged.
macro_rules! bytes_table {
    ($(#[$doc:meta])* $table:ident, $name:literal, $tuning:expr, $key:ty,
     |$k:ident, $out:ident| $encode:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $table {}

        impl Table for $table {
            const NAME: &'static str = $name;
            const TUNING: Tuning = $tuning;
            type Key<'a> = $key;
            type Write<'a> = &'a [u8];
            type Read = Bytes;

            fn encode_key($k: Self::Key<'_>, $out: &mut Vec<u8>) {
                $encode;
            }

            fn encode_value(value: &[u8], out: &mut Vec<u8>) {
                out.extend_from_slice(value);
            }

            fn decode_value(bytes: &[u8]) -> Option<Bytes> {
                Some(Bytes::copy_from_slice(bytes))
            }
        }
    };
}

bytes_table!(
    /// Block bodies (RLP) by block hash.
    Bodies, "bodies", Tuning::BULK, B256, |key, out| out.extend_from_slice(key.as_slice())
);
bytes_table!(
    /// Receipts of a block, opaque, by block hash.
    Receipts, "receipts", Tuning::BULK, B256, |key, out| out.extend_from_slice(key.as_slice())
);
bytes_table!(
    /// Contract code by its hash.
    Code, "code", Tuning::BULK, B256, |key, out| out.extend_from_slice(key.as_slice())
);
bytes_table!(
    /// RLP of the account trie's nodes by path, one nibble per byte.
    AccountTrie, "account_trie", Tuning::ACCOUNT_TRIE, &'a [u8], |key, out| out.extend_from_slice(key)
);
bytes_table!(
    /// RLP of the storage tries' nodes by hashed address and path, one nibble per byte.
    StorageTrie, "storage_trie", Tuning::STORAGE_TRIE, (B256, &'a [u8]), |key, out| {
        out.extend_from_slice(key.0.as_slice());
        out.extend_from_slice(key.1)
    }
);
bytes_table!(
    /// Data that undoes the block at a height, opaque.
    ReverseDiffs, "reverse_diffs", Tuning::LOG, BlockNumber,
    |key, out| out.extend_from_slice(&key.to_be_bytes())
);
bytes_table!(
    /// Executed blocks beyond the base by hash, opaque.
    Pending, "pending", Tuning::LOG, B256, |key, out| out.extend_from_slice(key.as_slice())
);
bytes_table!(
    /// Pending blocks whose state root was checked, by hash. The values are empty.
    Proven, "proven", Tuning::LOG, B256, |key, out| out.extend_from_slice(key.as_slice())
);
bytes_table!(
    /// Blocks that wait for their execution by hash, opaque.
    Kept, "kept", Tuning::LOG, B256, |key, out| out.extend_from_slice(key.as_slice())
);
bytes_table!(
    /// Block-level access lists (RLP) by the number and hash of the block, so that they are in the
    /// order of their age.
    AccessLists, "access_lists", Tuning::BULK, BlockId, |key, out| {
        out.extend_from_slice(&key.number.to_be_bytes());
        out.extend_from_slice(key.hash.as_slice())
    }
);
bytes_table!(
    /// State diffs of the last blocks of the base by height, opaque, for readers of the feed. A block
    /// with an access list has none.
    StateDiffs, "state_diffs", Tuning::LOG, BlockNumber,
    |key, out| out.extend_from_slice(&key.to_be_bytes())
);
bytes_table!(
    /// Single records by name.
    Meta, "meta", Tuning::SMALL, &'static str, |key, out| out.extend_from_slice(key.as_bytes())
);

/// Headers by block hash: the block's number and the header's RLP.
#[derive(Debug)]
pub enum Headers {}

impl Table for Headers {
    const NAME: &'static str = "headers";
    const TUNING: Tuning = Tuning::SMALL;
    type Key<'a> = B256;
    type Write<'a> = (BlockNumber, &'a [u8]);
    type Read = (BlockNumber, Bytes);

    fn encode_key(key: B256, out: &mut Vec<u8>) {
        out.extend_from_slice(key.as_slice());
    }

    fn encode_value((number, rlp): Self::Write<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(rlp);
    }

    fn decode_value(bytes: &[u8]) -> Option<Self::Read> {
        let (number, rlp) = bytes.split_first_chunk()?;
        Some((u64::from_be_bytes(*number), Bytes::copy_from_slice(rlp)))
    }
}

/// Hash of the canonical block at each height of the base.
#[derive(Debug)]
pub enum Canonical {}

impl Table for Canonical {
    const NAME: &'static str = "canonical";
    const TUNING: Tuning = Tuning::SMALL;
    type Key<'a> = BlockNumber;
    type Write<'a> = B256;
    type Read = B256;

    fn encode_key(key: BlockNumber, out: &mut Vec<u8>) {
        out.extend_from_slice(&key.to_be_bytes());
    }

    fn encode_value(hash: B256, out: &mut Vec<u8>) {
        out.extend_from_slice(hash.as_slice());
    }

    fn decode_value(bytes: &[u8]) -> Option<B256> {
        B256::try_from(bytes).ok()
    }
}

/// Block and position in it of each transaction of the base's chain, by transaction hash.
#[derive(Debug)]
pub enum Transactions {}

impl Table for Transactions {
    const NAME: &'static str = "transactions";
    const TUNING: Tuning = Tuning::INDEX;
    type Key<'a> = B256;
    type Write<'a> = (BlockId, u32);
    type Read = (BlockId, u32);

    fn encode_key(key: B256, out: &mut Vec<u8>) {
        out.extend_from_slice(key.as_slice());
    }

    fn encode_value((block, index): Self::Write<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&block.number.to_be_bytes());
        out.extend_from_slice(block.hash.as_slice());
        out.extend_from_slice(&index.to_be_bytes());
    }

    fn decode_value(bytes: &[u8]) -> Option<Self::Read> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (hash, index) = rest.split_first_chunk::<32>()?;
        let index = u32::from_be_bytes(index.try_into().ok()?);
        Some((BlockId::new(u64::from_be_bytes(*number), B256::from(*hash)), index))
    }
}

/// Accounts of the flat state by hashed address.
#[derive(Debug)]
pub enum Accounts {}

impl Table for Accounts {
    const NAME: &'static str = "accounts";
    const TUNING: Tuning = Tuning::STATE;
    type Key<'a> = B256;
    type Write<'a> = &'a Account;
    type Read = Account;

    fn encode_key(key: B256, out: &mut Vec<u8>) {
        out.extend_from_slice(key.as_slice());
    }

    fn encode_value(account: &Account, out: &mut Vec<u8>) {
        account.encode(out);
    }

    fn decode_value(bytes: &[u8]) -> Option<Account> {
        Account::decode(bytes).ok()
    }
}

/// Slots of the flat state by hashed address and hashed slot. Zero slots are absent.
#[derive(Debug)]
pub enum Slots {}

impl Table for Slots {
    const NAME: &'static str = "slots";
    const TUNING: Tuning = Tuning::STATE;
    type Key<'a> = (B256, B256);
    type Write<'a> = U256;
    type Read = U256;

    fn encode_key((address_hash, slot_hash): Self::Key<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(address_hash.as_slice());
        out.extend_from_slice(slot_hash.as_slice());
    }

    fn encode_value(value: U256, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.to_be_bytes::<32>()[value.leading_zeros() / 8..]);
    }

    fn decode_value(bytes: &[u8]) -> Option<U256> {
        (!bytes.is_empty()).then(|| U256::try_from_be_slice(bytes)).flatten()
    }
}

/// HistoryPlace of a record of history: the span of its block, and the number of its block within that span.
/// Spans have the same number of blocks each, so records are in the order of their blocks' spans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryPlace {
    /// Number of the span.
    pub span: u64,
    /// Position of the block in it.
    pub offset: u16,
}

/// Accounts before blocks that changed them, by hashed address and block. `None` if there was none.
#[derive(Debug)]
pub enum AccountHistory {}

impl Table for AccountHistory {
    const NAME: &'static str = "account_history";
    const TUNING: Tuning = Tuning::history(8 + 32);
    type Key<'a> = (B256, HistoryPlace);
    type Write<'a> = Option<&'a Account>;
    type Read = Option<Account>;

    fn encode_key((address_hash, place): Self::Key<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&place.span.to_be_bytes());
        out.extend_from_slice(address_hash.as_slice());
        out.extend_from_slice(&place.offset.to_be_bytes());
    }

    fn encode_value(account: Option<&Account>, out: &mut Vec<u8>) {
        if let Some(account) = account {
            account.encode(out);
        }
    }

    fn decode_value(bytes: &[u8]) -> Option<Option<Account>> {
        if bytes.is_empty() {
            return Some(None);
        }
        Account::decode(bytes).ok().map(Some)
    }
}

/// Slots before blocks that changed them, by hashed address, hashed slot and block. Zero if the slot was
/// not set.
#[derive(Debug)]
pub enum SlotHistory {}

impl Table for SlotHistory {
    const NAME: &'static str = "slot_history";
    const TUNING: Tuning = Tuning::history(8 + 64);
    type Key<'a> = (B256, B256, HistoryPlace);
    type Write<'a> = U256;
    type Read = U256;

    fn encode_key((address_hash, slot_hash, place): Self::Key<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&place.span.to_be_bytes());
        out.extend_from_slice(address_hash.as_slice());
        out.extend_from_slice(slot_hash.as_slice());
        out.extend_from_slice(&place.offset.to_be_bytes());
    }

    fn encode_value(value: U256, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.to_be_bytes::<32>()[value.leading_zeros() / 8..]);
    }

    fn decode_value(bytes: &[u8]) -> Option<U256> {
        if bytes.is_empty() {
            return Some(U256::ZERO);
        }
        U256::try_from_be_slice(bytes)
    }
}

/// Tables that a database of an earlier schema version lacks: the first two came with version 2, the
/// next two with versions 3 and 4, and those of history with version 5. Opening it adds them.
pub(crate) const ADDED: [&str; 6] = [
    Proven::NAME,
    Kept::NAME,
    AccessLists::NAME,
    StateDiffs::NAME,
    AccountHistory::NAME,
    SlotHistory::NAME,
];

/// Name and tuning of a table.
pub(crate) type Entry = (&'static str, Tuning);

/// All tables, for opening.
pub(crate) const ALL: [Entry; 19] = [
    entry::<Headers>(),
    entry::<Bodies>(),
    entry::<Receipts>(),
    entry::<Canonical>(),
    entry::<Transactions>(),
    entry::<Code>(),
    entry::<Accounts>(),
    entry::<Slots>(),
    entry::<AccountTrie>(),
    entry::<StorageTrie>(),
    entry::<ReverseDiffs>(),
    entry::<Pending>(),
    entry::<Proven>(),
    entry::<Kept>(),
    entry::<AccessLists>(),
    entry::<StateDiffs>(),
    entry::<AccountHistory>(),
    entry::<SlotHistory>(),
    entry::<Meta>(),
];

const fn entry<T: Table>() -> Entry {
    (T::NAME, T::TUNING)
}

/// Returns the index of a table in [`ALL`].
pub(crate) fn index_of<T: Table>() -> usize {
    const {
        let mut index = 0;
        while !equal(ALL[index].0.as_bytes(), T::NAME.as_bytes()) {
            index += 1;
        }
        index
    }
}

const fn equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}
