//! Commits of a follower: a block from elsewhere is stored only if its changes lead to the state root
//! in its header. No transaction is executed.

use crate::{
    Error,
    apply::Tries,
    body,
    chain::TrieParts,
    heal,
    service::{StorageWriter, other_header},
    shared::{Shared, record, stored_record},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};
use tandem_chain::ListedChanges;
use tandem_primitives::{Account, B256, BlockId, EMPTY_CODE_HASH, StateDiff, keccak256};
use tandem_proto::{
    feed::{Changes, CheckedCommit, CheckedWrites, FeedBlock, WrongRoot},
    snap::DownloadedBlock,
    storage::{self, Block, BlockWrites, Epoch, Result},
};
use tandem_store::tables::{Accounts, Code};

/// Number of codes of which a follower remembers that they are stored. Stored codes stay.
const STORED_CODES_MAX: usize = 1 << 16;

impl CheckedWrites for StorageWriter {
    fn commit_checked(&self, epoch: Epoch, block: FeedBlock) -> Result<CheckedCommit> {
        let shared = &self.shared;
        shared.needs_state()?;
        drop(self.fence(epoch)?);
        let FeedBlock { id, header: header_rlp, body, receipts, changes } = block;
        if keccak256(&header_rlp) != id.hash {
            return Err(other_header(id));
        }
        let header = body::decode_header(&header_rlp).map_err(|error| refused(id, error))?;
        if header.number != id.number {
            return Err(refused(id, format!("its header has number {}", header.number)));
        }
        if let Some(diff) = self.known_diff(id)? {
            return Ok(CheckedCommit::Committed(diff));
        }
        let parent = header.parent_hash;
        let (diff, access_list) = match changes {
            Changes::Omitted => return Err(refused(id, "it brings no changes of the state")),
            Changes::List(list) => {
                if header.block_access_list_hash != Some(keccak256(&list)) {
                    return Err(refused(id, "its access list is not the one in its header"));
                }
                (Arc::new(shared.listed_diff(id, parent, &list)?), Some(list))
            }
            Changes::Diff(diff) => (diff, None),
        };
        shared.check_codes(id, parent, &diff)?;
        let transaction_hashes =
            body::transaction_hashes(&body).map_err(|error| refused(id, error))?;
        let tries = match shared.check_child(parent, id, header.state_root, &diff)? {
            Ok(tries) => tries,
            Err(wrong) => return Ok(CheckedCommit::Refused(Box::new(wrong))),
        };
        let header = header_rlp;
        let diff_kept = diff.clone();
        self.commit(
            epoch,
            Block { id, parent, header, body, receipts, transaction_hashes, diff, access_list },
        )?;
        let mut state = shared.state.lock();
        for part in tries.parts {
            state.chain.set_trie(&id.hash, TrieParts::whole(part));
        }
        state.chain.set_proven(&id.hash);
        Ok(CheckedCommit::Committed(diff_kept))
    }

    fn put_changed(&self, block: FeedBlock, progress: &[u8]) -> Result<()> {
        self.must_download()?;
        let FeedBlock { id, header, body, receipts, changes } = block;
        if keccak256(&header) != id.hash {
            return Err(other_header(id));
        }
        let fields = body::decode_header(&header).map_err(|error| refused(id, error))?;
        let view = self.shared.store.view();
        let diff = match changes {
            Changes::Omitted => return Err(refused(id, "it brings no changes of the state")),
            Changes::Diff(diff) => diff,
            Changes::List(list) => {
                if fields.block_access_list_hash != Some(keccak256(&list)) {
                    return Err(refused(id, "its access list is not the one in its header"));
                }
                let changes = ListedChanges::decode(&list).map_err(|error| refused(id, error))?;
                let before = view.multi_get::<Accounts>(changes.address_hashes());
                Arc::new(changes.into_diff(&before.map_err(Error::from)?))
            }
        };
        for (hash, code) in &diff.codes {
            if keccak256(code) != *hash {
                return Err(refused(id, format!("the code {hash} has another hash")));
            }
        }
        let block = DownloadedBlock { id, header, body, receipts };
        self.put_with_changes(&block, fields.parent_hash, &diff, progress)
    }
}

impl StorageWriter {
    /// Returns the changes of a pending block, `None` when it is not pending.
    fn known_diff(&self, id: BlockId) -> Result<Option<Arc<StateDiff>>> {
        let Some(block) = self.shared.state.lock().chain.get(&id.hash).cloned() else {
            return Ok(None);
        };
        Ok(Some(record(&self.shared.store.view(), &block)?.diff.clone()))
    }
}

fn refused(id: BlockId, what: impl std::fmt::Display) -> storage::Error {
    storage::Error::Refused(format!("block {id}: {what}"))
}

impl Shared {
    /// Returns the tries after a child of `parent`, or how its root differs from that in its header.
    /// A wrong root is computed once more, with tries that are read anew. Damaged tries of the base
    /// are rebuilt.
    fn check_child(
        &self,
        parent: B256,
        id: BlockId,
        header: B256,
        diff: &StateDiff,
    ) -> Result<Result<Tries, WrongRoot>> {
        let run = |fresh| self.run_child((parent, id), header, &diff.accounts, fresh);
        let mut tries = run(false);
        if !matches!(&tries, Ok(Some(tries)) if tries.root == header) {
            tries = run(true);
        }
        if let Err(Error::Trie(_)) = tries {
            let mut mended = self.mended.lock();
            tries = heal::with_healing(self, &mut mended, || run(true));
        }
        let tries = tries?.ok_or(storage::Error::UnknownBlock(parent))?;
        if tries.root == header {
            return Ok(Ok(tries));
        }
        let shards = tries.tops.map(|top| top.map(keccak256));
        Ok(Err(WrongRoot { block: id, header, computed: tries.root, shards }))
    }

    /// Returns the changes that an access list makes to the state after `parent`.
    fn listed_diff(&self, id: BlockId, parent: B256, list: &[u8]) -> Result<StateDiff> {
        let changes = ListedChanges::decode(list).map_err(|error| refused(id, error))?;
        let hashes: Vec<B256> = changes.address_hashes().collect();
        let parents = self.accounts_after(parent, &hashes)?;
        Ok(changes.into_diff(&parents))
    }

    /// Refuses code with another hash than it is said to have, and accounts whose code is neither in
    /// the diff nor known. The state root says nothing about codes.
    fn check_codes(&self, id: BlockId, parent: B256, diff: &StateDiff) -> Result<()> {
        for (hash, code) in &diff.codes {
            if keccak256(code) != *hash {
                return Err(refused(id, format!("the code {hash} has another hash")));
            }
        }
        let brought: HashSet<&B256> = diff.codes.iter().map(|(hash, _)| hash).collect();
        let mut unknown: BTreeMap<B256, B256> = BTreeMap::new();
        {
            let stored = self.stored_codes.lock();
            for update in &diff.accounts {
                let Some(Account { code_hash: hash, .. }) = update.account else { continue };
                if hash != EMPTY_CODE_HASH && !brought.contains(&hash) && !stored.contains(&hash) {
                    unknown.insert(hash, update.address_hash);
                }
            }
        }
        let view = self.store.view();
        for (hash, address) in unknown {
            if view.get::<Code>(hash).map_err(Error::from)?.is_some() {
                let mut stored = self.stored_codes.lock();
                if stored.len() >= STORED_CODES_MAX {
                    stored.clear();
                }
                stored.insert(hash);
            } else if !self.pending_code(parent, &hash)?
                // The block that deployed it may have entered the base since the view was made.
                && self.store.view().get::<Code>(hash).map_err(Error::from)?.is_none()
            {
                let text = format!("the code {hash} of account {address} is missing");
                return Err(refused(id, text));
            }
        }
        Ok(())
    }

    /// Returns whether a block of a pending branch deployed this code.
    fn pending_code(&self, tip: B256, hash: &B256) -> Result<bool> {
        let deployed = |diff: &StateDiff| diff.codes.iter().any(|(code, _)| code == hash);
        self.diffs_down_from(tip, |diff| deployed(diff))
    }

    /// Returns accounts after a block that is the base or pending above it.
    fn accounts_after(&self, block: B256, addresses: &[B256]) -> Result<Vec<Option<Account>>> {
        let mut found: HashMap<B256, Option<Account>> = HashMap::new();
        self.diffs_down_from(block, |diff| {
            for address in addresses {
                let at = diff.accounts.binary_search_by_key(address, |update| update.address_hash);
                if let Ok(at) = at {
                    found.entry(*address).or_insert(diff.accounts[at].account);
                }
            }
            false
        })?;
        // The base is read after the blocks, so one that enters it meanwhile is not missed.
        let view = self.store.view();
        let lacking: Vec<B256> =
            addresses.iter().filter(|address| !found.contains_key(*address)).copied().collect();
        let read = view.multi_get::<Accounts>(lacking.iter().copied()).map_err(Error::from)?;
        found.extend(lacking.into_iter().zip(read));
        Ok(addresses.iter().map(|address| found.get(address).copied().flatten()).collect())
    }

    /// Calls `look` for the changes of the pending blocks from `tip` down, until it returns true.
    /// Returns whether it did.
    fn diffs_down_from(&self, tip: B256, mut look: impl FnMut(&StateDiff) -> bool) -> Result<bool> {
        let branch: Vec<_> = {
            let state = self.state.lock();
            let base = state.chain.base();
            let (_, branch) = state.chain.ancestor(tip, &base.hash);
            branch.iter().rev().filter_map(|hash| state.chain.get(hash).cloned()).collect()
        };
        let view = self.store.view();
        for block in branch {
            let stored = || stored_record(&view, block.id.hash).map(|record| record.map(Arc::new));
            let record = block.record.clone().map_or_else(stored, |record| Ok(Some(record)))?;
            // The block has entered the base meanwhile, and those below it too.
            let Some(record) = record else { break };
            if look(&record.diff) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
