//! The protocol "eth", versions 69 to 72.

use crate::{
    Error,
    limits::{
        ACCESS_LISTS_MAX, ANNOUNCEMENTS_MAX, BODIES_MAX, CELLS_MAX, HEADERS_MAX,
        POOLED_TRANSACTIONS_MAX, RECEIPTS_MAX, TRANSACTIONS_MAX,
    },
    rlp::{Kind, NONE, Reader, Writer},
};
use alloy_primitives::{B128, B256, Bytes};
use tandem_discv4::ForkId;
use tandem_rlpx::Offer;

/// Name of the protocol.
pub const NAME: &str = "eth";

/// Version of the protocol on a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// eth/69 (EIP-7642): receipts without bloom filters, block ranges.
    Eth69 = 69,
    /// eth/70 (EIP-7975): parts of a block's receipts.
    Eth70 = 70,
    /// eth/71 (EIP-8159): access lists of blocks.
    Eth71 = 71,
    /// eth/72 (EIP-8070): blobs travel as cells, apart from their transactions.
    Eth72 = 72,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Self; 4] = [Self::Eth69, Self::Eth70, Self::Eth71, Self::Eth72];

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
        let messages = match self {
            Self::Eth69 | Self::Eth70 => 18,
            Self::Eth71 => 20,
            Self::Eth72 => 22,
        };
        Offer { name: NAME, version: self.number(), messages }
    }
}

/// State of a peer's chain, the first message of the protocol on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Version of the protocol.
    pub version: u64,
    /// Id of the network.
    pub network: u64,
    /// Hash of the genesis block.
    pub genesis: B256,
    /// Forks that the chain has passed (EIP-2124).
    pub fork_id: ForkId,
    /// Blocks that the peer has.
    pub range: BlockRange,
}

/// Blocks whose bodies and receipts a peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// Number of the oldest block.
    pub earliest: u64,
    /// Number of the newest block.
    pub latest: u64,
    /// Hash of the newest block.
    pub latest_hash: B256,
}

/// Block where a request of headers begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockStart {
    /// Block with this hash.
    Hash(B256),
    /// Block of the canonical chain with this number.
    Number(u64),
}

/// Headers that a peer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadersRequest {
    /// First block.
    pub start: BlockStart,
    /// Number of headers, at most.
    pub limit: u64,
    /// Number of blocks left out after each.
    pub skip: u64,
    /// Whether numbers fall.
    pub reverse: bool,
}

/// Transaction that a peer has, and offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Type of the transaction (EIP-2718).
    pub kind: u8,
    /// Bytes of its network form: with its blobs before eth/72, without them from then on.
    pub bytes: u64,
    /// Its hash.
    pub hash: B256,
}

/// Cells of one transaction, as [`Message::Cells`] has them: the cell with the first index of each
/// blob, then that with the second one of each, and so on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionCells {
    /// Hash of the transaction.
    pub hash: B256,
    /// Cells, of [`CELL_BYTES`] each.
    pub cells: Vec<Bytes>,
}

/// Bytes of a cell (EIP-7594).
pub const CELL_BYTES: usize = 2048;

/// Message of the protocol. `id` is the number of a request, which its answer repeats.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are those of the specification")]
pub enum Message {
    Status(Status),
    BlockRangeUpdate(BlockRange),
    /// Transactions sent without a request, in the form of the network.
    Transactions(Vec<Bytes>),
    GetBlockHeaders {
        id: u64,
        request: HeadersRequest,
    },
    BlockHeaders {
        id: u64,
        headers: Vec<Bytes>,
    },
    GetBlockBodies {
        id: u64,
        hashes: Vec<B256>,
    },
    BlockBodies {
        id: u64,
        bodies: Vec<Bytes>,
    },
    /// `cells` has a bit for each cell of their blobs that the sender has: bit `i % 8` of byte `i / 8`
    /// stands for cell `i`. All zero before eth/72.
    Announcements {
        transactions: Vec<Announcement>,
        cells: B128,
    },
    GetPooledTransactions {
        id: u64,
        hashes: Vec<B256>,
    },
    PooledTransactions {
        id: u64,
        transactions: Vec<Bytes>,
    },
    /// `first` is the index of the first wanted receipt of the first block, 0 before eth/70.
    GetReceipts {
        id: u64,
        first: u64,
        hashes: Vec<B256>,
    },
    /// A list of receipts for each block. `incomplete` says whether the last list is cut, never
    /// before eth/70.
    Receipts {
        id: u64,
        incomplete: bool,
        blocks: Vec<Bytes>,
    },
    GetBlockAccessLists {
        id: u64,
        hashes: Vec<B256>,
    },
    /// An access list for each block, `None` where the peer has none.
    BlockAccessLists {
        id: u64,
        lists: Vec<Option<Bytes>>,
    },
    /// `cells` has a bit for each wanted cell, of every blob of these transactions.
    GetCells {
        id: u64,
        hashes: Vec<B256>,
        cells: B128,
    },
    /// `cells` repeats the request. Transactions that the peer lacks are left out.
    Cells {
        id: u64,
        transactions: Vec<TransactionCells>,
        cells: B128,
    },
}

mod number {
    pub(super) const STATUS: u64 = 0x00;
    pub(super) const TRANSACTIONS: u64 = 0x02;
    pub(super) const GET_BLOCK_HEADERS: u64 = 0x03;
    pub(super) const BLOCK_HEADERS: u64 = 0x04;
    pub(super) const GET_BLOCK_BODIES: u64 = 0x05;
    pub(super) const BLOCK_BODIES: u64 = 0x06;
    pub(super) const ANNOUNCEMENTS: u64 = 0x08;
    pub(super) const GET_POOLED_TRANSACTIONS: u64 = 0x09;
    pub(super) const POOLED_TRANSACTIONS: u64 = 0x0a;
    pub(super) const GET_RECEIPTS: u64 = 0x0f;
    pub(super) const RECEIPTS: u64 = 0x10;
    pub(super) const BLOCK_RANGE_UPDATE: u64 = 0x11;
    pub(super) const GET_BLOCK_ACCESS_LISTS: u64 = 0x12;
    pub(super) const BLOCK_ACCESS_LISTS: u64 = 0x13;
    pub(super) const GET_CELLS: u64 = 0x14;
    pub(super) const CELLS: u64 = 0x15;
}

/// Number of the first message, [`Message::Status`].
pub const STATUS: u64 = number::STATUS;

/// Returns whether messages with this number answer a request of the receiver.
pub fn is_answer(number: u64) -> bool {
    use number::{
        BLOCK_ACCESS_LISTS, BLOCK_BODIES, BLOCK_HEADERS, CELLS, POOLED_TRANSACTIONS, RECEIPTS,
    };
    matches!(
        number,
        BLOCK_HEADERS | BLOCK_BODIES | POOLED_TRANSACTIONS | RECEIPTS | BLOCK_ACCESS_LISTS | CELLS
    )
}

impl Message {
    /// Returns the number of the message within the protocol.
    pub fn number(&self) -> u64 {
        match self {
            Self::Status(_) => number::STATUS,
            Self::BlockRangeUpdate(_) => number::BLOCK_RANGE_UPDATE,
            Self::Transactions(_) => number::TRANSACTIONS,
            Self::GetBlockHeaders { .. } => number::GET_BLOCK_HEADERS,
            Self::BlockHeaders { .. } => number::BLOCK_HEADERS,
            Self::GetBlockBodies { .. } => number::GET_BLOCK_BODIES,
            Self::BlockBodies { .. } => number::BLOCK_BODIES,
            Self::Announcements { .. } => number::ANNOUNCEMENTS,
            Self::GetPooledTransactions { .. } => number::GET_POOLED_TRANSACTIONS,
            Self::PooledTransactions { .. } => number::POOLED_TRANSACTIONS,
            Self::GetReceipts { .. } => number::GET_RECEIPTS,
            Self::Receipts { .. } => number::RECEIPTS,
            Self::GetBlockAccessLists { .. } => number::GET_BLOCK_ACCESS_LISTS,
            Self::BlockAccessLists { .. } => number::BLOCK_ACCESS_LISTS,
            Self::GetCells { .. } => number::GET_CELLS,
            Self::Cells { .. } => number::CELLS,
        }
    }

    /// Returns the message's content on a session with this version.
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let list = Writer::default();
        let hashes = |list: Writer, hashes: &Vec<B256>| list.value(hashes);
        let written = match self {
            Self::Status(status) => {
                let list = list.value(&status.version).value(&status.network);
                status.range.write(list.value(&status.genesis).value(&status.fork_id))
            }
            Self::BlockRangeUpdate(range) => range.write(list),
            Self::Transactions(transactions) => {
                transactions.iter().fold(list, |list, transaction| list.raw(transaction))
            }
            Self::GetBlockHeaders { id, request } => {
                let start = match &request.start {
                    BlockStart::Hash(hash) => Writer::default().value(hash),
                    BlockStart::Number(number) => Writer::default().value(number),
                };
                let inner = start.value(&request.limit).value(&request.skip);
                list.value(id).raw(&inner.value(&request.reverse).finish())
            }
            Self::BlockHeaders { id, headers: items }
            | Self::BlockBodies { id, bodies: items }
            | Self::PooledTransactions { id, transactions: items } => list.value(id).raws(items),
            Self::GetBlockBodies { id, hashes: asked }
            | Self::GetPooledTransactions { id, hashes: asked }
            | Self::GetBlockAccessLists { id, hashes: asked } => hashes(list.value(id), asked),
            Self::Announcements { transactions, cells } => {
                let kinds: Vec<_> = transactions.iter().map(|it| it.kind).collect();
                let list = list
                    .bytes(&kinds)
                    .list_of(transactions, |sizes, it| sizes.value(&it.bytes))
                    .list_of(transactions, |hashes, it| hashes.value(&it.hash));
                if version >= Version::Eth72 { list.value(cells) } else { list }
            }
            Self::GetReceipts { id, first, hashes: asked } => {
                let list = list.value(id);
                let parts = version >= Version::Eth70;
                hashes(if parts { list.value(first) } else { list }, asked)
            }
            Self::Receipts { id, incomplete, blocks } => {
                let list = list.value(id);
                let parts = version >= Version::Eth70;
                if parts { list.value(incomplete) } else { list }.raws(blocks)
            }
            Self::BlockAccessLists { id, lists } => list
                .value(id)
                .list_of(lists, |all, list| all.raw(list.as_deref().map_or(NONE, |it| &it[..]))),
            Self::GetCells { id, hashes: asked, cells } => {
                hashes(list.value(id), asked).value(cells)
            }
            Self::Cells { id, transactions, cells } => list
                .value(id)
                .list_of(transactions, |hashes, it| hashes.value(&it.hash))
                .list_of(transactions, |all, it| all.list_of(&it.cells, |of, cell| of.bytes(cell)))
                .value(cells),
        };
        written.finish()
    }

    /// Reads a message of a session with this version.
    ///
    /// # Errors
    /// The message breaks the protocol.
    pub fn decode(version: Version, number: u64, content: &Bytes) -> Result<Self, Error> {
        let parts = version >= Version::Eth70;
        let open = |name| Reader::open(name, content);
        let hashes = |name, max| {
            let mut list = open(name)?;
            let (id, hashes) = (list.value()?, list.first_hashes(max)?);
            list.end()?;
            Ok((id, hashes))
        };
        let items = |name, max, kind| {
            let mut list = open(name)?;
            let (id, items) = (list.value()?, list.list_of(max, |list| list.raw(kind))?);
            list.end()?;
            Ok((id, items))
        };
        match number {
            number::STATUS => decode_status(open("Status")?),
            number::BLOCK_RANGE_UPDATE => {
                let list = open("BlockRangeUpdate")?;
                BlockRange::read("BlockRangeUpdate", list).map(Self::BlockRangeUpdate)
            }
            number::TRANSACTIONS => {
                let mut whole = Reader::whole("Transactions", content);
                let transactions = whole.list_of(TRANSACTIONS_MAX, |list| list.raw(Kind::Any))?;
                whole.end()?;
                Ok(Self::Transactions(transactions))
            }
            number::GET_BLOCK_HEADERS => decode_get_block_headers(open("GetBlockHeaders")?),
            number::BLOCK_HEADERS => {
                let (id, headers) = items("BlockHeaders", HEADERS_MAX, Kind::List)?;
                Ok(Self::BlockHeaders { id, headers })
            }
            number::GET_BLOCK_BODIES => {
                let (id, hashes) = hashes("GetBlockBodies", BODIES_MAX)?;
                Ok(Self::GetBlockBodies { id, hashes })
            }
            number::BLOCK_BODIES => {
                let (id, bodies) = items("BlockBodies", BODIES_MAX, Kind::List)?;
                Ok(Self::BlockBodies { id, bodies })
            }
            number::ANNOUNCEMENTS => decode_announcements(version, open(ANNOUNCEMENTS_NAME)?),
            number::GET_POOLED_TRANSACTIONS => {
                let (id, hashes) = hashes("GetPooledTransactions", POOLED_TRANSACTIONS_MAX)?;
                Ok(Self::GetPooledTransactions { id, hashes })
            }
            number::POOLED_TRANSACTIONS => {
                let (id, transactions) =
                    items("PooledTransactions", POOLED_TRANSACTIONS_MAX, Kind::Any)?;
                Ok(Self::PooledTransactions { id, transactions })
            }
            number::GET_RECEIPTS => {
                let mut list = open("GetReceipts")?;
                let id = list.value()?;
                let first = if parts { list.value()? } else { 0 };
                let hashes = list.first_hashes(RECEIPTS_MAX)?;
                list.end()?;
                Ok(Self::GetReceipts { id, first, hashes })
            }
            number::RECEIPTS => {
                let mut list = open("Receipts")?;
                let id = list.value()?;
                let incomplete = if parts { list.value()? } else { false };
                let blocks = list.list_of(RECEIPTS_MAX, |list| list.raw(Kind::List))?;
                list.end()?;
                Ok(Self::Receipts { id, incomplete, blocks })
            }
            number::GET_BLOCK_ACCESS_LISTS if version >= Version::Eth71 => {
                let (id, hashes) = hashes("GetBlockAccessLists", ACCESS_LISTS_MAX)?;
                Ok(Self::GetBlockAccessLists { id, hashes })
            }
            number::BLOCK_ACCESS_LISTS if version >= Version::Eth71 => {
                let (id, lists) = items("BlockAccessLists", ACCESS_LISTS_MAX, Kind::ListOrNone)?;
                let lists = lists.into_iter().map(|list| Some(list).filter(|it| **it != *NONE));
                Ok(Self::BlockAccessLists { id, lists: lists.collect() })
            }
            number::GET_CELLS if version >= Version::Eth72 => {
                let mut list = open("GetCells")?;
                let (id, hashes) = (list.value()?, list.first_hashes(POOLED_TRANSACTIONS_MAX)?);
                let cells = list.value()?;
                list.end()?;
                Ok(Self::GetCells { id, hashes, cells })
            }
            number::CELLS if version >= Version::Eth72 => decode_cells(open(CELLS_NAME)?),
            _ => Err(Error::Number { protocol: NAME, version: version.number(), number }),
        }
    }
}

const ANNOUNCEMENTS_NAME: &str = "NewPooledTransactionHashes";
const CELLS_NAME: &str = "Cells";

impl BlockRange {
    fn write(&self, list: Writer) -> Writer {
        list.value(&self.earliest).value(&self.latest).value(&self.latest_hash)
    }

    fn read(message: &'static str, mut list: Reader<'_>) -> Result<Self, Error> {
        let (earliest, latest) = (list.value()?, list.value()?);
        let latest_hash = list.value()?;
        list.end()?;
        if earliest > latest {
            return Err(Error::Range { message, earliest, latest });
        }
        Ok(Self { earliest, latest, latest_hash })
    }
}

fn decode_status(mut list: Reader<'_>) -> Result<Message, Error> {
    let (version, network) = (list.value()?, list.value()?);
    let (genesis, fork_id) = (list.value()?, list.value()?);
    let range = BlockRange::read("Status", list)?;
    Ok(Message::Status(Status { version, network, genesis, fork_id, range }))
}

fn decode_get_block_headers(mut list: Reader<'_>) -> Result<Message, Error> {
    let (id, mut inner) = (list.value()?, list.list()?);
    list.end()?;
    // A hash has 32 bytes, a number at most 8.
    let start = if inner.peek()?.payload_length == 32 {
        BlockStart::Hash(inner.value()?)
    } else {
        BlockStart::Number(inner.value()?)
    };
    let (limit, skip, reverse) = (inner.value()?, inner.value()?, inner.value()?);
    inner.end()?;
    let request = HeadersRequest { start, limit, skip, reverse };
    Ok(Message::GetBlockHeaders { id, request })
}

fn decode_announcements(version: Version, mut list: Reader<'_>) -> Result<Message, Error> {
    let message = ANNOUNCEMENTS_NAME;
    let kinds = list.bytes(crate::MESSAGE_BYTES_MAX)?;
    if kinds.len() > ANNOUNCEMENTS_MAX {
        return Err(Error::TooMany { message, max: ANNOUNCEMENTS_MAX });
    }
    let sizes: Vec<u64> = list.list_of(ANNOUNCEMENTS_MAX, Reader::value)?;
    let hashes: Vec<B256> = list.list_of(ANNOUNCEMENTS_MAX, Reader::value)?;
    let cells = if version >= Version::Eth72 { list.value()? } else { B128::ZERO };
    list.end()?;
    if sizes.len() != kinds.len() || hashes.len() != kinds.len() {
        return Err(Error::Lengths { message });
    }
    let all = kinds.iter().zip(sizes).zip(hashes);
    let announcement = |((&kind, bytes), hash)| Announcement { kind, bytes, hash };
    Ok(Message::Announcements { transactions: all.map(announcement).collect(), cells })
}

fn decode_cells(mut list: Reader<'_>) -> Result<Message, Error> {
    let message = CELLS_NAME;
    let id = list.value()?;
    let hashes: Vec<B256> = list.list_of(POOLED_TRANSACTIONS_MAX, Reader::value)?;
    let all = list.list_of(POOLED_TRANSACTIONS_MAX, |list| {
        list.list_of(CELLS_MAX, |list| list.bytes(CELL_BYTES))
    })?;
    let cells = list.value()?;
    list.end()?;
    if all.len() != hashes.len() || all.iter().flatten().any(|cell| cell.len() != CELL_BYTES) {
        return Err(Error::Lengths { message });
    }
    let all = hashes.into_iter().zip(all);
    let transactions = all.map(|(hash, cells)| TransactionCells { hash, cells });
    Ok(Message::Cells { id, transactions: transactions.collect(), cells })
}
