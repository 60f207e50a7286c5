//! A block builder: makes valid blocks on any block it made before.

use crate::{
    blobs::BlobTransaction,
    contracts,
    forks::{CHAIN_ID, Forks, GAS_PER_BLOB, GENESIS_TIME, next_base_fee},
    payload::{block_hash, new_payload},
    transactions::{Action, Author, signers},
    world::{Account, Running, Touched, World},
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Header, Transaction as _, TxEnvelope, TxReceipt,
    constants::EMPTY_WITHDRAWALS,
    proofs::{calculate_receipt_root, calculate_withdrawals_root, ordered_trie_root_encoded},
    transaction::Recovered,
};
use alloy_eips::{
    Encodable2718,
    eip4895::Withdrawal,
    eip7685::{EMPTY_REQUESTS_HASH, Requests},
};
use alloy_evm::{
    Evm, EvmEnv,
    block::BlockExecutor,
    eth::{
        EthBlockExecutionCtx, EthBlockExecutor, EthEvmBuilder, receipt_builder::AlloyReceiptBuilder,
    },
};
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};
use tandem_chain::{Fork, Payload, PayloadSidecar};

/// Gas limit, small enough that a few transactions that burn gas move the base fee.
const GAS_LIMIT: u64 = 8_000_000;

/// Contents of a block to build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// This many random transactions.
    Random(usize),
    /// Every action of the fork at least once, and withdrawals.
    Everything,
    /// This many transactions over a set of keys that grows to a bound.
    Bounded(usize),
}

/// A built block.
#[derive(Clone, Debug)]
pub struct Built {
    /// The block's fork.
    pub fork: Fork,
    /// The block's header.
    pub header: Header,
    /// The block's hash.
    pub hash: B256,
    /// The payload as the Engine API takes it.
    pub payload: Payload,
    /// The other parameters of newPayload.
    pub sidecar: PayloadSidecar,
    /// The state after the block.
    pub world: Arc<World>,
}

impl Built {
    /// Returns the newPayload method of the block's fork, and its parameters.
    pub fn new_payload(&self) -> (&'static str, Value) {
        new_payload(self.fork, &self.payload, &self.sidecar)
    }
}

/// Blocks and the states after them.
#[derive(Debug)]
pub struct Builder {
    forks: Forks,
    blocks: HashMap<B256, Built>,
    genesis: B256,
    genesis_json: String,
}

impl Builder {
    /// Creates a chain that holds only its genesis.
    pub fn new(forks: Forks) -> Self {
        let (world, header, genesis_json) = genesis(&forks);
        let genesis = header.hash_slow();
        let built = Built {
            fork: forks.at(GENESIS_TIME),
            payload: Payload::from_header(&header, header.hash_slow(), Vec::new(), None),
            sidecar: PayloadSidecar::default(),
            hash: genesis,
            world: Arc::new(world),
            header,
        };
        let blocks = HashMap::from([(genesis, built)]);
        Self { forks, blocks, genesis, genesis_json }
    }

    /// Returns the hash of the genesis block.
    pub fn genesis(&self) -> B256 {
        self.genesis
    }

    /// Returns the genesis file in geth's format.
    pub fn genesis_json(&self) -> &str {
        &self.genesis_json
    }

    /// Returns a block built before.
    pub fn get(&self, hash: B256) -> &Built {
        &self.blocks[&hash]
    }

    /// Forgets all blocks but the last 256 up to this one, whose hashes the next one may ask for. Each block has
    /// the whole state after it, so a long chain takes much memory.
    pub fn forget_all_but_ancestors(&mut self, hash: B256) {
        let kept: HashSet<B256> = self.ancestors(hash).into_values().collect();
        self.blocks.retain(|hash, _| kept.contains(hash));
    }

    /// Builds `len` blocks, the first on `parent`, each further one on the one before. `seed`
    /// decides all choices.
    pub fn chain(&mut self, parent: B256, seed: u64, len: usize, contents: Contents) -> Vec<Built> {
        let mut tip = parent;
        let build = |offset: u64| {
            let built = self.build(tip, seed.wrapping_mul(1_000_003) + offset, contents);
            tip = built.hash;
            built
        };
        (0..len as u64).map(build).collect()
    }

    /// Builds a valid block on top of `parent`. `seed` decides all choices.
    pub fn build(&mut self, parent: B256, seed: u64, contents: Contents) -> Built {
        let mut rng = StdRng::seed_from_u64(seed);
        let header = self.open_header(&self.get(parent).header, &mut rng);
        let fork = self.forks.at(header.timestamp);
        let withdrawals = (fork >= Fork::Shanghai).then(|| withdrawals(&mut rng, contents));
        self.finish(header, withdrawals, contents, &[], &mut rng)
    }

    /// Builds a valid block that holds only these transactions.
    pub fn build_of(&mut self, parent: B256, seed: u64, given: &[&BlobTransaction]) -> Built {
        let mut rng = StdRng::seed_from_u64(seed);
        let header = self.open_header(&self.get(parent).header, &mut rng);
        let fork = self.forks.at(header.timestamp);
        let withdrawals = (fork >= Fork::Shanghai).then(Vec::new);
        self.finish(header, withdrawals, Contents::Random(0), given, &mut rng)
    }

    /// Builds the valid block without transactions that has this payload's parent, time and
    /// withdrawals. All other choices of a block's builder come from this payload too.
    pub fn build_empty(&mut self, like: &Payload, parent_beacon_block_root: Option<B256>) -> Built {
        let mut rng = StdRng::seed_from_u64(0);
        let parent = self.get(like.parent_hash).header.clone();
        let header = Header {
            beneficiary: like.fee_recipient,
            gas_limit: like.gas_limit,
            extra_data: like.extra_data.clone(),
            mix_hash: like.prev_randao,
            parent_beacon_block_root,
            ..self.open_header_at(&parent, like.timestamp, &mut rng)
        };
        self.finish(header, like.withdrawals.clone(), Contents::Random(0), &[], &mut rng)
    }

    /// Executes a block whose header is as complete as it can be before execution.
    fn finish(
        &mut self,
        header: Header,
        withdrawals: Option<Vec<Withdrawal>>,
        contents: Contents,
        given: &[&BlobTransaction],
        rng: &mut StdRng,
    ) -> Built {
        let parent = self.get(header.parent_hash).clone();
        let fork = self.forks.at(header.timestamp);
        let running = Running::new(World::clone(&parent.world), self.ancestors(parent.hash));
        let (forks, withdrawals_of) = (&self.forks, &withdrawals);
        let job = Job { forks, header: &header, withdrawals: withdrawals_of, contents, given };
        let mut done = job.execute(running, rng);
        let world = std::mem::take(&mut done.world);
        let state_root = world.state_root();
        let Sealed { header, hash, payload, sidecar } =
            seal(fork, header, done, withdrawals, state_root);
        let world = Arc::new(world);
        let built = Built { fork, header, hash, payload, sidecar, world };
        self.blocks.insert(hash, built.clone());
        built
    }

    /// Returns the header as far as it is known before execution.
    fn open_header(&self, parent: &Header, rng: &mut StdRng) -> Header {
        self.open_header_at(parent, parent.timestamp + rng.random_range(1..=23), rng)
    }

    fn open_header_at(&self, parent: &Header, timestamp: u64, rng: &mut StdRng) -> Header {
        let step = parent.gas_limit / 1024 - 1;
        let base_fee = parent.base_fee_per_gas.unwrap_or(0);
        let blobs = self.forks.blob_rules(timestamp);
        let excess = blobs.map(|rules| {
            let (excess, used) = (parent.excess_blob_gas, parent.blob_gas_used);
            rules.next_excess(excess.unwrap_or(0), used.unwrap_or(0), base_fee)
        });
        Header {
            parent_hash: parent.hash_slow(),
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: fee_recipient(rng),
            number: parent.number + 1,
            gas_limit: parent.gas_limit - step + rng.random_range(0..=2 * step),
            timestamp,
            extra_data: vec![0xee; rng.random_range(0..=32)].into(),
            mix_hash: rng.random::<[u8; 32]>().into(),
            base_fee_per_gas: Some(next_base_fee(parent.gas_limit, parent.gas_used, base_fee)),
            excess_blob_gas: excess,
            parent_beacon_block_root: blobs.map(|_| rng.random::<[u8; 32]>().into()),
            ..Header::default()
        }
    }

    /// Returns the hashes of the last 256 blocks up to this one.
    fn ancestors(&self, mut hash: B256) -> BTreeMap<u64, B256> {
        let mut ancestors = BTreeMap::new();
        while let Some(block) = self.blocks.get(&hash) {
            ancestors.insert(block.header.number, hash);
            if ancestors.len() == 256 {
                break;
            }
            hash = block.header.parent_hash;
        }
        ancestors
    }
}

/// A complete block.
pub(crate) struct Sealed {
    pub header: Header,
    pub hash: B256,
    pub payload: Payload,
    pub sidecar: PayloadSidecar,
}

/// Completes a block's header with the results of its execution.
pub(crate) fn seal(
    fork: Fork,
    mut header: Header,
    done: Done,
    withdrawals: Option<Vec<Withdrawal>>,
    state_root: B256,
) -> Sealed {
    header.state_root = state_root;
    header.gas_used = done.gas_used;
    header.transactions_root = ordered_trie_root_encoded(&done.transactions);
    header.receipts_root = done.receipts_root;
    header.logs_bloom = done.bloom;
    header.withdrawals_root = withdrawals.as_deref().map(calculate_withdrawals_root);
    if fork >= Fork::Cancun {
        header.blob_gas_used = Some(done.versioned_hashes.len() as u64 * GAS_PER_BLOB);
    }
    if fork >= Fork::Prague {
        header.requests_hash = Some(done.requests.requests_hash());
    }
    let sidecar = PayloadSidecar {
        versioned_hashes: (fork >= Fork::Cancun).then_some(done.versioned_hashes),
        parent_beacon_block_root: header.parent_beacon_block_root,
        execution_requests: (fork >= Fork::Prague).then(|| done.requests.take()),
    };
    let hash = header.hash_slow();
    let payload = Payload::from_header(&header, hash, done.transactions, withdrawals);
    let number = header.number;
    assert_eq!(block_hash(&payload, &sidecar), hash, "payload of block {number}");
    Sealed { header, hash, payload, sidecar }
}

/// Returns the state, the header and geth's file of a genesis.
pub(crate) fn genesis(forks: &Forks) -> (World, Header, String) {
    let addresses: Vec<_> = signers().iter().map(|signer| signer.address).collect();
    let mut world = World(contracts::genesis(&addresses[..20]));
    let ether = U256::from(10_u64.pow(18));
    world.0.extend(
        addresses.iter().map(|address| (*address, Account::funded(ether * U256::from(1000)))),
    );
    let header = genesis_header(forks, world.state_root());
    let genesis_json = json!({
        "config": forks.config_json(),
        "nonce": "0x0",
        "timestamp": format!("{GENESIS_TIME:#x}"),
        "extraData": header.extra_data,
        "gasLimit": format!("{:#x}", header.gas_limit),
        "difficulty": "0x0",
        "mixHash": header.mix_hash,
        "coinbase": header.beneficiary,
        "baseFeePerGas": format!("{:#x}", header.base_fee_per_gas.unwrap_or(0)),
        "excessBlobGas": header.excess_blob_gas.map(|gas| format!("{gas:#x}")),
        "blobGasUsed": header.blob_gas_used.map(|gas| format!("{gas:#x}")),
        "alloc": world.alloc_json(),
    });
    (world, header, genesis_json.to_string())
}

/// A block to execute.
pub(crate) struct Job<'a> {
    pub forks: &'a Forks,
    pub header: &'a Header,
    pub withdrawals: &'a Option<Vec<Withdrawal>>,
    pub contents: Contents,
    /// Transactions that come before `contents`.
    pub given: &'a [&'a BlobTransaction],
}

/// Results of an execution.
pub(crate) struct Done {
    pub world: World,
    pub touched: Touched,
    transactions: Vec<Bytes>,
    versioned_hashes: Vec<B256>,
    gas_used: u64,
    receipts_root: B256,
    bloom: Bloom,
    requests: Requests,
}

impl Job<'_> {
    pub(crate) fn execute(&self, running: Running, rng: &mut StdRng) -> Done {
        let header = self.header;
        let blobs = self.forks.blob_rules(header.timestamp);
        let params = blobs.map(|rules| rules.params());
        let env = EvmEnv::for_eth_block(header, self.forks, CHAIN_ID, params);
        let context = EthBlockExecutionCtx {
            parent_hash: header.parent_hash,
            parent_beacon_block_root: header.parent_beacon_block_root,
            ommers: &[],
            withdrawals: self.withdrawals.as_deref().map(Cow::Borrowed),
            extra_data: header.extra_data.clone(),
            tx_count_hint: None,
            slot_number: None,
        };
        let evm = EthEvmBuilder::new(running, env).build();
        let builder = AlloyReceiptBuilder::default();
        let mut executor = EthBlockExecutor::new(evm, context, self.forks, builder);
        executor.apply_pre_execution_changes().expect("the system calls work");

        let (mut transactions, mut versioned_hashes) = (Vec::<TxEnvelope>::new(), Vec::new());
        let excess = header.excess_blob_gas.unwrap_or(0);
        let given = self.given.iter().map(|&given| Ok(given));
        for source in given.chain(self.actions(rng).into_iter().map(Err)) {
            let used: u64 =
                executor.receipts.last().map_or(0, |receipt| receipt.cumulative_gas_used());
            let mut author = Author {
                rng: &mut *rng,
                number: header.number,
                base_fee: header.base_fee_per_gas.unwrap_or(0),
                blobs: blobs.map(|rules| (rules, rules.max - versioned_hashes.len() as u64)),
                blob_price: blobs.map_or(0, |rules| rules.price(excess)),
                gas: header.gas_limit - used,
                tips: None,
            };
            let world = &executor.evm().db().world;
            let written = match source {
                Ok(given) => Some((given.envelope(), given.sender())),
                Err(action) => author.write(action, world),
            };
            let Some((transaction, sender)) = written else { continue };
            if transaction.gas_limit() > header.gas_limit - used {
                continue;
            }
            executor
                .execute_transaction(Recovered::new_unchecked(&transaction, sender))
                .unwrap_or_else(|error| panic!("{source:?} in block {}: {error}", header.number));
            versioned_hashes.extend(transaction.blob_versioned_hashes().into_iter().flatten());
            transactions.push(transaction);
        }
        let (evm, result) = executor.finish().expect("the block ends");
        let Running { world, touched, .. } = evm.into_db();
        let logs = result.receipts.iter().map(|receipt| receipt.bloom());
        Done {
            world,
            touched,
            transactions: transactions.iter().map(|tx| tx.encoded_2718().into()).collect(),
            versioned_hashes,
            gas_used: result.gas_used,
            receipts_root: calculate_receipt_root(&result.receipts),
            bloom: logs.fold(Bloom::ZERO, |all, bloom| all | bloom),
            requests: result.requests,
        }
    }

    fn actions(&self, rng: &mut StdRng) -> Vec<Action> {
        let known = Action::of(self.forks.at(self.header.timestamp));
        match self.contents {
            Contents::Random(count) => {
                (0..count).filter_map(|_| known.choose(rng)).copied().collect()
            }
            Contents::Everything => known,
            Contents::Bounded(count) => {
                (0..count).filter_map(|_| Action::BOUNDED.choose(rng)).copied().collect()
            }
        }
    }
}

/// Returns a fee recipient. Some are new accounts, which stay absent if nothing is paid to them.
fn fee_recipient(rng: &mut StdRng) -> Address {
    match rng.random_range(0..3) {
        0 => Address::from(rng.random::<[u8; 20]>()),
        1 => Address::repeat_byte(0xfe),
        _ => signers().choose(rng).map_or(Address::ZERO, |signer| signer.address),
    }
}

fn withdrawals(rng: &mut StdRng, contents: Contents) -> Vec<Withdrawal> {
    let count = match contents {
        Contents::Random(_) => rng.random_range(0..4),
        Contents::Everything => 4,
        Contents::Bounded(_) => 0,
    };
    let withdrawal = |index: u64| Withdrawal {
        index: rng.random_range(0..u64::from(u32::MAX)),
        validator_index: rng.random_range(0..u64::from(u32::MAX)),
        address: match rng.random_bool(0.5) {
            true => Address::from(rng.random::<[u8; 20]>()),
            false => Address::repeat_byte(0xdd),
        },
        // A withdrawal of zero must not create the account.
        amount: if index == 1 { 0 } else { rng.random_range(1..1_000_000) },
    };
    (0..count).map(withdrawal).collect()
}

fn genesis_header(forks: &Forks, state_root: B256) -> Header {
    let fork = forks.at(GENESIS_TIME);
    Header {
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: Address::repeat_byte(0x0c),
        state_root,
        gas_limit: GAS_LIMIT,
        timestamp: GENESIS_TIME,
        extra_data: Bytes::from_static(b"tandem tests"),
        mix_hash: B256::repeat_byte(0x0a),
        nonce: B64::ZERO,
        base_fee_per_gas: Some(1_000_000_000),
        withdrawals_root: (fork >= Fork::Shanghai).then_some(EMPTY_WITHDRAWALS),
        blob_gas_used: (fork >= Fork::Cancun).then_some(0),
        // High enough for a blob price above one wei.
        excess_blob_gas: (fork >= Fork::Cancun).then_some(100 * GAS_PER_BLOB),
        parent_beacon_block_root: (fork >= Fork::Cancun).then_some(B256::ZERO),
        requests_hash: (fork >= Fork::Prague).then_some(EMPTY_REQUESTS_HASH),
        ..Header::default()
    }
}
