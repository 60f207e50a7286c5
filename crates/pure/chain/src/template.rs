use crate::{
    Block, BlockError, ChainSpec, Fork,
    access_list::EMPTY_ACCESS_LIST_HASH,
    codec::encode_body,
    header::{
        GAS_LIMIT_DIVISOR, GAS_LIMIT_MAX, GAS_LIMIT_MIN, next_base_fee, next_excess_blob_gas,
    },
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Header, proofs::calculate_withdrawals_root,
};
use alloy_eips::{eip4895::Withdrawal, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::{Address, B64, B256, Bytes, U256};
use tandem_trie::list_root;

/// Chosen values of a new block; everything else follows from its parent and from execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    /// Timestamp in seconds, above that of the parent.
    pub timestamp: u64,
    /// Randomness of the beacon chain (EIP-4399).
    pub prev_randao: B256,
    /// Recipient of the priority fees.
    pub fee_recipient: Address,
    /// Withdrawals, present exactly from Shanghai on (EIP-4895).
    pub withdrawals: Option<Vec<Withdrawal>>,
    /// Root of the parent beacon block, present exactly from Cancun on (EIP-4788).
    pub parent_beacon_block_root: Option<B256>,
    /// Slot of the beacon chain, present exactly from Amsterdam on (EIP-7843).
    pub slot_number: Option<u64>,
    /// Gas limit to approach, as far as one block may.
    pub gas_limit_target: u64,
    /// Extra data, at most 32 bytes.
    pub extra_data: Bytes,
}

impl Template {
    /// Returns the header of a block without transactions on `parent`. Execution must still supply
    /// the state root (zero here), the requests hash (that of no requests here) and the hash of the
    /// access list (that of the empty one here). [`Block::seal`] fills in the roots of the lists.
    pub fn header(&self, spec: &ChainSpec, parent: &Header) -> Header {
        let fork = spec.fork_at(self.timestamp);
        let params = spec.blob_params_at(self.timestamp);
        Header {
            parent_hash: parent.hash_slow(),
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: self.fee_recipient,
            receipts_root: EMPTY_ROOT_HASH,
            difficulty: U256::ZERO,
            number: parent.number + 1,
            gas_limit: next_gas_limit(parent.gas_limit, self.gas_limit_target),
            timestamp: self.timestamp,
            extra_data: self.extra_data.clone(),
            mix_hash: self.prev_randao,
            nonce: B64::ZERO,
            base_fee_per_gas: Some(next_base_fee(parent)),
            blob_gas_used: params.map(|_| 0),
            excess_blob_gas: params.map(|params| next_excess_blob_gas(parent, &params)),
            parent_beacon_block_root: self.parent_beacon_block_root,
            requests_hash: (fork >= Fork::Prague).then_some(EMPTY_REQUESTS_HASH),
            block_access_list_hash: (fork >= Fork::Amsterdam).then_some(EMPTY_ACCESS_LIST_HASH),
            slot_number: self.slot_number,
            ..Header::default()
        }
    }
}

impl Block {
    /// Builds the block of these transactions (as EIP-2718 bytes) and withdrawals. The header must
    /// be complete except for their roots.
    ///
    /// # Errors
    /// [`BlockError::TransactionEncoding`].
    pub fn seal(
        mut header: Header,
        transactions: &[Bytes],
        withdrawals: Option<&[Withdrawal]>,
    ) -> Result<Self, BlockError> {
        header.transactions_root = list_root(transactions);
        header.withdrawals_root = withdrawals.map(calculate_withdrawals_root);
        let (body, _) = encode_body(transactions, withdrawals);
        Self::decode(alloy_rlp::encode(&header).into(), body)
    }
}

/// Returns the gas limit closest to the target that a child of this parent may have.
fn next_gas_limit(parent: u64, target: u64) -> u64 {
    let step = (parent / GAS_LIMIT_DIVISOR).saturating_sub(1);
    let reachable = target.clamp(parent.saturating_sub(step), parent.saturating_add(step));
    reachable.clamp(GAS_LIMIT_MIN, GAS_LIMIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gas_limit_moves_towards_its_target_as_far_as_allowed() {
        for (parent, target, want) in [
            (1_024_000, 2_000_000, 1_024_999),
            (1_024_000, 0, 1_023_001),
            (1_024_000, 1_024_500, 1_024_500),
            (1_024_000, 1_024_000, 1_024_000),
            (5_000, 0, 5_000),
            (5_001, 0, 5_000),
            (5_000, u64::MAX, 5_003),
            (GAS_LIMIT_MAX, u64::MAX, GAS_LIMIT_MAX),
        ] {
            assert_eq!(next_gas_limit(parent, target), want, "{parent} towards {target}");
        }
    }
}
