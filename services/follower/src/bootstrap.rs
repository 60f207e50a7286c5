//! First state of a follower whose leader no longer has the changes since genesis: the flat state of a
//! recent block, copied from the leader, and all blocks up to it. The tries are built from the copy,
//! and their root must be the one in the block's header, so the ranges need no proof of their own.

use crate::{Error, check::check, metrics as names, service::Shared};
use metrics::counter;
use std::time::Duration;
use tandem_primitives::{B256, BlockId, Bytes, EMPTY_CODE_HASH, EMPTY_TRIE_ROOT, U256};
use tandem_proto::{
    feed::{FeedMessage, FollowRequest, LeaderApi},
    limits::{CODES_MAX, STATE_ANSWER_BYTES_MAX, STORAGE_TRIES_MAX},
    snap::{DownloadedAccount, DownloadedBlock, Leaf, StateItems, StatePart, StateRequest},
    storage::{self, BlockRef},
};
use tandem_trie::{decode_account_leaf, key_after};
use tracing::info;

/// Last key of a state.
const LAST: B256 = B256::repeat_byte(0xff);

/// Size in bytes at which downloaded blocks are stored.
const BLOCKS_BYTES: usize = 4 << 20;

/// Longest wait for the next block.
const WAIT: Duration = Duration::from_secs(30);

/// Downloads the state of a recent block and the blocks up to it.
///
/// # Errors
/// [`Error::Lost`] when the leader goes, or has moved on too far; the next attempt begins again.
/// [`Error::Refused`] when the state does not have the root of its block.
pub fn download(shared: &Shared, leader: &dyn LeaderApi) -> Result<(), Error> {
    let (pivot, root) = pivot(leader)?;
    info!(block = %pivot, "a first state is downloaded from the leader");
    let storage = &shared.storage;
    storage.begin_download().map_err(Error::Own)?;
    let download = Download { shared, leader, root };
    download.accounts()?;
    download.blocks(pivot)?;
    storage.finish_download(pivot).map_err(|error| match error {
        storage::Error::Store(text) => Error::block(pivot, text),
        error => Error::Own(error),
    })?;
    shared.view.adopted();
    Ok(())
}

/// Chooses a block whose state the leader serves: half way between its base and its head, so that
/// neither a reorg nor a move of the base takes it away soon.
fn pivot(leader: &dyn LeaderApi) -> Result<(BlockId, B256), Error> {
    let at = leader.checkpoint().map_err(Error::of_leader)?;
    let (base, head) = (at.base.number, at.forkchoice.head.number);
    let number = base + head.saturating_sub(base) / 2;
    let found = leader.header(BlockRef::Number(number)).map_err(Error::of_leader)?;
    let Some((id, rlp)) = found else {
        return Err(lost(format!("it does not have block {number}")));
    };
    let header = tandem_chain::decode_header(&rlp).map_err(|error| Error::block(id, error))?;
    Ok((id, header.state_root))
}

fn lost(text: String) -> Error {
    Error::Lost(storage::Error::Unavailable(text))
}

struct Download<'a> {
    shared: &'a Shared,
    leader: &'a dyn LeaderApi,
    root: B256,
}

impl Download<'_> {
    /// Asks for a part of the state.
    fn ask(&self, request: &StateRequest) -> Result<StateItems, Error> {
        if self.shared.stopping.is_cancelled() {
            return Err(Error::Stopping);
        }
        self.leader.state_items(request).map_err(Error::of_leader)
    }

    fn put(&self, parts: &[StatePart]) -> Result<(), Error> {
        self.shared.storage.put_state(parts, &[]).map_err(Error::Own)
    }

    /// Copies all accounts, with their slots and codes.
    fn accounts(&self) -> Result<(), Error> {
        let mut start = B256::ZERO;
        loop {
            let (root, limit, bytes) = (self.root, LAST, STATE_ANSWER_BYTES_MAX);
            let answer = self.ask(&StateRequest::Accounts { root, start, limit, bytes })?;
            let StateItems::Accounts { leaves, proof } = answer else { return Err(other_kind()) };
            if leaves.is_empty() && proof.is_empty() {
                return Err(lost(format!("it no longer serves the state {root}")));
            }
            let end = leaves.last().map(|leaf| leaf.key);
            ascending(&leaves, start)?;
            let (mut accounts, mut owners, mut codes) = (Vec::new(), Vec::new(), Vec::new());
            for Leaf { key, value } in leaves {
                let (account, root) = decode_account_leaf(&value)
                    .ok_or_else(|| Error::Refused(format!("account {key} cannot be decoded")))?;
                let has_storage = root != EMPTY_TRIE_ROOT;
                accounts.push(DownloadedAccount { key, account, has_storage });
                if has_storage {
                    owners.push(key);
                }
                if account.code_hash != EMPTY_CODE_HASH {
                    codes.push(account.code_hash);
                }
            }
            counter!(names::DOWNLOADED, "kind" => "accounts").increment(accounts.len() as u64);
            self.codes(codes)?;
            self.slots(owners)?;
            // Without a further account, the rest of what is there goes.
            let last = end.unwrap_or(LAST);
            self.put(&[StatePart::Accounts { first: start, last, accounts }])?;
            match end.and_then(|end| key_after(&end)) {
                Some(next) => start = next,
                None => return Ok(()),
            }
        }
    }

    /// Copies the slots of these accounts, each of which has some.
    fn slots(&self, owners: Vec<B256>) -> Result<(), Error> {
        let (mut waiting, mut start) = (&owners[..], B256::ZERO);
        while let Some(first_owner) = waiting.first() {
            let accounts = waiting[..waiting.len().min(STORAGE_TRIES_MAX)].to_vec();
            let (root, limit, bytes) = (self.root, LAST, STATE_ANSWER_BYTES_MAX);
            let request = StateRequest::Slots { root, accounts, start, limit, bytes };
            let StateItems::Slots { tries, proof } = self.ask(&request)? else {
                return Err(other_kind());
            };
            if tries.is_empty() {
                if proof.is_empty() {
                    return Err(lost(format!("it no longer serves the state {root}")));
                }
                // Nothing comes after `start`.
                self.put_slots(*first_owner, start, LAST, Vec::new())?;
                (waiting, start) = (&waiting[1..], B256::ZERO);
                continue;
            }
            if tries.len() > waiting.len() {
                return Err(Error::Refused("slots of more accounts than asked for".to_owned()));
            }
            let count = tries.len();
            for (index, leaves) in tries.into_iter().enumerate() {
                let owner = waiting[index];
                let end = leaves.last().map(|leaf| leaf.key);
                ascending(&leaves, start)?;
                // A proof says that the last range may not be all of the account's storage.
                let next = match index + 1 == count && !proof.is_empty() {
                    true => end.and_then(|end| key_after(&end)),
                    false => None,
                };
                let last = if next.is_some() { end.unwrap_or(LAST) } else { LAST };
                self.put_slots(owner, start, last, leaves)?;
                start = next.unwrap_or(B256::ZERO);
            }
            let done = if start == B256::ZERO { count } else { count - 1 };
            waiting = &waiting[done..];
        }
        Ok(())
    }

    fn put_slots(
        &self,
        owner: B256,
        first: B256,
        last: B256,
        leaves: Vec<Leaf>,
    ) -> Result<(), Error> {
        let slot = |Leaf { key, value }: Leaf| {
            let value = <U256 as alloy_rlp::Decodable>::decode(&mut &value[..]);
            let value = value.ok().filter(|value| !value.is_zero());
            let bad = || Error::Refused(format!("slot {key} of {owner} cannot be decoded"));
            Ok((key, value.ok_or_else(bad)?))
        };
        let slots = leaves.into_iter().map(slot).collect::<Result<Vec<_>, Error>>()?;
        counter!(names::DOWNLOADED, "kind" => "slots").increment(slots.len() as u64);
        self.put(&[StatePart::Slots { owner, first, last, slots }])
    }

    /// Copies codes that are not there yet.
    fn codes(&self, mut hashes: Vec<B256>) -> Result<(), Error> {
        hashes.sort_unstable();
        hashes.dedup();
        let mut lacking = self.shared.storage.lacking_codes(&hashes).map_err(Error::Own)?;
        while !lacking.is_empty() {
            let wanted = lacking[..lacking.len().min(CODES_MAX)].to_vec();
            let bytes = STATE_ANSWER_BYTES_MAX;
            let StateItems::Codes(codes) =
                self.ask(&StateRequest::Codes { hashes: wanted, bytes })?
            else {
                return Err(other_kind());
            };
            if codes.is_empty() {
                return Err(lost(format!("it does not have the code {}", lacking[0])));
            }
            let codes: Vec<(B256, Bytes)> =
                codes.into_iter().map(|code| (tandem_primitives::keccak256(&code), code)).collect();
            let before = lacking.len();
            lacking.retain(|hash| !codes.iter().any(|(found, _)| found == hash));
            if lacking.len() == before {
                return Err(Error::Refused("codes that were not asked for".to_owned()));
            }
            counter!(names::DOWNLOADED, "kind" => "codes").increment(codes.len() as u64);
            self.put(&[StatePart::Codes(codes)])?;
        }
        Ok(())
    }

    /// Copies the blocks from genesis to the pivot.
    fn blocks(&self, pivot: BlockId) -> Result<(), Error> {
        let genesis = self.shared.storage.checkpoint().map_err(Error::Own)?.genesis;
        let request = FollowRequest { known: vec![genesis], without_changes_to: pivot.number };
        let mut feed = self.leader.follow(request).map_err(Error::of_leader)?;
        let (mut at, mut waiting, mut bytes) = (genesis, Vec::new(), 0);
        while at.number < pivot.number {
            if self.shared.stopping.is_cancelled() {
                return Err(Error::Stopping);
            }
            let message = feed.next(WAIT).map_err(Error::of_leader)?;
            let block = match message.ok_or_else(|| lost("it sends no blocks".to_owned()))? {
                FeedMessage::Status(_) => continue,
                FeedMessage::Resume(block) if block == at => continue,
                FeedMessage::Resume(_) => {
                    return Err(lost("it left the block's branch".to_owned()));
                }
                FeedMessage::Block(block) => block,
            };
            check(&block, at)?;
            (at, bytes) = (block.id, bytes + block.bytes());
            let tandem_proto::feed::FeedBlock { id, header, body, receipts, .. } = *block;
            waiting.push(DownloadedBlock { id, header, body, receipts });
            if bytes > BLOCKS_BYTES || at.number == pivot.number {
                self.shared.storage.put_blocks(&waiting).map_err(Error::Own)?;
                waiting.clear();
                bytes = 0;
            }
        }
        match at == pivot {
            true => Ok(()),
            false => Err(lost(format!("block {pivot} is not in its chain any more"))),
        }
    }
}

fn other_kind() -> Error {
    Error::Refused("another part of the state than asked for".to_owned())
}

/// Refuses keys that do not ascend from `start` on.
fn ascending(leaves: &[Leaf], start: B256) -> Result<(), Error> {
    let first = leaves.first().is_none_or(|leaf| leaf.key >= start);
    match first && leaves.is_sorted_by(|a, b| a.key < b.key) {
        true => Ok(()),
        false => Err(Error::Refused(format!("keys that do not ascend from {start}"))),
    }
}
