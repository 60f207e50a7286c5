//! The protocol "snap", versions 1 and 2: ranges of the state with proofs.

use crate::{
    Error,
    limits::{
        ACCESS_LISTS_MAX, CODES_MAX, PATH_BYTES_MAX, PROOF_NODES_MAX, RANGE_ITEMS_MAX,
        STORAGE_ACCOUNTS_MAX, TRIE_NODES_MAX,
    },
    rlp::{Kind, NONE, Reader, Writer},
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, b256};
use alloy_rlp::Header;
use tandem_rlpx::{MESSAGE_BYTES_MAX, Offer};

/// Root of an empty trie.
const EMPTY_ROOT_HASH: B256 =
    b256!("56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421");

/// Name of the protocol.
pub const NAME: &str = "snap";

/// Version of the protocol on a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// snap/1, with trie nodes.
    Snap1 = 1,
    /// snap/2 (EIP-8189): access lists of blocks in place of trie nodes.
    Snap2 = 2,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Self; 2] = [Self::Snap1, Self::Snap2];

    /// Returns the version with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.number() == number)
    }

    /// Returns the version's number.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// Returns the version as it is offered to peers.
    pub fn offer(self) -> Offer {
        let messages = if self == Self::Snap1 { 8 } else { 10 };
        Offer { name: NAME, version: self.number(), messages }
    }
}

/// Value of a trie with its path: an account in the slim form, or a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Path in the trie: keccak256 of address or slot.
    pub hash: B256,
    /// RLP of the value.
    pub value: Bytes,
}

/// Message of the protocol. `id` is the number of a request, which its answer repeats; `bytes` is
/// the size that an answer should have at most.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are those of the specification")]
pub enum Message {
    GetAccountRange {
        id: u64,
        root: B256,
        start: B256,
        limit: B256,
        bytes: u64,
    },
    /// Values of accounts are lists.
    AccountRange {
        id: u64,
        accounts: Vec<Leaf>,
        proof: Vec<Bytes>,
    },
    /// `start` and `limit` are empty or a hash.
    GetStorageRanges {
        id: u64,
        root: B256,
        accounts: Vec<B256>,
        start: Bytes,
        limit: Bytes,
        bytes: u64,
    },
    StorageRanges {
        id: u64,
        slots: Vec<Vec<Leaf>>,
        proof: Vec<Bytes>,
    },
    GetByteCodes {
        id: u64,
        hashes: Vec<B256>,
        bytes: u64,
    },
    ByteCodes {
        id: u64,
        codes: Vec<Bytes>,
    },
    /// Each set begins with a path in the accounts' trie; others are paths in that account's
    /// storage.
    GetTrieNodes {
        id: u64,
        root: B256,
        paths: Vec<Vec<Bytes>>,
        bytes: u64,
    },
    TrieNodes {
        id: u64,
        nodes: Vec<Bytes>,
    },
    GetBlockAccessLists {
        id: u64,
        hashes: Vec<B256>,
        bytes: u64,
    },
    /// An access list for each block, `None` where the peer has none.
    BlockAccessLists {
        id: u64,
        lists: Vec<Option<Bytes>>,
    },
}

/// Returns the slim form of an account, as peers exchange it: storage root and code hash are empty
/// where the account has none. `None` if the value is not an account.
pub fn slim_account(full: &[u8]) -> Option<Bytes> {
    account(full, |item, empty| if item == empty { &[] } else { item })
}

/// Returns the full form of an account, the value of its leaf in the trie. `None` if the value is not
/// an account in slim form.
pub fn full_account(slim: &[u8]) -> Option<Bytes> {
    account(slim, |item, empty| if item.is_empty() { empty } else { item })
}

/// Copies an account, with other bytes for storage root and code hash.
fn account<'a>(
    mut value: &'a [u8],
    hash: impl Fn(&'a [u8], &'a [u8]) -> &'a [u8],
) -> Option<Bytes> {
    let mut items = Header::decode_bytes(&mut value, true).ok().filter(|_| value.is_empty())?;
    let mut next = || Header::decode_bytes(&mut items, false).ok();
    let [nonce, balance, root, code_hash] = [next()?, next()?, next()?, next()?];
    let is_number = |bytes: &[u8], max| bytes.len() <= max && bytes.first() != Some(&0);
    let is_hash = |bytes: &[u8]| bytes.is_empty() || bytes.len() == 32;
    let is_account = items.is_empty()
        && is_number(nonce, 8)
        && is_number(balance, 32)
        && is_hash(root)
        && is_hash(code_hash);
    if !is_account {
        return None;
    }
    let (root, code_hash) =
        (hash(root, EMPTY_ROOT_HASH.as_slice()), hash(code_hash, KECCAK256_EMPTY.as_slice()));
    let mut out = Vec::with_capacity(value.len() + 70);
    alloy_rlp::encode_list::<&[u8], [u8]>(&[nonce, balance, root, code_hash], &mut out);
    Some(out.into())
}

/// Returns whether messages with this number answer a request of the receiver.
pub fn is_answer(number: u64) -> bool {
    number % 2 == 1
}

impl Message {
    /// Returns whether the message is an answer.
    pub fn is_answer(&self) -> bool {
        is_answer(self.number())
    }

    /// Returns the number of the message within the protocol.
    pub fn number(&self) -> u64 {
        match self {
            Self::GetAccountRange { .. } => 0x00,
            Self::AccountRange { .. } => 0x01,
            Self::GetStorageRanges { .. } => 0x02,
            Self::StorageRanges { .. } => 0x03,
            Self::GetByteCodes { .. } => 0x04,
            Self::ByteCodes { .. } => 0x05,
            Self::GetTrieNodes { .. } => 0x06,
            Self::TrieNodes { .. } => 0x07,
            Self::GetBlockAccessLists { .. } => 0x08,
            Self::BlockAccessLists { .. } => 0x09,
        }
    }

    /// Returns the message's content.
    pub fn encode(&self) -> Vec<u8> {
        let list = Writer::default();
        let strings =
            |list: Writer, items: &[Bytes]| list.list_of(items, |all, item| all.bytes(item));
        let written = match self {
            Self::GetAccountRange { id, root, start, limit, bytes } => {
                list.value(id).value(root).value(start).value(limit).value(bytes)
            }
            Self::AccountRange { id, accounts, proof } => {
                let account = |all: Writer, leaf: &Leaf| {
                    all.raw(&Writer::default().value(&leaf.hash).raw(&leaf.value).finish())
                };
                strings(list.value(id).list_of(accounts, account), proof)
            }
            Self::GetStorageRanges { id, root, accounts, start, limit, bytes } => {
                let list = list.value(id).value(root).value(accounts);
                list.bytes(start).bytes(limit).value(bytes)
            }
            Self::StorageRanges { id, slots, proof } => {
                let slot = |all: Writer, leaf: &Leaf| {
                    all.raw(&Writer::default().value(&leaf.hash).bytes(&leaf.value).finish())
                };
                let list = list.value(id);
                strings(list.list_of(slots, |all, slots| all.list_of(slots, slot)), proof)
            }
            Self::GetByteCodes { id, hashes, bytes }
            | Self::GetBlockAccessLists { id, hashes, bytes } => {
                list.value(id).value(hashes).value(bytes)
            }
            Self::ByteCodes { id, codes: items } | Self::TrieNodes { id, nodes: items } => {
                strings(list.value(id), items)
            }
            Self::GetTrieNodes { id, root, paths, bytes } => {
                let list = list.value(id).value(root);
                list.list_of(paths, |all, set| strings(all, set)).value(bytes)
            }
            Self::BlockAccessLists { id, lists } => list
                .value(id)
                .list_of(lists, |all, list| all.raw(list.as_deref().map_or(NONE, |it| &it[..]))),
        };
        written.finish()
    }

    /// Reads a message of a session with this version.
    ///
    /// # Errors
    /// The message breaks the protocol.
    pub fn decode(version: Version, number: u64, content: &Bytes) -> Result<Self, Error> {
        let Some(name) = name(version, number) else {
            return Err(Error::Number { protocol: NAME, version: version.number(), number });
        };
        let mut list = Reader::open(name, content)?;
        let id = list.value()?;
        let message = match number {
            0x00 => {
                let (root, start, limit) = (list.value()?, list.value()?, list.value()?);
                Self::GetAccountRange { id, root, start, limit, bytes: list.value()? }
            }
            0x01 => {
                let account = |list: &mut Reader<'_>| leaf(list, |pair| pair.raw(Kind::List));
                let accounts = list.list_of(RANGE_ITEMS_MAX, account)?;
                Self::AccountRange { id, accounts, proof: strings(&mut list, PROOF_NODES_MAX)? }
            }
            0x02 => Self::GetStorageRanges {
                id,
                root: list.value()?,
                accounts: list.first_hashes(STORAGE_ACCOUNTS_MAX)?,
                start: list.bytes(32)?,
                limit: list.bytes(32)?,
                bytes: list.value()?,
            },
            0x03 => {
                let slots = storage(name, &mut list)?;
                Self::StorageRanges { id, slots, proof: strings(&mut list, PROOF_NODES_MAX)? }
            }
            0x04 => {
                let hashes = list.first_hashes(CODES_MAX)?;
                Self::GetByteCodes { id, hashes, bytes: list.value()? }
            }
            0x05 => Self::ByteCodes { id, codes: strings(&mut list, CODES_MAX)? },
            0x06 => {
                let root = list.value()?;
                let paths = paths(&mut list)?;
                Self::GetTrieNodes { id, root, paths, bytes: list.value()? }
            }
            0x07 => Self::TrieNodes { id, nodes: strings(&mut list, TRIE_NODES_MAX)? },
            0x08 => {
                let hashes = list.first_hashes(ACCESS_LISTS_MAX)?;
                Self::GetBlockAccessLists { id, hashes, bytes: list.value()? }
            }
            _ => {
                let read = |list: &mut Reader<'_>| list.raw(Kind::ListOrNone);
                let lists = list.list_of(ACCESS_LISTS_MAX, read)?.into_iter();
                let lists = lists.map(|list| Some(list).filter(|it| **it != *NONE)).collect();
                Self::BlockAccessLists { id, lists }
            }
        };
        list.end()?;
        Ok(message)
    }
}

/// Returns the name of a message, `None` if the version has none with this number.
fn name(version: Version, number: u64) -> Option<&'static str> {
    let name = match number {
        0x00 => "GetAccountRange",
        0x01 => "AccountRange",
        0x02 => "GetStorageRanges",
        0x03 => "StorageRanges",
        0x04 => "GetByteCodes",
        0x05 => "ByteCodes",
        0x06 if version == Version::Snap1 => "GetTrieNodes",
        0x07 if version == Version::Snap1 => "TrieNodes",
        0x08 if version == Version::Snap2 => "GetBlockAccessLists",
        0x09 if version == Version::Snap2 => "BlockAccessLists",
        _ => return None,
    };
    Some(name)
}

fn strings(list: &mut Reader<'_>, max: usize) -> Result<Vec<Bytes>, Error> {
    list.list_of(max, |list| list.bytes(MESSAGE_BYTES_MAX))
}

fn leaf(
    list: &mut Reader<'_>,
    value: impl Fn(&mut Reader<'_>) -> Result<Bytes, Error>,
) -> Result<Leaf, Error> {
    let mut pair = list.list()?;
    let leaf = Leaf { hash: pair.value()?, value: value(&mut pair)? };
    pair.end()?;
    Ok(leaf)
}

/// Reads the slots of several accounts, whose number is limited for all of them together.
fn storage(message: &'static str, list: &mut Reader<'_>) -> Result<Vec<Vec<Leaf>>, Error> {
    let mut room = RANGE_ITEMS_MAX;
    let (mut accounts, mut all) = (list.list()?, Vec::new());
    while !accounts.is_empty() {
        if all.len() == STORAGE_ACCOUNTS_MAX {
            return Err(Error::TooMany { message, max: STORAGE_ACCOUNTS_MAX });
        }
        // A slot is RLP in bytes: 33 of a number of 32, and the header's.
        let slot = |list: &mut Reader<'_>| leaf(list, |pair| pair.bytes(33));
        let slots = accounts.list_of(room, slot)?;
        room -= slots.len();
        all.push(slots);
    }
    Ok(all)
}

/// Reads the first paths of a request, at most [`TRIE_NODES_MAX`] in all sets together. The others
/// are not looked at.
fn paths(list: &mut Reader<'_>) -> Result<Vec<Vec<Bytes>>, Error> {
    let (mut sets, mut all, mut room) = (list.list()?, Vec::new(), TRIE_NODES_MAX);
    while !sets.is_empty() && room > 0 {
        let (mut set, mut paths) = (sets.list()?, Vec::new());
        // An empty set takes room as well, so that empty ones do not come without end.
        room -= 1;
        while !set.is_empty() && (paths.is_empty() || room > 0) {
            room = room.saturating_sub(usize::from(!paths.is_empty()));
            paths.push(set.bytes(PATH_BYTES_MAX)?);
        }
        all.push(paths);
    }
    Ok(all)
}
