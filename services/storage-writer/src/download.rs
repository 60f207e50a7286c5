//! Download of a state in place of the execution of the blocks before it.
//!
//! Ranges of the flat state replace what is there, in any order and again if need be. Meanwhile the
//! base is neither the old nor the new state, so nobody can read it. The tries are built from the flat
//! state, and tell the caller where it differs from the one that is wanted. Only if they lead to the state root of the block's header does that block
//! become base and head. A record in the database says that a download is under way, and how far its
//! caller says it is, so a restart continues it.

use crate::{
    Error,
    apply::write_state,
    body,
    chain::Chain,
    meta,
    node_runs::NodeRuns,
    persist::{Message, Persister},
    rebuild::{Built, Sink, rebuild_all},
    service::{StorageWriter, stopped},
    shared::Shared,
    state_parts::{self, write_if_full},
};
use std::sync::atomic::Ordering::Relaxed;
use tandem_chain::ListedChanges;
use tandem_primitives::{
    Account, B256, BlockId, Bytes, EMPTY_CODE_HASH, EMPTY_TRIE_ROOT, StateDiff, keccak256,
};
use tandem_proto::{
    snap::{DownloadedBlock, StatePart},
    storage::{self, Forkchoice, StateDownloads},
};
use tandem_store::{
    Batch, Durability, Store, View,
    tables::{
        AccountTrie, Accounts, Bodies, Canonical, Code, Headers, Receipts, Slots, StorageTrie,
        Transactions,
    },
};
use tracing::info;

impl StateDownloads for StorageWriter {
    fn download_progress(&self) -> storage::Result<Option<Bytes>> {
        Ok(meta::download(&self.shared.store.view())?)
    }

    fn begin_download(&self) -> storage::Result<()> {
        let shared = &self.shared;
        let _mended = shared.mended.lock();
        let state = shared.state.lock();
        if shared.is_downloading.load(Relaxed) {
            return Ok(());
        }
        let (base, head) = (state.chain.base(), state.chain.forkchoice().head);
        let genesis = meta::genesis(&shared.store.view())?.id;
        if base != genesis || head != genesis || state.chain.len() > 0 {
            let text = format!("a state is downloaded only onto genesis; the head is {head}");
            return Err(storage::Error::Refused(text));
        }
        let mut batch = shared.store.batch();
        meta::put_download(&mut batch, &[]);
        shared.store.write(batch, Durability::Disk).map_err(Error::from)?;
        shared.is_downloading.store(true, Relaxed);
        Ok(())
    }

    fn put_bytes(&self) -> usize {
        state_parts::PUT_BYTES
    }

    fn put_state(&self, parts: &[StatePart], progress: &[u8]) -> storage::Result<()> {
        self.must_download()?;
        *self.shared.built.lock() = None;
        let store = &self.shared.store;
        // The database has the parts before the progress that tells of them.
        let mut batch = state_parts::put(store, parts)?;
        meta::put_download(&mut batch, progress);
        Ok(store.write(batch, Durability::Process).map_err(Error::from)?)
    }

    fn put_listed(&self, list: &[u8], progress: &[u8]) -> storage::Result<()> {
        self.must_download()?;
        let refused = |error| storage::Error::Refused(format!("access list: {error}"));
        let changes = ListedChanges::decode(list).map_err(refused)?;
        let store = &self.shared.store;
        let view = store.view();
        let before = view.multi_get::<Accounts>(changes.address_hashes()).map_err(Error::from)?;
        let mut batch = store.batch();
        self.put_changes(&mut batch, &view, &changes.into_diff(&before), progress)?;
        Ok(store.write(batch, Durability::Process).map_err(Error::from)?)
    }

    fn put_blocks(&self, blocks: &[DownloadedBlock]) -> storage::Result<()> {
        self.must_download()?;
        let store = &self.shared.store;
        let mut batch = store.batch();
        let view = store.view();
        let mut last = None;
        for block in blocks {
            let parent = body::decode_header(&block.header)?.parent_hash;
            if last != Some(parent) {
                must_have_parent(&view, block.id, parent)?;
            }
            last = Some(block.id.hash);
            put_block(&mut batch, block)?;
        }
        Ok(store.write(batch, Durability::Process).map_err(Error::from)?)
    }

    fn lacking_codes(&self, hashes: &[B256]) -> storage::Result<Vec<B256>> {
        let view = self.shared.store.view();
        let mut lacking = Vec::new();
        for hash in hashes {
            if view.get::<Code>(*hash).map_err(Error::from)?.is_none() {
                lacking.push(*hash);
            }
        }
        Ok(lacking)
    }

    fn build_tries(&self) -> storage::Result<B256> {
        self.must_download()?;
        let mut built = self.shared.built.lock();
        let new = build_tries(&self.shared.store)?;
        let root = new.root;
        *built = Some(new);
        Ok(root)
    }

    fn built_node(&self, owner: Option<B256>, path: &[u8]) -> storage::Result<Option<Bytes>> {
        let view = self.shared.store.view();
        let node = match owner {
            None => view.get::<AccountTrie>(path),
            Some(owner) => view.get::<StorageTrie>((owner, path)),
        };
        Ok(node.map_err(Error::from)?)
    }

    fn built_roots(&self, owners: &[B256]) -> storage::Result<Vec<B256>> {
        let root = |owner: &B256| {
            let node = self.built_node(Some(*owner), &[])?;
            Ok(node.map_or(EMPTY_TRIE_ROOT, keccak256))
        };
        owners.iter().map(root).collect()
    }

    fn finish_download(&self, block: BlockId) -> storage::Result<()> {
        self.must_download()?;
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.mailbox.send(Message::Adopt { block, reply }).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }
}

impl StorageWriter {
    pub(crate) fn must_download(&self) -> storage::Result<()> {
        match self.shared.is_downloading.load(Relaxed) {
            true => Ok(()),
            false => Err(storage::Error::Refused("no state is being downloaded".to_owned())),
        }
    }

    /// Writes a block and its changes over what is downloaded, in one batch with the progress.
    pub(crate) fn put_with_changes(
        &self,
        block: &DownloadedBlock,
        parent: B256,
        diff: &StateDiff,
        progress: &[u8],
    ) -> storage::Result<()> {
        let store = &self.shared.store;
        let view = store.view();
        must_have_parent(&view, block.id, parent)?;
        let mut batch = store.batch();
        put_block(&mut batch, block)?;
        self.put_changes(&mut batch, &view, diff, progress)?;
        Ok(store.write(batch, Durability::Process).map_err(Error::from)?)
    }

    /// Adds changes of what is downloaded to a batch, and the progress.
    fn put_changes(
        &self,
        batch: &mut Batch<'_>,
        view: &View<'_>,
        diff: &StateDiff,
        progress: &[u8],
    ) -> Result<(), Error> {
        *self.shared.built.lock() = None;
        write_state(batch, view, &diff.accounts)?;
        for (hash, code) in &diff.codes {
            batch.put::<Code>(*hash, code);
        }
        meta::put_download(batch, progress);
        Ok(())
    }
}

/// Refuses a block whose parent is not there. Below the pivot there is no gap, so BLOCKHASH finds all
/// ancestors.
fn must_have_parent(view: &View<'_>, id: BlockId, parent: B256) -> storage::Result<()> {
    match view.get::<Headers>(parent).map_err(Error::from)? {
        Some(_) => Ok(()),
        None => {
            let text = format!("block {id} is stored after its parent, which is not there");
            Err(storage::Error::Refused(text))
        }
    }
}

/// Writes a block of the canonical chain.
fn put_block(batch: &mut Batch<'_>, block: &DownloadedBlock) -> Result<(), Error> {
    let DownloadedBlock { id, header, body, receipts } = block;
    batch.put::<Headers>(id.hash, (id.number, header));
    batch.put::<Bodies>(id.hash, body);
    batch.put::<Receipts>(id.hash, receipts);
    batch.put::<Canonical>(id.number, id.hash);
    for (index, hash) in (0..).zip(body::transaction_hashes(body)?.iter()) {
        batch.put::<Transactions>(*hash, (*id, index));
    }
    Ok(())
}

impl Shared {
    /// Refuses calls that need a whole state.
    ///
    /// # Errors
    /// [`storage::Error::Unavailable`] while a state is downloaded.
    pub fn needs_state(&self) -> storage::Result<()> {
        match self.is_downloading.load(Relaxed) {
            false => Ok(()),
            true => Err(storage::Error::Unavailable("the state is being downloaded".to_owned())),
        }
    }
}

impl Persister {
    /// Makes the downloaded state the base, and its block the head.
    pub fn adopt(&mut self, block: BlockId) -> storage::Result<()> {
        let shared = self.shared.clone();
        let _mended = shared.mended.lock();
        let store = &shared.store;
        let header = body::header(&store.view(), block.hash)?;
        let built = match shared.built.lock().take() {
            Some(built) => built,
            None => build_tries(store)?,
        };
        if built.root != header.state_root {
            let (header, computed) = (header.state_root, built.root);
            return Err(Error::StateRoot { block, header, computed }.into());
        }
        // Everything is on the disk before the record that it is whole.
        store.flush().map_err(Error::from)?;
        let forkchoice = Forkchoice { head: block, safe: None, finalized: None };
        let mut batch = store.batch();
        meta::put_base(&mut batch, &block);
        meta::put_forkchoice(&mut batch, &forkchoice);
        meta::delete_download(&mut batch);
        // The states before were of another database.
        meta::delete_history(&mut batch);
        *shared.replay.lock() = None;
        {
            let mut state = shared.state.lock();
            store.write(batch, Durability::Disk).map_err(Error::from)?;
            state.chain = Chain::new(block, forkchoice);
            shared.acknowledged.head(store, block);
            shared.is_downloading.store(false, Relaxed);
            shared.gauge(&state);
        }
        self.begin_at(block.number);
        shared.history.begin(store, block.number)?;
        info!(%block, accounts = built.accounts, slots = built.slots, "downloaded state adopted");
        shared.announce(block);
        Ok(())
    }
}

/// Builds all tries from the flat state, and deletes slots without an account.
fn build_tries(store: &Store) -> Result<Built, Error> {
    store.clear::<AccountTrie>(&[], &[])?;
    store.clear::<StorageTrie>(&[], &[])?;
    let built = rebuild_all(
        &store.view(),
        || Tries { store, nodes: NodeRuns::new(store), orphans: store.batch() },
        |tries| {
            tries.nodes.finish()?;
            Ok(store.write(tries.orphans, Durability::Process)?)
        },
    )?;
    let mut batch = store.batch();
    if let Some(rlp) = &built.node {
        batch.put::<AccountTrie>(&[], rlp);
    }
    store.write(batch, Durability::Process)?;
    Ok(built)
}

/// Receiver of the tries of one shard.
struct Tries<'s> {
    store: &'s Store,
    nodes: NodeRuns<'s>,
    /// Deletions of slots without an account.
    orphans: Batch<'s>,
}

impl Sink for Tries<'_> {
    fn node(&mut self, owner: Option<B256>, path: &[u8], rlp: &[u8]) -> Result<(), Error> {
        self.nodes.node(owner, path, rlp)
    }

    fn account(&mut self, address_hash: B256, account: &Account) -> Result<(), Error> {
        let hash = account.code_hash;
        if hash != EMPTY_CODE_HASH && self.store.view().get::<Code>(hash)?.is_none() {
            return Err(Error::absent(format!("code {hash} of account {address_hash}")));
        }
        Ok(())
    }

    fn storage_done(&mut self, owner: B256) -> Result<(), Error> {
        self.nodes.storage_done(owner)
    }

    fn orphan(&mut self, owner: B256, slot: B256) -> Result<(), Error> {
        self.orphans.delete::<Slots>((owner, slot));
        write_if_full(self.store, &mut self.orphans)
    }
}
