//! Copy of the flat state: accounts in the order of their keys, the slots and codes of each before it.

use super::{lost, progress::Progress};
use crate::{Error, metrics as names, service::Shared};
use metrics::counter;
use tandem_primitives::{B256, Bytes, EMPTY_CODE_HASH, EMPTY_TRIE_ROOT, U256};
use tandem_proto::{
    feed::LeaderApi,
    limits::{CODES_MAX, STATE_ANSWER_BYTES_MAX, STORAGE_TRIES_MAX},
    snap::{DownloadedAccount, Leaf, StateItems, StatePart, StateRequest},
};
use tandem_trie::{decode_account_leaf, key_after};

/// Last key of a state.
const LAST: B256 = B256::repeat_byte(0xff);

/// Copy of the state that the progress names.
pub struct StateCopy<'a> {
    pub shared: &'a Shared,
    pub leader: &'a dyn LeaderApi,
    pub progress: &'a mut Progress,
    /// Parts that wait to be written together, which become a few large files.
    held: Vec<StatePart>,
    held_bytes: usize,
}

impl<'a> StateCopy<'a> {
    pub fn new(shared: &'a Shared, leader: &'a dyn LeaderApi, progress: &'a mut Progress) -> Self {
        Self { shared, leader, progress, held: Vec::new(), held_bytes: 0 }
    }

    /// Copies what is not there yet. Returns false when the leader no longer serves the state.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Refused`], [`Error::Own`], [`Error::Stopping`].
    pub fn run(&mut self) -> Result<bool, Error> {
        let ended = self.copy();
        // The parts that came before an error are of use, too.
        self.write()?;
        ended
    }

    fn copy(&mut self) -> Result<bool, Error> {
        while let Some(start) = self.progress.accounts {
            if !self.accounts(start)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asks for a part of the state.
    fn ask(&self, request: &StateRequest) -> Result<StateItems, Error> {
        if self.shared.stopping.is_cancelled() {
            return Err(Error::Stopping);
        }
        self.leader.state_items(request).map_err(Error::of_leader)
    }

    /// Holds a part until there are enough to be written.
    fn hold(&mut self, part: StatePart) -> Result<(), Error> {
        self.held_bytes += part.byte_len();
        self.held.push(part);
        match self.held_bytes >= self.shared.storage.put_bytes() {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// Writes what is held together with the progress.
    fn write(&mut self) -> Result<(), Error> {
        let progress = self.progress.record();
        self.shared.storage.put_state(&self.held, &progress).map_err(Error::Own)?;
        self.held.clear();
        self.held_bytes = 0;
        Ok(())
    }

    /// Copies the next accounts, with their slots and codes. Returns false when the leader no longer
    /// serves the state.
    fn accounts(&mut self, start: B256) -> Result<bool, Error> {
        let (root, limit, bytes) = (self.progress.root, LAST, STATE_ANSWER_BYTES_MAX);
        let answer = self.ask(&StateRequest::Accounts { root, start, limit, bytes })?;
        let StateItems::Accounts { leaves, proof } = answer else { return Err(other_kind()) };
        if leaves.is_empty() && proof.is_empty() {
            return Ok(false);
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
        if !self.slots(&owners)? {
            return Ok(false);
        }
        self.progress.accounts = end.and_then(|end| key_after(&end));
        self.progress.slots = None;
        // Without a further account, the rest of what is there goes.
        let last = end.unwrap_or(LAST);
        self.hold(StatePart::Accounts { first: start, last, accounts })?;
        Ok(true)
    }

    /// Copies the slots of these accounts, each of which has some, from the noted one on. Returns
    /// false when the leader no longer serves the state.
    fn slots(&mut self, owners: &[B256]) -> Result<bool, Error> {
        loop {
            let (noted, slot) = self.progress.slots.unwrap_or_default();
            let waiting = &owners[owners.partition_point(|owner| *owner < noted)..];
            let Some(owner) = waiting.first() else { return Ok(true) };
            let mut start = if *owner == noted { slot } else { B256::ZERO };
            let accounts = waiting[..waiting.len().min(STORAGE_TRIES_MAX)].to_vec();
            let (root, limit, bytes) = (self.progress.root, LAST, STATE_ANSWER_BYTES_MAX);
            let request = StateRequest::Slots { root, accounts, start, limit, bytes };
            let StateItems::Slots { tries, proof } = self.ask(&request)? else {
                return Err(other_kind());
            };
            if tries.is_empty() {
                if proof.is_empty() {
                    return Ok(false);
                }
                // Nothing comes after `start`.
                self.put_slots(*owner, start, LAST, Vec::new())?;
                continue;
            }
            if tries.len() > waiting.len() {
                return Err(Error::Refused("slots of more accounts than asked for".to_owned()));
            }
            let last_trie = tries.len() - 1;
            for (index, (owner, leaves)) in waiting.iter().zip(tries).enumerate() {
                ascending(&leaves, start)?;
                // A proof says that the last range may not be all of the account's storage.
                let is_cut = index == last_trie && !proof.is_empty();
                let end = leaves.last().filter(|_| is_cut).map_or(LAST, |leaf| leaf.key);
                self.put_slots(*owner, start, end, leaves)?;
                start = B256::ZERO;
            }
        }
    }

    /// Writes slots of an account. The copy goes on after them, or at the next account once the last
    /// key is reached.
    fn put_slots(
        &mut self,
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
        self.progress.slots = Some(match key_after(&last) {
            Some(next) => (owner, next),
            None => (key_after(&owner).unwrap_or(LAST), B256::ZERO),
        });
        self.hold(StatePart::Slots { owner, first, last, slots })
    }

    /// Copies codes that are not there yet.
    fn codes(&mut self, mut hashes: Vec<B256>) -> Result<(), Error> {
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
            self.hold(StatePart::Codes(codes))?;
        }
        Ok(())
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
