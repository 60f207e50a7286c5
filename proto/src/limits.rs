//! Limits on the size of messages. The sender splits larger values; the receiver refuses them.
//!
//! In one process, where owned values pass without messages, none of these limits apply.

/// Maximum size in bytes of a message from or to storage-writer. A block has at most 10 MiB
/// (EIP-7934), and its gas bounds its receipts, its diff and its access list.
pub const STORAGE_MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of state diffs in one call: more than the blocks of a branch above the base.
pub const STATE_DIFFS_MAX: usize = 4096;

/// Maximum size in bytes of a message from or to multiproof-workers.
pub const PROOF_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Size in bytes at which a state update continues in another message. The update of one
/// transaction is far below this size. The diff of a whole block, sent when its root is computed
/// again, may be far above it. Handling a message must not hold up others on the same connection.
pub const UPDATE_PART_BYTES: usize = 256 << 10;

/// Maximum size in bytes of a W3C `traceparent`; version 00 has 55.
pub const TRACEPARENT_BYTES_MAX: usize = 256;

/// Maximum number of accounts in one read of the state. One call reads one snapshot. A caller that
/// splits a longer list must compare the base of the answers.
pub const READ_ACCOUNTS_MAX: usize = 1 << 16;

/// Maximum number of slots in one read of the state; see [`READ_ACCOUNTS_MAX`].
pub const READ_SLOTS_MAX: usize = 1 << 16;

/// Maximum number of codes in one read of the state. Code is identified by its hash, so a longer
/// list can be split freely.
pub const READ_CODES_MAX: usize = 256;

/// Maximum number of targets in one trie walk, over all tries. The path to each has about 12 nodes
/// of 532 bytes.
pub const WALK_TARGETS_MAX: usize = 8192;

/// Size of changes in bytes after which the next part of a streamed trie diff begins.
pub const TRIE_DIFF_PART_BYTES: usize = 4 << 20;

/// Maximum size in bytes of the name under which an executor requests an epoch.
pub const CALLER_NAME_BYTES_MAX: usize = 256;

/// Maximum size in bytes of a host name (RFC 1035).
pub const HOST_BYTES_MAX: usize = 253;

/// Maximum lease of an executor without renewal, in ms: no other executor can take over meanwhile.
pub const LEASE_MS_MAX: u32 = 60_000;

/// Maximum size in bytes of the text of an error. It travels in HTTP/2 headers, which are small.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;

/// Maximum heap bytes for decoding and converting one message, per byte of the message. An honest
/// message takes two to five; the limit is the cost of a maliciously crafted message.
pub const HEAP_BYTES_PER_BYTE_MAX: usize = 40;

/// Maximum number of contacts in a `peers.discovered` event. The bus carries hints, so a batch
/// stays small.
pub const DISCOVERED_CONTACTS_MAX: usize = 1024;

/// Maximum number of contacts in an answer with the closest ones.
pub const CLOSEST_CONTACTS_MAX: usize = 256;

/// Maximum size in bytes of a message from or to peer-table. The largest batch with the largest
/// records takes 0.4 MiB.
pub const PEERS_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Maximum size in bytes of a message from or to peer-sessions: an answer of a peer, which the
/// protocol limits to 10 MiB, and the lengths of its items.
pub const SESSIONS_MESSAGE_BYTES_MAX: usize = 11 << 20;

/// Maximum number of sessions with peers.
pub const SESSIONS_MAX: usize = 1024;

/// Maximum number of items in a request to a peer, and in its answer.
pub const FETCH_ITEMS_MAX: usize = 1024;

/// Maximum number of transactions that a peer sends without a request.
pub const EXCHANGED_TRANSACTIONS_MAX: usize = 5000;

/// Maximum number of transactions that a peer announces at once.
pub const EXCHANGED_ANNOUNCEMENTS_MAX: usize = 8192;

/// Maximum number of transactions that a peer is asked for.
pub const WANTED_TRANSACTIONS_MAX: usize = 256;

/// Size in bytes at which an answer with a part of a state ends: the recommendation of the protocol
/// snap.
pub const STATE_ANSWER_BYTES_MAX: u64 = 2 << 20;

/// Maximum number of accounts, or of slots of all accounts, in an answer. Each takes at least 33
/// bytes.
pub const STATE_LEAVES_MAX: usize = 1 << 16;

/// Maximum number of accounts whose slots are asked for.
pub const STORAGE_TRIES_MAX: usize = 1024;

/// Maximum number of trie nodes that prove a range: the ways from the root to two keys.
pub const STATE_PROOF_NODES_MAX: usize = 2 * 65;

/// Maximum number of parts of a downloaded state in one call.
pub const DOWNLOADED_PARTS_MAX: usize = 1 << 15;

/// Maximum number of downloaded blocks in one call.
pub const DOWNLOADED_BLOCKS_MAX: usize = 1024;

/// Maximum number of hashes in a question about a downloaded state.
pub const DOWNLOAD_HASHES_MAX: usize = 1 << 16;

/// Maximum size in bytes of a note about the progress of a download.
pub const DOWNLOAD_PROGRESS_BYTES_MAX: usize = 64 << 10;

/// Maximum number of codes that a peer is asked for.
pub const CODES_MAX: usize = 1024;

/// Maximum number of trie nodes that a peer is asked for.
pub const TRIE_NODES_MAX: usize = 1024;

/// Maximum size in bytes of a message from or to tx-pool: a transaction of [`BLOBS_PER_BUNDLE_MAX`]
/// blobs with the proofs of their cells takes 8.5 MiB.
pub const POOL_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Maximum number of transactions in one call that adds them to the pool.
pub const POOL_ADD_TRANSACTIONS_MAX: usize = 256;

/// Maximum number of transactions in a page of those that pay a block best.
pub const POOL_PAGE_TRANSACTIONS_MAX: usize = 4096;

/// Number of transactions that became pending lately, which the pool remembers in their order.
pub const ARRIVALS_MAX: usize = 4096;

/// Size of transactions in bytes at which a page of them, or a part of the pool's content, ends.
pub const POOL_PAGE_BYTES: usize = 4 << 20;

/// Maximum size in bytes of the name of a reason for refusing a transaction.
pub const REFUSAL_KIND_BYTES_MAX: usize = 64;

/// Maximum number of blocks with which a reader of the feed says where it stands.
pub const FEED_KNOWN_MAX: usize = 128;

/// Maximum size in bytes of the part of a block in one message of the feed.
pub const FEED_PART_BYTES: usize = 1 << 20;

/// Maximum number of nibbles of a path to a trie node. Peers may send longer ones than there are.
pub const NODE_PATH_NIBBLES_MAX: u32 = 256;

/// Maximum size in bytes of the name of a peer's client.
pub const CLIENT_NAME_BYTES_MAX: usize = 128;

/// Maximum size in bytes of the RLP of a node record (EIP-778).
pub const ENR_BYTES_MAX: usize = 300;

/// Maximum number of traces in an event about slow traces.
pub const SLOW_TRACES_MAX: usize = 64;

/// Maximum size in bytes of a message from or to blob-validator. A sidecar of
/// [`BLOBS_PER_BUNDLE_MAX`] blobs with the proofs of their cells takes 8.4 MiB.
pub const BLOB_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Maximum number of blobs, commitments and versioned hashes in one sidecar. Forks allow fewer. The
/// rule of a fork is part of the request, and a sidecar that exceeds it gets a verdict.
pub const BLOBS_PER_BUNDLE_MAX: usize = 64;

/// Maximum number of versioned hashes in a request for blobs, as `engine_getBlobs` of the Engine
/// API requires.
pub const GET_BLOBS_MAX: usize = 128;

/// Maximum size in bytes of the address of a worker's proof stream.
pub const ENDPOINT_BYTES_MAX: usize = 256;

/// Allowed time between two heartbeats of a worker, in ms.
pub const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

/// Maximum size in bytes of a message from or to tx-executor.
pub const TX_MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Size in bytes at which an access list, or the values of a block, continue in another message to
/// tx-executor.
pub const TX_PART_BYTES: usize = 1 << 20;

/// Maximum size in bytes of the access list of a block that tx-executor executes.
pub const TX_LIST_BYTES_MAX: usize = 32 << 20;

/// Maximum number of transactions in one message to tx-executor.
pub const TX_RANGE_MAX: usize = 256;
/// Maximum number of results in one message of a tx-executor.
pub const TX_RESULTS_MAX: usize = 64;
