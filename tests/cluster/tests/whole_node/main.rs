//! Tests of whole nodes through their handlers: calls in, answers and state out. One binary,
//! because each one links all services.
#![allow(clippy::unwrap_used)]

mod access_list_mutations;
mod amsterdam;
mod bad_input;
mod blob_service;
mod blobs;
mod block_building;
mod branches;
mod builder;
mod corpora;
mod engine_build;
mod engine_concurrency;
mod engine_forkchoice;
mod engine_methods;
mod engine_new_payload;
mod engine_terminal;
mod forks;
mod metric_catalogue;
mod mutations;
mod payload_shapes;
mod policies;
mod pool;
mod proof_stream;
mod random_walk;
mod reorgs;
mod rpc_calls;
mod rpc_history;
mod rpc_proofs;
mod rpc_pruned;
mod sessions;
mod snap;
mod sync;
mod sync_geth;
mod tx_executors;
mod websockets;
