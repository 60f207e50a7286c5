//! Request of the Engine API for a payload to be built, and the resulting payload.

use alloy_eips::eip4895::Withdrawal;
use alloy_rlp::Encodable;
use std::sync::Arc;
use tandem_chain::{Fork, Payload};
use tandem_primitives::{Address, B256, Bytes, U256, keccak256};
use tandem_proto::blob_validator::StoredBlob;

/// `PayloadAttributes` in all its versions (execution-apis, `src/engine`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PayloadAttributes {
    /// Timestamp of the payload, in seconds.
    pub timestamp: u64,
    /// Randomness of the beacon chain.
    pub prev_randao: B256,
    /// Receiver of the fees.
    pub suggested_fee_recipient: Address,
    /// Withdrawals, from Shanghai on.
    pub withdrawals: Option<Vec<Withdrawal>>,
    /// Root of the parent beacon block, from Cancun on.
    pub parent_beacon_block_root: Option<B256>,
    /// Slot of the payload, from Amsterdam on.
    pub slot_number: Option<u64>,
    /// Gas limit to approach, from Amsterdam on. Before, the node's own setting decides.
    pub target_gas_limit: Option<u64>,
}

/// Id of a build process: the first eight bytes of the hash of the build's inputs. Equal attributes
/// on the same head therefore always lead to the same process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadId(pub [u8; 8]);

impl PayloadId {
    /// Returns the id of the payload with these attributes on this block.
    pub fn of(parent: B256, attributes: &PayloadAttributes) -> Self {
        let mut text = Vec::with_capacity(256);
        parent.encode(&mut text);
        attributes.timestamp.encode(&mut text);
        attributes.prev_randao.encode(&mut text);
        attributes.suggested_fee_recipient.encode(&mut text);
        // An empty list differs from an absent one.
        attributes.withdrawals.is_some().encode(&mut text);
        attributes.withdrawals.clone().unwrap_or_default().encode(&mut text);
        attributes.parent_beacon_block_root.is_some().encode(&mut text);
        attributes.parent_beacon_block_root.unwrap_or_default().encode(&mut text);
        for number in [attributes.slot_number, attributes.target_gas_limit] {
            number.is_some().encode(&mut text);
            number.unwrap_or_default().encode(&mut text);
        }
        let mut id = [0; 8];
        id.copy_from_slice(&keccak256(text)[..8]);
        Self(id)
    }
}

/// Payload that was built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BuiltPayload {
    /// Fork whose rules the payload follows.
    pub fork: Fork,
    /// The payload.
    pub payload: Payload,
    /// Execution requests, each as type and data (EIP-7685).
    pub requests: Vec<Bytes>,
    /// Income of the fee recipient, in wei.
    pub value: U256,
    /// Blobs of the transactions, in their order, with the proofs that the fork demands.
    pub blobs: Vec<Arc<StoredBlob>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_counts_for_the_id() {
        let plain = PayloadAttributes { timestamp: 1, ..PayloadAttributes::default() };
        let withdrawal = |amount| Withdrawal { amount, ..Withdrawal::default() };
        let all = [
            plain.clone(),
            PayloadAttributes { timestamp: 2, ..plain.clone() },
            PayloadAttributes { prev_randao: B256::repeat_byte(1), ..plain.clone() },
            PayloadAttributes { suggested_fee_recipient: Address::repeat_byte(1), ..plain.clone() },
            PayloadAttributes { withdrawals: Some(Vec::new()), ..plain.clone() },
            PayloadAttributes { withdrawals: Some(vec![withdrawal(1)]), ..plain.clone() },
            PayloadAttributes { withdrawals: Some(vec![withdrawal(2)]), ..plain.clone() },
            PayloadAttributes { parent_beacon_block_root: Some(B256::ZERO), ..plain.clone() },
            PayloadAttributes { slot_number: Some(0), ..plain.clone() },
            PayloadAttributes { target_gas_limit: Some(0), ..plain.clone() },
        ];
        let mut ids: Vec<_> =
            all.iter().map(|attributes| PayloadId::of(B256::ZERO, attributes).0).collect();
        ids.push(PayloadId::of(B256::repeat_byte(1), &plain).0);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all.len() + 1);
        assert_eq!(PayloadId::of(B256::ZERO, &plain), PayloadId::of(B256::ZERO, &plain.clone()));
    }
}
