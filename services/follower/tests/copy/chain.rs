//! Leader with a random chain: blocks with access lists and with state diffs, reorgs and rewinds.

use crate::setup::Host;
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use std::{path::Path, sync::Arc};
use tandem_chain::{Receipt, encode_receipts, receipts_root};
use tandem_primitives::{B256, BlockId, Bytes, EMPTY_TRIE_ROOT, keccak256};
use tandem_proto::storage::{BaseReads, Block, BlockWrites, Epoch, Forkchoice, WriteLease};
use tandem_storage_writer::{Config, Deps, StorageWriter, init};
use tandem_testkit::world::{Random, World, genesis};
use tandem_trie::list_root;

/// Writes a genesis file and makes a database of it. Returns its block and state.
pub fn new_database(datadir: &Path) -> (BlockId, World) {
    let (json, world) = genesis();
    std::fs::create_dir_all(datadir).unwrap();
    let path = datadir.join("genesis.json");
    std::fs::write(&path, json).unwrap();
    (init(&path, datadir, |_| {}).unwrap().genesis, world)
}

/// Leader whose chain a test extends.
pub struct Leader {
    pub writer: Arc<StorageWriter>,
    pub host: Host,
    pub random: Random,
    epoch: Epoch,
    /// Height of the final block, which no branch leaves.
    finalized: u64,
    /// Blocks and the states after them, from genesis to the head.
    pub chain: Vec<(BlockId, World)>,
}

impl Leader {
    pub fn start(datadir: &Path, config: Config, seed: u64) -> Self {
        let genesis = new_database(datadir);
        let writer = StorageWriter::start(config, Deps::default()).unwrap();
        let epoch = writer.acquire_epoch("leader").unwrap();
        let host = Host::start(&writer);
        Self { writer, host, random: Random(seed), epoch, finalized: 0, chain: vec![genesis] }
    }

    pub fn head(&self) -> BlockId {
        self.chain.last().unwrap().0
    }

    /// Adds blocks without choosing a head.
    fn extend(&mut self, blocks: u64) {
        for _ in 0..blocks {
            let (parent, world) = self.chain.last().unwrap();
            let (block, world) = child(*parent, world, &mut self.random);
            let id = block.id;
            self.writer.commit(self.epoch, block).unwrap();
            self.chain.push((id, world));
        }
    }

    /// Makes the tip the head, and a block some way below it final.
    pub fn choose(&mut self) {
        let head = self.head();
        if self.random.one_in(2) {
            let depth = 2 + self.random.below(6);
            self.finalized = self.finalized.max(head.number.saturating_sub(depth));
        }
        let finalized = (self.finalized > 0).then(|| self.chain[self.finalized as usize].0);
        let forkchoice = Forkchoice { head, safe: finalized, finalized };
        self.writer.canonicalize(self.epoch, forkchoice).unwrap();
    }

    /// Adds blocks, one head after the other.
    pub fn grow(&mut self, blocks: u64) {
        for _ in 0..blocks {
            self.extend(1);
            self.choose();
        }
    }

    /// Replaces the newest blocks by another branch, or only steps back.
    pub fn reorg(&mut self) {
        let depth = 1 + self.random.below(7).min(self.head().number) as usize;
        let left = self.chain.len().saturating_sub(depth).max(self.finalized as usize + 1);
        self.chain.truncate(left);
        let blocks = self.random.below(depth as u64 + 2);
        self.extend(blocks);
        self.choose();
    }

    /// Does something at random.
    pub fn step(&mut self) {
        match self.random.below(8) {
            0 => self.reorg(),
            1 => {
                let base = self.writer.checkpoint().unwrap().base.number;
                let to = base.saturating_sub(self.random.below(4));
                // Reverse diffs may not reach that far.
                let _ = self.writer.rewind(self.epoch, to);
            }
            2 => {
                let blocks = 1 + self.random.below(4);
                self.extend(blocks);
                self.choose();
            }
            _ => self.grow(1),
        }
    }
}

/// Returns a random child of a block, and the state after it.
pub fn child(parent: BlockId, world: &World, random: &mut Random) -> (Block, World) {
    let (diff, list) = match random.one_in(2) {
        true => {
            let (diff, list) = world.listed_diff(40, random);
            (diff, Some(list))
        }
        false => (world.random_diff(random), None),
    };
    let mut after = world.clone();
    after.apply(&diff);
    let transactions: Vec<Bytes> = (0..random.below(4))
        .map(|_| Bytes::from([&[2u8][..], &random.next().to_be_bytes().repeat(20)].concat()))
        .collect();
    let receipts: Vec<Receipt> = (1..=transactions.len() as u64)
        .map(|count| Receipt { cumulative_gas_used: count * 21_000, ..receipt() })
        .collect();
    let (receipts_root, logs_bloom) = receipts_root(&receipts);
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number + 1,
        state_root: after.root(),
        transactions_root: list_root(&transactions),
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        receipts_root,
        logs_bloom,
        timestamp: random.next(),
        base_fee_per_gas: Some(1),
        withdrawals_root: Some(EMPTY_TRIE_ROOT),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(B256::ZERO),
        block_access_list_hash: list.as_ref().map(keccak256),
        ..Header::default()
    };
    let mut fields = alloy_rlp::encode(&transactions);
    fields.extend_from_slice(&[0xc0, 0xc0]);
    let mut body = Vec::new();
    alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut body);
    body.extend_from_slice(&fields);
    let rlp = alloy_rlp::encode(&header);
    let block = Block {
        id: BlockId::new(header.number, keccak256(&rlp)),
        parent: parent.hash,
        header: rlp.into(),
        body: body.into(),
        receipts: encode_receipts(&receipts),
        transaction_hashes: transactions.iter().map(keccak256).collect(),
        diff: Arc::new(diff),
        access_list: list,
    };
    (block, after)
}

fn receipt() -> Receipt {
    Receipt {
        tx_type: alloy_consensus::TxType::Eip1559,
        success: true,
        cumulative_gas_used: 0,
        logs: Vec::new(),
        post_state: None,
    }
}
