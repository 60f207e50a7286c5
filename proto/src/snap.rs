//! Parts of a state, as peers exchange them by the protocol
//! [snap](https://github.com/ethereum/devp2p/blob/master/caps/snap.md): ranges of accounts and slots
//! with proofs, codes and trie nodes.

use crate::storage::{Result, StateDownloads};
use tandem_primitives::{Account, B256, BlockId, Bytes, U256};

/// Wanted part of a state. `bytes` is the size that an answer should have at most. An answer has at
/// least one item, if there is any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateRequest {
    /// Accounts of the state with this root, by hashed address.
    Accounts {
        /// State root.
        root: B256,
        /// First key.
        start: B256,
        /// Key after which no other account is wanted.
        limit: B256,
        /// Size of the answer.
        bytes: u64,
    },
    /// Slots of some accounts of the state with this root, by hashed slot.
    Slots {
        /// State root.
        root: B256,
        /// Hashed addresses.
        accounts: Vec<B256>,
        /// First key of the first account.
        start: B256,
        /// Key after which no other slot of the first account is wanted.
        limit: B256,
        /// Size of the answer.
        bytes: u64,
    },
    /// Codes, of any state.
    Codes {
        /// Hashes of the codes.
        hashes: Vec<B256>,
        /// Size of the answer.
        bytes: u64,
    },
    /// Nodes of the tries of the state with this root.
    Nodes {
        /// State root.
        root: B256,
        /// Wanted nodes.
        paths: Vec<NodePaths>,
        /// Size of the answer.
        bytes: u64,
    },
}

/// Wanted nodes of one trie. Paths have one nibble per byte, at most
/// [`NODE_PATH_NIBBLES_MAX`](crate::limits::NODE_PATH_NIBBLES_MAX). A path of more than 64 leads to no
/// node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePaths {
    /// Hashed address of the account whose storage it is, `None` for the trie of the accounts.
    pub owner: Option<B256>,
    /// Paths from the root.
    pub paths: Vec<Bytes>,
}

impl StateRequest {
    /// Returns the number of wanted items, 1 for a range.
    pub fn items(&self) -> usize {
        match self {
            Self::Accounts { .. } => 1,
            Self::Slots { accounts, .. } => accounts.len(),
            Self::Codes { hashes, .. } => hashes.len(),
            Self::Nodes { paths, .. } => paths.iter().map(|set| set.paths.len()).sum(),
        }
    }

    /// Returns the root of the wanted state, `None` for codes.
    pub fn root(&self) -> Option<B256> {
        match self {
            Self::Accounts { root, .. } | Self::Slots { root, .. } | Self::Nodes { root, .. } => {
                Some(*root)
            }
            Self::Codes { .. } => None,
        }
    }
}

/// Leaf of a trie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Hashed address or slot.
    pub key: B256,
    /// Value: of an account the list `[nonce, balance, storage root, code hash]`, of a slot the
    /// integer.
    pub value: Bytes,
}

/// Part of a state, of the kind of the request. Nothing of it is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateItems {
    /// Accounts in the order of their keys, and the nodes towards the first wanted and the last given
    /// key. Neither if the state is not there.
    Accounts {
        /// Accounts.
        leaves: Vec<Leaf>,
        /// Nodes.
        proof: Vec<Bytes>,
    },
    /// Slots of each account in the order of their keys. The nodes prove the last of these ranges,
    /// if it is not all of the account's storage.
    Slots {
        /// Slots of each account that has any.
        tries: Vec<Vec<Leaf>>,
        /// Nodes.
        proof: Vec<Bytes>,
    },
    /// Codes in the order of the request, without those that are not there.
    Codes(Vec<Bytes>),
    /// Nodes in the order of the request, empty where there is none. Those of accounts without storage
    /// are left out.
    Nodes(Vec<Bytes>),
}

impl StateItems {
    /// Returns the answer without any item.
    pub fn none(request: &StateRequest) -> Self {
        match request {
            StateRequest::Accounts { .. } => {
                Self::Accounts { leaves: Vec::new(), proof: Vec::new() }
            }
            StateRequest::Slots { .. } => Self::Slots { tries: Vec::new(), proof: Vec::new() },
            StateRequest::Codes { .. } => Self::Codes(Vec::new()),
            StateRequest::Nodes { .. } => Self::Nodes(Vec::new()),
        }
    }
}

/// Downloaded account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DownloadedAccount {
    /// Hashed address.
    pub key: B256,
    /// The account.
    pub account: Account,
    /// Whether it has slots, which come by themselves.
    pub has_storage: bool,
}

/// Part of a state that replaces what is there. Keys rise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatePart {
    /// All accounts between two keys, both included.
    Accounts {
        /// First key.
        first: B256,
        /// Last key.
        last: B256,
        /// Accounts. Slots of others, and of those without storage, are deleted.
        accounts: Vec<DownloadedAccount>,
    },
    /// All slots of an account between two keys, both included.
    Slots {
        /// Hashed address.
        owner: B256,
        /// First key.
        first: B256,
        /// Last key.
        last: B256,
        /// Hashed slots and their values, none of them zero.
        slots: Vec<(B256, U256)>,
    },
    /// Codes by hash.
    Codes(Vec<(B256, Bytes)>),
}

impl StatePart {
    /// Returns about how many bytes of memory the part takes, and of a message.
    pub fn byte_len(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Accounts { accounts, .. } => size_of_val(&accounts[..]),
                Self::Slots { slots, .. } => size_of_val(&slots[..]),
                Self::Codes(codes) => codes.iter().map(|(_, code)| 32 + code.len()).sum(),
            }
    }
}

/// Block that was not executed. Its header is in the wanted chain, and its body and receipts have the
/// roots of the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DownloadedBlock {
    /// Number and hash.
    pub id: BlockId,
    /// RLP of the header.
    pub header: Bytes,
    /// RLP of the body.
    pub body: Bytes,
    /// Receipts as the database stores them.
    pub receipts: Bytes,
}

/// Call of [`StateDownloads`], for a storage-writer in another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DownloadStep {
    /// [`StateDownloads::download_progress`].
    Progress,
    /// [`StateDownloads::begin_download`].
    Begin,
    /// [`StateDownloads::put_state`]: the parts, and the progress.
    PutState(Vec<StatePart>, Bytes),
    /// [`StateDownloads::put_listed`]: the access list, and the progress.
    PutListed(Bytes, Bytes),
    /// [`StateDownloads::put_blocks`].
    PutBlocks(Vec<DownloadedBlock>),
    /// [`StateDownloads::lacking_codes`].
    LackingCodes(Vec<B256>),
    /// [`StateDownloads::build_tries`].
    BuildTries,
    /// [`StateDownloads::built_node`]: owner and path.
    BuiltNode(Option<B256>, Bytes),
    /// [`StateDownloads::built_roots`].
    BuiltRoots(Vec<B256>),
    /// [`StateDownloads::finish_download`].
    Finish(BlockId),
}

/// Answer to a [`DownloadStep`]. What the step does not ask for is empty.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DownloadAnswer {
    /// Progress of a download that is under way.
    pub progress: Option<Bytes>,
    /// Lacking codes, storage roots, or the state root alone.
    pub hashes: Vec<B256>,
    /// Node of a trie.
    pub node: Option<Bytes>,
}

impl DownloadStep {
    /// Makes the call.
    ///
    /// # Errors
    /// As for the call itself.
    pub fn make(self, downloads: &dyn StateDownloads) -> Result<DownloadAnswer> {
        let mut answer = DownloadAnswer::default();
        match self {
            Self::Progress => answer.progress = downloads.download_progress()?,
            Self::Begin => downloads.begin_download()?,
            Self::PutState(parts, progress) => downloads.put_state(&parts, &progress)?,
            Self::PutListed(list, progress) => downloads.put_listed(&list, &progress)?,
            Self::PutBlocks(blocks) => downloads.put_blocks(&blocks)?,
            Self::LackingCodes(hashes) => answer.hashes = downloads.lacking_codes(&hashes)?,
            Self::BuildTries => answer.hashes = vec![downloads.build_tries()?],
            Self::BuiltNode(owner, path) => answer.node = downloads.built_node(owner, &path)?,
            Self::BuiltRoots(owners) => answer.hashes = downloads.built_roots(&owners)?,
            Self::Finish(block) => downloads.finish_download(block)?,
        }
        Ok(answer)
    }
}
