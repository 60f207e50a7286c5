use crate::genesis::Genesis;
use alloy_consensus::Header;
use alloy_eips::eip7840::BlobParams;
use alloy_evm::eth::spec::EthExecutorSpec;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, B256};
use std::{fmt, sync::Arc};

pub use crate::genesis::GenesisError;

/// A fork whose rules this client knows, in the order of activation. Forks that change nothing
/// but blob parameters (EIP-7892) are not among them: see [`ChainSpec::blob_params_at`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fork {
    /// The merge (EIP-3675).
    Paris,
    /// Withdrawals (EIP-4895).
    Shanghai,
    /// Blobs and beacon roots (EIP-4844, 4788).
    Cancun,
    /// Requests and set-code transactions (EIP-7685, 7702).
    Prague,
    /// Size and gas caps, blob reserve price (EIP-7934, 7825, 7918).
    Osaka,
}

impl Fork {
    /// All of them, in order.
    pub const ALL: [Self; 5] =
        [Self::Paris, Self::Shanghai, Self::Cancun, Self::Prague, Self::Osaka];
}

impl fmt::Display for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A fork scheduled in the genesis file whose rules this client does not know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsupportedFork {
    /// Its key in the genesis file, without `Time`.
    pub name: String,
    /// Its activation, in seconds.
    pub time: u64,
}

/// When forks activate: part of [`ChainSpec`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Schedule {
    /// Activation of Shanghai, Cancun, Prague and Osaka.
    pub(crate) forks: [Option<u64>; 4],
    /// Activation of the blob parameter forks bpo1 to bpo5 (EIP-7892).
    pub(crate) blob_forks: [Option<u64>; 5],
    /// Blob parameters with their activation, in the order in which they replace each other.
    pub(crate) blobs: Vec<(u64, BlobParams)>,
    /// The earliest fork that is not supported.
    pub(crate) unsupported: Option<UnsupportedFork>,
}

/// The rules of one chain: its id, when its forks activate, its blob schedule, its genesis.
/// Cheap to clone.
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
    /// The chain must have no proof-of-work block after genesis (or say with
    /// `terminalTotalDifficultyPassed` that it left them behind). Where `blobSchedule` has no
    /// entry for Cancun, Prague or Osaka, the numbers of EIP-4844 and EIP-7691 apply.
    ///
    /// # Errors
    /// See [`GenesisError`]. A fork that is not supported is an error only when it is active at
    /// genesis; otherwise see [`ChainSpec::unsupported_fork`].
    pub fn from_genesis_json(json: &str) -> Result<Self, GenesisError> {
        let Genesis { chain_id, schedule, deposit_contract, header } = Genesis::parse(json)?;
        Ok(Self(Arc::new(Inner { chain_id, schedule, deposit_contract, genesis: header })))
    }

    /// The id that transactions are signed for (EIP-155).
    pub fn chain_id(&self) -> u64 {
        self.0.chain_id
    }

    /// The newest known fork active at this time (in seconds). The chain is post-merge, so this is
    /// Paris or later.
    pub fn fork_at(&self, timestamp: u64) -> Fork {
        let active = |time: &Option<u64>| time.is_some_and(|time| time <= timestamp);
        let newest = self.0.schedule.forks.iter().rposition(active);
        newest.map_or(Fork::Paris, |index| Fork::ALL[index + 1])
    }

    /// Blob target, maximum and price parameters at this time (in seconds), `None` before Cancun
    /// (EIP-4844, 7691, 7840, 7892).
    pub fn blob_params_at(&self, timestamp: u64) -> Option<BlobParams> {
        let mut newest_first = self.0.schedule.blobs.iter().rev();
        newest_first.find(|(time, _)| *time <= timestamp).map(|(_, params)| *params)
    }

    /// The earliest scheduled fork whose rules this client does not know. Blocks from its
    /// activation on are refused with [`crate::BlockError::UnsupportedFork`].
    pub fn unsupported_fork(&self) -> Option<&UnsupportedFork> {
        self.0.schedule.unsupported.as_ref()
    }

    /// The contract whose logs are deposit requests (EIP-6110). Where the genesis file names none
    /// this is the zero address, as in geth: no deposits.
    pub fn deposit_contract(&self) -> Address {
        self.0.deposit_contract
    }

    /// The genesis header over this state root, with the fields of the forks active at genesis.
    pub fn genesis_header(&self, state_root: B256) -> Header {
        Header { state_root, ..self.0.genesis.clone() }
    }
}

impl EthereumHardforks for ChainSpec {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        let Schedule { forks, blob_forks, .. } = &self.0.schedule;
        let time = match fork {
            EthereumHardfork::Shanghai => forks[0],
            EthereumHardfork::Cancun => forks[1],
            EthereumHardfork::Prague => forks[2],
            EthereumHardfork::Osaka => forks[3],
            EthereumHardfork::Bpo1 => blob_forks[0],
            EthereumHardfork::Bpo2 => blob_forks[1],
            EthereumHardfork::Bpo3 => blob_forks[2],
            EthereumHardfork::Bpo4 => blob_forks[3],
            EthereumHardfork::Bpo5 => blob_forks[4],
            // An irregular state change at one block of mainnet, long before the merge.
            EthereumHardfork::Dao => None,
            fork if fork <= EthereumHardfork::Paris => return ForkCondition::ZERO_BLOCK,
            _ => None,
        };
        time.map_or(ForkCondition::Never, ForkCondition::Timestamp)
    }
}

impl EthExecutorSpec for ChainSpec {
    fn deposit_contract_address(&self) -> Option<Address> {
        // `None` would stand for mainnet's contract.
        Some(self.0.deposit_contract)
    }
}
