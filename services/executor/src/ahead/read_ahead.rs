//! Reads of the keys that a block will need, in a few calls of storage-writer before it executes.
//!
//! The contracts that are called and the access lists are known once the payload is decoded. Their
//! keys that are neither in the layers nor in the cache are read while senders are recovered: one
//! call reads accounts and slots, another one the code of the contracts, which is analyzed at once.
//! Usually there is nothing to read. Then it costs a look-up for each key, on a thread that is not
//! the engine's.
//!
//! Senders, and the keys that their calls are expected to read ([`crate::ahead::predict`]), follow in
//! groups of transactions, in the block's order.

use crate::{
    ahead::{
        predict::{Prediction, Predictor},
        senders::SharedSenders,
    },
    error::Error,
    metrics as names,
    state::recent::Recent,
    state::{
        parent::ParentState as _,
        view::{ReadAhead, StateView},
    },
};
use alloy_consensus::Transaction as _;
use alloy_eips::{
    eip2935::{HISTORY_SERVE_WINDOW, HISTORY_STORAGE_ADDRESS},
    eip4788::BEACON_ROOTS_ADDRESS,
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::block::system_calls::{
    BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS, BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_primitives::map::{B256Set, HashSet};
use metrics::counter;
use std::{ops::Range, sync::Arc};
use tandem_chain::{Block, Header};
use tandem_primitives::{Address, B256, U256, keccak256};
use tandem_proto::storage::BaseReads;
use tracing::{Span, debug, field::Empty, info_span};

/// Maximum number of keys read ahead for one block. Applies to accounts and to slots separately.
const KEYS_MAX: usize = 8_192;

/// Number of entries of each ring buffer of EIP-4788: timestamps, and the roots behind them.
const BEACON_ROOTS_LENGTH: u64 = 8_191;
/// Number of counters of a queue of requests: excess, count, head and tail, from slot 0 on.
const QUEUE_COUNTERS: u64 = 4;

/// Contracts with the queues of builders' requests, from Amsterdam on (EIP-8282).
const BUILDER_CONTRACTS: [Address; 2] =
    [BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS, BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS];

/// Keys that a block names, hashed and without duplicates.
#[derive(Default, Debug)]
struct Named {
    accounts: B256Set,
    slots: HashSet<(B256, B256)>,
    /// Accounts whose code runs if they have any.
    called: B256Set,
}

impl Named {
    fn of(block: &Block) -> Self {
        let mut named = Self::default();
        for address in [
            BEACON_ROOTS_ADDRESS,
            HISTORY_STORAGE_ADDRESS,
            WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
            CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
        ] {
            named.call(address);
        }
        if block.header.block_access_list_hash.is_some() {
            BUILDER_CONTRACTS.into_iter().for_each(|contract| named.call(contract));
        }
        for (contract, slot) in system_slots(&block.header) {
            named.slots.insert((keccak256(contract), keccak256(B256::from(slot))));
        }
        named.account(block.header.beneficiary);
        for withdrawal in block.withdrawals.iter().flatten() {
            named.account(withdrawal.address);
        }
        for transaction in &block.transactions {
            if let Some(to) = transaction.to() {
                named.call(to);
            }
            for item in transaction.access_list().into_iter().flat_map(|list| list.iter()) {
                let account = named.account(item.address);
                for key in &item.storage_keys {
                    if named.slots.len() < KEYS_MAX {
                        named.slots.insert((account, keccak256(key)));
                    }
                }
            }
            for authorization in transaction.authorization_list().into_iter().flatten() {
                named.call(authorization.address);
            }
        }
        named
    }

    /// Returns the senders of these transactions and the keys they are expected to read.
    fn foretold(
        block: &Block,
        transactions: Range<usize>,
        predictor: &Predictor,
        senders: &SharedSenders,
    ) -> Self {
        let mut named = Self::default();
        for index in transactions {
            let Some(sender) = senders.get(index) else { continue };
            named.account(sender);
            let transaction = &block.transactions[index];
            if transaction.to().is_none() {
                // The new contract's address, which must be unused (EIP-7610).
                named.account(sender.create(transaction.nonce()));
            }
            let keys = predictor.predict(transaction, sender).unwrap_or_default();
            for account in &keys.accounts {
                named.call(*account);
            }
            for slot in keys.hashed_slots() {
                if named.slots.len() < KEYS_MAX {
                    named.slots.insert(slot);
                }
            }
        }
        named
    }

    fn account(&mut self, address: Address) -> B256 {
        let hash = keccak256(address);
        if self.accounts.len() < KEYS_MAX {
            self.accounts.insert(hash);
        }
        hash
    }

    fn call(&mut self, address: Address) {
        let hash = self.account(address);
        self.called.insert(hash);
    }
}

/// Returns the slots that the system calls of a block read: its places in the ring buffers of beacon
/// roots (EIP-4788) and block hashes (EIP-2935), and the counters of the queues of withdrawal
/// requests (EIP-7002), consolidation requests (EIP-7251) and builders' requests (EIP-8282). A place in a ring buffer is another one
/// in each block, so no earlier block has read it.
pub fn system_slots(header: &Header) -> Vec<(Address, U256)> {
    let mut slots = Vec::new();
    if header.parent_beacon_block_root.is_some() {
        let place = header.timestamp % BEACON_ROOTS_LENGTH;
        slots.push((BEACON_ROOTS_ADDRESS, U256::from(place)));
        slots.push((BEACON_ROOTS_ADDRESS, U256::from(place + BEACON_ROOTS_LENGTH)));
    }
    if header.block_access_list_hash.is_some() {
        for queue in BUILDER_CONTRACTS {
            slots.extend((0..QUEUE_COUNTERS).map(|slot| (queue, U256::from(slot))));
        }
    }
    if header.requests_hash.is_some() {
        let place = header.number.saturating_sub(1) % HISTORY_SERVE_WINDOW as u64;
        slots.push((HISTORY_STORAGE_ADDRESS, U256::from(place)));
        for queue in [WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS]
        {
            slots.extend((0..QUEUE_COUNTERS).map(|slot| (queue, U256::from(slot))));
        }
    }
    slots
}

/// Returns the number of transactions whose senders and predicted keys are read together. Groups
/// begin small, because the first transactions execute soon.
fn group(begin: usize) -> usize {
    begin.clamp(16, 128)
}

/// Reads what a payload's block will read, beside the recovery of its senders.
pub struct Prefetcher {
    /// The newest states, with the cache that is filled.
    pub recent: Arc<Recent>,
    /// Source of what the cache lacks.
    pub storage: Arc<dyn BaseReads>,
    /// Expectations of what calls read; without them, what the block names alone is read.
    pub prediction: Prediction,
}

impl Prefetcher {
    /// Starts to read ahead the block's named keys and its calls' expected reads, on the rayon
    /// pool. This is only advice. If the parent is not executed yet, or storage-writer does not
    /// answer, nothing is read ahead, and the block reads for itself.
    pub fn start(&self, block: &Arc<Block>, senders: SharedSenders) {
        let (block, parent, prediction) = (block.clone(), Span::current(), self.prediction.clone());
        let (recent, storage) = (self.recent.clone(), self.storage.clone());
        rayon::spawn(move || {
            let span = info_span!(
                parent: &parent, "read_ahead",
                accounts = Empty, slots = Empty, codes = Empty, calls = Empty,
            );
            let _entered = span.enter();
            let view = StateView::passing(block.header.parent_hash, recent, storage);
            let read = match &prediction.of(view.is_far()) {
                Some(predictor) => read_all(&view, &block, predictor, &senders),
                None => read(&view, &Named::of(&block)),
            };
            match read {
                Ok(read) => count(read, view.counts().storage),
                Err(error) => debug!(%error, "nothing read ahead"),
            }
        });
    }
}

fn read_all(
    view: &StateView,
    block: &Block,
    predictor: &Predictor,
    senders: &SharedSenders,
) -> Result<ReadAhead, Error> {
    predictor.begin_block();
    let mut sum = read(view, &Named::of(block))?;
    let (mut begin, count) = (0, block.transactions.len());
    while begin < count {
        let end = count.min(begin + group(begin));
        let more = read(view, &Named::foretold(block, begin..end, predictor, senders))?;
        sum.accounts += more.accounts;
        sum.slots += more.slots;
        sum.codes += more.codes;
        begin = end;
    }
    Ok(sum)
}

fn read(view: &StateView, named: &Named) -> Result<ReadAhead, Error> {
    view.read_ahead(&named.accounts, &named.slots, &named.called)
}

fn count(read: ReadAhead, calls: u64) {
    let ReadAhead { accounts, slots, codes } = read;
    let span = Span::current();
    span.record("calls", calls);
    for (kind, count) in [("accounts", accounts), ("slots", slots), ("codes", codes)] {
        span.record(kind, count);
        counter!(names::READ_AHEAD, "kind" => kind).increment(count as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEip7702};
    use alloy_eips::{
        eip2718::Encodable2718 as _,
        eip2930::{AccessList, AccessListItem},
        eip2935::HISTORY_STORAGE_CODE,
        eip4788::{BEACON_ROOTS_CODE, SYSTEM_ADDRESS},
        eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_CODE,
        eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_CODE,
        eip7702::{Authorization, SignedAuthorization},
    };
    use alloy_evm::{EthEvmFactory, Evm as _, EvmEnv, EvmFactory as _};
    use alloy_primitives::{Bytes, Signature, hex};
    use revm::{
        database::InMemoryDB,
        primitives::hardfork::SpecId,
        state::{AccountInfo, Bytecode},
    };
    use tandem_chain::Transaction;

    fn address(n: u8) -> Address {
        Address::repeat_byte(n)
    }

    #[test]
    fn a_block_names_whom_it_calls_and_what_stands_in_access_lists() {
        let item = AccessListItem { address: address(2), storage_keys: vec![B256::ZERO; 2] };
        let access_list = AccessList(vec![item]);
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        let plain = TxEip1559 { to: address(1).into(), access_list, ..TxEip1559::default() };
        let inner = Authorization { chain_id: U256::ZERO, address: address(4), nonce: 0 };
        let authorization = SignedAuthorization::new_unchecked(inner, 0, U256::ZERO, U256::ZERO);
        let authorization_list = vec![authorization];
        let set_code = TxEip7702 { to: address(3), authorization_list, ..TxEip7702::default() };
        let raw = [
            Transaction::from(plain.into_signed(signature)).encoded_2718().into(),
            Transaction::from(set_code.into_signed(signature)).encoded_2718().into(),
        ];
        let header = Header { beneficiary: address(5), ..Header::default() };
        let named = Named::of(&Block::seal(header, &raw, None).unwrap());
        for (n, called) in [(1, true), (2, false), (3, true), (4, true), (5, false)] {
            let hash = keccak256(address(n));
            assert!(named.accounts.contains(&hash), "account {n}");
            assert_eq!(named.called.contains(&hash), called, "account {n}");
        }
        assert_eq!(named.accounts.len(), 5 + 4, "and four system contracts");
        let slot = (keccak256(address(2)), keccak256(B256::ZERO));
        assert_eq!(named.slots.into_iter().collect::<Vec<_>>(), [slot]);
    }

    /// Code of the queue of builders' deposits (EIP-8282).
    const BUILDER_DEPOSIT_CODE: &[u8] = &hex!(
        "3373fffffffffffffffffffffffffffffffffffffffe1461011c575f54807fffffffffffffffffff"
        "ffffffffffffffffffffffffffffffffffffffffffffff1461027057600154600881116052575060"
        "58565b60089003015b601190600182026001905f5b5f821115607f57810190830284830290049160"
        "010191906064565b90939004925050503660b814609f57366102705734610270575f5260205ff35b"
        "8034106102705760383567ffffffffffffffff1680633b9aca001161027057633b9aca0002903403"
        "1061027057600154600101600155600354806006026004015f358155600101602035815560010160"
        "403581556001016060358155600101608035815560010160a035905560b85f5f3760b85fa0600101"
        "600355005b60035460025480820380604011610131575060405b5f5b8181146101d7578281016006"
        "026004018160b8028154815260200181600101548152602001816002015480825260401c67ffffff"
        "ffffffffff16816010018160381c81600701538160301c81600601538160281c8160050153816020"
        "1c81600401538160181c81600301538160101c81600201538160081c816001015353602001816003"
        "015481526020018160040154815260200190600501549052600101610133565b91018092146101e9"
        "57906002556101f4565b90505f6002555f6003555b36610242575f54600154817fffffffffffffff"
        "ffffffffffffffffffffffffffffffffffffffffffffffffff146102305760088282011161023857"
        "5b50505f610264565b0160089003610264565b7fffffffffffffffffffffffffffffffffffffffff"
        "ffffffffffffffffffffffff5b5f555f60015560b8025ff35b5f5ffd"
    );

    /// Code of the queue of builders' exits (EIP-8282).
    const BUILDER_EXIT_CODE: &[u8] = &hex!(
        "3373fffffffffffffffffffffffffffffffffffffffe1460e1575f54807fffffffffffffffffffff"
        "ffffffffffffffffffffffffffffffffffffffffffff146101c65760015460028111605157506057"
        "565b60029003015b601190600182026001905f5b5f821115607e5781019083028483029004916001"
        "0191906063565b909390049250505036603014609e57366101c657346101c6575f5260205ff35b34"
        "106101c657600154600101600155600354806003026004013381556001015f358155600101602035"
        "90553360601b5f5260305f60143760445fa0600101600355005b6003546002548082038060101160"
        "f5575060105b5f5b81811461012d5782810160030260040181604402815460601b81526014018160"
        "01015481526020019060020154905260010160f7565b910180921461013f579060025561014a565b"
        "90505f6002555f6003555b36610198575f54600154817fffffffffffffffffffffffffffffffffff"
        "ffffffffffffffffffffffffffffff146101865760028282011161018e575b50505f6101ba565b01"
        "600290036101ba565b7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
        "ffff5b5f555f6001556044025ff35b5f5ffd"
    );

    /// The contracts' own code is the oracle.
    #[test]
    fn a_block_names_the_slots_that_its_system_calls_read() {
        let codes = [
            (BEACON_ROOTS_ADDRESS, BEACON_ROOTS_CODE.clone()),
            (HISTORY_STORAGE_ADDRESS, HISTORY_STORAGE_CODE.clone()),
            (WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, WITHDRAWAL_REQUEST_PREDEPLOY_CODE.clone()),
            (CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_CODE.clone()),
            (BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS, BUILDER_DEPOSIT_CODE.into()),
            (BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS, BUILDER_EXIT_CODE.into()),
        ];
        for (number, timestamp) in
            [(1, 8_190), (8_191, 8_191), (8_192, 8_192), (20_000_000, 1 << 33)]
        {
            let header = Header {
                number,
                timestamp,
                parent_beacon_block_root: Some(B256::ZERO),
                requests_hash: Some(B256::ZERO),
                block_access_list_hash: Some(B256::ZERO),
                ..Header::default()
            };
            let mut env = EvmEnv::<SpecId>::default();
            env.block_env.number = U256::from(number);
            env.block_env.timestamp = U256::from(timestamp);
            let mut database = InMemoryDB::default();
            for (address, code) in &codes {
                let code = Bytecode::new_raw(code.clone());
                database.insert_account_info(*address, AccountInfo::from_bytecode(code));
            }
            let mut evm = EthEvmFactory::default().create_evm(database, env);
            let mut read = HashSet::default();
            for (address, _) in &codes {
                let input = match [BEACON_ROOTS_ADDRESS, HISTORY_STORAGE_ADDRESS].contains(address)
                {
                    true => B256::repeat_byte(1).0.into(),
                    false => Bytes::new(),
                };
                let done = evm.transact_system_call(SYSTEM_ADDRESS, *address, input).unwrap();
                assert!(done.result.is_success(), "{address}");
                read.extend(done.state[address].storage.keys().map(|slot| (*address, *slot)));
            }
            assert_eq!(system_slots(&header).into_iter().collect::<HashSet<_>>(), read);
        }
        assert!(system_slots(&Header::default()).is_empty(), "before Cancun");
    }
}
