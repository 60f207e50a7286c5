//! A small world for tests: random states and blocks, with roots by alloy-trie, which shares no
//! code with ours.

use crate::trie::{Accounts, apply_update};
use alloy_consensus::Header;
use alloy_eips::eip7928::{
    AccountChanges, BalanceChange, BlockAccessIndex, CodeChange, NonceChange, SlotChanges,
    StorageChange,
};
use alloy_trie::{
    TrieAccount,
    root::{state_root_unsorted, storage_root_unsorted},
};
use std::{collections::BTreeMap, sync::Arc};
use tandem_primitives::{
    Account, AccountUpdate, Address, B256, BlockId, Bytes, EMPTY_CODE_HASH, SlotUpdate, StateDiff,
    U256, keccak256,
};
use tandem_proto::storage::Block;

/// xorshift generator: always the same numbers for the same seed.
pub struct Random(pub u64);

impl Random {
    #[expect(clippy::should_implement_trait, reason = "numbers without end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// State by hashed keys.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct World(pub Accounts);

impl World {
    pub fn root(&self) -> B256 {
        state_root_unsorted(self.0.iter().map(|(key, (account, storage))| {
            let account = TrieAccount {
                nonce: account.nonce,
                balance: account.balance,
                storage_root: storage_root_unsorted(storage.iter().map(|(k, v)| (*k, *v))),
                code_hash: account.code_hash,
            };
            (*key, account)
        }))
    }

    pub fn apply(&mut self, diff: &StateDiff) {
        for update in &diff.accounts {
            apply_update(&mut self.0, update);
        }
    }

    /// Changes a few accounts out of a small number, so that all cases meet each other.
    pub fn random_diff(&self, random: &mut Random) -> StateDiff {
        let mut updates = BTreeMap::new();
        let mut codes = Vec::new();
        for _ in 0..random.below(12) {
            let address_hash = account_key(random.below(40));
            let old = self.0.get(&address_hash);
            let mut account = old.map_or_else(Account::default, |(account, _)| *account);
            account.nonce += 1;
            account.balance = U256::from(random.next());
            if random.one_in(8) {
                let code = Bytes::from(random.next().to_be_bytes().to_vec());
                account.code_hash = keccak256(&code);
                codes.push((account.code_hash, code));
            }
            let gone = random.one_in(6);
            let wiped = random.one_in(6) || (gone && random.one_in(2));
            let slots = if gone { 0 } else { random.below(10) };
            let slots: BTreeMap<B256, U256> = (0..slots)
                .map(|_| {
                    let value =
                        if random.one_in(3) { 0 } else { random.next() >> random.below(64) };
                    (slot_key(random.below(60)), U256::from(value))
                })
                .collect();
            let slots = slots.into_iter().map(|(key, value)| SlotUpdate { key, value }).collect();
            let account = (!gone).then_some(account);
            updates.insert(address_hash, AccountUpdate { address_hash, account, wiped, slots });
        }
        StateDiff { accounts: updates.into_values().collect(), codes }
    }

    /// Changes a few of the first `accounts` accounts as transactions can. Returns also the access list
    /// that says the same (EIP-7928).
    pub fn listed_diff(&self, accounts: u64, random: &mut Random) -> (StateDiff, Bytes) {
        let at = |index| BlockAccessIndex::new(index);
        let (mut updates, mut entries) = (BTreeMap::new(), BTreeMap::new());
        let mut codes = Vec::new();
        for _ in 0..random.below(10) {
            let number = random.below(accounts);
            let (address, address_hash) = (address(number), account_key(number));
            let mut account = self.0.get(&address_hash).map_or(Account::default(), |(it, _)| *it);
            let drawn = random.next();
            let mut entry = AccountChanges {
                address,
                storage_reads: vec![U256::from(1_000 + random.below(9))],
                ..AccountChanges::default()
            };
            if !drawn.is_multiple_of(3) {
                account.nonce += 1;
                entry.nonce_changes = vec![NonceChange::new(at(1), account.nonce)];
            }
            account.balance = U256::from(if drawn.is_multiple_of(5) { 0 } else { drawn });
            entry.balance_changes = vec![
                // An earlier value does not count.
                BalanceChange::new(at(1), U256::from(random.next())),
                BalanceChange::new(at(2), account.balance),
            ];
            if random.one_in(4) {
                let code = Bytes::from(random.next().to_be_bytes().to_vec());
                account.code_hash = keccak256(&code);
                codes.push((account.code_hash, code.clone()));
                entry.code_changes = vec![CodeChange::new(at(1), code)];
            }
            let is_gone = account == Account::default();
            let mut slots: BTreeMap<u64, U256> = (0..random.below(6))
                .map(|_| {
                    let slot = random.below(60);
                    (slot, U256::from(if random.one_in(3) { 0 } else { random.next() }))
                })
                .collect();
            if is_gone {
                slots.clear();
            }
            entry.storage_changes = slots
                .iter()
                .map(|(slot, value)| {
                    SlotChanges::new(U256::from(*slot), vec![StorageChange::new(at(1), *value)])
                })
                .collect();
            let slots: BTreeMap<B256, U256> =
                slots.into_iter().map(|(slot, value)| (slot_key(slot), value)).collect();
            let slots = slots.into_iter().map(|(key, value)| SlotUpdate { key, value }).collect();
            let account = (!is_gone).then_some(account);
            let update = AccountUpdate { address_hash, account, wiped: is_gone, slots };
            updates.insert(address_hash, update);
            entries.insert(address, entry);
        }
        let entries: Vec<AccountChanges> = entries.into_values().collect();
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<_, AccountChanges>(&entries, &mut rlp);
        (StateDiff { accounts: updates.into_values().collect(), codes }, rlp.into())
    }
}

fn address(n: u64) -> Address {
    Address::left_padding_from(&(n + 1).to_be_bytes())
}

pub fn account_key(n: u64) -> B256 {
    keccak256(address(n))
}

pub fn slot_key(n: u64) -> B256 {
    keccak256(B256::from(U256::from(n)))
}

/// Returns a block over `parent` that leaves the state `after`.
pub fn block(parent: BlockId, after: &World, diff: StateDiff, random: &mut Random) -> Block {
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number + 1,
        state_root: after.root(),
        timestamp: random.next(),
        ..Header::default()
    };
    let transactions: Vec<Bytes> = (0..random.below(4))
        .map(|_| Bytes::from([&[2u8][..], &random.next().to_be_bytes()].concat()))
        .collect();
    let mut fields = alloy_rlp::encode(&transactions);
    fields.extend_from_slice(&[0xc0, 0xc0]);
    let mut body = Vec::new();
    alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut body);
    body.extend_from_slice(&fields);
    let rlp = alloy_rlp::encode(&header);
    Block {
        id: BlockId::new(header.number, keccak256(&rlp)),
        parent: parent.hash,
        header: rlp.into(),
        body: body.into(),
        receipts: Bytes::from_static(&[0xc0]),
        transaction_hashes: transactions.iter().map(keccak256).collect(),
        diff: Arc::new(diff),
        access_list: random.one_in(2).then(|| random.next().to_be_bytes().to_vec().into()),
    }
}

pub const CONFIG: &str = r#""config":{"chainId":7,"homesteadBlock":0,"londonBlock":0,
    "terminalTotalDifficulty":0,"shanghaiTime":0},"difficulty":"0x0","gasLimit":"0x1c9c380""#;

/// Returns a genesis of a few accounts, and its state.
pub fn genesis() -> (String, World) {
    let mut world = World::default();
    let mut alloc = Vec::new();
    for n in 0..20u64 {
        let storage: Vec<(u64, u64)> = (0..n % 5).map(|slot| (slot, n * 100 + slot + 1)).collect();
        let text: Vec<_> =
            storage.iter().map(|(slot, value)| format!(r#""{slot:#x}":"{value:#x}""#)).collect();
        alloc.push(format!(
            r#""{:040x}":{{"balance":"{n}","nonce":"0x1","storage":{{{}}}}}"#,
            n + 1,
            text.join(",")
        ));
        let account = Account { nonce: 1, balance: U256::from(n), code_hash: EMPTY_CODE_HASH };
        let storage = storage.into_iter().map(|(k, v)| (slot_key(k), U256::from(v))).collect();
        world.0.insert(account_key(n), (account, storage));
    }
    (format!("{{{CONFIG},\"alloc\":{{{}}}}}", alloc.join(",")), world)
}
