//! The targets, one module for each kind of input.

mod block;
mod discovery;
mod genesis;
mod history;
mod network_form;
mod node_list;
mod payload;
mod peer_message;
mod proto;
mod records;
mod rpc;
mod sidecar;
mod traces;
mod transaction;
mod trie;
mod witness;

use crate::Target;

/// All targets.
pub const ALL: [Target; 21] = [
    rpc::ENGINE,
    rpc::ETH,
    payload::TARGET,
    transaction::TARGET,
    network_form::TARGET,
    block::BLOCK,
    block::RECEIPTS,
    trie::NODE,
    trie::SHARD,
    witness::TRIE,
    witness::FILE,
    proto::TARGET,
    genesis::TARGET,
    discovery::PACKET,
    discovery::RECORD,
    node_list::TARGET,
    peer_message::TARGET,
    history::TARGET,
    sidecar::TARGET,
    records::TARGET,
    traces::TARGET,
];

/// Returns the target of this name.
pub fn by_name(name: &str) -> Option<Target> {
    ALL.into_iter().find(|target| target.name == name)
}
