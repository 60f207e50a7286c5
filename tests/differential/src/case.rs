//! A case: a state, and the transactions of one block on it. Its number decides all of it.

use crate::{
    program::{self, SLOTS},
    transactions::Author,
};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bytes, U256, address, hex};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use secp256k1::{Message, SECP256K1, SecretKey};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::OnceLock,
};

/// Chain id of all cases.
pub const CHAIN_ID: u64 = 1;
/// Timestamp of the genesis block, in seconds.
pub const GENESIS_TIME: u64 = 1_000;
/// Deposit contract of geth's test configuration (EIP-6110).
const DEPOSIT: Address = address!("0x00000000219ab540356cbb839cbe05303d7705fa");
/// Contract that emits its calldata as the log of a deposit.
const DEPOSIT_CODE: [u8; 41] =
    hex!("365f5f377f649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5365fa100");
/// Contracts of EIPs 2935, 4788, 7002, 7251, 7997 and 8282.
const PREDEPLOYS: &str = include_str!("predeploys.json");
/// Contracts with random code in each state.
const CONTRACTS: u64 = 8;
/// Keys that sign transactions. Some more sign authorizations, also of accounts that do not exist.
pub const SENDERS: usize = 6;
const KEYS: usize = 10;

/// An account whose key is known.
pub struct Signer {
    key: SecretKey,
    /// Address of the account.
    pub address: Address,
}

impl Signer {
    fn new(index: u8) -> Self {
        let key = SecretKey::from_byte_array([index + 1; 32]).expect("the number is a key");
        let public = key.public_key(SECP256K1).serialize_uncompressed();
        Self { key, address: Address::from_raw_public_key(&public[1..]) }
    }

    /// Signs a hash.
    pub fn sign(&self, hash: B256) -> alloy_primitives::Signature {
        let message = Message::from_digest(hash.0);
        let signature = SECP256K1.sign_ecdsa_recoverable(message, &self.key);
        let (recovery, compact) = signature.serialize_compact();
        alloy_primitives::Signature::from_bytes_and_parity(&compact, i32::from(recovery) == 1)
    }
}

/// Returns the accounts whose keys are known; the first [`SENDERS`] send transactions.
pub fn signers() -> &'static [Signer] {
    static SIGNERS: OnceLock<Vec<Signer>> = OnceLock::new();
    SIGNERS.get_or_init(|| (0..KEYS as u8).map(Signer::new).collect())
}

/// An account before the block, in geth's form.
#[derive(Clone, Default, Serialize)]
pub struct Account {
    /// Balance in wei.
    pub balance: U256,
    /// Nonce.
    #[serde(serialize_with = "quantity")]
    pub nonce: u64,
    /// Code.
    pub code: Bytes,
    /// Slots that are not zero.
    pub storage: BTreeMap<B256, B256>,
}

fn quantity<S: serde::Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{value:#x}"))
}

/// A state and a block's contents.
pub struct Case {
    /// Number of the case.
    pub number: u64,
    /// Accounts before the block.
    pub alloc: BTreeMap<Address, Account>,
    /// Transactions in their EIP-2718 form. Some are invalid.
    pub transactions: Vec<Bytes>,
    /// Blobs of each transaction.
    pub blobs: Vec<Vec<B256>>,
    /// Withdrawals.
    pub withdrawals: Vec<Withdrawal>,
    /// Fee recipient.
    pub beneficiary: Address,
    /// Gas limit of genesis and block.
    pub gas_limit: u64,
    /// Base fee of genesis.
    pub base_fee: u64,
    /// Excess blob gas of genesis.
    pub excess_blob_gas: u64,
    /// Timestamp of the block.
    pub timestamp: u64,
    /// Slot of the block.
    pub slot: u64,
    /// Randomness of the block.
    pub prev_randao: B256,
    /// Root of the parent beacon block.
    pub beacon_root: B256,
}

impl Case {
    /// Makes the case of this number.
    pub fn new(number: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(number);
        let mut alloc = predeploys();
        let beneficiary = match rng.random_range(0..4) {
            0 => Address::from(rng.random::<[u8; 20]>()),
            1 => signers()[0].address,
            2 => contract(0),
            _ => Address::repeat_byte(0xfe),
        };
        let targets = targets(beneficiary, &mut rng);
        for index in 0..CONTRACTS {
            let code = program::program(&mut rng, &targets).into();
            let account = Account { code, nonce: 1, ..account(&mut rng) };
            alloc.insert(contract(index), account);
        }
        for signer in &signers()[..SENDERS] {
            alloc.insert(signer.address, sender(&mut rng));
        }
        let gas_limit = *[3_000_000, 60_000_000, 60_000_000, 200_000_000]
            .choose(&mut rng)
            .unwrap_or(&60_000_000);
        let base_fee = *[7, 1_000, 1_000_000_000].choose(&mut rng).unwrap_or(&7);
        let mut case = Self {
            number,
            alloc,
            transactions: Vec::new(),
            blobs: Vec::new(),
            withdrawals: Vec::new(),
            beneficiary,
            gas_limit,
            base_fee,
            excess_blob_gas: rng.random_range(0..4) * 50_000_000,
            timestamp: GENESIS_TIME + rng.random_range(1..100),
            slot: if rng.random_ratio(1, 8) { rng.random() } else { rng.random_range(0..1000) },
            prev_randao: rng.random::<[u8; 32]>().into(),
            beacon_root: rng.random::<[u8; 32]>().into(),
        };
        let count = rng.random_range(0..3_u64);
        case.withdrawals = (0..count)
            .map(|index| Withdrawal {
                index,
                validator_index: 7,
                address: *targets.choose(&mut rng).unwrap_or(&beneficiary),
                amount: rng.random_range(0..3),
            })
            .collect();
        case.fill(&targets, &mut rng);
        case
    }

    fn fill(&mut self, targets: &[Address], rng: &mut StdRng) {
        let nonces: HashMap<_, _> = signers()
            .iter()
            .map(|signer| {
                let nonce = self.alloc.get(&signer.address).map_or(0, |account| account.nonce);
                (signer.address, nonce)
            })
            .collect();
        let count = rng.random_range(1..=8);
        let mut author = Author { rng, targets, nonces, base_fee: self.base_fee };
        for _ in 0..count {
            let (transaction, blobs) = author.write();
            self.transactions.push(transaction);
            self.blobs.push(blobs);
        }
    }

    /// Returns the genesis file.
    pub fn genesis_json(&self) -> String {
        let mut config = json!({
            "chainId": CHAIN_ID,
            "terminalTotalDifficulty": 0,
            "depositContractAddress": DEPOSIT,
            "blobSchedule": {
                "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477},
                "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716},
                "osaka": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716},
                "bpo1": {"target": 10, "max": 15, "baseFeeUpdateFraction": 8_346_193},
                "bpo2": {"target": 14, "max": 21, "baseFeeUpdateFraction": 11_684_671},
            },
        });
        let blocks = [
            "homestead",
            "eip150",
            "eip155",
            "eip158",
            "byzantium",
            "constantinople",
            "petersburg",
            "istanbul",
            "berlin",
            "london",
        ];
        for name in blocks {
            config[format!("{name}Block")] = json!(0);
        }
        for name in ["shanghai", "cancun", "prague", "osaka", "bpo1", "bpo2", "amsterdam"] {
            config[format!("{name}Time")] = json!(0);
        }
        json!({
            "config": config,
            "nonce": "0x0",
            "timestamp": format!("{GENESIS_TIME:#x}"),
            "extraData": "0x",
            "gasLimit": format!("{:#x}", self.gas_limit),
            "difficulty": "0x0",
            "baseFeePerGas": format!("{:#x}", self.base_fee),
            "excessBlobGas": format!("{:#x}", self.excess_blob_gas),
            "blobGasUsed": "0x0",
            "slotNumber": "0x0",
            "alloc": self.alloc_json(),
        })
        .to_string()
    }

    /// Returns the accounts in geth's form.
    pub fn alloc_json(&self) -> Value {
        json!(self.alloc)
    }
}

/// Returns the address of a contract with random code.
pub fn contract(index: u64) -> Address {
    Address::left_padding_from(&(0x00c0_de00_0000 + index).to_be_bytes())
}

/// Returns the deposit contract.
pub fn deposit_contract() -> Address {
    DEPOSIT
}

fn predeploys() -> BTreeMap<Address, Account> {
    static CODES: OnceLock<BTreeMap<Address, Bytes>> = OnceLock::new();
    let codes = CODES.get_or_init(|| serde_json::from_str(PREDEPLOYS).expect("the file is JSON"));
    let account = |code: &Bytes| Account { code: code.clone(), nonce: 1, ..Account::default() };
    let mut accounts: BTreeMap<_, _> =
        codes.iter().map(|(address, code)| (*address, account(code))).collect();
    accounts.insert(DEPOSIT, account(&Bytes::from_static(&DEPOSIT_CODE)));
    accounts
}

/// Returns the addresses that programs and transactions name. The deposit contract is not among
/// them, as a log of another form would make the block invalid.
fn targets(beneficiary: Address, rng: &mut StdRng) -> Vec<Address> {
    let mut targets: Vec<_> = (0..CONTRACTS).map(contract).collect();
    targets.extend(targets.clone());
    targets.extend(signers().iter().map(|signer| signer.address));
    targets.extend((1..=0x12).map(Address::with_last_byte).filter(|_| rng.random_ratio(1, 4)));
    targets.push(Address::left_padding_from(&[1, 0]));
    targets.push(beneficiary);
    // Accounts that do not exist, and the caller of system calls.
    targets.extend([0xe0, 0xe1, 0xe2].map(Address::repeat_byte));
    targets.push(address!("0xfffffffffffffffffffffffffffffffffffffffe"));
    targets.extend(predeploys().into_keys().filter(|address| *address != DEPOSIT));
    for salt in 0..3 {
        targets.push(program::repeated(contract(rng.random_range(0..CONTRACTS)), salt));
    }
    targets
}

fn account(rng: &mut StdRng) -> Account {
    let slots = (0..SLOTS).filter(|_| rng.random_bool(0.5)).collect::<Vec<_>>();
    let storage = slots
        .into_iter()
        .map(|slot| (B256::from(U256::from(slot)), B256::from(U256::from(rng.random_range(1..4)))))
        .collect();
    let balance = U256::from(rng.random_range(0..5_u64) * 1_000);
    Account { balance, storage, ..Account::default() }
}

/// Returns an account that can pay for transactions: most of them can, and some have a delegation.
fn sender(rng: &mut StdRng) -> Account {
    let code = match rng.random_range(0..12) {
        0..=2 => delegation(contract(rng.random_range(0..CONTRACTS))),
        3 => delegation(Address::with_last_byte(4)),
        4 if rng.random_ratio(1, 4) => Bytes::from_static(&[0x00]),
        _ => Bytes::new(),
    };
    let rich = U256::from(10).pow(U256::from(20));
    let balance = match rng.random_range(0..16) {
        0 => U256::from(rng.random_range(0..10_000_000_u64)),
        _ => rich,
    };
    let nonce = match rng.random_range(0..16) {
        0 => u64::MAX - rng.random_range(0..3),
        1..=8 => 0,
        _ => rng.random_range(1..9),
    };
    Account { balance, nonce, code, ..Account::default() }
}

/// Returns the code of an account that delegates to another one (EIP-7702).
fn delegation(to: Address) -> Bytes {
    [&[0xef, 0x01, 0x00][..], to.as_slice()].concat().into()
}
