//! Random transactions of every type. Most are valid; each way to be invalid comes now and then.

use crate::{
    case::{CHAIN_ID, SENDERS, Signer, deposit_contract, signers},
    program::{self, SLOTS},
};
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip4844Variant, TxEip7702, TxEnvelope,
    TxLegacy,
};
use alloy_eips::{
    Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use std::collections::HashMap;

/// Contracts that take requests, with the sizes of their calldata (EIPs 7002, 7251, 8282).
const REQUESTS: [(Address, usize); 4] = [
    (address!("0x00000961ef480eb55e80d19ad83579a64c007002"), 56),
    (address!("0x0000bbddc7ce488642fb579f8b00f3a590007251"), 96),
    (address!("0x0000bff46984e3725691fa540a8c7589300d8282"), 184),
    (address!("0x000064d678505ad48f8ccb093bc65613800e8282"), 48),
];
/// Factory of EIP-7997.
const FACTORY: Address = address!("0x4e59b44847b379578588920ca78fbf26c0b4956c");
/// Gas that a transaction may use for execution (EIP-7825); more is for state (EIP-8037).
const EXECUTION_GAS_MAX: u64 = 1 << 24;

/// Author of a block's transactions.
pub struct Author<'a> {
    /// Source of all choices.
    pub rng: &'a mut StdRng,
    /// Addresses to call.
    pub targets: &'a [Address],
    /// Nonces, as far as they can be foreseen.
    pub nonces: HashMap<Address, u64>,
    /// Base fee of the parent, in wei.
    pub base_fee: u64,
}

/// Fields that all types share.
struct Draft {
    signer: &'static Signer,
    nonce: u64,
    to: TxKind,
    value: U256,
    input: Bytes,
    gas: u64,
    cap: u128,
    tip: u128,
    chain_id: u64,
}

impl Author<'_> {
    /// Returns a transaction in its EIP-2718 form, and its blobs.
    pub fn write(&mut self) -> (Bytes, Vec<B256>) {
        let draft = self.draft();
        let (transaction, blobs) = match self.rng.random_range(0..10) {
            0 | 1 => (self.legacy(draft), Vec::new()),
            2 => (self.with_access_list(draft), Vec::new()),
            3..=5 => (self.dynamic(draft), Vec::new()),
            6 => self.blob(draft),
            _ => (self.set_code(draft), Vec::new()),
        };
        (transaction.encoded_2718().into(), blobs)
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.rng.random_ratio(1, count)
    }

    fn draft(&mut self) -> Draft {
        let signer = &signers()[self.rng.random_range(0..SENDERS)];
        let expected = self.nonces.entry(signer.address).or_default();
        let mut nonce = *expected;
        *expected = expected.saturating_add(1);
        if self.one_in(60) {
            nonce = nonce.wrapping_add(self.rng.random_range(0..3)).wrapping_sub(1);
        }
        let (to, value, input) = self.call();
        let gas = match self.rng.random_range(0..20) {
            0 | 1 => self.rng.random_range(11_000..70_000),
            2 => *[12_000, 15_000, 21_000, 24_000, 204_600, 207_600]
                .choose(self.rng)
                .unwrap_or(&21_000),
            3..=8 => self.rng.random_range(60_000..1_000_000),
            9..=16 => self.rng.random_range(1_000_000..EXECUTION_GAS_MAX),
            17 => self.rng.random_range(EXECUTION_GAS_MAX - 2..EXECUTION_GAS_MAX + 2),
            _ => self.rng.random_range(EXECUTION_GAS_MAX..60_000_000),
        };
        let tip: u128 = *[0, 1, 1_000].choose(self.rng).unwrap_or(&0);
        let cap = match self.rng.random_range(0..60) {
            0 => u128::from(self.base_fee) / 2,
            // Below the tip, or at the edge of the base fee.
            1 => tip.saturating_sub(1),
            2 => u128::from(self.base_fee) * 7 / 8,
            _ => u128::from(self.base_fee) * 2 + tip,
        };
        let chain_id = if self.one_in(100) { CHAIN_ID + 1 } else { CHAIN_ID };
        Draft { signer, nonce, to, value, input, gas, cap, tip, chain_id }
    }

    /// Returns receiver, value and calldata.
    fn call(&mut self) -> (TxKind, U256, Bytes) {
        let target = self.targets.choose(self.rng).copied().unwrap_or_default();
        let value = self.value();
        match self.rng.random_range(0..20) {
            0..=3 => (target.into(), value, Bytes::new()),
            4..=6 => {
                let code = program::initcode(self.rng, self.targets);
                (TxKind::Create, value, self.padded(code))
            }
            7 => {
                let code = program::initcode(self.rng, self.targets);
                let salt = U256::from(self.rng.random_range(0..2)).to_be_bytes::<32>();
                (FACTORY.into(), value, [&salt[..], &code].concat().into())
            }
            8 | 9 => {
                let (contract, len) = REQUESTS[self.rng.random_range(0..REQUESTS.len())];
                let mut data = vec![0; len];
                self.rng.fill(data.as_mut_slice());
                let mut value =
                    *[0, 1, 1_000, 3_000_000_000_000_000_000].choose(self.rng).unwrap_or(&1_u64);
                if len == 184 {
                    // A builder's deposit has its amount in gwei, and comes with it and the fee.
                    let ether = self.rng.random_range(0..3);
                    data[80..88].copy_from_slice(&(ether * 1_000_000_000_u64).to_be_bytes());
                    if self.rng.random_ratio(3, 4) {
                        value = ether * 1_000_000_000_000_000_000 + 1;
                    }
                }
                (contract.into(), U256::from(value), data.into())
            }
            10 => (deposit_contract().into(), U256::ZERO, deposit(self.rng.random())),
            11 => {
                // So much calldata that its floor decides (EIP-7976).
                let mut data = vec![0; self.rng.random_range(0..20_000)];
                let part = self.rng.random_range(0..=data.len());
                self.rng.fill(&mut data[..part]);
                (target.into(), value, data.into())
            }
            _ => {
                let mut words = Vec::new();
                for _ in 0..self.rng.random_range(0..4) {
                    let word = self.targets.choose(self.rng).copied().unwrap_or_default();
                    words.extend(word.into_word().0);
                }
                (target.into(), value, words.into())
            }
        }
    }

    /// Makes initcode as long as the limit, now and then (EIP-7954).
    fn padded(&mut self, mut code: Vec<u8>) -> Bytes {
        if self.one_in(30) {
            let limit = *[0xc000, 0x10_000, 0x20_000].choose(self.rng).unwrap_or(&0xc000);
            code.resize(limit + self.rng.random_range(0..2), 0);
        }
        code.into()
    }

    fn value(&mut self) -> U256 {
        match self.rng.random_range(0..40) {
            0..=19 => U256::ZERO,
            20 => U256::from(10).pow(U256::from(20)),
            _ => U256::from(self.rng.random_range(1..100_000)),
        }
    }

    fn access_list(&mut self) -> AccessList {
        let count = self.rng.random_range(0..4);
        let item = |author: &mut Self| {
            let address = author.targets.choose(author.rng).copied().unwrap_or_default();
            let count = author.rng.random_range(0..4);
            let slot = |_| B256::from(U256::from(author.rng.random_range(0..SLOTS)));
            AccessListItem { address, storage_keys: (0..count).map(slot).collect() }
        };
        AccessList((0..count).map(|_| item(self)).collect())
    }

    fn legacy(&mut self, draft: Draft) -> TxEnvelope {
        let chain_id = self.rng.random_bool(0.5).then_some(draft.chain_id);
        let transaction = TxLegacy {
            chain_id,
            nonce: draft.nonce,
            gas_price: draft.cap,
            gas_limit: draft.gas,
            to: draft.to,
            value: draft.value,
            input: draft.input,
        };
        sign(transaction, draft.signer).into()
    }

    fn with_access_list(&mut self, draft: Draft) -> TxEnvelope {
        let transaction = TxEip2930 {
            chain_id: draft.chain_id,
            nonce: draft.nonce,
            gas_price: draft.cap,
            gas_limit: draft.gas,
            to: draft.to,
            value: draft.value,
            access_list: self.access_list(),
            input: draft.input,
        };
        sign(transaction, draft.signer).into()
    }

    fn dynamic(&mut self, draft: Draft) -> TxEnvelope {
        let transaction = TxEip1559 {
            chain_id: draft.chain_id,
            nonce: draft.nonce,
            gas_limit: draft.gas,
            max_fee_per_gas: draft.cap,
            max_priority_fee_per_gas: draft.tip,
            to: draft.to,
            value: draft.value,
            access_list: self.access_list(),
            input: draft.input,
        };
        sign(transaction, draft.signer).into()
    }

    fn receiver(&mut self, to: TxKind) -> Address {
        to.to()
            .copied()
            .unwrap_or_else(|| self.targets.choose(self.rng).copied().unwrap_or_default())
    }

    fn blob(&mut self, draft: Draft) -> (TxEnvelope, Vec<B256>) {
        let count = match self.rng.random_range(0..30) {
            0 => 0,
            1 => 7,
            _ => self.rng.random_range(1..=6),
        };
        let mut hashes: Vec<_> = (0..count)
            .map(|_| {
                let mut hash = B256::from(self.rng.random::<[u8; 32]>());
                hash[0] = 1;
                hash
            })
            .collect();
        if self.one_in(30)
            && let Some(hash) = hashes.first_mut()
        {
            hash[0] = 2;
        }
        let max_fee_per_blob_gas = if self.one_in(30) { 0 } else { 1_000_000_000_000 };
        let to = self.receiver(draft.to);
        let transaction = TxEip4844 {
            chain_id: draft.chain_id,
            nonce: draft.nonce,
            gas_limit: draft.gas,
            max_fee_per_gas: draft.cap,
            max_priority_fee_per_gas: draft.tip,
            to,
            value: draft.value,
            access_list: self.access_list(),
            blob_versioned_hashes: hashes.clone(),
            max_fee_per_blob_gas,
            input: draft.input,
        };
        let transaction: TxEip4844Variant = transaction.into();
        (sign(transaction, draft.signer).into(), hashes)
    }

    fn set_code(&mut self, draft: Draft) -> TxEnvelope {
        let count = if self.one_in(40) { 0 } else { self.rng.random_range(1..=4) };
        let to = self.receiver(draft.to);
        let authorization_list = (0..count).map(|_| self.authorization()).collect();
        let transaction = TxEip7702 {
            chain_id: draft.chain_id,
            nonce: draft.nonce,
            gas_limit: draft.gas,
            max_fee_per_gas: draft.cap,
            max_priority_fee_per_gas: draft.tip,
            to,
            value: draft.value,
            access_list: self.access_list(),
            authorization_list,
            input: draft.input,
        };
        sign(transaction, draft.signer).into()
    }

    /// Returns an authorization. Invalid ones leave the transaction valid, but cost gas.
    fn authorization(&mut self) -> SignedAuthorization {
        let signer = &signers()[self.rng.random_range(0..signers().len())];
        let expected = self.nonces.entry(signer.address).or_default();
        let mut nonce = *expected;
        match self.rng.random_range(0..12) {
            0 => nonce = nonce.wrapping_add(1),
            1 => nonce = u64::MAX,
            _ => *expected = expected.saturating_add(1),
        }
        let chain_id = *[0, CHAIN_ID, CHAIN_ID, 5].choose(self.rng).unwrap_or(&0);
        let address = match self.rng.random_range(0..4) {
            0 => Address::ZERO,
            _ => self.targets.choose(self.rng).copied().unwrap_or_default(),
        };
        let authorization = Authorization { chain_id: U256::from(chain_id), address, nonce };
        if self.one_in(20) {
            let (r, s) = (U256::from(self.rng.random::<u128>()), U256::MAX >> 1);
            return SignedAuthorization::new_unchecked(authorization, self.rng.random(), r, s);
        }
        let signature = signer.sign(authorization.signature_hash());
        authorization.into_signed(signature)
    }
}

fn sign<T: SignableTransaction<Signature>>(
    transaction: T,
    signer: &Signer,
) -> alloy_consensus::Signed<T> {
    let signature = signer.sign(transaction.signature_hash());
    transaction.into_signed(signature)
}

/// Returns the data of a deposit's log: public key, withdrawal credentials, amount, signature and
/// index in the ABI's encoding (EIP-6110).
fn deposit(seed: u8) -> Bytes {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for len in [48_usize, 32, 8, 96, 8] {
        head.extend(U256::from(5 * 32 + tail.len()).to_be_bytes::<32>());
        tail.extend(U256::from(len).to_be_bytes::<32>());
        tail.extend(vec![seed; len]);
        tail.resize(tail.len().next_multiple_of(32), 0);
    }
    head.extend(tail);
    head.into()
}
