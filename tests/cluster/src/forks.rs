//! Schedule of forks and arithmetic of fees, written down from the EIPs, independently of the code
//! under test.

use alloy_eips::eip7840::BlobParams;
use alloy_evm::eth::spec::EthExecutorSpec;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::Address;
use serde_json::{Map, Value, json};
use tandem_chain::Fork;

use crate::contracts::DEPOSIT;

/// Timestamp of every genesis, in seconds.
pub const GENESIS_TIME: u64 = 1_700_000_000;

/// Chain id of every chain.
pub const CHAIN_ID: u64 = 71_338;

/// Gas of one blob (EIP-4844).
pub const GAS_PER_BLOB: u64 = 131_072;

/// Blobs that one transaction may carry from Osaka on (EIP-7594).
const BLOBS_PER_TX_OSAKA: u64 = 6;

/// The forks that chains here go through, in order: all that a consensus client can drive.
pub const FORKS: [Fork; 5] = [Fork::Paris, Fork::Shanghai, Fork::Cancun, Fork::Prague, Fork::Osaka];

/// Activation times of a chain's forks, in seconds; `None` for never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forks {
    /// Times of Shanghai, Cancun, Prague, Osaka.
    pub times: [Option<u64>; 4],
    /// Time of a fork that changes only blob parameters (EIP-7892).
    pub bpo1: Option<u64>,
}

/// Blob parameters of one fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobRules {
    /// Blobs per block at which the price stays the same.
    pub target: u64,
    /// Maximum of blobs per block.
    pub max: u64,
    /// `baseFeeUpdateFraction`.
    pub fraction: u64,
    /// Whether EIP-7918's reserve price and EIP-7594's limit per transaction apply.
    pub osaka: bool,
}

/// Entries of `blobSchedule`. Cancun and Prague differ from mainnet, so that a client that has
/// mainnet's numbers built in is found out. Osaka has Prague's numbers: EIP-7892 leaves changes
/// after Prague to blob parameter forks, and geth reads no entry of Osaka.
const SCHEDULE: [(&str, u64, u64, u64); 4] = [
    ("cancun", 2, 5, 3_000_000),
    ("prague", 5, 8, 5_007_716),
    ("osaka", 5, 8, 5_007_716),
    ("bpo1", 10, 15, 8_346_193),
];

impl Forks {
    /// Activates all forks up to this one from genesis on.
    pub fn at_genesis(fork: Fork) -> Self {
        let mut forks = Self::default();
        for (time, known) in forks.times.iter_mut().zip(&FORKS[1..]) {
            *time = (*known <= fork).then_some(0);
        }
        forks
    }

    /// Like [`Forks::at_genesis`], and the next fork activates `seconds` after genesis. After
    /// Osaka, that is the blob parameter fork.
    pub fn leaving(fork: Fork, seconds: u64) -> Self {
        let mut forks = Self::at_genesis(fork);
        let time = Some(GENESIS_TIME + seconds);
        match forks.times.iter_mut().find(|time| time.is_none()) {
            Some(next) => *next = time,
            None => forks.bpo1 = time,
        }
        forks
    }

    /// Returns the fork at this time.
    pub fn at(&self, time: u64) -> Fork {
        let newest = self.times.iter().rposition(|start| start.is_some_and(|start| start <= time));
        FORKS[newest.map_or(0, |index| index + 1)]
    }

    /// Returns the blob parameters at this time, `None` before Cancun.
    pub fn blob_rules(&self, time: u64) -> Option<BlobRules> {
        let starts = [self.times[1], self.times[2], self.times[3], self.bpo1];
        let newest = starts.iter().rposition(|start| start.is_some_and(|start| start <= time))?;
        let (_, target, max, fraction) = SCHEDULE[newest];
        Some(BlobRules { target, max, fraction, osaka: newest >= 2 })
    }

    /// Returns `config` of the genesis file.
    pub fn config_json(&self) -> Value {
        let mut config = Map::new();
        config.insert("chainId".into(), CHAIN_ID.into());
        for block in [
            "homestead",
            "eip150",
            "eip155",
            "eip158",
            "byzantium",
            "constantinople",
            "petersburg",
            "istanbul",
            "berlin",
            "london",
            "mergeNetsplit",
        ] {
            config.insert(format!("{block}Block"), 0.into());
        }
        config.insert("terminalTotalDifficulty".into(), 0.into());
        config.insert("terminalTotalDifficultyPassed".into(), true.into());
        config.insert("depositContractAddress".into(), json!(DEPOSIT));
        let mut schedule = Map::new();
        let names = ["shanghai", "cancun", "prague", "osaka", "bpo1"];
        for (name, time) in names.into_iter().zip(self.times.into_iter().chain([self.bpo1])) {
            let Some(time) = time else { continue };
            config.insert(format!("{name}Time"), time.into());
            if let Some((_, target, max, fraction)) = SCHEDULE.iter().find(|row| row.0 == name) {
                let entry = json!({
                    "target": target, "max": max, "baseFeeUpdateFraction": fraction
                });
                schedule.insert(name.into(), entry);
            }
        }
        config.insert("blobSchedule".into(), schedule.into());
        config.into()
    }
}

impl EthereumHardforks for Forks {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        let time = match fork {
            EthereumHardfork::Dao => None,
            EthereumHardfork::Shanghai => self.times[0],
            EthereumHardfork::Cancun => self.times[1],
            EthereumHardfork::Prague => self.times[2],
            EthereumHardfork::Osaka => self.times[3],
            EthereumHardfork::Bpo1 => self.bpo1,
            fork if fork <= EthereumHardfork::Paris => return ForkCondition::Block(0),
            _ => None,
        };
        time.map_or(ForkCondition::Never, ForkCondition::Timestamp)
    }
}

impl EthExecutorSpec for Forks {
    fn deposit_contract_address(&self) -> Option<Address> {
        Some(DEPOSIT)
    }
}

impl BlobRules {
    /// Returns the number of blobs that one transaction may carry.
    pub fn max_per_tx(&self) -> u64 {
        if self.osaka { BLOBS_PER_TX_OSAKA } else { self.max }
    }

    /// Computes the next excess from the parent's excess, blob gas used and base fee. This is
    /// `calc_excess_blob_gas` of EIP-4844 as EIP-7691 and EIP-7918 amend it.
    pub fn next_excess(&self, excess: u64, used: u64, base_fee: u64) -> u64 {
        let target = self.target * GAS_PER_BLOB;
        if excess + used < target {
            return 0;
        }
        const BLOB_BASE_COST: u128 = 1 << 13;
        let reserve = BLOB_BASE_COST * u128::from(base_fee);
        if self.osaka && reserve > u128::from(GAS_PER_BLOB) * self.price(excess) {
            return excess + used * (self.max - self.target) / self.max;
        }
        excess + used - target
    }

    /// Returns the price of a unit of blob gas in wei (EIP-4844, `fake_exponential`).
    pub fn price(&self, excess: u64) -> u128 {
        let (excess, fraction) = (u128::from(excess), u128::from(self.fraction));
        let (mut sum, mut term, mut i) = (0, fraction, 1);
        while term > 0 {
            sum += term;
            term = term * excess / (fraction * i);
            i += 1;
        }
        sum / fraction
    }

    /// Returns the parameters in alloy's type, for the EVM.
    pub fn params(&self) -> BlobParams {
        BlobParams {
            target_blob_count: self.target,
            max_blob_count: self.max,
            update_fraction: self.fraction.into(),
            max_blobs_per_tx: self.max_per_tx(),
            ..BlobParams::cancun()
        }
    }
}

/// Returns the base fee of a block from its parent's gas limit, gas used and base fee (EIP-1559).
pub fn next_base_fee(limit: u64, used: u64, base_fee: u64) -> u64 {
    let target = limit / 2;
    let change = |distance: u64| {
        let wei = u128::from(base_fee) * u128::from(distance) / u128::from(target) / 8;
        u64::try_from(wei).unwrap_or(u64::MAX)
    };
    match used {
        used if used == target => base_fee,
        used if used > target => base_fee + change(used - target).max(1),
        used => base_fee - change(target - used),
    }
}
