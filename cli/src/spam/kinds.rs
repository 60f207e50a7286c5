//! Transactions of all types, with which a network under test is filled.

use super::wallet::Wallet;
use alloy_consensus::{
    TxEip1559, TxEip2930, TxEip4844, TxEip4844WithSidecar, TxEip7702, TxEnvelope, TxLegacy,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip4844::Bytes48,
    eip7594::BlobTransactionSidecarEip7594,
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use rand::{Rng, rngs::StdRng};
use std::sync::OnceLock;

/// Code of the contract that stores: it writes two slots, each given by key and value.
const STORE: [u8; 13] =
    [0x60, 0x20, 0x35, 0x5f, 0x35, 0x55, 0x60, 0x60, 0x35, 0x60, 0x40, 0x35, 0x55];

/// Gas for what writes a few slots or accounts. A new account or slot costs over 100,000 from
/// Amsterdam on (EIP-8037).
const WRITES_GAS: u64 = 600_000;
/// Gas for a payment to an account that exists.
const PAYMENT_GAS: u64 = 50_000;
/// Slots of the contract that are written.
const SLOTS: u64 = 50_000;
/// Highest tip, in wei for each gas.
const TIP_MAX: u128 = 10_000_000_000;

/// Kind of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Payment to an account that exists, with dynamic fees (EIP-1559)
    Transfer,
    /// Payment to a new account, of the oldest type
    Legacy,
    /// Call that writes two slots, with an access list (EIP-2930)
    AccessList,
    /// Call that writes two slots, with dynamic fees
    Store,
    /// Creation of a contract
    Create,
    /// Call that sets the code of a new account (EIP-7702)
    SetCode,
    /// Payment with one blob and its cell proofs (EIP-4844, EIP-7594)
    Blob,
}

impl Kind {
    /// All kinds but blobs, which few networks have much room for.
    pub const USUAL: [Self; 6] =
        [Self::Transfer, Self::Legacy, Self::AccessList, Self::Store, Self::Create, Self::SetCode];
}

/// Fields that transactions of the moment have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    pub chain_id: u64,
    /// Highest fee for each gas, in wei.
    pub fee_max: u128,
    /// Highest fee for each gas of blobs, in wei.
    pub blob_fee_max: u128,
    /// Contract that stores.
    pub store: Address,
    /// Accounts that exist.
    pub accounts: Vec<Address>,
}

/// Returns a call of nobody with dynamic fees (EIP-1559), which the caller completes.
fn dynamic(nonce: u64, tip: u128, setting: &Setting) -> TxEip1559 {
    TxEip1559 {
        chain_id: setting.chain_id,
        nonce,
        gas_limit: WRITES_GAS,
        max_fee_per_gas: setting.fee_max,
        max_priority_fee_per_gas: tip.min(setting.fee_max),
        ..TxEip1559::default()
    }
}

/// Returns the transaction that creates the contract that stores.
pub fn creation(wallet: &Wallet, nonce: u64, setting: &Setting) -> Bytes {
    let (to, input) = (TxKind::Create, init_code(&STORE));
    let transaction = TxEip1559 { to, input, ..dynamic(nonce, TIP_MAX, setting) };
    encoded(wallet.sign(transaction).into())
}

/// Returns a payment, in wei.
pub fn payment(wallet: &Wallet, nonce: u64, to: Address, value: U256, setting: &Setting) -> Bytes {
    let to = TxKind::Call(to);
    let transaction = TxEip1559 { to, value, ..dynamic(nonce, TIP_MAX, setting) };
    encoded(wallet.sign(transaction).into())
}

/// Returns a random transaction of a kind, in the form in which it is sent.
pub fn random(
    kind: Kind,
    wallet: &Wallet,
    nonce: u64,
    setting: &Setting,
    rng: &mut StdRng,
) -> Bytes {
    let &Setting { chain_id, fee_max, store, .. } = setting;
    let tip = rng.random_range(1..=TIP_MAX).min(fee_max);
    let dynamic = dynamic(nonce, tip, setting);
    let value = U256::from(rng.random_range(0..1_000_u32));
    let known = setting.accounts[rng.random_range(0..setting.accounts.len())];
    let envelope: TxEnvelope = match kind {
        Kind::Transfer => {
            let to = TxKind::Call(known);
            wallet.sign(TxEip1559 { to, value, gas_limit: PAYMENT_GAS, ..dynamic }).into()
        }
        Kind::Legacy => wallet
            .sign(TxLegacy {
                chain_id: Some(chain_id),
                nonce,
                gas_price: fee_max,
                gas_limit: WRITES_GAS,
                to: TxKind::Call(Address::from(rng.random::<[u8; 20]>())),
                value: value + U256::ONE,
                input: Bytes::new(),
            })
            .into(),
        Kind::AccessList => {
            let (input, keys) = writes(rng);
            let list = vec![AccessListItem { address: store, storage_keys: keys.to_vec() }];
            wallet
                .sign(TxEip2930 {
                    chain_id,
                    nonce,
                    gas_price: fee_max,
                    gas_limit: WRITES_GAS,
                    to: TxKind::Call(store),
                    value: U256::ZERO,
                    input,
                    access_list: AccessList(list),
                })
                .into()
        }
        Kind::Store => {
            let (input, _) = writes(rng);
            wallet.sign(TxEip1559 { to: TxKind::Call(store), input, ..dynamic }).into()
        }
        Kind::Create => {
            // An unknown number behind the code makes each contract's code its own.
            let code = [&STORE[..], &[0x00], &rng.random::<[u8; 32]>()].concat();
            wallet.sign(TxEip1559 { to: TxKind::Create, input: init_code(&code), ..dynamic }).into()
        }
        Kind::SetCode => {
            let authority = Wallet::derived(rng.random(), 0);
            let authorization =
                Authorization { chain_id: U256::from(chain_id), address: store, nonce: 0 };
            let (input, _) = writes(rng);
            wallet
                .sign(TxEip7702 {
                    chain_id,
                    nonce,
                    gas_limit: 2 * WRITES_GAS,
                    max_fee_per_gas: fee_max,
                    max_priority_fee_per_gas: tip,
                    to: authority.address,
                    value: U256::ZERO,
                    access_list: AccessList::default(),
                    authorization_list: vec![authority.authorize(authorization)],
                    input,
                })
                .into()
        }
        Kind::Blob => return blob(wallet, nonce, tip, known, setting, rng.random()),
    };
    encoded(envelope)
}

fn encoded(envelope: TxEnvelope) -> Bytes {
    envelope.encoded_2718().into()
}

/// Returns the input of the contract that stores, and the slots that it writes.
fn writes(rng: &mut StdRng) -> (Bytes, [B256; 2]) {
    let keys = [(); 2].map(|()| B256::from(U256::from(rng.random_range(0..SLOTS))));
    let values = [(); 2].map(|()| B256::from(U256::from(rng.random_range(0..3_u32))));
    let words = [keys[0], values[0], keys[1], values[1]];
    (words.concat().into(), keys)
}

/// Returns what creates a contract with this code, of fewer than 256 bytes.
fn init_code(code: &[u8]) -> Bytes {
    // Copies what follows these nine bytes to memory, and returns it.
    let copy = [0x60, code.len() as u8, 0x80, 0x60, 0x09, 0x5f, 0x39, 0x5f, 0xf3];
    [&copy[..], code].concat().into()
}

/// Returns a payment with a blob, together with the blob.
fn blob(
    wallet: &Wallet,
    nonce: u64,
    tip: u128,
    to: Address,
    setting: &Setting,
    content: u8,
) -> Bytes {
    let sidecar = sidecar(content);
    let transaction = TxEip4844 {
        chain_id: setting.chain_id,
        nonce,
        gas_limit: PAYMENT_GAS,
        max_fee_per_gas: setting.fee_max,
        max_priority_fee_per_gas: tip,
        to,
        value: U256::ZERO,
        access_list: AccessList::default(),
        blob_versioned_hashes: sidecar.versioned_hashes().collect(),
        max_fee_per_blob_gas: setting.blob_fee_max,
        input: Bytes::new(),
    };
    let signed = wallet.sign(TxEip4844WithSidecar { tx: transaction, sidecar: sidecar.clone() });
    signed.encoded_2718().into()
}

/// Returns a blob whose field elements are all equal, with commitment and cell proofs. Every claim
/// about such a polynomial has the same proof, so it costs nothing. Each is made once.
fn sidecar(content: u8) -> &'static BlobTransactionSidecarEip7594 {
    static MADE: [OnceLock<BlobTransactionSidecarEip7594>; 256] = [const { OnceLock::new() }; 256];
    MADE[usize::from(content)].get_or_init(|| {
        let mut element = [0; 32];
        element[31] = content;
        let blob = element.repeat(tandem_kzg::BLOB_BYTES / 32);
        // The content is below the modulus.
        let commitment = tandem_kzg::Setup::load().commit(&blob).unwrap_or([0; 48]);
        let infinity = Bytes48::right_padding_from(&[0xc0]);
        BlobTransactionSidecarEip7594 {
            blobs: vec![alloy_eips::eip4844::Blob::from_slice(&blob)],
            commitments: vec![commitment.into()],
            cell_proofs: vec![infinity; tandem_kzg::CELLS],
        }
    })
}
