//! All tries of a shard, built from the flat state bottom-up in key order. `init` writes them and
//! `verify` compares them.

use crate::Error;
use rayon::prelude::*;
use std::cell::RefCell;
use tandem_primitives::{Account, B256, Bytes, EMPTY_TRIE_ROOT, Shard, SubtrieRoot, keccak256};
use tandem_store::{
    Cursor, View,
    tables::{Accounts, Slots},
};
use tandem_trie::{TrieBuilder, account_leaf, combine};

/// Receiver of the results of a rebuild.
pub trait Sink {
    /// Takes a trie node. Children come before their parents, storage tries in ascending order of
    /// their owners.
    ///
    /// # Errors
    /// Any error ends the rebuild.
    fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error>;

    /// Takes an account, before the nodes of its storage trie.
    ///
    /// # Errors
    /// Any error ends the rebuild.
    fn account(&mut self, address_hash: B256, account: &Account) -> Result<(), Error>;

    /// Notes that the storage trie of an account is complete.
    ///
    /// # Errors
    /// Any error ends the rebuild.
    fn storage_done(&mut self, owner: B256) -> Result<(), Error>;

    /// Takes a slot whose account does not exist.
    ///
    /// # Errors
    /// Any error ends the rebuild.
    fn orphan(&mut self, owner: B256, slot: B256) -> Result<(), Error>;
}

/// Summary of a shard.
#[derive(Clone, Default, Debug)]
pub struct Rebuilt {
    /// Top node of the account subtrie.
    pub top: SubtrieRoot,
    /// Number of accounts.
    pub accounts: u64,
    /// Number of slots that are set.
    pub slots: u64,
}

/// Returns the bounds of a shard in tables whose keys start with a hashed address.
pub fn shard_range(shard: Shard) -> ([u8; 1], Option<[u8; 1]>) {
    let nibble = shard.nibble();
    ([nibble << 4], (nibble < 15).then(|| [(nibble + 1) << 4]))
}

/// Sink that both builders feed. The first error is kept, and ends the work at the next check.
struct Shared<'s, S: Sink> {
    sink: &'s mut S,
    error: Option<Error>,
}

impl<S: Sink> Shared<'_, S> {
    fn run(&mut self, call: impl FnOnce(&mut S) -> Result<(), Error>) {
        if self.error.is_none() {
            self.error = call(self.sink).err();
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// All tries of a state, whose nodes a sink has.
pub struct Built {
    /// State root.
    pub root: B256,
    /// Root node of the account trie, `None` when the state is empty.
    pub node: Option<Vec<u8>>,
    /// Number of accounts.
    pub accounts: u64,
    /// Number of slots that are set.
    pub slots: u64,
}

/// Builds the tries of all shards, several at a time. `sink` makes the receiver of each shard, and
/// `end` takes it when the shard is done.
///
/// # Errors
/// As [`rebuild`].
pub fn rebuild_all<S: Sink>(
    view: &View<'_>,
    sink: impl Fn() -> S + Sync,
    end: impl Fn(S) -> Result<(), Error> + Sync,
) -> Result<Built, Error> {
    let shards: Vec<Rebuilt> = Shard::all()
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|shard| {
            let mut sink = sink();
            let rebuilt = rebuild(view, shard, &mut sink)?;
            end(sink)?;
            Ok(rebuilt)
        })
        .collect::<Result<_, Error>>()?;
    let mut tops: [SubtrieRoot; Shard::COUNT] = Default::default();
    let (mut accounts, mut slots) = (0, 0);
    for (top, shard) in tops.iter_mut().zip(shards) {
        accounts += shard.accounts;
        slots += shard.slots;
        *top = shard.top;
    }
    let (root, node) = combine(&tops)?;
    Ok(Built { root, node, accounts, slots })
}

/// Builds the account subtrie of a shard and the storage tries of its accounts.
///
/// # Errors
/// When the database fails, holds malformed records, or the sink returns an error.
pub fn rebuild(view: &View<'_>, shard: Shard, sink: &mut impl Sink) -> Result<Rebuilt, Error> {
    let shared = RefCell::new(Shared { sink, error: None });
    let (start, end) = shard_range(shard);
    let end = end.as_ref().map(|end| end.as_slice());
    let mut accounts = view.range::<Accounts>(&start, end);
    let mut slots = view.range::<Slots>(&start, end);
    let mut builder = TrieBuilder::with_prefix(&[shard.nibble()], |path: &[u8], rlp: &[u8]| {
        shared.borrow_mut().run(|sink| sink.node(None, path, rlp));
    });
    let mut rebuilt = Rebuilt::default();
    let mut leaf = Vec::new();
    while let Some(account) = accounts.value()? {
        let address_hash = account_key(&accounts)?;
        shared.borrow_mut().run(|sink| sink.account(address_hash, &account));
        skip_orphans(&mut slots, Some(&address_hash), &shared)?;
        let (root, count) = storage_trie(&mut slots, address_hash, &shared)?;
        shared.borrow_mut().run(|sink| sink.storage_done(address_hash));
        leaf.clear();
        account_leaf(&account, root, &mut leaf);
        builder.push(&address_hash, &leaf).map_err(out_of_order)?;
        shared.borrow_mut().check()?;
        rebuilt.accounts += 1;
        rebuilt.slots += count;
        accounts.advance();
    }
    skip_orphans(&mut slots, None, &shared)?;
    rebuilt.top = builder.finish().map(Bytes::from);
    shared.borrow_mut().check()?;
    Ok(rebuilt)
}

/// Builds the storage trie of one account. Returns its root and its number of slots.
///
/// # Errors
/// As [`rebuild`].
pub fn rebuild_storage(
    view: &View<'_>,
    owner: B256,
    sink: &mut impl Sink,
) -> Result<(B256, u64), Error> {
    let shared = RefCell::new(Shared { sink, error: None });
    let built = storage_trie(&mut view.cursor::<Slots>(owner.as_slice()), owner, &shared)?;
    shared.borrow_mut().run(|sink| sink.storage_done(owner));
    shared.borrow_mut().check()?;
    Ok(built)
}

fn account_key(cursor: &Cursor<'_, Accounts>) -> Result<B256, Error> {
    let key = cursor.entry()?.and_then(|(key, _)| B256::try_from(key).ok());
    key.ok_or_else(|| Error::Damaged("malformed account key".to_owned()))
}

/// Returns the slot at the cursor, `None` past the end.
fn slot_key(cursor: &Cursor<'_, Slots>) -> Result<Option<(B256, B256)>, Error> {
    let Some((key, _)) = cursor.entry()? else { return Ok(None) };
    match key.split_at_checked(32).map(|(owner, slot)| (owner.try_into(), slot.try_into())) {
        Some((Ok(owner), Ok(slot))) => Ok(Some((owner, slot))),
        _ => Err(Error::Damaged("malformed slot key".to_owned())),
    }
}

/// Reports slots of accounts below `until` that no account has claimed.
fn skip_orphans<S: Sink>(
    slots: &mut Cursor<'_, Slots>,
    until: Option<&B256>,
    shared: &RefCell<Shared<'_, S>>,
) -> Result<(), Error> {
    while let Some((owner, slot)) = slot_key(slots)? {
        if until.is_some_and(|until| owner >= *until) {
            break;
        }
        shared.borrow_mut().run(|sink| sink.orphan(owner, slot));
        shared.borrow_mut().check()?;
        slots.advance();
    }
    Ok(())
}

/// Builds one storage trie. Returns its root and its number of slots.
fn storage_trie<S: Sink>(
    slots: &mut Cursor<'_, Slots>,
    owner: B256,
    shared: &RefCell<Shared<'_, S>>,
) -> Result<(B256, u64), Error> {
    let mut count = 0;
    let mut builder = TrieBuilder::new(|path: &[u8], rlp: &[u8]| {
        shared.borrow_mut().run(|sink| sink.node(Some(owner), path, rlp));
    });
    let mut leaf = Vec::with_capacity(33);
    while let Some((slot_owner, slot)) = slot_key(slots)? {
        if slot_owner != owner {
            break;
        }
        let Some(value) = slots.value()? else { break };
        leaf.clear();
        alloy_rlp::Encodable::encode(&value, &mut leaf);
        builder.push(&slot, &leaf).map_err(out_of_order)?;
        count += 1;
        slots.advance();
    }
    let root = builder.finish().map_or(EMPTY_TRIE_ROOT, keccak256);
    shared.borrow_mut().check()?;
    Ok((root, count))
}

fn out_of_order(error: tandem_trie::OutOfOrder) -> Error {
    Error::Damaged(error.to_string())
}
