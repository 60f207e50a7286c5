use crate::{Fork, genesis::Genesis};
use alloy_consensus::Header;
use alloy_eips::eip7840::BlobParams;
use alloy_evm::eth::spec::EthExecutorSpec;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, B256, BlockNumber, U256};
use std::sync::Arc;

pub use crate::genesis::GenesisError;

/// Fork in the genesis file with rules that this client does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsupportedFork {
    /// Key of the fork in the genesis file, without `Time`.
    pub name: String,
    /// Activation time, in seconds.
    pub time: u64,
}

/// DAO fork: an irregular state change on the chains that support it. A mark in the extra data of
/// ten blocks tells the two sides apart (EIP-779).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DaoFork {
    /// Block of the fork.
    pub block: BlockNumber,
    /// Whether this chain makes the change or opposes it.
    pub support: bool,
}

/// Activation points of a chain's forks, as a fork id counts them (EIP-2124). Each list is
/// ascending and names every point once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ForkPoints {
    /// Block numbers, 0 for forks of genesis.
    pub blocks: Vec<BlockNumber>,
    /// Times in seconds, for forks after the merge.
    pub times: Vec<u64>,
}

/// Activation of the forks, part of [`ChainSpec`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Schedule {
    /// First block, under proof of work, of each fork from Homestead to Gray Glacier.
    pub(crate) block_forks: [Option<BlockNumber>; Fork::Paris.index() - 1],
    /// DAO fork, if the chain takes a side.
    pub(crate) dao: Option<DaoFork>,
    /// Total difficulty at which proof of work ends (EIP-3675).
    pub(crate) terminal_total_difficulty: U256,
    /// Block after the merge by which peers tell chains apart (EIP-3675, `FORK_NEXT_VALUE`).
    pub(crate) merge_netsplit: Option<BlockNumber>,
    /// Activation of Shanghai, Cancun, Prague, Osaka and Amsterdam.
    pub(crate) forks: [Option<u64>; 5],
    /// Activation of the blob parameter forks bpo1 to bpo5 (EIP-7892).
    pub(crate) blob_forks: [Option<u64>; 5],
    /// Blob parameters with their activation, in the order in which they replace each other.
    pub(crate) blobs: Vec<(u64, BlobParams)>,
    /// Earliest fork that is not supported.
    pub(crate) unsupported: Option<UnsupportedFork>,
}

/// Rules of one chain: its id, the activation of its forks, its blob schedule, its genesis. Cheap
/// to clone.
#[derive(Clone, Debug)]
pub struct ChainSpec(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    chain_id: u64,
    schedule: Schedule,
    deposit_contract: Address,
    genesis: Header,
}

impl ChainSpec {
    /// Reads geth's genesis format. `alloc` may be absent and is skipped unread, so a large one
    /// costs no memory beyond the text.
    ///
    /// A fork of proof of work that the file does not name activates with the next named one. The
    /// last unnamed ones activate at genesis if genesis ends proof of work, otherwise never. The
    /// glaciers change only the difficulty bomb and may be omitted. If `blobSchedule` has no entry
    /// for Cancun, Prague or Osaka, the numbers of EIP-4844 and EIP-7691 apply. Amsterdam without an
    /// entry keeps the blob parameters that are in force.
    ///
    /// # Errors
    /// See [`GenesisError`]. An unsupported fork is an error only when it is active at genesis;
    /// otherwise see [`ChainSpec::unsupported_fork`].
    pub fn from_genesis_json(json: &str) -> Result<Self, GenesisError> {
        let Genesis { chain_id, schedule, deposit_contract, header } = Genesis::parse(json)?;
        Ok(Self(Arc::new(Inner { chain_id, schedule, deposit_contract, genesis: header })))
    }

    /// Returns the chain id that transactions are signed for (EIP-155).
    pub fn chain_id(&self) -> u64 {
        self.0.chain_id
    }

    /// Returns the newest known fork active at this time (in seconds) in a block of proof of stake:
    /// Paris or later.
    pub fn fork_at(&self, timestamp: u64) -> Fork {
        let active = |time: &Option<u64>| time.is_some_and(|time| time <= timestamp);
        let newest = self.0.schedule.forks.iter().rposition(active);
        newest.map_or(Fork::Paris, |index| Fork::MERGED[index + 1])
    }

    /// Returns the newest known fork active in this block, under proof of work or after it.
    pub fn fork_of(&self, header: &Header) -> Fork {
        if is_merged(header) {
            return self.fork_at(header.timestamp);
        }
        let active = |block: &Option<u64>| block.is_some_and(|block| block <= header.number);
        let newest = self.0.schedule.block_forks.iter().rposition(active);
        newest.map_or(Fork::Frontier, |index| Fork::ALL[index + 1])
    }

    /// Returns whether the rules of this fork apply in a block of proof of work at this height.
    pub(crate) fn is_active_at_block(&self, fork: Fork, number: BlockNumber) -> bool {
        self.block_fork(fork).is_some_and(|block| block <= number)
    }

    fn block_fork(&self, fork: Fork) -> Option<BlockNumber> {
        match fork.index().checked_sub(1) {
            None => Some(0),
            Some(index) => self.0.schedule.block_forks.get(index).copied().flatten(),
        }
    }

    /// Returns the rules of this block in the form that alloy-evm needs.
    pub fn rules(&self, header: &Header) -> BlockRules<'_> {
        BlockRules { spec: self, merged: is_merged(header) }
    }

    /// Returns blob target, maximum and price parameters in a block of proof of stake at this time
    /// (in seconds). Returns `None` before Cancun (EIP-4844, 7691, 7840, 7892).
    pub fn blob_params_at(&self, timestamp: u64) -> Option<BlobParams> {
        let mut newest_first = self.0.schedule.blobs.iter().rev();
        newest_first.find(|(time, _)| *time <= timestamp).map(|(_, params)| *params)
    }

    /// Returns the blob parameters of this block; see [`ChainSpec::blob_params_at`].
    pub fn blob_params_of(&self, header: &Header) -> Option<BlobParams> {
        if is_merged(header) { self.blob_params_at(header.timestamp) } else { None }
    }

    /// Returns the number of the blob parameter fork (EIP-7892) that is the newest fork active in
    /// this block: 2 for bpo2. Returns `None` before the first one, and when another fork has
    /// activated since.
    pub fn blob_fork_of(&self, header: &Header) -> Option<u8> {
        let Schedule { forks, blob_forks, .. } = &self.0.schedule;
        let now = header.timestamp;
        let active = |time: &Option<u64>| time.filter(|&time| time <= now && is_merged(header));
        let (time, number) =
            blob_forks.iter().zip(1..).filter_map(|(time, n)| Some((active(time)?, n))).max()?;
        forks.iter().filter_map(active).all(|fork| fork <= time).then_some(number)
    }

    /// Returns the total difficulty that ends proof of work: the first block to reach it is the
    /// last one. It is 0 for chains without proof of work (EIP-3675).
    pub fn terminal_total_difficulty(&self) -> U256 {
        self.0.schedule.terminal_total_difficulty
    }

    /// Returns whether blocks of this height have a base fee (EIP-1559).
    pub fn has_base_fee(&self, number: BlockNumber) -> bool {
        self.block_fork(Fork::London).is_some_and(|london| london <= number)
    }

    /// Returns the activation points of all forks, including those that change only blob
    /// parameters.
    pub fn fork_points(&self) -> ForkPoints {
        let Schedule { block_forks, dao, merge_netsplit, forks, blob_forks, .. } = &self.0.schedule;
        let dao = dao.map(|dao| dao.block);
        let mut blocks: Vec<_> =
            block_forks.iter().copied().chain([dao, *merge_netsplit]).flatten().collect();
        let mut times: Vec<_> = forks.iter().chain(blob_forks).copied().flatten().collect();
        for points in [&mut blocks, &mut times] {
            points.sort_unstable();
            points.dedup();
        }
        ForkPoints { blocks, times }
    }

    /// Returns the DAO fork (EIP-779), `None` when the chain takes no side.
    pub fn dao_fork(&self) -> Option<DaoFork> {
        self.0.schedule.dao
    }

    /// Returns the earliest scheduled fork whose rules this client does not know. Blocks from its
    /// activation on are refused with [`crate::BlockError::UnsupportedFork`].
    pub fn unsupported_fork(&self) -> Option<&UnsupportedFork> {
        self.0.schedule.unsupported.as_ref()
    }

    /// Returns the contract whose logs are deposit requests (EIP-6110). If the genesis file names
    /// none, this is the zero address, as in geth: there are no deposits.
    pub fn deposit_contract(&self) -> Address {
        self.0.deposit_contract
    }

    /// Returns the genesis header over this state root, with the fields of the forks active at
    /// genesis.
    pub fn genesis_header(&self, state_root: B256) -> Header {
        Header { state_root, ..self.0.genesis.clone() }
    }
}

/// Returns whether a block belongs to proof of stake. Such a block has no difficulty (EIP-3675);
/// all others have at least 131,072. A genesis block is classified by its difficulty.
pub fn is_merged(header: &Header) -> bool {
    header.difficulty.is_zero()
}

/// Rules of one block in the form that alloy-evm needs. Forks of proof of work activate by number,
/// those of proof of stake by time. The difficulty of the block itself shows which of the two
/// applies, so [`ChainSpec`] alone cannot answer these questions.
#[derive(Clone, Copy, Debug)]
pub struct BlockRules<'a> {
    spec: &'a ChainSpec,
    merged: bool,
}

impl EthereumHardforks for BlockRules<'_> {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        let Schedule { forks, blob_forks, .. } = &self.spec.0.schedule;
        let time = match fork {
            // An irregular state change before the transactions of its block. alloy would make it
            // after them, so the executor makes it instead.
            EthereumHardfork::Dao => return ForkCondition::Never,
            fork if fork <= EthereumHardfork::Paris => {
                let block = match Fork::from_alloy(fork) {
                    _ if self.merged => Some(0),
                    Some(fork) => self.spec.block_fork(fork),
                    None => None,
                };
                return block.map_or(ForkCondition::Never, ForkCondition::Block);
            }
            _ if !self.merged => None,
            EthereumHardfork::Shanghai => forks[0],
            EthereumHardfork::Cancun => forks[1],
            EthereumHardfork::Prague => forks[2],
            EthereumHardfork::Osaka => forks[3],
            EthereumHardfork::Amsterdam => forks[4],
            EthereumHardfork::Bpo1 => blob_forks[0],
            EthereumHardfork::Bpo2 => blob_forks[1],
            EthereumHardfork::Bpo3 => blob_forks[2],
            EthereumHardfork::Bpo4 => blob_forks[3],
            EthereumHardfork::Bpo5 => blob_forks[4],
            _ => None,
        };
        time.map_or(ForkCondition::Never, ForkCondition::Timestamp)
    }
}

impl EthExecutorSpec for BlockRules<'_> {
    fn deposit_contract_address(&self) -> Option<Address> {
        // `None` would stand for mainnet's contract.
        Some(self.spec.0.deposit_contract)
    }
}
