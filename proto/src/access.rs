//! Who may call what. Where the services prove to each other who they are (mutual TLS), a
//! certificate names roles, and [`RULES`] says for each method which roles may call it. This is the
//! only place: servers ask [`permits`] and know no roles themselves.
//!
//! gRPC's health and reflection services are for everybody with a certificate and not in here.

/// The Engine API and the EVM.
pub const EXECUTOR: &str = "executor";
/// Tries that give state roots.
pub const MULTIPROOF_WORKER: &str = "multiproof-worker";
/// The database.
pub const STORAGE_WRITER: &str = "storage-writer";
/// KZG.
pub const BLOB_VALIDATOR: &str = "blob-validator";
/// The table of peers.
pub const PEER_TABLE: &str = "peer-table";
/// The UDP socket.
pub const DISCOVERY: &str = "discovery";
/// People with a gRPC tool. They may look, and not change the chain.
pub const OPERATOR: &str = "operator";

/// Every role that a certificate may name.
pub const ROLES: [&str; 7] =
    [EXECUTOR, MULTIPROOF_WORKER, STORAGE_WRITER, BLOB_VALIDATOR, PEER_TABLE, DISCOVERY, OPERATOR];

/// A method and who may call it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The service with its package.
    pub service: &'static str,
    /// The method, as the `.proto` file names it.
    pub method: &'static str,
    /// Whose certificates may.
    pub roles: &'static [&'static str],
}

const STORAGE: &str = "tandem.storage_writer.v1.StorageWriter";
const WORKERS: &str = "tandem.multiproof_workers.v1.MultiproofWorkers";
const BLOBS: &str = "tandem.blob_validator.v1.BlobValidator";
const PEERS: &str = "tandem.peer_table.v1.PeerTable";

const fn rule(service: &'static str, method: &'static str, roles: &'static [&'static str]) -> Rule {
    Rule { service, method, roles }
}

/// One rule for each method that there is. What has none nobody may call.
pub const RULES: [Rule; 36] = [
    // The chain is the executor's: nobody else writes it, or asks for the right to.
    rule(STORAGE, "AcquireEpoch", &[EXECUTOR]),
    rule(STORAGE, "KeepEpoch", &[EXECUTOR]),
    rule(STORAGE, "GetHolder", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "Commit", &[EXECUTOR]),
    rule(STORAGE, "Discard", &[EXECUTOR]),
    rule(STORAGE, "Prove", &[EXECUTOR]),
    rule(STORAGE, "Keep", &[EXECUTOR]),
    rule(STORAGE, "GetKept", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "GetStateDiffs", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "Canonicalize", &[EXECUTOR]),
    rule(STORAGE, "Rewind", &[EXECUTOR]),
    // Workers read tries, and hand over what they computed: what does not lead to the root in the
    // block's header is refused, whoever says it. An executor has workers of its own.
    rule(STORAGE, "GetCheckpoint", &[EXECUTOR, MULTIPROOF_WORKER, OPERATOR]),
    rule(STORAGE, "ListPending", &[EXECUTOR, MULTIPROOF_WORKER, OPERATOR]),
    rule(STORAGE, "GetTrieDiff", &[EXECUTOR, MULTIPROOF_WORKER]),
    rule(STORAGE, "WalkTrie", &[EXECUTOR, MULTIPROOF_WORKER]),
    rule(STORAGE, "PutTrieDiff", &[EXECUTOR, MULTIPROOF_WORKER]),
    rule(STORAGE, "ReadState", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "GetBlock", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "GetHeader", &[EXECUTOR, OPERATOR]),
    rule(STORAGE, "GetTransaction", &[EXECUTOR, OPERATOR]),
    // Blocks go to workers from the executor alone.
    rule(WORKERS, "ProcessBlock", &[EXECUTOR]),
    rule(WORKERS, "Discard", &[EXECUTOR]),
    rule(WORKERS, "GetStatus", &[EXECUTOR, OPERATOR]),
    rule(BLOBS, "Validate", &[EXECUTOR]),
    rule(BLOBS, "ValidateStream", &[EXECUTOR]),
    rule(BLOBS, "Recall", &[EXECUTOR]),
    rule(BLOBS, "GetBlobs", &[EXECUTOR]),
    rule(BLOBS, "Forget", &[EXECUTOR]),
    rule(BLOBS, "GetStatus", &[EXECUTOR, OPERATOR]),
    // What is known of peers comes from who speaks with them.
    rule(PEERS, "ApplyBatch", &[DISCOVERY]),
    rule(PEERS, "SampleForLookup", &[DISCOVERY]),
    rule(PEERS, "SampleForEnr", &[DISCOVERY]),
    rule(PEERS, "Closest", &[DISCOVERY, OPERATOR]),
    rule(PEERS, "GetStats", &[DISCOVERY, OPERATOR]),
    rule(PEERS, "SetConnected", &[OPERATOR]),
    rule(PEERS, "WatchTarget", &[DISCOVERY, OPERATOR]),
];

/// Whether a certificate of this role may call this method of this service. What does not exist
/// may not be called.
pub fn permits(role: &str, service: &str, method: &str) -> bool {
    let rule = RULES.iter().find(|rule| rule.service == service && rule.method == method);
    rule.is_some_and(|rule| rule.roles.contains(&role))
}
