//! Tandem's opinion: a node in this process, whose `engine_newPayloadV5` gets geth's results.

use crate::{Summary, case::Case, geth::Geth};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Header,
    proofs::{calculate_withdrawals_root, ordered_trie_root_encoded},
};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bytes, keccak256};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tandem_chain::Payload;
use tandem_conformance::{CaseNode, Setting};

/// Blob gas of one blob (EIP-4844).
const GAS_PER_BLOB: u64 = 131_072;

/// Reasons that say that a block's results are wrong, rather than one of its transactions.
const RESULTS: [&str; 8] = [
    "gas_used",
    "receipts_root",
    "logs_bloom",
    "requests_hash",
    "state_root",
    "access_list",
    "block_hash",
    "access_list_index",
];

/// A node that stands at the genesis of a case.
pub struct Tandem {
    node: CaseNode,
    genesis: B256,
}

impl Tandem {
    /// Starts a node.
    pub fn start(case: &Case) -> anyhow::Result<Self> {
        // One case in eight reads through the database, the others through maps in memory.
        let database = case.number % 8 == 7;
        let node =
            CaseNode::start(&case.genesis_json(), Setting { database, ..Setting::default() })?;
        let block = node.call("eth_getBlockByNumber", r#"["latest",false]"#)?;
        let genesis = serde_json::from_value(block["hash"].clone()).context("the genesis hash")?;
        Ok(Self { node, genesis })
    }

    /// Returns the hash of the genesis block.
    pub fn genesis(&self) -> B256 {
        self.genesis
    }

    /// Stops the node.
    pub fn stop(self) {
        self.node.stop();
    }

    /// Sends the payload of geth's results, and one for the first rejected transaction.
    pub fn compare(&self, case: &Case, geth: &Geth) -> anyhow::Result<Summary> {
        let rejected: Vec<_> = geth.rejected.iter().map(|rejected| rejected.index).collect();
        let included: Vec<_> =
            (0..case.transactions.len()).filter(|index| !rejected.contains(index)).collect();
        let blobs: usize = included.iter().map(|index| case.blobs[*index].len()).sum();
        let (got, want) = (geth.blob_gas_used.to::<u64>(), blobs as u64 * GAS_PER_BLOB);
        ensure!(got == want, "geth's blob gas is {got}, that of its transactions {want}");
        let mut summary = Summary::default();
        // The refused payload comes first: nothing of it may stay.
        if let Some(first) = geth.rejected.first() {
            let mut with = included.clone();
            with.push(first.index);
            with.sort_unstable();
            let (status, reason) = self.send(case, geth, &with)?;
            let kind = reason.split(':').next().unwrap_or_default();
            if status != "INVALID" || RESULTS.contains(&kind) {
                let said = format!(
                    "transaction {}: geth says {}, Tandem {status}, {reason}",
                    first.index, first.error
                );
                summary.disagreements.insert(case.number, said);
            }
            summary.rejected.insert(kind.to_owned(), 1);
        }
        let (status, reason) = self.send(case, geth, &included)?;
        if status != "VALID" {
            summary
                .disagreements
                .insert(case.number, format!("geth's block is {status}: {reason}"));
        }
        summary.included = included.len() as u64;
        summary.gas = geth.gas_used.to();
        let receipts = geth.receipts.as_array().into_iter().flatten();
        summary.succeeded = receipts.filter(|receipt| receipt["status"] == "0x1").count() as u64;
        for request in geth.requests.iter().filter(|request| request.len() > 1) {
            summary.requests.insert(request[0], 1);
        }
        Ok(summary)
    }

    /// Sends a payload with these transactions, and returns status and validation error.
    fn send(
        &self,
        case: &Case,
        geth: &Geth,
        included: &[usize],
    ) -> anyhow::Result<(String, String)> {
        let transactions: Vec<Bytes> =
            included.iter().map(|index| case.transactions[*index].clone()).collect();
        let hashes: Vec<B256> =
            included.iter().flat_map(|index| case.blobs[*index].iter().copied()).collect();
        let requests: Vec<_> =
            geth.requests.iter().filter(|request| request.len() > 1).cloned().collect();
        let header = Header {
            parent_hash: self.genesis,
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: case.beneficiary,
            state_root: geth.state_root,
            transactions_root: ordered_trie_root_encoded(&transactions),
            receipts_root: geth.receipts_root,
            logs_bloom: geth.logs_bloom,
            number: 1,
            gas_limit: case.gas_limit,
            gas_used: geth.gas_used.to(),
            timestamp: case.timestamp,
            mix_hash: case.prev_randao,
            base_fee_per_gas: Some(geth.current_base_fee.to()),
            withdrawals_root: Some(calculate_withdrawals_root(&case.withdrawals)),
            blob_gas_used: Some(hashes.len() as u64 * GAS_PER_BLOB),
            excess_blob_gas: Some(geth.current_excess_blob_gas.to()),
            parent_beacon_block_root: Some(case.beacon_root),
            requests_hash: Some(Requests::new(requests.clone()).requests_hash()),
            block_access_list_hash: Some(keccak256(&geth.block_access_list)),
            slot_number: Some(case.slot),
            ..Header::default()
        };
        let withdrawals = Some(case.withdrawals.clone());
        let payload = Payload {
            block_access_list: Some(geth.block_access_list.clone()),
            ..Payload::from_header(&header, header.hash_slow(), transactions, withdrawals)
        };
        let params = json!([payload, hashes, case.beacon_root, requests]).to_string();
        let answer = self.node.call("engine_newPayloadV5", &params)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok((text(&answer["status"]), text(&answer["validationError"])))
    }
}
