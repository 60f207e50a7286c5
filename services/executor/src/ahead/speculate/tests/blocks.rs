//! Blocks with conflicting transactions.

use super::{Random, state::Memory};
use crate::{ahead::senders::environment_of, block::requests::REQUEST_CONTRACTS};
use alloy_consensus::{
    SignableTransaction, Transaction as _, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip4788::BEACON_ROOTS_ADDRESS,
    eip4895::Withdrawal,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Signature, TxKind, hex};
use revm::context::TxEnv;
use std::sync::Arc;
use tandem_chain::{Block, ChainSpec, Fork, Header, Transaction};
use tandem_primitives::{Address, B256, Bytes, U256, keccak256};

pub const FORKS: [Fork; 6] = Fork::MERGED;

/// Block, its parent's state, and the signer of each signature.
pub struct Case {
    pub spec: ChainSpec,
    pub block: Arc<Block>,
    pub signers: Vec<Option<Address>>,
    pub state: Memory,
}

const fn account(n: u8) -> Address {
    Address::repeat_byte(n)
}

/// Accounts that send and receive.
const SENDERS: [Address; 6] =
    [account(0xa1), account(0xa2), account(0xa3), account(0xa4), account(0xa5), account(0xa6)];
/// Account with less than the cost of a transaction, until it receives more.
const POOR: Address = account(0xaf);
/// Accounts that delegate.
const AUTHORITIES: [Address; 3] = [account(0xb1), account(0xb2), account(0xb3)];
/// Account that gets the fees of most blocks.
const COINBASE: Address = account(0xc0);
/// Empty account that exists: a touch deletes it (EIP-161).
const EMPTY: Address = account(0xee);

/// Contracts and their effects; `a` and `b` are words of calldata, `s` is slot 0.
const CONTRACTS: [(Address, &[u8]); 12] = [
    (COUNTER, &hex!("60005460010160005500")),    // s += 1
    (account(2 + 8), &hex!("6020356000355500")), // slot[a] = b
    (account(3 + 8), &hex!("6020355460003555600054600101600055")), // slot[a] = slot[b], s += 1
    (account(4 + 8), &hex!("6000353160005500")), // s = balance(a)
    (MORTAL, &hex!("600035ff")),                 // selfdestruct(a)
    (FORWARD, &hex!("6020360360206000376000600060203603600034600035 5af160005500")),
    (account(7 + 8), &hex!("600160005560006000fd")), // s = 1, revert
    (account(8 + 8), &hex!("5b600056")),             // burns all its gas
    (account(9 + 8), &hex!("600054600116601357600054600101600055005b601356")), // burns, if s is odd
    (FACTORY, &hex!("60203603602060003760003560203603600034f560005500")), // create2, salt a
    (account(11 + 8), &hex!("600060006000600034415af100")), // sends value to the coinbase
    (account(12 + 8), &hex!("600054600052600143034060005560aa60206000a1")), // logs s, s = blockhash
];
const COUNTER: Address = account(9);
const MORTAL: Address = account(13);
const FORWARD: Address = account(14);
const FACTORY: Address = account(18);

/// Init codes: for a counter, for a mortal, and one that destroys itself at once.
const INIT_CODES: [&[u8]; 3] = [
    &hex!("60016000556960005460010160005500600052600a6016f3"),
    &hex!("600160005563600035ff6000526004601cf3"),
    &hex!("600160005533ff"),
];

/// Code that stores its calldata, counts its calls, and returns the count.
const SYSTEM_CONTRACT: &[u8] = &hex!("6000546001018060005560005260003560015560206000f3");

fn spec(fork: Fork) -> ChainSpec {
    let names = ["shanghaiTime", "cancunTime", "pragueTime", "osakaTime", "amsterdamTime"];
    let active = names.iter().zip(&FORKS[1..]).filter(|(_, known)| **known <= fork);
    let times: String = active.map(|(name, _)| format!(r#""{name}": 0,"#)).collect();
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
        "mergeNetsplit",
    ];
    let blocks: String = blocks.iter().map(|name| format!(r#""{name}Block": 0,"#)).collect();
    let blobs = r#"{"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477}"#;
    let json = format!(
        r#"{{"config": {{"chainId": 1, {blocks} {times} "terminalTotalDifficulty": 0,
            "depositContractAddress": "0x00000000219ab540356cbb839cbe05303d7705fa",
            "blobSchedule": {{"cancun": {blobs}, "prague": {blobs}, "osaka": {blobs}}}}},
            "gasLimit": "0x5000", "difficulty": "0x0"}}"#
    );
    ChainSpec::from_genesis_json(&json).unwrap()
}

fn state(random: &mut Random) -> Memory {
    let mut state = Memory::default();
    for sender in SENDERS {
        state.insert(sender, 0, 1_000_000_000_000, &[]);
    }
    state.insert(POOR, 0, 50_000, &[]);
    state.insert(EMPTY, 0, 0, &[]);
    state.insert(AUTHORITIES[0], 0, 5, &[]);
    let delegated = [&hex!("ef0100")[..], COUNTER.as_slice()].concat();
    state.insert(AUTHORITIES[1], 1, 5, &delegated);
    if random.one_in(2) {
        state.insert(COINBASE, 0, 77, &[]);
    }
    // Storage without code or nonce prevents a creation (EIP-7610). A touch deletes the account if
    // it has no balance.
    for address in [SENDERS[0].create(0), FACTORY.create2(B256::ZERO, keccak256(INIT_CODES[1]))] {
        if random.one_in(4) {
            state.insert(address, 0, random.pick(&[0, 5]), &[]);
            state.set_slot(address, 0, 3);
        }
    }
    for (address, code) in CONTRACTS {
        state.insert(address, 1, 1_000, code);
        for slot in 0..random.below(3) as u64 {
            state.set_slot(address, slot, random.next() % 5);
        }
    }
    let others = [BEACON_ROOTS_ADDRESS, alloy_eips::eip2935::HISTORY_STORAGE_ADDRESS];
    for address in others.into_iter().chain(REQUEST_CONTRACTS) {
        state.insert(address, 1, 0, SYSTEM_CONTRACT);
    }
    state
}

/// Builder of random transactions.
struct Writer<'a> {
    random: &'a mut Random,
    fork: Fork,
    base_fee: u128,
    coinbase: Address,
    nonces: Vec<(Address, u64)>,
    raw: Vec<Bytes>,
    signers: Vec<Option<Address>>,
}

impl Case {
    pub fn random(random: &mut Random, fork: Fork) -> Self {
        let coinbase = match random.below(6) {
            0 => SENDERS[0],
            1 => COUNTER,
            2 => AUTHORITIES[0],
            _ => COINBASE,
        };
        let state = state(random);
        let base_fee = random.pick(&[0, 7, 7]);
        let mut writer = Writer {
            random,
            fork,
            base_fee,
            coinbase,
            nonces: Vec::new(),
            raw: Vec::new(),
            signers: Vec::new(),
        };
        let count = 5 + writer.random.below(36);
        let bad = if writer.random.one_in(4) { writer.random.below(count) } else { count };
        // Few targets, so that transactions conflict.
        let targets: Vec<Address> =
            (0..1 + writer.random.below(6)).map(|_| writer.target()).collect();
        for index in 0..count {
            writer.add(&targets, index == bad);
        }
        let Writer { raw, signers, .. } = writer;
        let header = Header {
            number: 1,
            timestamp: 12,
            beneficiary: coinbase,
            gas_limit: random.pick(&[30_000_000, 30_000_000, 30_000_000, 2_000_000]),
            base_fee_per_gas: Some(base_fee as u64),
            parent_beacon_block_root: (fork >= Fork::Cancun).then_some(B256::repeat_byte(9)),
            excess_blob_gas: (fork >= Fork::Cancun).then_some(0),
            blob_gas_used: (fork >= Fork::Cancun).then_some(0),
            requests_hash: (fork >= Fork::Prague).then_some(B256::ZERO),
            block_access_list_hash: (fork >= Fork::Amsterdam).then_some(B256::ZERO),
            slot_number: (fork >= Fork::Amsterdam).then_some(7),
            ..Header::default()
        };
        let amount = random.next() % 3;
        let withdrawal = |address| Withdrawal { address, amount, ..Withdrawal::default() };
        let withdrawals = [coinbase, SENDERS[1], EMPTY].map(withdrawal);
        let withdrawals = (fork >= Fork::Shanghai).then_some(&withdrawals[..]);
        let block = Arc::new(Block::seal(header, &raw, withdrawals).unwrap());
        Self { spec: spec(fork), block, signers, state }
    }
}

impl Case {
    /// Returns a block of calls, each by a sender of its own, that have this much gas each.
    pub fn calls(fork: Fork, mut state: Memory, calls: &[(Address, Bytes)], gas: u64) -> Self {
        let mut random = Random(1);
        let (mut raw, mut signers) = (Vec::new(), Vec::new());
        for (index, (to, input)) in calls.iter().enumerate() {
            let sender = Address::left_padding_from(&(index + 0x5e4d_0000).to_be_bytes());
            state.insert(sender, 0, u64::MAX, &[]);
            let (to, input) = (TxKind::Call(*to), input.clone());
            let transaction =
                TxLegacy { chain_id: Some(1), gas_limit: gas, to, input, ..TxLegacy::default() };
            let signature = signature_by(Some(sender));
            raw.push(Transaction::from(transaction.into_signed(signature)).encoded_2718().into());
            signers.push(Some(sender));
        }
        let Self { spec, block, state: system, .. } = Self::random(&mut random, fork);
        let header = Header {
            beneficiary: COINBASE,
            base_fee_per_gas: Some(0),
            gas_limit: gas.saturating_mul(calls.len() as u64),
            ..block.header.clone()
        };
        let withdrawals = block.withdrawals.as_deref();
        let block = Arc::new(Block::seal(header, &raw, withdrawals).unwrap());
        Self { spec, block, signers, state: system.and(state) }
    }
}

impl Writer<'_> {
    fn target(&mut self) -> Address {
        let first_created = SENDERS[0].create(0);
        let salted = FACTORY.create2(B256::ZERO, keccak256(INIT_CODES[1]));
        match self.random.below(12) {
            0 => self.random.pick(&SENDERS),
            1 => self.random.pick(&[self.coinbase, EMPTY, POOR, account(0xdd)]),
            2 => self.random.pick(&AUTHORITIES),
            3 => self.random.pick(&[first_created, salted, Address::with_last_byte(2)]),
            4 => self.random.pick(&[MORTAL, FORWARD, FACTORY, BEACON_ROOTS_ADDRESS]),
            _ => self.random.pick(&CONTRACTS).0,
        }
    }

    fn input(&mut self, to: Address) -> Bytes {
        let small = |random: &mut Random| U256::from(random.below(3));
        let word = |target: Address| target.into_word().to_vec();
        let (a, b) = (small(self.random), small(self.random));
        let mut input = [a.to_be_bytes::<32>(), b.to_be_bytes::<32>()].concat();
        if to == FACTORY {
            input.truncate(32);
            input.extend(self.random.pick(&INIT_CODES));
        } else if to == MORTAL || to == FORWARD || self.random.one_in(3) {
            let target = self.target();
            input.splice(..32, word(target));
            if to == FORWARD && self.random.one_in(3) {
                input.splice(..32, word(FACTORY));
                input.extend(INIT_CODES[1]);
            }
        }
        input.into()
    }

    fn nonce(&mut self, sender: Address) -> u64 {
        let known = self.nonces.iter().position(|(address, _)| *address == sender);
        let place = known.unwrap_or_else(|| {
            self.nonces.push((sender, 0));
            self.nonces.len() - 1
        });
        self.nonces[place].1 += 1;
        self.nonces[place].1 - 1
    }

    /// Adds one transaction, with a fault if `bad`.
    fn add(&mut self, targets: &[Address], bad: bool) {
        let fault = if bad { self.random.below(5) } else { usize::MAX };
        let sender = match fault {
            0 => POOR,
            _ => self.random.pick(&SENDERS),
        };
        let mut nonce = self.nonce(sender);
        if fault == 1 {
            nonce += 1;
        }
        let to = self.random.pick(targets);
        let is_creation = self.random.one_in(12);
        let (kind, input) = match is_creation {
            true => (TxKind::Create, self.random.pick(&INIT_CODES).into()),
            false => (TxKind::Call(to), self.input(to)),
        };
        let tip = self.random.pick(&[0, 0, 1, 5_u128]);
        let fee = if fault == 2 { self.base_fee.saturating_sub(1) } else { self.base_fee + tip };
        let gas = self.random.pick(&[24_000, 60_000, 90_000, 200_000, 400_000, 1_000_000]);
        // Enough for the cost of a transaction before it runs.
        let gas = if is_creation || !self.random.one_in(4) { gas.max(90_000) } else { gas };
        let value = U256::from(self.random.pick(&[0, 0, 0, 1, 1_000, 100_000]));
        let signer = (fault != 3).then_some(sender);
        let fields = Fields { nonce, kind, to, input, tip: tip.min(fee), fee, gas, value };
        self.sign(fields, signer);
    }

    fn sign(&mut self, fields: Fields, signer: Option<Address>) {
        let Fields { nonce, kind, to, input, tip, fee, gas, value } = fields;
        let signature = signature_by(signer);
        let slots = vec![B256::ZERO, B256::with_last_byte(1)];
        let warm = [self.coinbase, COUNTER, to][self.random.below(3)];
        let access_list = AccessList(vec![AccessListItem { address: warm, storage_keys: slots }]);
        self.signers.push(signer);
        let kinds =
            3 + usize::from(self.fork >= Fork::Cancun) + usize::from(self.fork >= Fork::Prague);
        let transaction: Transaction = match self.random.below(kinds) {
            0 => {
                let gas_price = fee;
                TxLegacy {
                    nonce,
                    gas_price,
                    gas_limit: gas,
                    to: kind,
                    value,
                    input,
                    chain_id: Some(1),
                }
                .into_signed(signature)
                .into()
            }
            1 => TxEip2930 {
                chain_id: 1,
                nonce,
                gas_price: fee,
                gas_limit: gas,
                to: kind,
                value,
                access_list,
                input,
            }
            .into_signed(signature)
            .into(),
            3 => TxEip4844 {
                chain_id: 1,
                nonce,
                gas_limit: gas,
                max_fee_per_gas: fee,
                max_priority_fee_per_gas: tip,
                to,
                value,
                access_list,
                blob_versioned_hashes: vec![B256::right_padding_from(&[1])],
                max_fee_per_blob_gas: 1,
                input,
            }
            .into_signed(signature)
            .into(),
            4 => TxEip7702 {
                chain_id: 1,
                nonce,
                gas_limit: gas,
                max_fee_per_gas: fee,
                max_priority_fee_per_gas: tip,
                to,
                value,
                access_list,
                input,
                authorization_list: (0..1 + self.random.below(2))
                    .map(|_| self.authorization())
                    .collect(),
            }
            .into_signed(signature)
            .into(),
            _ => TxEip1559 {
                chain_id: 1,
                nonce,
                gas_limit: gas,
                max_fee_per_gas: fee,
                max_priority_fee_per_gas: tip,
                to: kind,
                value,
                access_list,
                input,
            }
            .into_signed(signature)
            .into(),
        };
        self.raw.push(transaction.encoded_2718().into());
    }

    fn authorization(&mut self) -> SignedAuthorization {
        let authority = match self.random.below(12) {
            0 => self.random.pick(&SENDERS),
            _ => self.random.pick(&AUTHORITIES),
        };
        let authority = (!self.random.one_in(8)).then_some(authority);
        self.signers.push(authority);
        let address = self.random.pick(&[COUNTER, FACTORY, FORWARD, MORTAL, Address::ZERO]);
        let nonce = self.random.below(3) as u64;
        let authorization =
            Authorization { chain_id: U256::from(self.random.below(2)), address, nonce };
        let signature = signature_by(authority);
        SignedAuthorization::new_unchecked(authorization, 0, signature.r(), signature.s())
    }
}

/// Returns a signature that names who signed, instead of proving it. Zero for an invalid one.
fn signature_by(signer: Option<Address>) -> Signature {
    let word = signer.unwrap_or_default().into_word();
    Signature::new(U256::from_be_bytes(word.0), U256::ONE, false)
}

/// Returns a transaction with the signers that its signatures name.
pub fn named_signers(transaction: &Transaction) -> Option<TxEnv> {
    let named = |r: U256| Some(Address::from_word(r.into())).filter(|address| !address.is_zero());
    let authorizations = transaction.authorization_list().unwrap_or_default();
    let authorities = authorizations.iter().map(|authorization| named(authorization.r()));
    Some(environment_of(transaction, named(transaction.signature().r())?, authorities))
}

/// Fields common to all types of transactions.
struct Fields {
    nonce: u64,
    kind: TxKind,
    to: Address,
    input: Bytes,
    tip: u128,
    fee: u128,
    gas: u64,
    value: U256,
}
