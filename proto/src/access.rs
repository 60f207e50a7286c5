//! Permissions of the callers. When the services authenticate each other by mutual TLS, a
//! certificate names roles. [`RULES`] lists the roles that may call each method. This is the only
//! place: servers ask [`permits`] and know no roles themselves.
//!
//! gRPC's health and reflection services are open to every certificate and are not listed here.

/// Role of the service with the Engine API and the EVM.
pub const EXECUTOR: &str = "executor";
/// Role of the service with the tries that give state roots.
pub const MULTIPROOF_WORKER: &str = "multiproof-worker";
/// Role of the service with the database.
pub const STORAGE_WRITER: &str = "storage-writer";
/// Role of the service that verifies KZG proofs.
pub const BLOB_VALIDATOR: &str = "blob-validator";
/// Role of the service with the table of peers.
pub const PEER_TABLE: &str = "peer-table";
/// Role of the service with the UDP socket.
pub const DISCOVERY: &str = "discovery";
/// Role of the service with the sessions between execution clients.
pub const PEER_SESSIONS: &str = "peer-sessions";
/// Role of the service with the transactions that are in no block yet.
pub const TX_POOL: &str = "tx-pool";
/// Role of a process that keeps a copy of the chain and of its state.
pub const FOLLOWER: &str = "follower";
/// Role of a process that executes transactions for an executor.
pub const TX_EXECUTOR: &str = "tx-executor";
/// Role of people with a gRPC tool. They may look, ask for checkpoints of the database, promote a
/// follower, and report the number of connected peers.
pub const OPERATOR: &str = "operator";

/// Every role that a certificate may name.
pub const ROLES: [&str; 11] = [
    EXECUTOR,
    MULTIPROOF_WORKER,
    STORAGE_WRITER,
    BLOB_VALIDATOR,
    PEER_TABLE,
    DISCOVERY,
    PEER_SESSIONS,
    TX_POOL,
    FOLLOWER,
    TX_EXECUTOR,
    OPERATOR,
];

/// Method with the roles that may call it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Service, including its package.
    pub service: &'static str,
    /// Method, as named in the `.proto` file.
    pub method: &'static str,
    /// Roles that may call the method.
    pub roles: &'static [&'static str],
}

const STORAGE: &str = "tandem.storage_writer.v1.StorageWriter";
const WORKERS: &str = "tandem.multiproof_workers.v1.MultiproofWorkers";
const BLOBS: &str = "tandem.blob_validator.v1.BlobValidator";
const SESSIONS: &str = "tandem.peer_sessions.v1.PeerSessions";
const PEERS: &str = "tandem.peer_table.v1.PeerTable";
const POOL: &str = "tandem.tx_pool.v1.TxPool";
const TRANSACTIONS: &str = "tandem.tx_executor.v1.TxExecutor";

const fn rule(service: &'static str, method: &'static str, roles: &'static [&'static str]) -> Rule {
    Rule { service, method, roles }
}

/// Rules for all methods, one each. A method without a rule cannot be called.
pub const RULES: [Rule; 56] = [
    // The chain belongs to the executor: no other role may write it or acquire the right to write.
    rule(STORAGE, "AcquireEpoch", &[EXECUTOR]),
    rule(STORAGE, "KeepEpoch", &[EXECUTOR]),
    rule(STORAGE, "GetHolder", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "Commit", &[EXECUTOR]),
    rule(STORAGE, "Discard", &[EXECUTOR]),
    rule(STORAGE, "Prove", &[EXECUTOR]),
    rule(STORAGE, "Keep", &[EXECUTOR]),
    rule(STORAGE, "GetKept", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "GetStateDiffs", &[EXECUTOR, TX_POOL, OPERATOR]),
    rule(STORAGE, "Canonicalize", &[EXECUTOR]),
    rule(STORAGE, "Rewind", &[EXECUTOR]),
    // Workers read tries and hand over computed nodes. storage-writer refuses nodes that do not
    // lead to the root in the block's header, whatever the sender. An executor has workers of its
    // own.
    // Peers are told where the own chain stands. tx-pool checks transactions against the state of
    // the head.
    rule(
        STORAGE,
        "GetCheckpoint",
        &[EXECUTOR, MULTIPROOF_WORKER, PEER_SESSIONS, TX_POOL, FOLLOWER, STORAGE_WRITER, OPERATOR],
    ),
    rule(STORAGE, "ListPending", &[EXECUTOR, MULTIPROOF_WORKER, TX_POOL, OPERATOR]),
    rule(STORAGE, "GetTrieDiff", &[EXECUTOR, MULTIPROOF_WORKER]),
    rule(STORAGE, "WalkTrie", &[EXECUTOR, MULTIPROOF_WORKER]),
    rule(STORAGE, "PutTrieDiff", &[EXECUTOR, MULTIPROOF_WORKER]),
    rule(STORAGE, "ReadState", &[EXECUTOR, TX_POOL, OPERATOR]),
    // Peers ask for blocks.
    rule(
        STORAGE,
        "GetBlock",
        &[EXECUTOR, PEER_SESSIONS, TX_POOL, FOLLOWER, STORAGE_WRITER, OPERATOR],
    ),
    rule(
        STORAGE,
        "GetHeader",
        &[EXECUTOR, PEER_SESSIONS, TX_POOL, FOLLOWER, STORAGE_WRITER, OPERATOR],
    ),
    rule(STORAGE, "GetTransaction", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "GetAccessList", &[EXECUTOR, PEER_SESSIONS, OPERATOR]),
    rule(STORAGE, "GetStateItems", &[PEER_SESSIONS, FOLLOWER, STORAGE_WRITER]),
    // The executor's process synchronises from peers.
    rule(STORAGE, "Download", &[EXECUTOR]),
    // A follower copies the chain, and begins with genesis and a recent state. So does a storage-writer while
    // another one leads.
    rule(STORAGE, "Follow", &[FOLLOWER, STORAGE_WRITER]),
    // Snapshots are made by people. A checkpoint takes room on the volume, so no service asks for one.
    rule(STORAGE, "CheckpointDatabase", &[OPERATOR]),
    // People decide which copy leads. A promoted follower tells the storage-writers that it followed.
    rule(STORAGE, "Promote", &[OPERATOR]),
    rule(STORAGE, "Supersede", &[FOLLOWER, STORAGE_WRITER]),
    // Only the executor sends blocks to workers.
    rule(WORKERS, "ProcessBlock", &[EXECUTOR]),
    rule(WORKERS, "Discard", &[EXECUTOR]),
    rule(WORKERS, "GetStatus", &[EXECUTOR, OPERATOR]),
    // The executor validates payloads, tx-pool transactions.
    rule(BLOBS, "Validate", &[EXECUTOR, TX_POOL]),
    rule(BLOBS, "ValidateStream", &[EXECUTOR, TX_POOL]),
    rule(BLOBS, "Recall", &[EXECUTOR, TX_POOL]),
    rule(BLOBS, "GetBlobs", &[EXECUTOR, TX_POOL]),
    rule(BLOBS, "Forget", &[EXECUTOR, TX_POOL]),
    rule(BLOBS, "GetStatus", &[EXECUTOR, TX_POOL, OPERATOR]),
    // Only discovery speaks with peers, so it alone reports what is known of them.
    rule(PEERS, "ApplyBatch", &[DISCOVERY]),
    rule(PEERS, "SampleForLookup", &[DISCOVERY]),
    rule(PEERS, "SampleForEnr", &[DISCOVERY]),
    // Sessions need candidates, and their number says how much discovery has to do. People may
    // report it where no sessions run.
    rule(PEERS, "Closest", &[DISCOVERY, PEER_SESSIONS, OPERATOR]),
    rule(PEERS, "GetStats", &[DISCOVERY, OPERATOR]),
    rule(PEERS, "SetConnected", &[PEER_SESSIONS, OPERATOR]),
    rule(PEERS, "WatchTarget", &[DISCOVERY, PEER_SESSIONS, OPERATOR]),
    // The executor's process synchronises from peers, and judges what they send.
    rule(SESSIONS, "ListSessions", &[EXECUTOR, OPERATOR]),
    rule(SESSIONS, "Fetch", &[EXECUTOR]),
    rule(SESSIONS, "Report", &[EXECUTOR]),
    rule(SESSIONS, "ExchangeTransactions", &[TX_POOL]),
    // Executor and followers offer JSON-RPC. The executor builds blocks, and knows whether the head is
    // behind.
    rule(POOL, "Add", &[EXECUTOR, FOLLOWER]),
    rule(POOL, "Get", &[EXECUTOR, FOLLOWER, OPERATOR]),
    rule(POOL, "GetNextNonce", &[EXECUTOR, FOLLOWER, OPERATOR]),
    rule(POOL, "GetCounts", &[EXECUTOR, FOLLOWER, OPERATOR]),
    rule(POOL, "ListBest", &[EXECUTOR, OPERATOR]),
    rule(POOL, "ListArrivals", &[EXECUTOR, FOLLOWER, OPERATOR]),
    rule(POOL, "ListContent", &[EXECUTOR, FOLLOWER, OPERATOR]),
    rule(POOL, "NoteSync", &[EXECUTOR]),
    rule(TRANSACTIONS, "ExecuteBlocks", &[EXECUTOR]),
];

/// Returns whether a certificate of this role may call this method of this service. Unknown methods
/// may not be called.
pub fn permits(role: &str, service: &str, method: &str) -> bool {
    let rule = RULES.iter().find(|rule| rule.service == service && rule.method == method);
    rule.is_some_and(|rule| rule.roles.contains(&role))
}
