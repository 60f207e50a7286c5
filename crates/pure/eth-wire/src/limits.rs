//! Limits of messages, with their sources. "geth" is go-ethereum 1.17, `eth/protocols`.

/// Bytes of a message: geth's `maxMessageSize`, of eth and of snap.
pub const MESSAGE_BYTES_MAX: usize = tandem_rlpx::MESSAGE_BYTES_MAX;

/// Bytes that an answer should have at most: the specifications' recommendation, 2 MiB.
pub const ANSWER_BYTES_SOFT: usize = 2 << 20;

/// Headers of a request that are answered: geth's `maxHeadersServe`.
pub const HEADERS_MAX: usize = 1024;
/// Bodies of a request that are answered: geth's `maxBodiesServe`.
pub const BODIES_MAX: usize = 1024;
/// Blocks whose receipts are answered: geth's `maxReceiptsServe`.
pub const RECEIPTS_MAX: usize = 1024;
/// Access lists of a request that are answered: geth's `maxBALsServe` and `maxAccessListLookups`.
pub const ACCESS_LISTS_MAX: usize = 1024;

/// Transactions sent without a request: geth's `maxTransactionAnnouncements`.
pub const TRANSACTIONS_MAX: usize = 5000;
/// Announced transactions: twice the specification's recommendation.
pub const ANNOUNCEMENTS_MAX: usize = 2 * 4096;
/// Transactions of a request that are answered: the specification's recommendation.
pub const POOLED_TRANSACTIONS_MAX: usize = 256;
/// Cells of one transaction: all 128 of more blobs than fit into a message.
pub const CELLS_MAX: usize = MESSAGE_BYTES_MAX / super::eth::CELL_BYTES;

/// Accounts, or slots of all accounts, of an answer. Each takes at least 38 bytes, so 2 MiB have no
/// more.
pub const RANGE_ITEMS_MAX: usize = 1 << 16;
/// Accounts whose slots are asked for: twice geth's `maxStorageSetRequestCount`.
pub const STORAGE_ACCOUNTS_MAX: usize = 1024;
/// Trie nodes that prove a range: two paths of a root and 64 nibbles.
pub const PROOF_NODES_MAX: usize = 2 * 65;
/// Codes of a request that are answered: geth's `maxCodeLookups`.
pub const CODES_MAX: usize = 1024;
/// Trie nodes of a request that are answered: geth's `maxTrieNodeLookups`.
pub const TRIE_NODES_MAX: usize = 1024;
/// Bytes of a path in a trie. A flag and 64 nibbles take 33 (yellow paper, appendix C); a longer path
/// leads to no node, but clients answer it.
pub const PATH_BYTES_MAX: usize = 128;
