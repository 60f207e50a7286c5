//! A storage that behaves as a test tells it.

use std::sync::{Arc, Condvar, Mutex};
use tandem_primitives::{
    Account, B256, BlockId, BlockNumber, Bytes, ShardSet, StateDiff, TrieDiff, U256, WalkTarget,
};
use tandem_proto::{
    snap::{StateItems, StateRequest},
    storage::{
        BaseReads, Block, BlockReads, BlockRecord, BlockRef, BlockWrites, Checkpoint, Claim, Epoch,
        Error, Forkchoice, KeptBlock, PendingBlock, ReadState, Result, StateRanges, StateValues,
        TransactionPlace, TrieNode, TrieNodes, TrieStorage, WriteLease,
    },
};

/// Nodes on the path to each target of a walk.
const NODES: usize = 12;

/// Storage that notes which calls are begun, in order, and may hold them up.
#[derive(Default)]
pub struct Scripted {
    begun: Mutex<Vec<&'static str>>,
    /// The call that waits until it may continue.
    held: Mutex<Option<&'static str>>,
    changed: Condvar,
    /// Error of every call.
    pub error: Mutex<Option<Error>>,
    /// Pending blocks.
    pub pending: Mutex<Vec<Block>>,
    /// The diff of any block.
    pub diff: Mutex<Option<Arc<TrieDiff>>>,
    code_bytes: usize,
    node_bytes: usize,
}

impl Scripted {
    /// Creates a storage with codes and nodes of these sizes in bytes.
    pub fn sized(code_bytes: usize, node_bytes: usize) -> Self {
        Self { code_bytes, node_bytes, ..Self::default() }
    }

    /// Makes calls of this name wait until another one is held, or none.
    pub fn hold(&self, call: Option<&'static str>) {
        *self.held.lock().unwrap() = call;
        self.changed.notify_all();
    }

    /// Returns the calls so far.
    pub fn begun(&self) -> Vec<&'static str> {
        self.begun.lock().unwrap().clone()
    }

    /// Returns how often this one was called.
    pub fn count(&self, call: &str) -> usize {
        self.begun().iter().filter(|begun| **begun == call).count()
    }

    fn enter(&self, call: &'static str) -> Result<()> {
        self.begun.lock().unwrap().push(call);
        let held = self.held.lock().unwrap();
        drop(self.changed.wait_while(held, |held| *held == Some(call)).unwrap());
        self.error.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

pub fn base() -> BlockId {
    BlockId::new(7, B256::repeat_byte(7))
}

/// Returns a block whose body has `bytes` bytes and a little more.
pub fn block(bytes: usize) -> Block {
    // No transactions, and a long string in the place of ommers.
    let mut fields = vec![0xc0];
    fields.extend(alloy_rlp::encode(Bytes::from(vec![1; bytes])));
    let mut body = Vec::new();
    alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut body);
    body.extend(fields);
    Block {
        id: base(),
        parent: B256::repeat_byte(6),
        header: Bytes::from_static(&[0xc0]),
        body: body.into(),
        receipts: Bytes::from_static(&[0xc0]),
        transaction_hashes: [B256::repeat_byte(1)].into(),
        diff: Arc::default(),
        access_list: None,
    }
}

/// Returns a block that waits for its execution.
pub fn unexecuted() -> KeptBlock {
    let Block { id, parent, header, body, .. } = block(9);
    KeptBlock { id, parent, header, body }
}

impl BaseReads for Scripted {
    fn checkpoint(&self) -> Result<Checkpoint> {
        self.enter("checkpoint")?;
        let forkchoice = Forkchoice { head: base(), safe: None, finalized: Some(base()) };
        Ok(Checkpoint {
            genesis: base(),
            genesis_json: "{}".into(),
            base: base(),
            forkchoice,
            writes_fail: false,
            oldest_block: 0,
        })
    }

    fn read_state(&self, request: &ReadState) -> Result<StateValues> {
        self.enter("read_state")?;
        let account = |key: &B256| Account {
            nonce: u64::MAX,
            balance: U256::from_be_bytes(key.0),
            code_hash: *key,
        };
        let code = |key: &B256| Bytes::from(vec![key[31]; self.code_bytes]);
        Ok(StateValues {
            base: base(),
            accounts: request.accounts.iter().map(|key| Some(account(key))).collect(),
            slots: request.slots.iter().map(|(_, slot)| U256::from_be_bytes(slot.0)).collect(),
            codes: request.codes.iter().map(|key| Some(code(key))).collect(),
        })
    }

    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        self.enter("walk_trie")?;
        let node = |target: &WalkTarget, depth: usize| TrieNode {
            owner: target.owner,
            path: target.key[..].iter().map(|byte| byte & 15).take(depth).collect(),
            rlp: vec![depth as u8; self.node_bytes].into(),
        };
        let nodes = targets.iter().flat_map(|target| (1..=NODES).map(move |at| node(target, at)));
        Ok(TrieNodes { base: base(), nodes: nodes.collect() })
    }
}

impl TrieStorage for Scripted {
    fn pending(&self) -> Result<Vec<PendingBlock>> {
        self.enter("pending")?;
        let blocks = self.pending.lock().unwrap();
        let listed = |block: &Block| PendingBlock {
            id: block.id,
            parent: block.parent,
            header: block.header.clone(),
            kept: false,
        };
        Ok(blocks.iter().map(listed).collect())
    }

    fn trie_diff(&self, _: B256) -> Result<Option<Arc<TrieDiff>>> {
        self.enter("trie_diff")?;
        Ok(self.diff.lock().unwrap().clone())
    }

    fn put_trie_diff(&self, _: B256, _: ShardSet, diff: Arc<TrieDiff>) -> Result<()> {
        self.enter("put_trie_diff")?;
        *self.diff.lock().unwrap() = Some(diff);
        Ok(())
    }
}

impl BlockReads for Scripted {
    fn block(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        self.enter("block")?;
        let pending = self.pending.lock().unwrap();
        let found = pending.iter().find(|known| block == BlockRef::Hash(known.id.hash));
        Ok(found.map(|block| BlockRecord {
            id: block.id,
            header: block.header.clone(),
            body: block.body.clone(),
            receipts: block.receipts.clone(),
        }))
    }

    fn header(&self, _: BlockRef) -> Result<Option<(BlockId, Bytes)>> {
        self.enter("header")?;
        Ok(None)
    }

    fn access_list(&self, block: BlockRef) -> Result<Option<Bytes>> {
        Ok(self.block(block)?.map(|record| record.body))
    }

    fn transaction(&self, _: B256) -> Result<Option<TransactionPlace>> {
        self.enter("transaction")?;
        Ok(None)
    }

    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        self.enter("state_diffs")?;
        let pending = self.pending.lock().unwrap();
        let found = |hash: &B256| pending.iter().find(|block| block.id.hash == *hash);
        Ok(blocks.iter().map(|hash| found(hash).map(|block| block.diff.clone())).collect())
    }

    fn kept(&self, _: B256) -> Result<Option<KeptBlock>> {
        self.enter("kept")?;
        Ok(None)
    }
}

impl StateRanges for Scripted {
    fn state_items(&self, request: &StateRequest) -> Result<StateItems> {
        self.enter("state_items")?;
        Ok(StateItems::none(request))
    }
}

impl BlockWrites for Scripted {
    fn commit(&self, _: Epoch, block: Block) -> Result<()> {
        self.enter("commit")?;
        self.pending.lock().unwrap().push(block);
        Ok(())
    }

    fn prove(&self, _: Epoch, _: B256) -> Result<()> {
        self.enter("prove")
    }

    fn discard(&self, _: Epoch, _: B256) -> Result<()> {
        self.enter("discard")
    }

    fn keep(&self, _: Epoch, _: KeptBlock) -> Result<()> {
        self.enter("keep")
    }

    fn canonicalize(&self, _: Epoch, forkchoice: Forkchoice) -> Result<BlockNumber> {
        self.enter("canonicalize")?;
        Ok(forkchoice.head.number / 2)
    }

    fn rewind(&self, _: Epoch, _: BlockNumber) -> Result<()> {
        self.enter("rewind")
    }
}

impl WriteLease for Scripted {
    fn claim_epoch(&self, _: &Claim) -> Result<Epoch> {
        self.enter("acquire_epoch")?;
        Ok(Epoch::numbered(self.count("acquire_epoch") as u64))
    }

    fn keep_epoch(&self, _: Epoch) -> Result<()> {
        self.enter("keep_epoch")
    }
}
