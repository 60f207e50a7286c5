//! Contracts of the test chains, assembled by hand. Each uses only instructions that Paris knows,
//! unless its comment says otherwise.

use crate::{corpus::repository, world::Account};
use alloy_primitives::{Address, B256, Bytes, U256, address, b256, keccak256};
use flate2::read::MultiGzDecoder;
use serde_json::Value;
use std::{collections::BTreeMap, fs::File, sync::OnceLock};

/// Writes slots. Calldata is pairs of slot and value.
pub const STORE: Address = address!("0x1000000000000000000000000000000000000001");
/// Moves an amount of the caller's balance and logs it. Calldata is receiver and amount.
pub const TOKEN: Address = address!("0x1000000000000000000000000000000000000002");
/// Creates a contract: with CREATE if the salt is 0, else with CREATE2. Calldata is salt and
/// initcode.
pub const FACTORY: Address = address!("0x1000000000000000000000000000000000000003");
/// Acts as [`FACTORY`], then calls the new contract without calldata.
pub const FACTORY_AND_CALL: Address = address!("0x1000000000000000000000000000000000000004");
/// Destroys itself in favour of the caller if there is no calldata. Otherwise acts as [`STORE`].
pub const MORTAL: Address = address!("0x1000000000000000000000000000000000000005");
/// Burns all gas it gets.
pub const BURNER: Address = address!("0x1000000000000000000000000000000000000006");
/// Stores the block's environment. One word of calldata is the number of a block whose hash is
/// stored too.
pub const ENVIRONMENT: Address = address!("0x1000000000000000000000000000000000000007");
/// Stores the blob base fee and the first two blob hashes (Cancun).
pub const BLOB_ENVIRONMENT: Address = address!("0x1000000000000000000000000000000000000008");
/// Logs its calldata as a deposit (EIP-6110).
pub const DEPOSIT: Address = address!("0x1000000000000000000000000000000000000009");

/// Contract of withdrawal requests (EIP-7002).
pub const WITHDRAWAL_REQUESTS: Address = address!("0x00000961ef480eb55e80d19ad83579a64c007002");
/// Contract of consolidation requests (EIP-7251).
pub const CONSOLIDATION_REQUESTS: Address = address!("0x0000bbddc7ce488642fb579f8b00f3a590007251");
/// Contract of beacon roots (EIP-4788).
pub const BEACON_ROOTS: Address = address!("0x000f3df6d732807ef1319fb7b8bb8522d0beac02");
/// Contract of block hashes (EIP-2935).
pub const HISTORY: Address = address!("0x0000f90827f1c53a10cb7a02335b175320002935");

/// Contract of builders' deposits (EIP-8282).
pub const BUILDER_DEPOSITS: Address = address!("0x0000bff46984e3725691fa540a8c7589300d8282");
/// Contract of builders' exits (EIP-8282).
pub const BUILDER_EXITS: Address = address!("0x000064d678505ad48f8ccb093bc65613800e8282");

/// Topic of the deposit contract's log (EIP-6110).
const DEPOSIT_EVENT: B256 =
    b256!("0x649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5");
/// keccak256("Transfer(address,address,uint256)")
const TRANSFER_EVENT: B256 =
    b256!("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// Returns all contracts of a genesis, with the holders' balances in [`TOKEN`].
pub fn genesis(holders: &[Address]) -> BTreeMap<Address, Account> {
    let mut accounts: BTreeMap<_, _> = [
        (STORE, STORE_CODE.to_owned()),
        (TOKEN, TOKEN_CODE.replace("TRANSFER", &TRANSFER_EVENT.to_string())),
        (FACTORY, format!("{FACTORY_CODE} STOP")),
        (FACTORY_AND_CALL, format!("{FACTORY_CODE} 0 0 0 0 0 DUP6 GAS CALL STOP")),
        (MORTAL, mortal_code()),
        (BURNER, "again: @again JUMP".to_owned()),
        (ENVIRONMENT, ENVIRONMENT_CODE.to_owned()),
        (BLOB_ENVIRONMENT, BLOB_ENVIRONMENT_CODE.to_owned()),
        (DEPOSIT, DEPOSIT_CODE.replace("DEPOSIT", &DEPOSIT_EVENT.to_string())),
        (BUILDER_DEPOSITS, COUNTED_QUEUE_CODE.to_owned()),
        (BUILDER_EXITS, COUNTED_QUEUE_CODE.to_owned()),
    ]
    .into_iter()
    .map(|(address, code)| (address, Account::contract(assemble(&code))))
    .collect();
    let token = accounts.entry(TOKEN).or_default();
    for holder in holders {
        token.storage.insert(token_slot(*holder), U256::from(1_000_000_000_u64));
    }
    accounts.extend(system_contracts().clone());
    accounts
}

/// Returns the contracts that the protocol calls, with their real code.
fn system_contracts() -> &'static BTreeMap<Address, Account> {
    static CONTRACTS: OnceLock<BTreeMap<Address, Account>> = OnceLock::new();
    CONTRACTS.get_or_init(|| {
        let path = repository().join("corpora/demo/genesis.json.gz");
        let file = File::open(&path).expect("the demo corpus has a genesis");
        let genesis: Value = serde_json::from_reader(MultiGzDecoder::new(file)).unwrap();
        let code = |address: Address| {
            let code = &genesis["alloc"][address.to_string().to_lowercase()]["code"];
            serde_json::from_value::<Bytes>(code.clone())
                .expect("the demo genesis has the contract")
        };
        [WITHDRAWAL_REQUESTS, CONSOLIDATION_REQUESTS, BEACON_ROOTS, HISTORY]
            .into_iter()
            .map(|address| (address, Account::contract(code(address))))
            .collect()
    })
}

/// Returns the slot of [`TOKEN`] that holds an address's balance.
pub fn token_slot(holder: Address) -> U256 {
    keccak256(holder.into_word()).into()
}

/// Returns initcode that writes `slots` slots and returns the code of [`MORTAL`].
pub fn mortal_initcode(slots: u8) -> Bytes {
    let writes: String = (0..slots).map(|slot| format!("{} {slot} SSTORE ", slot + 1)).collect();
    let runtime = assemble(&mortal_code());
    let code = |start: usize| {
        let len = runtime.len();
        assemble(&format!("{writes} {len} {start} 0 CODECOPY {len} 0 RETURN"))
    };
    let mut initcode = code(code(1).len());
    initcode.extend(runtime);
    initcode.into()
}

/// Returns the address at which [`FACTORY`] or [`FACTORY_AND_CALL`] creates this contract.
pub fn created_at(factory: Address, salt: U256, initcode: &[u8]) -> Address {
    factory.create2(B256::from(salt), keccak256(initcode))
}

/// Returns calldata for [`STORE`].
pub fn store_calldata(pairs: impl IntoIterator<Item = (U256, U256)>) -> Bytes {
    words(pairs.into_iter().flat_map(|(slot, value)| [slot, value]))
}

/// Returns calldata of these words.
pub fn words(words: impl IntoIterator<Item = U256>) -> Bytes {
    words.into_iter().flat_map(|word| word.to_be_bytes::<32>()).collect()
}

/// Returns calldata for [`DEPOSIT`]: the ABI encoding of public key, withdrawal credentials,
/// amount, signature and index.
pub fn deposit_calldata(seed: u8) -> Bytes {
    let mut head = Vec::new();
    let mut tail = Vec::new();
    for len in [48_usize, 32, 8, 96, 8] {
        head.push(U256::from(5 * 32 + tail.len()));
        tail.extend(U256::from(len).to_be_bytes::<32>());
        tail.extend(vec![seed; len]);
        tail.resize(tail.len().next_multiple_of(32), 0);
    }
    [words(head), tail.into()].concat().into()
}

/// Queue without requests that counts its calls in slot 0. Only blocks from Amsterdam on call it.
const COUNTED_QUEUE_CODE: &str = "0 SLOAD 1 ADD 0 SSTORE 0 0 RETURN";

/// Reads pairs of slot and value until the calldata ends.
const STORE_CODE: &str = "
    0 loop: CALLDATASIZE DUP2 LT ISZERO @end JUMPI
    DUP1 32 ADD CALLDATALOAD DUP2 CALLDATALOAD SSTORE
    64 ADD @loop JUMP
    end: STOP";

const TOKEN_CODE: &str = "
    CALLER 0 MSTORE 32 0 SHA3 DUP1 SLOAD 32 CALLDATALOAD
    DUP1 DUP3 LT @poor JUMPI
    DUP1 SWAP2 SUB SWAP1 SWAP2 SSTORE
    0 CALLDATALOAD 0 MSTORE 32 0 SHA3 DUP1 SLOAD DUP3 ADD SWAP1 SSTORE
    0 MSTORE 0 CALLDATALOAD CALLER TRANSFER 32 0 LOG3 STOP
    poor: 0 0 REVERT";

/// Leaves the address of the new contract, or 0 if none was created, on the stack and in slot 0.
const FACTORY_CODE: &str = "
    32 CALLDATASIZE SUB DUP1 32 0 CALLDATACOPY 0 CALLDATALOAD
    DUP1 @salted JUMPI
    POP 0 CALLVALUE CREATE @made JUMP
    salted: SWAP1 0 CALLVALUE CREATE2
    made: DUP1 0 SSTORE";

const ENVIRONMENT_CODE: &str = "
    PREVRANDAO 0 SSTORE COINBASE 1 SSTORE TIMESTAMP 2 SSTORE NUMBER 3 SSTORE
    GASLIMIT 4 SSTORE BASEFEE 5 SSTORE CHAINID 6 SSTORE
    1 NUMBER SUB BLOCKHASH 7 SSTORE 0 CALLDATALOAD BLOCKHASH 8 SSTORE STOP";

const BLOB_ENVIRONMENT_CODE: &str =
    "BLOBBASEFEE 0 SSTORE 0 BLOBHASH 1 SSTORE 1 BLOBHASH 2 SSTORE STOP";

const DEPOSIT_CODE: &str = "CALLDATASIZE 0 0 CALLDATACOPY DEPOSIT CALLDATASIZE 0 LOG1 STOP";

fn mortal_code() -> String {
    format!("CALLDATASIZE @store JUMPI CALLER SELFDESTRUCT store: {STORE_CODE}")
}

const INSTRUCTIONS: [(&str, u8); 46] = [
    ("STOP", 0x00),
    ("ADD", 0x01),
    ("SUB", 0x03),
    ("LT", 0x10),
    ("ISZERO", 0x15),
    ("SHA3", 0x20),
    ("CALLER", 0x33),
    ("CALLVALUE", 0x34),
    ("CALLDATALOAD", 0x35),
    ("CALLDATASIZE", 0x36),
    ("CALLDATACOPY", 0x37),
    ("CODECOPY", 0x39),
    ("BLOCKHASH", 0x40),
    ("COINBASE", 0x41),
    ("TIMESTAMP", 0x42),
    ("NUMBER", 0x43),
    ("PREVRANDAO", 0x44),
    ("GASLIMIT", 0x45),
    ("CHAINID", 0x46),
    ("BASEFEE", 0x48),
    ("BLOBHASH", 0x49),
    ("BLOBBASEFEE", 0x4a),
    ("POP", 0x50),
    ("MSTORE", 0x52),
    ("SLOAD", 0x54),
    ("SSTORE", 0x55),
    ("JUMP", 0x56),
    ("JUMPI", 0x57),
    ("GAS", 0x5a),
    ("DUP1", 0x80),
    ("DUP2", 0x81),
    ("DUP3", 0x82),
    ("DUP6", 0x85),
    ("SWAP1", 0x90),
    ("SWAP2", 0x91),
    ("LOG1", 0xa1),
    ("LOG3", 0xa3),
    ("CREATE", 0xf0),
    ("CALL", 0xf1),
    ("RETURN", 0xf3),
    ("CREATE2", 0xf5),
    ("REVERT", 0xfd),
    ("SELFDESTRUCT", 0xff),
    ("MLOAD", 0x51),
    ("RETURNDATASIZE", 0x3d),
    ("INVALID", 0xfe),
];

/// Assembles a text into machine code. `NAME` is an instruction, a number is pushed, `label:` is a
/// jump destination, `@label` pushes it (as one byte).
fn assemble(text: &str) -> Vec<u8> {
    const PUSH1: u8 = 0x60;
    const JUMPDEST: u8 = 0x5b;
    let (mut code, mut labels, mut uses) = (Vec::new(), BTreeMap::new(), Vec::new());
    for token in text.split_whitespace() {
        if let Some(label) = token.strip_suffix(':') {
            labels.insert(label, code.len() as u8);
            code.push(JUMPDEST);
        } else if let Some(label) = token.strip_prefix('@') {
            uses.push((code.len() + 1, label));
            code.extend([PUSH1, 0]);
        } else if let Some((_, byte)) = INSTRUCTIONS.iter().find(|(name, _)| *name == token) {
            code.push(*byte);
        } else {
            let number: U256 = token.parse().unwrap_or_else(|_| panic!("no instruction {token}"));
            let bytes = number.to_be_bytes_trimmed_vec();
            let bytes = if bytes.is_empty() { vec![0] } else { bytes };
            code.push(PUSH1 + bytes.len() as u8 - 1);
            code.extend(bytes);
        }
    }
    for (place, label) in uses {
        code[place] = labels[label];
    }
    code
}
