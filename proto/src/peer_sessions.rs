//! Contract of peer-sessions, which holds the sessions with other execution clients.
//!
//! Callers fetch headers, bodies, receipts, access lists and parts of states from a peer of their
//! choice. Items of an answer are RLP. The caller compares them with the hashes that it trusts, and reports a peer
//! whose items do not match.

use crate::{
    blob_validator::CellSet,
    limits::FETCH_ITEMS_MAX,
    snap::{StateItems, StateRequest},
    storage::BlockRef,
};
use std::{net::SocketAddr, pin::Pin, sync::Arc};
use tandem_primitives::{B256, B512, BlockNumber, Bytes};

/// Identity of a peer: its uncompressed public key without the leading 0x04.
pub type PeerId = B512;

/// Side that opened a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The peer dialled this node.
    Inbound,
    /// This node dialled the peer.
    Outbound,
}

/// Blocks whose bodies and receipts a peer has, as it last said. Nothing proves them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// Number of the oldest block.
    pub earliest: BlockNumber,
    /// Number of the newest block.
    pub latest: BlockNumber,
    /// Hash of the newest block.
    pub latest_hash: B256,
}

/// Established session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Identity of the peer.
    pub id: PeerId,
    /// Name and version of its client: printable ASCII, at most
    /// [`crate::limits::CLIENT_NAME_BYTES_MAX`] bytes.
    pub client: String,
    /// Address of the connection.
    pub address: SocketAddr,
    /// Side that opened the session.
    pub direction: Direction,
    /// Version of the protocol eth: 69, 70, …
    pub eth_version: u32,
    /// Version of the protocol snap: 1, 2; `None` for a peer that serves no states.
    pub snap_version: Option<u32>,
    /// Blocks that the peer has.
    pub range: BlockRange,
}

/// Request to a peer. Each has at most [`FETCH_ITEMS_MAX`] items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// Headers of the canonical chain.
    Headers {
        /// First block.
        start: BlockRef,
        /// Number of headers, at most.
        limit: u32,
        /// Number of blocks left out after each.
        skip: u64,
        /// Whether numbers fall.
        reverse: bool,
    },
    /// Bodies of these blocks.
    Bodies(Vec<B256>),
    /// Receipts of these blocks.
    Receipts {
        /// Index of the first wanted receipt of the first block, 0 before eth/70.
        first: u64,
        /// Blocks.
        hashes: Vec<B256>,
    },
    /// Access lists of these blocks (not before eth/71).
    AccessLists(Vec<B256>),
    /// Part of a state (only from peers with snap; trie nodes not after snap/1).
    State(StateRequest),
}

impl Fetch {
    /// Returns the number of wanted items.
    pub fn items(&self) -> usize {
        match self {
            Self::Headers { limit, .. } => *limit as usize,
            Self::Bodies(hashes) | Self::AccessLists(hashes) | Self::Receipts { hashes, .. } => {
                hashes.len()
            }
            Self::State(request) => request.items(),
        }
    }

    /// Checks that there are one to [`FETCH_ITEMS_MAX`] items.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn check_items(&self) -> Result<()> {
        let items = self.items();
        if (1..=FETCH_ITEMS_MAX).contains(&items) {
            return Ok(());
        }
        Err(Error::Refused(format!("{items} items; expected 1 to {FETCH_ITEMS_MAX}")))
    }
}

/// Answer of a peer, of the kind of the request. Its items are RLP and otherwise not checked.
///
/// There may be fewer items than were wanted. A peer leaves out bodies that it lacks, so an item
/// need not be at the place of its hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fetched {
    /// Headers.
    Headers(Vec<Bytes>),
    /// Bodies: transactions, ommers, withdrawals.
    Bodies(Vec<Bytes>),
    /// Lists of receipts.
    Receipts {
        /// Whether the last list is cut.
        incomplete: bool,
        /// List of each block: `[type, status, cumulative gas, logs]` for each receipt.
        blocks: Vec<Bytes>,
    },
    /// Access lists, in the order of the request, `None` where the peer has none.
    AccessLists(Vec<Option<Bytes>>),
    /// Part of a state.
    State(StateItems),
}

/// Misconduct of a peer that only the caller can see.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Misconduct {
    /// The peer sent data that its hash disproves.
    Invalid,
    /// The peer has nothing of use, although it said that it has.
    Useless,
    /// The peer answers too slowly.
    Slow,
}

impl Misconduct {
    /// Returns the name, as logs and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Useless => "useless",
            Self::Slow => "slow",
        }
    }
}

/// Reason why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// There is no session with this peer, or it ended before the answer.
    #[error("the session with the peer has ended")]
    Gone,
    /// Too many requests to this peer are waiting. The caller may retry later.
    #[error("too many requests to the peer are waiting")]
    Busy,
    /// The peer did not answer in time, and lost its session.
    #[error("the peer did not answer in time")]
    Timeout,
    /// The request is not possible on this session.
    #[error("the request is not possible: {0}")]
    Refused(String),
    /// The service is stopping or unreachable.
    #[error("peer-sessions is not available: {0}")]
    Unavailable(String),
}

/// Answer to every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Future answer to a call.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Calls of peer-sessions. They belong in async code.
pub trait PeerSessionsApi: Send + Sync + 'static {
    /// Returns the established sessions, one for each peer, at most
    /// [`crate::limits::SESSIONS_MAX`].
    fn sessions(&self) -> Pending<Vec<Session>>;

    /// Asks a peer. The answer arrives within the deadline of the service.
    fn fetch(&self, peer: PeerId, fetch: Fetch) -> Pending<Fetched>;

    /// Reports a peer's misconduct. Its session ends, and the peer gets no other for a while.
    /// Reporting a peer without a session is no error.
    fn report(&self, peer: PeerId, misconduct: Misconduct) -> Pending<()>;
}

/// Transaction that a peer has, and offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Type of the transaction (EIP-2718).
    pub kind: u8,
    /// Bytes of its network form.
    pub bytes: u64,
    /// Its hash.
    pub hash: B256,
    /// Its blobs, if it has any.
    pub blobs: AnnouncedBlobs,
}

/// Blobs of an announced transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnnouncedBlobs {
    /// They are part of the network form, and take so many bytes of it. In the words of a peer, 0 stands
    /// for an unknown number.
    Inside(u64),
    /// They are not counted: the peer has these cells of each (eth/72, EIP-8070).
    Apart(CellSet),
}

/// News about transactions for a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Gossip {
    /// Transactions in full, none with blobs: EIP-2718 bytes.
    Transactions(Vec<Bytes>),
    /// Transactions that this node has, at most 4096. All cells of their blobs are here.
    Announcements(Vec<Announcement>),
}

/// Question to a peer, or of a peer to the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Transactions, 1 to [`crate::limits::WANTED_TRANSACTIONS_MAX`].
    pub hashes: Vec<B256>,
    /// Part of them.
    pub part: Part,
}

/// Wanted part of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Transactions in their network form. Peers before eth/72 know no other.
    WithBlobs,
    /// Transactions in their network form with an empty list of blobs.
    WithoutBlobs,
    /// These cells of their blobs.
    Cells(CellSet),
}

/// Answer to [`Wanted`], without the transactions that are not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Transactions.
    Transactions(Vec<Bytes>),
    /// Cells.
    Cells(Vec<TransactionCells>),
}

impl Found {
    /// Returns the transactions, none if it holds cells.
    pub fn into_transactions(self) -> Vec<Bytes> {
        match self {
            Self::Transactions(transactions) => transactions,
            Self::Cells(_) => Vec::new(),
        }
    }

    /// Returns the cells, none if it holds transactions.
    pub fn into_cells(self) -> Vec<TransactionCells> {
        match self {
            Self::Cells(cells) => cells,
            Self::Transactions(_) => Vec::new(),
        }
    }
}

/// Cells of the blobs of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionCells {
    /// Hash of the transaction.
    pub hash: B256,
    /// Cells, of [`crate::blob_validator::CELL_BYTES`] each: the cell with the first index of each blob,
    /// then that with the second one of each, and so on.
    pub cells: Vec<Bytes>,
}

/// A session's end for transactions. Calls never block.
pub trait TransactionPeer: Send + Sync + 'static {
    /// Returns the identity of the peer.
    fn id(&self) -> PeerId;

    /// Sends news, or drops them if the peer does not keep up.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Gone`].
    fn send(&self, gossip: Gossip) -> Result<()>;

    /// Asks for transactions, or for cells, which only a peer with eth/72 has. Whether the peer leaves out
    /// blobs depends on the session. Nothing in the answer is checked, except that it is transactions or
    /// cells like the question.
    fn request(&self, wanted: Wanted) -> Pending<Found>;

    /// Reports misconduct: the session ends, and the peer gets no other for a while.
    fn report(&self, misconduct: Misconduct);
}

/// Service that exchanges transactions with peers, as the service of the sessions calls it. Only
/// [`Self::pooled`] may block.
pub trait TransactionExchange: Send + Sync + 'static {
    /// Tells that a session was established.
    fn joined(&self, peer: Arc<dyn TransactionPeer>);

    /// Tells that a peer's session has ended.
    fn left(&self, peer: &PeerId);

    /// Hands over what a peer says that it has.
    fn announced(&self, peer: &PeerId, announcements: Vec<Announcement>);

    /// Hands over transactions that a peer sent without a request.
    fn received(&self, peer: &PeerId, transactions: Vec<Bytes>);

    /// Returns transactions for a peer, with their blobs, or cells of these, without those that are not
    /// here. Ends after about `bytes_max` bytes.
    fn pooled(&self, wanted: &Wanted, bytes_max: usize) -> Found;
}
