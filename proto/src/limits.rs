//! How much one message may hold. The sender splits what is larger; the receiver refuses it.
//!
//! In one process, where owned values pass without messages, none of these apply.

/// Bytes of one message from or to storage-writer. A block has at most 10 MiB (EIP-7934), its
/// receipts and diff are bounded by its gas.
pub const STORAGE_MESSAGE_BYTES_MAX: usize = 64 << 20;

/// State diffs in one call: more blocks than a branch above the base has.
pub const STATE_DIFFS_MAX: usize = 4096;

/// Bytes of one message from or to multiproof-workers.
pub const PROOF_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a state update after which it goes on in another message. What one transaction does is
/// far below; a whole block's diff, sent when its root is computed once more, may be far above, and
/// handling a message must not hold up others on the same connection.
pub const UPDATE_PART_BYTES: usize = 256 << 10;

/// Bytes of a W3C `traceparent`; version 00 has 55.
pub const TRACEPARENT_BYTES_MAX: usize = 256;

/// Accounts in one read of the state. One call is one snapshot, so a longer list can only be split
/// by a caller that compares the base of the answers.
pub const READ_ACCOUNTS_MAX: usize = 1 << 16;

/// Slots in one read of the state; see [`READ_ACCOUNTS_MAX`].
pub const READ_SLOTS_MAX: usize = 1 << 16;

/// Codes in one read of the state. Code is named by its hash, so splitting a longer list needs no
/// care.
pub const READ_CODES_MAX: usize = 256;

/// Targets in one trie walk, over all tries. About 12 nodes of 532 bytes stand on the way to each.
pub const WALK_TARGETS_MAX: usize = 8192;

/// Bytes of changes after which the next part of a streamed trie diff begins.
pub const TRIE_DIFF_PART_BYTES: usize = 4 << 20;

/// Bytes of the name under which an executor asks for an epoch.
pub const CALLER_NAME_BYTES_MAX: usize = 256;

/// Bytes of the name of a host (RFC 1035).
pub const HOST_BYTES_MAX: usize = 253;

/// Milliseconds for which an executor may keep others from taking over without a sign of life.
pub const LEASE_MS_MAX: u32 = 60_000;

/// Bytes of the text of an error. It travels in HTTP/2 headers, which are small.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;

/// Heap bytes that decoding and converting one message may take at worst, for each of its bytes.
/// An honest message takes two to five; the bound is what a message made for the purpose costs.
pub const HEAP_BYTES_PER_BYTE_MAX: usize = 40;

/// Contacts in one `peers.discovered` event. The bus is for hints, so a batch stays small.
pub const DISCOVERED_CONTACTS_MAX: usize = 1024;

/// Contacts in one answer of the closest ones.
pub const CLOSEST_CONTACTS_MAX: usize = 256;

/// Bytes of one message from or to peer-table: the largest batch with the largest records takes
/// 0.4 MiB.
pub const PEERS_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes of a node record's RLP (EIP-778).
pub const ENR_BYTES_MAX: usize = 300;

/// Traces in one event that says which were slow.
pub const SLOW_TRACES_MAX: usize = 64;

/// Bytes of one message from or to blob-validator: a sidecar of [`BLOBS_PER_BUNDLE_MAX`] blobs with
/// the proofs of their cells takes 8.4 MiB.
pub const BLOB_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Blobs in one sidecar, and commitments and versioned hashes. Forks allow fewer: the rule of a
/// fork is part of the request, and what exceeds it gets a verdict.
pub const BLOBS_PER_BUNDLE_MAX: usize = 64;

/// Versioned hashes in one request for blobs: what the Engine API demands of `engine_getBlobs`.
pub const GET_BLOBS_MAX: usize = 128;

/// Bytes of the address of a worker's proof stream.
pub const ENDPOINT_BYTES_MAX: usize = 256;

/// Milliseconds between two heartbeats of a worker.
pub const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 10..=60_000;
