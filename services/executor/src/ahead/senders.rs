//! Recovery of signers ahead of execution: senders of transactions, and authorities of their
//! authorizations (EIP-7702).
//!
//! A few tasks walk through the block's signatures in order. Execution takes each transaction's
//! signers when it gets there. If a signer is not ready, the engine recovers further signatures
//! until it is.

use alloy_consensus::{
    Transaction as _, TxEip7702, TxType, crypto::secp256k1::recover_signer,
    transaction::SignerRecoverable,
};
use alloy_eips::eip7702::{RecoveredAuthority, RecoveredAuthorization, SignedAuthorization};
use alloy_evm::FromRecoveredTx;
use alloy_primitives::TxKind;
use revm::{context::TxEnv, context_interface::either::Either};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};
use tandem_chain::{Block, Transaction, is_merged};
use tandem_primitives::Address;
use tracing::{Span, info_span};

/// Senders and authorities of one block. Dropping it stops the recovery.
pub struct Senders(SharedSenders);

/// Handle to [`Senders`] for additional threads. It does not keep the recovery running.
#[derive(Clone)]
pub struct SharedSenders(Arc<Inner>);

struct Inner {
    block: Arc<Block>,
    /// Number of each transaction's own signature. Its authorizations' signatures follow.
    first: Box<[usize]>,
    /// Signer of each signature, in block order. `None` inside: the signature is invalid.
    signers: Box<[OnceLock<Option<Address>>]>,
    /// First signature that no thread has taken yet.
    next: AtomicUsize,
    /// Whether the recovery ahead has begun.
    begun: AtomicBool,
}

impl Senders {
    /// Starts to recover the block's senders and authorities, see [`SharedSenders::recover`].
    pub fn recover(block: Arc<Block>) -> Self {
        let senders = Self::new(block);
        senders.0.recover();
        senders
    }

    /// Creates an instance that recovers nothing before a request or [`SharedSenders::recover`].
    pub fn new(block: Arc<Block>) -> Self {
        let mut count = 0;
        let first = block
            .transactions
            .iter()
            .map(|transaction| {
                let number = count;
                count += 1 + authorizations(transaction).len();
                number
            })
            .collect();
        let signers = (0..count).map(|_| OnceLock::new()).collect();
        let (next, begun) = (AtomicUsize::new(0), AtomicBool::new(false));
        let inner = Inner { block, first, signers, next, begun };
        Self(SharedSenders(Arc::new(inner)))
    }

    /// Creates an instance with known signers, by the number of their signature.
    #[cfg(test)]
    pub fn known(block: Arc<Block>, signers: &[Option<Address>]) -> Self {
        let senders = Self::new(block);
        for (place, signer) in senders.inner().signers.iter().zip(signers) {
            let _ = place.set(*signer);
        }
        senders
    }

    #[cfg(test)]
    fn inner(&self) -> &Arc<Inner> {
        &self.0.0
    }

    /// Returns a handle for another thread.
    pub fn share(&self) -> SharedSenders {
        self.0.clone()
    }

    /// See [`SharedSenders::get`].
    ///
    /// # Panics
    /// Panics if the block has no transaction at this position.
    pub fn get(&self, index: usize) -> Option<Address> {
        self.0.get(index)
    }

    /// See [`SharedSenders::environment`].
    ///
    /// # Panics
    /// Panics if the block has no transaction at this position.
    pub fn environment(&self, index: usize, sender: Address) -> TxEnv {
        self.0.environment(index, sender)
    }
}

impl SharedSenders {
    /// Starts to recover all signers on the rayon pool, leaving cores for execution. Further calls have
    /// no effect.
    pub fn recover(&self) {
        if self.0.begun.swap(true, Relaxed) {
            return;
        }
        let tasks = (rayon::current_num_threads() / 2).max(1).min(self.0.signers.len());
        for _ in 0..tasks {
            let (inner, parent) = (self.0.clone(), Span::current());
            rayon::spawn(move || {
                let _span = info_span!(parent: &parent, "recover_senders").entered();
                while let Some(number) = inner.take() {
                    inner.recover(number);
                }
            });
        }
    }

    /// Ends the recovery ahead: from now on, who asks for a signer recovers that one alone.
    pub fn leave(&self) {
        self.0.next.store(self.0.signers.len(), Relaxed);
    }

    /// Returns the sender of the transaction at this position if it is known already. `None`
    /// inside: its signature is invalid.
    ///
    /// # Panics
    /// Panics if the block has no transaction at this position.
    pub fn peek(&self, index: usize) -> Option<Option<Address>> {
        self.0.signers[self.0.first[index]].get().copied()
    }

    /// Returns the sender of the transaction at this position, or `None` if its signature is
    /// invalid.
    ///
    /// # Panics
    /// Panics if the block has no transaction at this position.
    pub fn get(&self, index: usize) -> Option<Address> {
        self.0.wait(self.0.first[index])
    }

    /// Returns the transaction at this position as input of the EVM. The sender must come from
    /// [`SharedSenders::get`].
    ///
    /// # Panics
    /// Panics if the block has no transaction at this position.
    pub fn environment(&self, index: usize, sender: Address) -> TxEnv {
        environment_of(&self.0.block.transactions[index], sender, self.authorities(index))
    }

    /// Returns the signers of a transaction's authorizations. `None` means an invalid signature.
    ///
    /// # Panics
    /// Panics if the block has no transaction at this position.
    pub fn authorities(&self, index: usize) -> impl Iterator<Item = Option<Address>> + '_ {
        let count = authorizations(&self.0.block.transactions[index]).len();
        let first = self.0.first[index] + 1;
        (first..first + count).map(|number| self.0.wait(number))
    }
}

/// Returns a transaction of a block after the merge as input of the EVM. Recovers its signers. `None`
/// if its signature is invalid.
pub fn recovered(transaction: &Transaction) -> Option<TxEnv> {
    let sender = transaction.recover_signer().ok()?;
    let authorities = authorizations(transaction).iter().map(recover_authority);
    Some(environment_of(transaction, sender, authorities))
}

fn authorizations(transaction: &Transaction) -> &[SignedAuthorization] {
    transaction.authorization_list().unwrap_or_default()
}

/// Returns a transaction as input of the EVM, with its sender and the signers of its authorizations.
pub fn environment_of(
    transaction: &Transaction,
    sender: Address,
    authorities: impl Iterator<Item = Option<Address>>,
) -> TxEnv {
    match transaction {
        Transaction::Eip7702(signed) => {
            let recovered =
                |(authority, authorization): (Option<Address>, &SignedAuthorization)| {
                    let authority = authority.map(RecoveredAuthority::Valid);
                    Either::Right(RecoveredAuthorization::new_unchecked(
                        authorization.inner().clone(),
                        // The EVM skips an invalid authority.
                        authority.unwrap_or(RecoveredAuthority::Invalid),
                    ))
                };
            TxEnv {
                authorization_list: authorities
                    .zip(&signed.tx().authorization_list)
                    .map(recovered)
                    .collect(),
                ..without_authorizations(signed.tx(), sender)
            }
        }
        transaction => TxEnv::from_recovered_tx(transaction, sender),
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Inner {
    /// Takes the next signature, or returns `None` if none is left.
    fn take(&self) -> Option<usize> {
        let number = self.next.fetch_add(1, Relaxed);
        (number < self.signers.len()).then_some(number)
    }

    /// Returns the signer of this signature. While another thread works on it, this thread
    /// continues with the signatures after it.
    fn wait(&self, number: usize) -> Option<Address> {
        loop {
            if let Some(signer) = self.signers[number].get() {
                return *signer;
            }
            match self.take() {
                Some(taken) if taken != number => self.recover(taken),
                _ => return self.recover(number),
            };
        }
    }

    fn recover(&self, number: usize) -> Option<Address> {
        *self.signers[number].get_or_init(|| {
            // The signature belongs to the last transaction that begins at or before it.
            let index = self.first.partition_point(|&first| first <= number) - 1;
            let transaction = &self.block.transactions[index];
            match number - self.first[index] {
                // A high `s` was valid once (EIP-2): before the merge `validate_body` checks it.
                0 if !is_merged(&self.block.header) => transaction.recover_signer_unchecked().ok(),
                0 => transaction.recover_signer().ok(),
                place => authorizations(transaction).get(place - 1).and_then(recover_authority),
            }
        })
    }
}

/// Returns the signer of the authorization. `None` means an invalid signature: parity above 1, high
/// `s`, or no point of the curve (EIP-7702, "Behavior", step 3).
fn recover_authority(authorization: &SignedAuthorization) -> Option<Address> {
    let signature = authorization.signature().ok()?;
    recover_signer(&signature, authorization.signature_hash()).ok()
}

/// Converts the transaction for the EVM without its authorizations. alloy-evm would recover their
/// authorities immediately.
fn without_authorizations(transaction: &TxEip7702, caller: Address) -> TxEnv {
    let TxEip7702 {
        chain_id,
        nonce,
        gas_limit,
        max_fee_per_gas,
        max_priority_fee_per_gas,
        to,
        value,
        access_list,
        authorization_list: _,
        input,
    } = transaction;
    TxEnv {
        tx_type: TxType::Eip7702.into(),
        caller,
        gas_limit: *gas_limit,
        gas_price: *max_fee_per_gas,
        kind: TxKind::Call(*to),
        value: *value,
        data: input.clone(),
        nonce: *nonce,
        chain_id: Some(*chain_id),
        access_list: access_list.clone(),
        gas_priority_fee: Some(*max_priority_fee_per_gas),
        ..TxEnv::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxEip1559};
    use alloy_eips::{
        eip2718::Encodable2718,
        eip2930::{AccessList, AccessListItem},
        eip7702::Authorization,
    };
    use alloy_primitives::{B256, Bytes, Signature, U256};
    use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
    use tandem_chain::Header;

    /// Generates signatures of which half are valid, as `r` is a point's coordinate or not. `s` is
    /// low or high, and sometimes zero.
    fn signatures() -> impl Strategy<Value = Signature> {
        let number = || any::<[u8; 32]>().prop_map(U256::from_be_bytes);
        let s = prop_oneof![
            6 => number().prop_map(|s| s >> 1),
            2 => number(),
            1 => Just(U256::ZERO),
        ];
        (number(), s, any::<bool>()).prop_map(|(r, s, parity)| Signature::new(r, s, parity))
    }

    fn authorizations() -> impl Strategy<Value = SignedAuthorization> {
        let parity = prop_oneof![6 => 0..2_u8, 1 => 2..=u8::MAX];
        (any::<(u64, [u8; 20], u64)>(), parity, signatures()).prop_map(
            |((chain_id, address, nonce), parity, signature)| {
                let chain_id = U256::from(chain_id);
                let inner = Authorization { chain_id, address: address.into(), nonce };
                SignedAuthorization::new_unchecked(inner, parity, signature.r(), signature.s())
            },
        )
    }

    fn set_code() -> impl Strategy<Value = Bytes> {
        let fields = any::<(u64, u64, u64, u128, u128, u64, [u8; 20])>();
        let input = prop::collection::vec(any::<u8>(), 0..40);
        let list = prop::collection::vec(authorizations(), 0..6);
        (fields, input, list, signatures()).prop_map(|(fields, input, list, signature)| {
            let (chain_id, nonce, gas_limit, fee_cap, tip, value, to) = fields;
            let item = AccessListItem { address: to.into(), storage_keys: vec![B256::ZERO] };
            let transaction = TxEip7702 {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: fee_cap,
                max_priority_fee_per_gas: tip,
                to: to.into(),
                value: U256::from(value),
                access_list: AccessList(vec![item]),
                authorization_list: list,
                input: input.into(),
            };
            Transaction::from(transaction.into_signed(signature)).encoded_2718().into()
        })
    }

    fn plain() -> impl Strategy<Value = Bytes> {
        (any::<u64>(), signatures()).prop_map(|(nonce, signature)| {
            let transaction = TxEip1559 { nonce, ..TxEip1559::default() };
            Transaction::from(transaction.into_signed(signature)).encoded_2718().into()
        })
    }

    fn blocks() -> impl Strategy<Value = Arc<Block>> {
        let transaction = prop_oneof![set_code(), plain()];
        prop::collection::vec(transaction, 0..12)
            .prop_map(|raw| Arc::new(Block::seal(Header::default(), &raw, None).unwrap()))
    }

    /// Returns alloy-evm's result with immediate recovery.
    fn on_the_spot(block: &Block) -> Vec<Option<TxEnv>> {
        let environment = |transaction: &Transaction| {
            let sender = transaction.recover_signer().ok()?;
            Some(TxEnv::from_recovered_tx(transaction, sender))
        };
        block.transactions.iter().map(environment).collect()
    }

    fn ahead(senders: &Senders, index: usize) -> Option<TxEnv> {
        senders.get(index).map(|sender| senders.environment(index, sender))
    }

    proptest! {
        #[test]
        fn the_evm_gets_the_same_transactions_as_without_recovery_ahead(block in blocks()) {
            let want = on_the_spot(&block);
            let senders = Senders::recover(block.clone());
            for (index, want) in want.iter().enumerate() {
                prop_assert_eq!(&ahead(&senders, index), want);
            }
            // Without any task, and from the end.
            let senders = Senders::new(block.clone());
            for (index, want) in want.iter().enumerate().rev() {
                prop_assert_eq!(&ahead(&senders, index), want);
            }
            // At another machine.
            for (transaction, want) in block.transactions.iter().zip(&want) {
                prop_assert_eq!(&recovered(transaction), want);
            }
        }
    }

    #[test]
    fn the_random_authorizations_are_valid_and_invalid_ones() {
        let mut runner = TestRunner::deterministic();
        let mut counts = [0, 0];
        for _ in 0..100 {
            let authorization = authorizations().new_tree(&mut runner).unwrap().current();
            counts[usize::from(recover_authority(&authorization).is_some())] += 1;
        }
        assert!(counts.iter().all(|&count| count >= 10), "invalid and valid: {counts:?}");
    }

    /// Returns the senders of a block with three such transactions.
    fn three_of(transactions: &impl Strategy<Value = Bytes>) -> Senders {
        let mut runner = TestRunner::deterministic();
        let raw: Vec<_> =
            (0..3).map(|_| transactions.new_tree(&mut runner).unwrap().current()).collect();
        let block = Block::seal(Header::default(), &raw, None).unwrap();
        Senders::new(Arc::new(block))
    }

    #[test]
    fn only_the_signers_that_are_asked_for_are_recovered_if_others_do_the_rest() {
        let senders = three_of(&plain());
        senders.share().leave();
        senders.get(1);
        let known = [0, 1, 2].map(|index| senders.share().peek(index).is_some());
        assert_eq!(known, [false, true, false]);
    }

    #[test]
    fn nothing_is_recovered_any_more_once_nobody_can_ask() {
        let senders = three_of(&set_code());
        let inner = senders.inner().clone();
        assert_eq!(inner.take(), Some(0));
        drop(senders);
        assert_eq!(inner.take(), None);
    }
}
