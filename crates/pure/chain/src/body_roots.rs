//! Roots of a body, which say to which header it belongs.

use crate::{BlockError, codec::decode_body};
use alloy_consensus::{
    Header,
    proofs::{calculate_ommers_root, calculate_withdrawals_root},
};
use alloy_primitives::{B256, Bytes};
use tandem_trie::list_root;

/// Roots of a body, in the form in which a header has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyRoots {
    transactions_root: B256,
    ommers_hash: B256,
    withdrawals_root: Option<B256>,
}

impl BodyRoots {
    /// Computes the roots of a body in RLP. Transactions are not decoded.
    ///
    /// # Errors
    /// [`BlockError::Rlp`].
    pub fn of(body_rlp: &Bytes) -> Result<Self, BlockError> {
        let body = decode_body(body_rlp)?;
        Ok(Self {
            transactions_root: list_root(&body.raw_transactions),
            ommers_hash: calculate_ommers_root(&body.ommers),
            withdrawals_root: body.withdrawals.as_deref().map(calculate_withdrawals_root),
        })
    }

    /// Returns whether the body belongs to this header.
    pub fn fit(&self, header: &Header) -> bool {
        (self.transactions_root, self.ommers_hash, self.withdrawals_root)
            == (header.transactions_root, header.ommers_hash, header.withdrawals_root)
    }
}
