//! Arbitrary values of the domain.

use proptest::{collection::vec, option, prelude::*};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tandem_primitives::{
    Account, AccountUpdate, B256, BlockId, Bytes, EMPTY_CODE_HASH, NodeChange, ShardSet,
    SlotUpdate, StateDiff, TrieDiff, U256, WalkTarget,
};
use tandem_proto::{
    convert::{Command, SessionAnswer, SessionCommand},
    multiproof::{self, Begin, Foresight, Prefetch, ProofStats, ShardRoots, StateUpdate},
    storage::{
        self, Block, BlockRecord, BlockRef, Checkpoint, Epoch, EpochToken, Forkchoice, ReadState,
        StateValues, TrieNode, TrieNodes,
    },
};

pub fn hash() -> impl Strategy<Value = B256> {
    // Few values, so that neighbours are often equal.
    prop_oneof![any::<[u8; 32]>().prop_map(B256::from), (0..4u8).prop_map(B256::repeat_byte)]
}

pub fn number() -> impl Strategy<Value = U256> {
    (any::<[u8; 32]>(), 0..=32usize)
        .prop_map(|(digits, length)| U256::from_be_slice(&digits[..length]))
}

pub fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

pub fn block_id() -> impl Strategy<Value = BlockId> {
    (any::<u64>(), hash()).prop_map(|(number, hash)| BlockId::new(number, hash))
}

pub fn account() -> impl Strategy<Value = Account> {
    let code_hash = prop_oneof![Just(EMPTY_CODE_HASH), hash()];
    (any::<u64>(), number(), code_hash).prop_map(|(nonce, balance, code_hash)| Account {
        nonce,
        balance,
        code_hash,
    })
}

/// Generates updates in ascending order, with ascending slots.
pub fn updates() -> impl Strategy<Value = Vec<AccountUpdate>> {
    let slots = proptest::collection::btree_map(hash(), number(), 0..6);
    let update = (option::of(account()), any::<bool>(), slots);
    proptest::collection::btree_map(hash(), update, 0..8).prop_map(|accounts: BTreeMap<_, _>| {
        let update = |(address_hash, (account, wiped, slots)): (_, (_, _, BTreeMap<_, _>))| {
            let slots = slots.into_iter().map(|(key, value)| SlotUpdate { key, value }).collect();
            AccountUpdate { address_hash, account, wiped, slots }
        };
        accounts.into_iter().map(update).collect()
    })
}

pub fn state_update() -> impl Strategy<Value = StateUpdate> {
    updates().prop_shuffle().prop_map(|mut accounts| {
        accounts.iter_mut().for_each(|update| update.slots.reverse());
        StateUpdate { accounts }
    })
}

pub fn state_diff() -> impl Strategy<Value = StateDiff> {
    (updates(), vec((hash(), bytes(40)), 0..4))
        .prop_map(|(accounts, codes)| StateDiff { accounts, codes })
}

pub fn path() -> impl Strategy<Value = Vec<u8>> {
    vec(0..16u8, 0..=64)
}

fn rlp() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..40)
}

/// Generates a diff with the account trie first, as the receiver returns it.
pub fn trie_diff() -> impl Strategy<Value = TrieDiff> {
    let changes = vec((option::of(hash()), path(), option::of(rlp())), 0..12);
    (vec(hash(), 0..3), changes).prop_map(|(wiped, mut changes)| {
        changes.sort_by_key(|(owner, _, _)| owner.is_some());
        let mut diff = TrieDiff::default();
        diff.wiped = wiped;
        for (owner, path, rlp) in &changes {
            diff.push(NodeChange { owner: *owner, path, rlp: rlp.as_deref() });
        }
        diff
    })
}

pub fn trie_nodes() -> impl Strategy<Value = TrieNodes> {
    let node = (option::of(hash()), path(), rlp()).prop_map(|(owner, path, rlp)| TrieNode {
        owner,
        path: path.into(),
        rlp: rlp.into(),
    });
    (block_id(), vec(node, 0..12)).prop_map(|(base, mut nodes)| {
        nodes.sort_by_key(|node| node.owner.is_some());
        TrieNodes { base, nodes }
    })
}

pub fn targets() -> impl Strategy<Value = Vec<WalkTarget>> {
    let target = (option::of(hash()), hash(), 1..=64u8)
        .prop_map(|(owner, key, from_depth)| WalkTarget { owner, key, from_depth });
    let whole = (hash(), hash()).prop_map(|(owner, key)| WalkTarget {
        owner: Some(owner),
        key,
        from_depth: 0,
    });
    vec(prop_oneof![target, whole], 0..12).prop_map(|mut targets| {
        targets.sort_by_key(|target| target.owner.is_some());
        targets
    })
}

pub fn block() -> impl Strategy<Value = Block> {
    let parts = (bytes(600), bytes(900), bytes(300), vec(hash(), 0..5), state_diff());
    (block_id(), hash(), parts, option::of(bytes(300))).prop_map(
        |(id, parent, (header, body, receipts, transaction_hashes, diff), access_list)| Block {
            id,
            parent,
            header,
            body,
            receipts,
            transaction_hashes: transaction_hashes.into(),
            diff: Arc::new(diff),
            access_list,
        },
    )
}

pub fn record() -> impl Strategy<Value = BlockRecord> {
    (block_id(), bytes(600), bytes(900), bytes(300))
        .prop_map(|(id, header, body, receipts)| BlockRecord { id, header, body, receipts })
}

pub fn block_ref() -> impl Strategy<Value = BlockRef> {
    prop_oneof![any::<u64>().prop_map(BlockRef::Number), hash().prop_map(BlockRef::Hash)]
}

pub fn forkchoice() -> impl Strategy<Value = Forkchoice> {
    (block_id(), option::of(block_id()), option::of(block_id()))
        .prop_map(|(head, safe, finalized)| Forkchoice { head, safe, finalized })
}

pub fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    (block_id(), ".{0,40}", block_id(), forkchoice(), any::<(bool, u64)>()).prop_map(
        |(genesis, genesis_json, base, forkchoice, (writes_fail, oldest_block))| Checkpoint {
            genesis,
            genesis_json: genesis_json.into(),
            base,
            forkchoice,
            writes_fail,
            oldest_block,
        },
    )
}

/// Generates a read with its answer.
pub fn read() -> impl Strategy<Value = (ReadState, StateValues)> {
    let accounts = vec((hash(), option::of(account())), 0..6);
    let slots = vec(((hash(), hash()), number()), 0..6);
    let codes = vec((hash(), option::of(bytes(40))), 0..6);
    (block_id(), accounts, slots, codes).prop_map(|(base, accounts, slots, codes)| {
        let (accounts, account_values) = accounts.into_iter().unzip();
        let (slots, slot_values) = slots.into_iter().unzip();
        let (codes, code_values) = codes.into_iter().unzip();
        let request = ReadState { accounts, slots, codes };
        let (accounts, slots, codes) = (account_values, slot_values, code_values);
        (request, StateValues { base, accounts, slots, codes })
    })
}

pub fn epoch() -> impl Strategy<Value = Epoch> {
    let token = option::of(any::<[u8; 16]>().prop_map(EpochToken));
    (any::<u64>(), token).prop_map(|(number, token)| Epoch { number, token })
}

pub fn storage_error() -> impl Strategy<Value = storage::Error> {
    use storage::Error;
    prop_oneof![
        any::<[u64; 2]>().prop_map(|[held, granted]| Error::Fenced { held, granted }),
        any::<u64>().prop_map(|held| Error::Unproven { held }),
        hash().prop_map(Error::UnknownBlock),
        any::<[u64; 2]>().prop_map(|[to, oldest]| Error::RewindTooDeep { to, oldest }),
        any::<[u64; 2]>().prop_map(|[number, oldest]| Error::Pruned { number, oldest }),
        ".{0,200}".prop_map(Error::Store),
        ".{0,200}".prop_map(Error::Unavailable),
        ".{0,200}".prop_map(Error::Refused),
    ]
}

pub fn multiproof_error() -> impl Strategy<Value = multiproof::Error> {
    use multiproof::Error;
    prop_oneof![
        (hash(), block_id()).prop_map(|(parent, base)| Error::ParentUnreachable { parent, base }),
        storage_error().prop_map(Error::Storage),
        ".{0,200}".prop_map(Error::Trie),
        Just(Error::Unavailable),
    ]
}

/// Generates foresight whose two sides have equal accounts and slots.
fn foresight() -> impl Strategy<Value = (B256, Foresight)> {
    (hash(), state_update()).prop_map(|(block, update)| {
        let mut before = update.accounts.clone();
        for account in &mut before {
            (account.account, account.wiped) =
                (account.account.filter(|a| a.nonce & 1 == 0), false);
            account.slots.iter_mut().for_each(|slot| slot.value = !slot.value);
        }
        (block, Foresight { before, after: update.accounts })
    })
}

pub fn command() -> impl Strategy<Value = SessionCommand> {
    let command = prop_oneof![
        (block_id(), hash(), shard_set(), "[0-9a-f-]{0,60}").prop_map(
            |(block, parent, shards, traceparent)| Command::Begin {
                begin: Begin::new(block, parent).of_shards(shards),
                traceparent
            }
        ),
        state_update().prop_map(|update| Command::Update(Arc::new(update))),
        Just(Command::Finish),
        Just(Command::Cancel),
        (hash(), vec((hash(), vec(hash(), 0..4)), 0..4)).prop_map(|(block, accounts)| {
            Command::Prefetch { block, keys: Arc::new(Prefetch { accounts }) }
        }),
        foresight().prop_map(|(block, foresight)| Command::Foresee {
            block,
            foresight: Arc::new(foresight)
        }),
        hash().prop_map(Command::Discard),
    ];
    (any::<u64>(), command).prop_map(|(session, command)| SessionCommand { session, command })
}

fn shard_set() -> impl Strategy<Value = ShardSet> {
    any::<u16>().prop_map(ShardSet::from_bits)
}

pub fn answer() -> impl Strategy<Value = SessionAnswer> {
    let root = option::of(rlp().prop_map(Bytes::from));
    let roots = proptest::array::uniform16(root);
    let roots = (shard_set(), roots, any::<[u64; 6]>()).prop_map(|(shards, mut roots, counts)| {
        ShardSet::ALL.difference(shards).iter().for_each(|shard| roots[shard.index()] = None);
        let [updates, targets, walks, nodes, busy, wasted] = counts;
        let [busy, wasted] = [busy, wasted].map(Duration::from_nanos);
        let stats = ProofStats { updates, targets, walks, nodes, busy, wasted };
        // Distances that a sum of 64 bits holds.
        let work = vec![(nodes >> 2, nodes >> 1), (nodes, nodes)];
        ShardRoots { shards, roots, stats, work }
    });
    let result = prop_oneof![roots.prop_map(Ok), multiproof_error().prop_map(Err)];
    (any::<u64>(), result).prop_map(|(session, result)| SessionAnswer { session, result })
}

pub fn status() -> impl Strategy<Value = multiproof::Status> {
    (any::<u32>(), shard_set(), any::<u64>(), option::of(hash())).prop_map(
        |(threads, shards, trie_bytes, tip)| multiproof::Status {
            threads,
            shards,
            trie_bytes,
            tip,
        },
    )
}
