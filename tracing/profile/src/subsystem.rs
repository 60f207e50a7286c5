//! From a function's name to the part of the client that it belongs to.

/// A part of the client, as a budget of processor time names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subsystem {
    /// Executing transactions: EVM, precompiles, the state they see.
    Execution,
    /// Tries, their walks and layers.
    StateRoot,
    /// Recovery of senders and authorities from signatures.
    Signatures,
    /// Keccak and SHA-2, for all other parts.
    Hashing,
    /// RocksDB, with compaction, and the tables on it.
    Database,
    /// KZG proofs of blobs.
    Blobs,
    /// Discovery of nodes and the table of peers.
    Discovery,
    /// Sessions with peers (RLPx, eth, snap), and synchronisation from them.
    Sessions,
    /// Pool of transactions.
    Pool,
    /// Payloads, blocks and JSON: decoding, checks, answers.
    Payloads,
    /// HTTP, gRPC, NATS and their encodings.
    Network,
    /// Memory allocation.
    Allocation,
    /// Locks, channels and waking threads.
    Synchronization,
    /// Spans, logs and metrics.
    Telemetry,
    /// Scheduling of tasks.
    Runtime,
    /// Everything that no rule names.
    Other,
}

use Subsystem::{
    Allocation, Blobs, Database, Discovery, Execution, Hashing, Network, Other, Payloads, Pool,
    Runtime, Sessions, Signatures, StateRoot, Synchronization, Telemetry,
};

/// Beginnings of paths. The first match counts.
const PATHS: &[(&str, Subsystem)] = &[
    ("tandem_executor::ahead::senders", Signatures),
    ("tandem_executor::rpc", Payloads),
    ("tandem_executor::engine", Payloads),
    ("tandem_executor::chain", Payloads),
    ("tandem_executor::queries", Payloads),
    ("tandem_executor::blobs", Blobs),
    ("tandem_executor", Execution),
    ("revm", Execution),
    ("alloy_evm", Execution),
    ("ark_", Execution),
    ("aurora_engine_modexp", Execution),
    ("corosensei", Execution),
    ("tandem_trie", StateRoot),
    ("tandem_multiproof_workers", StateRoot),
    ("tandem_layers", StateRoot),
    ("alloy_trie", StateRoot),
    ("secp256k1", Signatures),
    ("rustsecp256k1", Signatures),
    ("k256", Signatures),
    ("alloy_consensus::crypto", Signatures),
    ("alloy_primitives::utils::keccak", Hashing),
    ("keccak", Hashing),
    ("tiny_keccak", Hashing),
    ("sha2", Hashing),
    ("sha3", Hashing),
    ("rocksdb", Database),
    ("tandem_store", Database),
    ("tandem_storage_writer", Database),
    ("tandem_kzg", Blobs),
    ("tandem_blob_validator", Blobs),
    ("c_kzg", Blobs),
    ("tandem_discovery", Discovery),
    ("tandem_discv4", Discovery),
    ("tandem_peer_table", Discovery),
    ("discv5", Discovery),
    ("tandem_peer_sessions", Sessions),
    ("tandem_rlpx", Sessions),
    ("tandem_eth_wire", Sessions),
    ("tandem_sync", Sessions),
    ("aes", Sessions),
    ("ctr", Sessions),
    ("snap", Sessions),
    ("tandem_tx_pool", Pool),
    ("tandem_chain", Payloads),
    ("tandem_json", Payloads),
    ("tandem_auth", Payloads),
    ("alloy_consensus", Payloads),
    ("alloy_eips", Payloads),
    ("alloy_rlp", Payloads),
    ("serde_json", Payloads),
    ("tandem_http", Network),
    ("tandem_rpc", Network),
    ("tandem_bus", Network),
    ("tandem_proto", Network),
    ("tandem_membership", Network),
    ("tonic", Network),
    ("prost", Network),
    ("h2", Network),
    ("hyper", Network),
    ("tower", Network),
    ("axum", Network),
    ("http_body", Network),
    ("async_nats", Network),
    ("rustls", Network),
    ("ring", Network),
    ("tokio::net", Network),
    ("tikv_jemalloc", Allocation),
    ("__rust_alloc", Allocation),
    ("__rust_dealloc", Allocation),
    ("__rust_realloc", Allocation),
    ("__rustc", Allocation),
    ("alloc::alloc", Allocation),
    ("parking_lot", Synchronization),
    ("lock_api", Synchronization),
    ("std::sync", Synchronization),
    ("std::sys::sync", Synchronization),
    ("std::thread::park", Synchronization),
    ("std::thread::thread::Thread::unpark", Synchronization),
    ("crossbeam", Synchronization),
    ("tokio::sync", Synchronization),
    ("arc_swap", Synchronization),
    ("dashmap", Synchronization),
    ("tandem_telemetry", Telemetry),
    ("tracing", Telemetry),
    ("opentelemetry", Telemetry),
    ("metrics", Telemetry),
    ("tokio", Runtime),
    ("mio", Runtime),
    ("rayon", Runtime),
    ("futures", Runtime),
    ("tandem_actor", Runtime),
    ("tandem_cluster", Runtime),
];

/// Beginnings of paths that only call what they are given.
const WRAPPERS: &[&str] = &[
    "std::sync::once",
    "std::sync::poison::once",
    "std::sync::lazy_lock",
    "tracing::span::Span::in_scope",
    "tracing::instrument",
];

/// Beginnings of names of C functions. The first match counts.
const C_NAMES: &[(&str, Subsystem)] = &[
    ("_rjem_", Allocation),
    ("je_", Allocation),
    ("arena_", Allocation),
    ("tcache_", Allocation),
    ("malloc", Allocation),
    ("calloc", Allocation),
    ("realloc", Allocation),
    ("cfree", Allocation),
    ("free", Allocation),
    ("operator new", Allocation),
    ("operator delete", Allocation),
    ("rustsecp256k1", Signatures),
    ("secp256k1", Signatures),
    ("rocksdb_", Database),
    ("LZ4_", Database),
    ("ZSTD_", Database),
    ("HUF_", Database),
    ("FSE_", Database),
    ("blst_", Blobs),
    ("POINTon", Blobs),
    ("mul_mont_384", Blobs),
    ("sqr_mont_384", Blobs),
    ("mulx_mont_384", Blobs),
    ("sqrx_mont_384", Blobs),
    ("fr_fft", Blobs),
    ("g1_", Blobs),
    ("verify_blob_kzg", Blobs),
    ("verify_cell_kzg", Blobs),
    ("compute_blob_kzg", Blobs),
    ("compute_cells", Blobs),
    ("KeccakF1600", Hashing),
    ("SHA3_", Hashing),
    ("keccak", Hashing),
    ("pthread_mutex", Synchronization),
    ("pthread_cond", Synchronization),
    ("__pthread_mutex", Synchronization),
    ("___pthread_mutex", Synchronization),
    ("___pthread_cond", Synchronization),
    ("__lll_lock", Synchronization),
    ("epoll_wait", Runtime),
];

impl Subsystem {
    /// Returns the subsystem of a function, by its demangled name. `None` stands for functions of
    /// general use, such as those of the standard library: they work for their caller.
    pub fn of_function(name: &str) -> Option<Self> {
        // C++ has return types and template arguments around the path.
        if name.contains("rocksdb::") {
            return Some(Database);
        }
        let path = owner(name);
        if WRAPPERS.iter().any(|beginning| path.starts_with(beginning)) {
            return None;
        }
        let rules = if path.contains("::") { PATHS } else { C_NAMES };
        let found = rules.iter().find(|(beginning, _)| path.starts_with(beginning));
        found.map(|(_, subsystem)| *subsystem)
    }

    /// Returns the subsystem that a stack works for, given its functions from the innermost one
    /// outwards: that of the first function which has one.
    pub fn of_stack<'a>(functions: impl IntoIterator<Item = &'a str>) -> Self {
        functions.into_iter().find_map(Self::of_function).unwrap_or(Other)
    }

    /// Returns the name for a table.
    pub fn name(self) -> &'static str {
        match self {
            Execution => "EVM execution",
            StateRoot => "State root (tries)",
            Signatures => "Signatures",
            Hashing => "Hashing",
            Database => "RocksDB",
            Blobs => "KZG blob validation",
            Discovery => "Discovery",
            Sessions => "Peer sessions (RLPx), sync",
            Pool => "Transaction pool",
            Payloads => "Payloads and JSON",
            Network => "HTTP, gRPC, NATS",
            Allocation => "Memory allocation",
            Synchronization => "Synchronization",
            Telemetry => "Telemetry",
            Runtime => "Task scheduling",
            Other => "Other",
        }
    }
}

/// Returns the path of a function without generic arguments. `<T as Trait>::method` belongs to `T`,
/// and dropping a value belongs to the value's type.
fn owner(name: &str) -> &str {
    const DROPS: &[&str] = &["core::ptr::drop_in_place::<", "core::ptr::drop_in_place<"];
    let mut path = name;
    loop {
        let inside = DROPS.iter().find_map(|drop| path.strip_prefix(drop));
        let Some(inner) = inside.or_else(|| path.strip_prefix('<')) else { break };
        path = inner;
        for word in ["&", "mut ", "dyn ", "*const ", "*mut "] {
            path = path.strip_prefix(word).unwrap_or(path);
        }
    }
    let end = path.find(['<', '>', ' ', '(', '[']).unwrap_or(path.len());
    path[..end].trim_end_matches(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_belong_to_the_path_that_owns_them() {
        for (name, subsystem) in [
            ("revm_interpreter::instructions::host::sload", Some(Execution)),
            ("<revm_handler::mainnet::Handler<A, B> as C>::run", Some(Execution)),
            ("<&mut tandem_trie::node::Node as core::fmt::Debug>::fmt", Some(StateRoot)),
            ("core::ptr::drop_in_place::<tandem_trie::node::Node>", Some(StateRoot)),
            ("core::ptr::drop_in_place<alloc::vec::Vec<tandem_trie::Node>>", None),
            ("<alloc::vec::Vec<tandem_trie::Node>>::push", None),
            ("tokio::runtime::task::raw::poll::<tandem_discovery::serve>", Some(Runtime)),
            ("<tandem_executor::ahead::senders::Recovery>::run", Some(Signatures)),
            ("tandem_executor::engine::payload::execute", Some(Payloads)),
            ("<tandem_rlpx::message::Decoder>::body", Some(Sessions)),
            ("snap::decompress::Decoder::decompress", Some(Sessions)),
            ("tandem_tx_pool::state::add", Some(Pool)),
            ("rocksdb::DBImpl::GetImpl(rocksdb::ReadOptions const&)", Some(Database)),
            ("std::unique_ptr<rocksdb::Block> rocksdb::Read<int>(int)", Some(Database)),
            ("_rjem_malloc", Some(Allocation)),
            ("rustsecp256k1_v0_10_0_ecmult", Some(Signatures)),
            ("__memmove_avx_unaligned_erms", None),
            ("<std::sync::mpmc::Waker>::notify", Some(Synchronization)),
            ("core::iter::Iterator::next", None),
            ("std::sync::poison::once::Once::call", None),
            ("<tracing::instrument::Instrumented<T> as core::future::Future>::poll", None),
            ("", None),
            ("<", None),
            ("<<", None),
        ] {
            assert_eq!(Subsystem::of_function(name), subsystem, "{name}");
        }
    }

    #[test]
    fn what_serves_everybody_works_for_its_caller() {
        let stack = ["__memmove", "alloc::vec::grow", "tandem_trie::write", "tokio::run"];
        assert_eq!(Subsystem::of_stack(stack), StateRoot);
        assert_eq!(Subsystem::of_stack(["__memmove", "start_thread"]), Other);
        assert_eq!(Subsystem::of_stack([]), Other);
    }

    #[test]
    fn no_rule_is_hidden_by_an_earlier_one() {
        for rules in [PATHS, C_NAMES] {
            for (at, (later, subsystem)) in rules.iter().enumerate() {
                let hidden = rules[..at].iter().find(|(rule, _)| later.starts_with(rule));
                let hidden = hidden.filter(|(_, other)| other != subsystem);
                assert_eq!(hidden, None, "{later}");
            }
        }
    }
}
