//! Random transactions that are valid in a given block, of every type that its fork knows.

use crate::{
    contracts::{self, *},
    forks::{BlobRules, CHAIN_ID},
    world::World,
};
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip4844Variant, TxEip7702, TxEnvelope,
    TxLegacy,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, keccak256};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use secp256k1::{Message, SECP256K1, SecretKey};
use std::{ops::Range, sync::OnceLock};
use tandem_chain::Fork;

/// Accounts with a known key and a balance in every genesis.
const KEYS: u64 = 40;

/// First of the accounts of [`Action::Pay`], and their number.
const PAID: u64 = 0x00aa_0000_0000;
const PAID_MAX: u64 = 2_000;

/// First of the slots of [`Action::Spread`], and their number.
const SPREAD: u64 = 1_000;
const SPREAD_MAX: u64 = 8_000;

/// An account whose key is known.
#[derive(Clone, Debug)]
pub struct Signer {
    key: SecretKey,
    /// The account's address.
    pub address: Address,
}

impl Signer {
    fn new(index: u64) -> Self {
        let key = keccak256(index.to_be_bytes());
        let key = SecretKey::from_byte_array(key.0).expect("a hash is a key");
        let public = key.public_key(SECP256K1).serialize_uncompressed();
        Self { key, address: Address::from_raw_public_key(&public[1..]) }
    }

    pub(crate) fn sign(&self, hash: B256) -> Signature {
        let message = Message::from_digest(hash.0);
        let signature = SECP256K1.sign_ecdsa_recoverable(message, &self.key);
        let (recovery, compact) = signature.serialize_compact();
        Signature::from_bytes_and_parity(&compact, i32::from(recovery) == 1)
    }
}

/// Returns the accounts with a known key; all are funded in every genesis.
pub fn signers() -> &'static [Signer] {
    static SIGNERS: OnceLock<Vec<Signer>> = OnceLock::new();
    SIGNERS.get_or_init(|| (0..KEYS).map(Signer::new).collect())
}

/// Transfer of one wei from an account with a known key.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Transaction in the form of EIP-2718.
    pub raw: Bytes,
    /// Hash of the transaction.
    pub hash: B256,
    /// Sender.
    pub sender: Address,
    /// Recipient.
    pub to: Address,
}

impl Transfer {
    /// Signs a transfer with the key of this number, for this nonce. It pays a tip for each gas, in
    /// wei, and at most 100 gwei.
    pub fn new(key: usize, nonce: u64, tip: u128) -> Self {
        let to = Address::repeat_byte(0x70);
        let (raw, hash) = signed_call(key, nonce, tip, to, Bytes::new(), 21_000);
        Self { raw, hash, sender: signers()[key].address, to }
    }
}

/// Signs a call of a contract with the key of this number, which sends one wei. Nonce and fees are as in
/// [`Transfer::new`]. Returns the transaction in the form of EIP-2718, and its hash.
pub fn signed_call(
    key: usize,
    nonce: u64,
    tip: u128,
    to: Address,
    input: Bytes,
    gas_limit: u64,
) -> (Bytes, B256) {
    let transaction = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: tip,
        to: TxKind::Call(to),
        value: U256::from(1),
        input,
        ..TxEip1559::default()
    };
    let signature = signers()[key].sign(transaction.signature_hash());
    let signed = TxEnvelope::from(transaction.into_signed(signature));
    (signed.encoded_2718().into(), *signed.tx_hash())
}

/// Effect of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A call that stores the block's environment.
    Environment,
    /// A transfer to an existing or a new account; the value may be zero.
    Transfer,
    /// A call that writes and clears slots.
    Store,
    /// A move of tokens; fails if the sender has too few.
    Token,
    /// A creation by transaction.
    Create,
    /// CREATE or CREATE2 of a contract that can be destroyed.
    Factory,
    /// CREATE2 and SELFDESTRUCT in the same transaction.
    FactoryAndCall,
    /// A call of a contract that may or may not exist: destroys it or writes to it.
    Mortal,
    /// A call that runs out of gas.
    Burn,
    /// A blob transaction.
    Blob,
    /// A transaction that sets or clears the code of externally owned accounts.
    SetCode,
    /// A call of an externally owned account with calldata; writes slots if the account has code.
    Delegated,
    /// A withdrawal request.
    Withdraw,
    /// A consolidation request.
    Consolidate,
    /// A deposit.
    Deposit,
    /// A transfer to one of some thousand accounts, of which each block may use more.
    Pay,
    /// A call that writes and clears some of many slots, of which each block may use more.
    Spread,
    /// CREATE2 of one of a few contracts, which may exist, may have been destroyed, or neither.
    Recreate,
}

impl Action {
    const ALL: [(Self, Fork); 15] = [
        (Self::Environment, Fork::Paris),
        (Self::Transfer, Fork::Paris),
        (Self::Store, Fork::Paris),
        (Self::Token, Fork::Paris),
        (Self::Create, Fork::Paris),
        (Self::Factory, Fork::Paris),
        (Self::FactoryAndCall, Fork::Paris),
        (Self::Mortal, Fork::Paris),
        (Self::Burn, Fork::Paris),
        (Self::Blob, Fork::Cancun),
        (Self::SetCode, Fork::Prague),
        (Self::Delegated, Fork::Prague),
        (Self::Withdraw, Fork::Prague),
        (Self::Consolidate, Fork::Prague),
        (Self::Deposit, Fork::Prague),
    ];

    /// Actions whose set of keys stays bounded. Before Cancun, they create and destroy contracts.
    pub const BOUNDED: [Self; 7] = [
        Self::Pay,
        Self::Pay,
        Self::Spread,
        Self::Store,
        Self::Recreate,
        Self::FactoryAndCall,
        Self::Mortal,
    ];

    /// Returns all actions that a fork allows.
    pub fn of(fork: Fork) -> Vec<Self> {
        Self::ALL.iter().filter(|(_, since)| *since <= fork).map(|(action, _)| *action).collect()
    }
}

/// Author of a transaction, with the properties of the block it goes into.
pub struct Author<'a> {
    /// Source of all choices.
    pub rng: &'a mut StdRng,
    /// Number of the block.
    pub number: u64,
    /// Base fee of the block in wei.
    pub base_fee: u64,
    /// Blob parameters, and the number of blobs that still fit.
    pub blobs: Option<(BlobRules, u64)>,
    /// Price of blob gas in wei.
    pub blob_price: u128,
    /// Gas left in the block.
    pub gas: u64,
    /// Tips to choose from, in wei. `None` for a few values that tests of single blocks need.
    pub tips: Option<Range<u128>>,
}

/// Fields that all types share.
struct Draft {
    signer: &'static Signer,
    nonce: u64,
    to: TxKind,
    value: U256,
    input: Bytes,
    gas: u64,
}

impl Author<'_> {
    /// Returns a transaction and its sender, `None` if it does not fit into the block any more.
    pub fn write(&mut self, action: Action, world: &World) -> Option<(TxEnvelope, Address)> {
        let signer = signers().choose(self.rng)?;
        let (to, value, input, gas) = self.call(action, world);
        let nonce = world.get(signer.address).nonce;
        let draft = Draft { signer, nonce, to, value: U256::from(value), input, gas };
        if draft.gas > self.gas {
            return None;
        }
        let transaction = match action {
            Action::Blob => self.blob(draft)?,
            Action::SetCode => self.set_code(draft, world),
            _ => self.plain(draft),
        };
        Some((transaction, signer.address))
    }

    /// Returns receiver, value, calldata and gas limit.
    fn call(&mut self, action: Action, world: &World) -> (TxKind, u64, Bytes, u64) {
        let none = Bytes::new();
        match action {
            Action::Environment => {
                let asked = self.number.saturating_sub(self.rng.random_range(0..300));
                (ENVIRONMENT.into(), 0, words([U256::from(asked)]), 400_000)
            }
            Action::Transfer => {
                let (to, value) = match self.rng.random_range(0..4) {
                    0 => (self.somebody(), 0),
                    1 => (Address::from(self.rng.random::<[u8; 20]>()), 0),
                    2 => (Address::from(self.rng.random::<[u8; 20]>()), 7_777),
                    _ => (self.somebody(), self.rng.random_range(1..1_000_000_000)),
                };
                (to.into(), value, none, 21_000)
            }
            Action::Store => (STORE.into(), 0, self.pairs(12), 500_000),
            Action::Pay => {
                let index = self.rng.random_range(0..self.number.min(PAID_MAX));
                let to = Address::left_padding_from(&(PAID + index).to_be_bytes());
                (to.into(), self.rng.random_range(1..1_000_000), none, 21_000)
            }
            Action::Spread => {
                let slots = (self.number * 8).min(SPREAD_MAX);
                (STORE.into(), 0, self.pairs_in(12, SPREAD..SPREAD + slots), 500_000)
            }
            Action::Token => {
                let to = match self.rng.random_bool(0.5) {
                    true => self.somebody(),
                    false => Address::from(self.rng.random::<[u8; 20]>()),
                };
                let amount = self.rng.random_range(0..600_000_000_u64);
                (TOKEN.into(), 0, words([to.into_word().into(), U256::from(amount)]), 120_000)
            }
            Action::Create => {
                (TxKind::Create, 5, mortal_initcode(self.rng.random_range(0..6)), 400_000)
            }
            Action::Factory | Action::FactoryAndCall => {
                let factory = if action == Action::Factory { FACTORY } else { FACTORY_AND_CALL };
                let salt = U256::from(self.rng.random_range(0..SALTS));
                let input = [words([salt]), initcode()].concat();
                (factory.into(), 3, input.into(), 500_000)
            }
            Action::Recreate => {
                // 0 stands for CREATE, whose addresses never repeat.
                let salt = U256::from(self.rng.random_range(1..SALTS));
                let input = [words([salt]), initcode()].concat();
                (FACTORY.into(), 3, input.into(), 500_000)
            }
            Action::Mortal => {
                let salt = U256::from(self.rng.random_range(1..SALTS));
                let to = match self.rng.random_range(0..4) {
                    0 => MORTAL,
                    _ => created_at(FACTORY, salt, &initcode()),
                };
                let destroys = self.rng.random_bool(0.4) && world.0.contains_key(&to);
                let input = if destroys { none } else { self.pairs(6) };
                (to.into(), 0, input, 300_000)
            }
            Action::Burn => (BURNER.into(), 0, none, self.rng.random_range(30_000..2_000_000)),
            Action::Blob => (BLOB_ENVIRONMENT.into(), 0, none, 200_000),
            Action::SetCode | Action::Delegated => {
                (self.somebody().into(), 1, self.pairs(3), 400_000)
            }
            Action::Withdraw => (WITHDRAWAL_REQUESTS.into(), 1_000, self.bytes(56), 300_000),
            Action::Consolidate => (CONSOLIDATION_REQUESTS.into(), 1_000, self.bytes(96), 400_000),
            Action::Deposit => {
                (DEPOSIT.into(), 0, contracts::deposit_calldata(self.rng.random()), 100_000)
            }
        }
    }

    fn somebody(&mut self) -> Address {
        signers().choose(self.rng).map_or(Address::ZERO, |signer| signer.address)
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(bytes.as_mut_slice());
        bytes.into()
    }

    /// Returns up to `max` pairs of slot and value, four in ten of the values zero.
    fn pairs(&mut self, max: usize) -> Bytes {
        self.pairs_in(max, 0..64)
    }

    fn pairs_in(&mut self, max: usize, slots: Range<u64>) -> Bytes {
        let count = self.rng.random_range(1..=max);
        let pairs = (0..count).map(|_| {
            let slot = U256::from(self.rng.random_range(slots.clone()));
            let clears = self.rng.random_bool(0.4);
            (slot, if clears { U256::ZERO } else { U256::from(self.rng.random::<u128>()) })
        });
        store_calldata(pairs.collect::<Vec<_>>())
    }

    /// Returns tip and fee cap in wei. A tip of 0 touches the fee recipient without paying it.
    fn fees(&mut self) -> (u128, u128) {
        let tip = match &self.tips {
            Some(tips) => self.rng.random_range(tips.clone()),
            None => *[0, 1, 1_000_000_000].choose(self.rng).unwrap_or(&0),
        };
        (tip, u128::from(self.base_fee) * 2 + tip)
    }

    fn access_list(&mut self) -> AccessList {
        let slots = (0..self.rng.random_range(0..4_u64)).map(|slot| B256::from(U256::from(slot)));
        let item = AccessListItem { address: STORE, storage_keys: slots.collect() };
        AccessList(vec![item])
    }

    fn plain(&mut self, draft: Draft) -> TxEnvelope {
        let Draft { signer, nonce, to, value, input, mut gas } = draft;
        let (tip, cap) = self.fees();
        match self.rng.random_range(0..3) {
            0 => {
                // Half of the transactions have no chain id, as before EIP-155.
                let chain_id = self.rng.random_bool(0.5).then_some(CHAIN_ID);
                let gas_price = cap;
                let transaction =
                    TxLegacy { chain_id, nonce, gas_price, gas_limit: gas, to, value, input };
                sign(transaction, signer).into()
            }
            kind => {
                let access_list = self.access_list();
                // 2400 for the address, 1900 for a slot.
                gas += 2_400 + 1_900 * access_list.storage_keys_count() as u64;
                if kind == 1 {
                    let transaction = TxEip2930 {
                        chain_id: CHAIN_ID,
                        nonce,
                        gas_price: cap,
                        gas_limit: gas,
                        to,
                        value,
                        access_list,
                        input,
                    };
                    return sign(transaction, signer).into();
                }
                let transaction = TxEip1559 {
                    chain_id: CHAIN_ID,
                    nonce,
                    gas_limit: gas,
                    max_fee_per_gas: cap,
                    max_priority_fee_per_gas: tip,
                    to,
                    value,
                    access_list,
                    input,
                };
                sign(transaction, signer).into()
            }
        }
    }

    fn blob(&mut self, draft: Draft) -> Option<TxEnvelope> {
        let (rules, left) = self.blobs?;
        let max = rules.max_per_tx().min(left);
        if max == 0 {
            return None;
        }
        let count = self.rng.random_range(1..=max);
        let hashes = (0..count).map(|_| {
            let mut hash = B256::from(self.rng.random::<[u8; 32]>());
            hash[0] = 1;
            hash
        });
        let blob_versioned_hashes = hashes.collect();
        let (tip, cap) = self.fees();
        let transaction = TxEip4844 {
            chain_id: CHAIN_ID,
            nonce: draft.nonce,
            gas_limit: draft.gas,
            max_fee_per_gas: cap,
            max_priority_fee_per_gas: tip,
            to: *draft.to.to()?,
            value: draft.value,
            access_list: AccessList::default(),
            blob_versioned_hashes,
            max_fee_per_blob_gas: self.blob_price * 2,
            input: draft.input,
        };
        let transaction: TxEip4844Variant = transaction.into();
        Some(sign(transaction, draft.signer).into())
    }

    fn set_code(&mut self, draft: Draft, world: &World) -> TxEnvelope {
        let count = self.rng.random_range(1..=3);
        let list = (0..count).map(|_| self.authorization(world)).collect();
        let (tip, cap) = self.fees();
        let transaction = TxEip7702 {
            chain_id: CHAIN_ID,
            nonce: draft.nonce,
            gas_limit: draft.gas,
            max_fee_per_gas: cap,
            max_priority_fee_per_gas: tip,
            to: draft.to.to().copied().unwrap_or_default(),
            value: draft.value,
            access_list: AccessList::default(),
            authorization_list: list,
            input: draft.input,
        };
        sign(transaction, draft.signer).into()
    }

    /// Returns an authorization. Most are valid; some name another chain or an invalid nonce.
    /// Invalid ones are skipped and leave the transaction valid.
    fn authorization(&mut self, world: &World) -> SignedAuthorization {
        let authority = signers().choose(self.rng).expect("there are signers");
        let mut nonce = world.get(authority.address).nonce;
        let mut chain_id = if self.rng.random_bool(0.5) { CHAIN_ID } else { 0 };
        match self.rng.random_range(0..8) {
            0 => nonce += 3,
            1 => chain_id = CHAIN_ID + 1,
            _ => {}
        }
        let address = if self.rng.random_bool(0.3) { Address::ZERO } else { STORE };
        let authorization = Authorization { chain_id: U256::from(chain_id), address, nonce };
        let signature = authority.sign(authorization.signature_hash());
        authorization.into_signed(signature)
    }
}

/// CREATE2 salts in use: few, so that addresses repeat; 0 stands for CREATE.
const SALTS: u64 = 5;

fn initcode() -> Bytes {
    mortal_initcode(4)
}

fn sign<T: SignableTransaction<Signature>>(
    transaction: T,
    signer: &Signer,
) -> alloy_consensus::Signed<T> {
    let signature = signer.sign(transaction.signature_hash());
    transaction.into_signed(signature)
}
