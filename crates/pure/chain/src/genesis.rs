//! Genesis file in geth's format, without its `alloc`.

use crate::{
    access_list::EMPTY_ACCESS_LIST_HASH,
    spec::{DaoFork, Schedule, UnsupportedFork},
};
use alloy_consensus::{
    Header,
    constants::{EMPTY_OMMER_ROOT_HASH, EMPTY_WITHDRAWALS},
};
use alloy_eips::{
    eip1559::INITIAL_BASE_FEE,
    eip7594::MAX_BLOBS_PER_TX_FUSAKA,
    eip7685::EMPTY_REQUESTS_HASH,
    eip7840::{BLOB_BASE_COST, BlobParams},
};
use alloy_primitives::{Address, B64, B256, U256};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fmt};
use tandem_json::cut;

/// Reason why a genesis file cannot be used.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum GenesisError {
    /// The text is not JSON, or a value is not an object where one is required.
    #[error("genesis: {0}")]
    Json(String),
    /// A field required for the genesis block is missing.
    #[error("genesis: {field} is missing")]
    Missing {
        /// Path of the field.
        field: String,
    },
    /// A field cannot be read.
    #[error("genesis: {field}: {reason}")]
    Field {
        /// Path of the field.
        field: String,
        /// Reason why the field cannot be read.
        reason: String,
    },
    /// A fork is scheduled before the fork that it builds on, or without it.
    #[error("genesis: {fork} is scheduled at {time}, but the fork before it, {before}, {when}")]
    ForkOrder {
        /// Later fork.
        fork: &'static str,
        /// Activation of the later fork: a block number, or seconds for forks after the merge.
        time: u64,
        /// Fork that it builds on.
        before: &'static str,
        /// Activation of that fork, in words.
        when: String,
    },
    /// A fork that is active at genesis has rules that this client does not know.
    #[error("genesis: fork {name} is not supported")]
    UnsupportedFork {
        /// Key of the fork, without `Time`.
        name: String,
    },
}

/// Content of the file that the crate needs.
pub(crate) struct Genesis {
    pub(crate) chain_id: u64,
    pub(crate) schedule: Schedule,
    pub(crate) deposit_contract: Address,
    /// Header that lacks only the state root.
    pub(crate) header: Header,
}

/// Activation blocks of the forks from Homestead to Gray Glacier.
type BlockForks = [Option<u64>; 12];

/// Keys of the forks of proof of work in `config` (with `Block`). Each builds on the previous one.
const BLOCK_FORKS: [&str; 12] = [
    "homestead",
    "eip150",
    "eip158",
    "byzantium",
    "constantinople",
    "petersburg",
    "istanbul",
    "muirGlacier",
    "berlin",
    "london",
    "arrowGlacier",
    "grayGlacier",
];
const SPURIOUS_DRAGON: usize = 2;
const CONSTANTINOPLE: usize = 4;
const PETERSBURG: usize = 5;

/// Keys of forks in `config` (with `Time`) and in `blobSchedule`. Each builds on the previous one.
const FORKS: [&str; 5] = ["shanghai", "cancun", "prague", "osaka", "amsterdam"];
const OSAKA: usize = 3;
const AMSTERDAM: usize = 4;
const BLOB_FORKS: [&str; 5] = ["bpo1", "bpo2", "bpo3", "bpo4", "bpo5"];

/// Gas limit that geth uses where `gasLimit` is 0.
const DEFAULT_GAS_LIMIT: u64 = 4_712_388;

/// Number of blobs that no block will reach; below it no product of blob count and gas overflows.
const MAX_BLOB_COUNT: u64 = 1 << 20;

impl Genesis {
    pub(crate) fn parse(json: &str) -> Result<Self, GenesisError> {
        let root = Object::parse("", json)?;
        let config = root.object("config")?.ok_or_else(|| root.missing("config"))?;
        let mut schedule = schedule(&config)?;
        let header = header(&root, &config, &schedule)?;
        let merged =
            header.difficulty.is_zero() || header.difficulty >= schedule.terminal_total_difficulty;
        fill_block_forks(&mut schedule.block_forks, merged);
        if let Some(fork) = &schedule.unsupported
            && fork.time <= header.timestamp
        {
            return Err(GenesisError::UnsupportedFork { name: fork.name.clone() });
        }
        Ok(Self {
            chain_id: config.u64("chainId")?.ok_or_else(|| config.missing("chainId"))?,
            schedule,
            deposit_contract: config.value("depositContractAddress")?.unwrap_or_default(),
            header,
        })
    }
}

/// Reads the forks of proof of work in the file, from Homestead to Gray Glacier.
fn block_forks(config: &Object<'_>) -> Result<BlockForks, GenesisError> {
    let mut forks = BlockForks::default();
    for (slot, name) in forks.iter_mut().zip(BLOCK_FORKS) {
        *slot = config.u64(&format!("{name}Block"))?;
    }
    let eip155 = config.u64("eip155Block")?;
    if let (Some(eip155), Some(eip158)) = (eip155, forks[SPURIOUS_DRAGON])
        && eip155 != eip158
    {
        let reason = format!("must be eip158Block, which is {eip158}");
        return Err(config.field_error("eip155Block", reason));
    }
    forks[SPURIOUS_DRAGON] = forks[SPURIOUS_DRAGON].or(eip155);
    let mut before = ("frontier", Some(0));
    for (fork, name) in forks.iter().zip(BLOCK_FORKS).filter(|(fork, _)| fork.is_some()) {
        check_order((name, *fork), before)?;
        before = (name, *fork);
    }
    Ok(forks)
}

/// Sets the activation of forks that the file does not name. Rules build on each other, so an
/// omitted fork activates at the latest with the next one.
fn fill_block_forks(forks: &mut BlockForks, merged_at_genesis: bool) {
    forks[PETERSBURG] = forks[PETERSBURG].or(forks[CONSTANTINOPLE]);
    let mut next = merged_at_genesis.then_some(0);
    for (slot, name) in forks.iter_mut().zip(BLOCK_FORKS).rev() {
        if slot.is_none() && !name.ends_with("Glacier") {
            *slot = next;
        }
        next = slot.or(next);
    }
}

fn dao_fork(config: &Object<'_>) -> Result<Option<DaoFork>, GenesisError> {
    let support = config.value("daoForkSupport")?.unwrap_or(false);
    Ok(config.u64("daoForkBlock")?.map(|block| DaoFork { block, support }))
}

fn schedule(config: &Object<'_>) -> Result<Schedule, GenesisError> {
    const TERMINAL: &str = "terminalTotalDifficulty";
    let time = |name: &str| config.u64(&format!("{name}Time"));
    let mut schedule = Schedule {
        block_forks: block_forks(config)?,
        dao: dao_fork(config)?,
        merge_netsplit: config.u64("mergeNetsplitBlock")?,
        terminal_total_difficulty: config
            .number(TERMINAL)?
            .ok_or_else(|| config.missing(TERMINAL))?,
        ..Schedule::default()
    };
    // Previous fork, `None` where it is not scheduled. Blob forks may be omitted, as in geth.
    let mut before = ("paris", Some(0));
    for (slot, name) in schedule.forks.iter_mut().zip(FORKS) {
        *slot = time(name)?;
        check_order((name, *slot), before)?;
        before = (name, *slot);
    }
    // Blob forks come before and after Amsterdam.
    before = (FORKS[OSAKA], schedule.forks[OSAKA]);
    for (slot, name) in schedule.blob_forks.iter_mut().zip(BLOB_FORKS) {
        *slot = time(name)?;
        check_order((name, *slot), before)?;
        if slot.is_some() {
            before = (name, *slot);
        }
    }
    schedule.blobs = blob_schedule(config, &schedule)?;
    schedule.unsupported = unsupported_fork(config)?;
    Ok(schedule)
}

fn check_order(
    (fork, time): (&'static str, Option<u64>),
    (before, time_before): (&'static str, Option<u64>),
) -> Result<(), GenesisError> {
    let Some(time) = time else { return Ok(()) };
    let when = match time_before {
        Some(time_before) if time_before <= time => return Ok(()),
        Some(time_before) => format!("is at {time_before}"),
        None => "is not scheduled".to_owned(),
    };
    Err(GenesisError::ForkOrder { fork, time, before, when })
}

/// Returns blob parameters with their activation, in fork order (EIP-7840, 7892).
fn blob_schedule(
    config: &Object<'_>,
    schedule: &Schedule,
) -> Result<Vec<(u64, BlobParams)>, GenesisError> {
    let entries = config.object("blobSchedule")?;
    let entry = |name: &str| match &entries {
        Some(entries) => entries.object(name)?.map(|entry| blob_params(&entry)).transpose(),
        None => Ok(None),
    };
    let mut blobs = Vec::new();
    let defaults = [BlobParams::cancun(), BlobParams::prague(), BlobParams::osaka()];
    for ((name, time), default) in FORKS.iter().zip(schedule.forks).skip(1).zip(defaults) {
        let Some(time) = time else { continue };
        let params = entry(name)?.unwrap_or(default);
        // From Osaka on, a transaction has its own limit (EIP-7594), and blobs have a reserve price
        // (EIP-7918).
        blobs.push((time, if *name == "osaka" { osaka_rules(params) } else { params }));
    }
    for (name, time) in BLOB_FORKS.iter().zip(schedule.blob_forks) {
        let Some(time) = time else { continue };
        let missing = || GenesisError::Missing { field: format!("config.blobSchedule.{name}") };
        blobs.push((time, osaka_rules(entry(name)?.ok_or_else(missing)?)));
    }
    if let Some(time) = schedule.forks[AMSTERDAM]
        && let Some(params) = entry(FORKS[AMSTERDAM])?
    {
        blobs.push((time, osaka_rules(params)));
    }
    blobs.sort_by_key(|(time, _)| *time);
    Ok(blobs)
}

fn osaka_rules(params: BlobParams) -> BlobParams {
    params.with_blob_base_cost(BLOB_BASE_COST).with_max_blobs_per_tx(MAX_BLOBS_PER_TX_FUSAKA)
}

fn blob_params(entry: &Object<'_>) -> Result<BlobParams, GenesisError> {
    let field = |name| entry.u64(name)?.ok_or_else(|| entry.missing(name));
    let (target, max) = (field("target")?, field("max")?);
    let update_fraction = field("baseFeeUpdateFraction")?;
    if max == 0 || max > MAX_BLOB_COUNT {
        return Err(entry.field_error("max", format!("not within 1 and {MAX_BLOB_COUNT}")));
    }
    if target > max {
        return Err(entry.field_error("target", "over max"));
    }
    if update_fraction == 0 {
        return Err(entry.field_error("baseFeeUpdateFraction", "must not be 0"));
    }
    Ok(BlobParams {
        target_blob_count: target,
        max_blob_count: max,
        update_fraction: update_fraction.into(),
        max_blobs_per_tx: max,
        ..BlobParams::cancun()
    })
}

/// Returns the earliest unsupported fork: every unknown key `…Time` names one.
fn unsupported_fork(config: &Object<'_>) -> Result<Option<UnsupportedFork>, GenesisError> {
    let mut earliest: Option<UnsupportedFork> = None;
    for key in config.fields.keys() {
        let Some(name) = key.strip_suffix("Time") else { continue };
        if FORKS.contains(&name) || BLOB_FORKS.contains(&name) {
            continue;
        }
        let Some(time) = config.u64(key)? else { continue };
        if earliest.as_ref().is_none_or(|fork| time < fork.time) {
            earliest = Some(UnsupportedFork { name: name.to_owned(), time });
        }
    }
    Ok(earliest)
}

/// Returns the genesis header as geth makes it, with an empty state root.
fn header(
    root: &Object<'_>,
    config: &Object<'_>,
    schedule: &Schedule,
) -> Result<Header, GenesisError> {
    let required = |name| root.number(name)?.ok_or_else(|| root.missing(name));
    let number = root.u64("number")?.unwrap_or(0);
    let timestamp = root.u64("timestamp")?.unwrap_or(0);
    let gas_limit = match required("gasLimit")?.try_into() {
        Ok(0) => DEFAULT_GAS_LIMIT,
        Ok(limit) => limit,
        Err(_) => return Err(root.field_error("gasLimit", "over 64 bits")),
    };
    let london = config.u64("londonBlock")?.is_some_and(|block| block <= number);
    let [shanghai, cancun, prague, _, amsterdam] =
        schedule.forks.map(|time| london && time.is_some_and(|time| time <= timestamp));
    let base_fee = root.u64("baseFeePerGas")?;
    let (blob_gas_used, excess_blob_gas) = (root.u64("blobGasUsed")?, root.u64("excessBlobGas")?);
    let slot_number = root.u64("slotNumber")?;
    Ok(Header {
        parent_hash: root.value("parentHash")?.unwrap_or_default(),
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: root.value("coinbase")?.unwrap_or_default(),
        difficulty: required("difficulty")?,
        number,
        gas_limit,
        gas_used: root.u64("gasUsed")?.unwrap_or(0),
        timestamp,
        extra_data: root.value("extraData")?.unwrap_or_default(),
        mix_hash: root.value("mixHash")?.unwrap_or_default(),
        nonce: B64::from(root.u64("nonce")?.unwrap_or(0)),
        base_fee_per_gas: base_fee.or(london.then_some(INITIAL_BASE_FEE)),
        withdrawals_root: shanghai.then_some(EMPTY_WITHDRAWALS),
        blob_gas_used: cancun.then_some(blob_gas_used.unwrap_or(0)),
        excess_blob_gas: cancun.then_some(excess_blob_gas.unwrap_or(0)),
        // Genesis has no parent, so EIP-4788 fixes this root.
        parent_beacon_block_root: cancun.then_some(B256::ZERO),
        requests_hash: prague.then_some(EMPTY_REQUESTS_HASH),
        block_access_list_hash: amsterdam.then_some(EMPTY_ACCESS_LIST_HASH),
        slot_number: amsterdam.then_some(slot_number.unwrap_or(0)),
        ..Header::default()
    })
}

/// JSON object whose values are read one by one. Each error therefore names its field, and unread
/// values (`alloc`) are never parsed.
struct Object<'a> {
    path: String,
    fields: BTreeMap<String, &'a RawValue>,
}

/// Maximum number of members of an object in a genesis file; geth's largest has about forty.
const MEMBERS_MAX: usize = 1024;

/// Members of an object, at most [`MEMBERS_MAX`].
struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    members.insert(name, value);
                    if members.len() > MEMBERS_MAX {
                        let reason = format_args!("more than {MEMBERS_MAX} members");
                        return Err(A::Error::custom(reason));
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'a> Object<'a> {
    fn parse(path: &str, json: &'a str) -> Result<Self, GenesisError> {
        let Members(fields) = tandem_json::from_str(json).map_err(|error| match path {
            "" => GenesisError::Json(error.to_string()),
            field => GenesisError::Field { field: field.to_owned(), reason: error.to_string() },
        })?;
        Ok(Self { path: path.to_owned(), fields })
    }

    /// Returns the text of the value, `None` for null.
    fn text(&self, key: &str) -> Option<&'a str> {
        self.fields.get(key).map(|raw| raw.get()).filter(|text| *text != "null")
    }

    fn object(&self, key: &str) -> Result<Option<Object<'a>>, GenesisError> {
        self.text(key).map(|text| Object::parse(&self.path_of(key), text)).transpose()
    }

    fn value<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, GenesisError> {
        let parse = |text| tandem_json::from_str(text);
        self.text(key).map(parse).transpose().map_err(|error| self.field_error(key, error))
    }

    /// Reads a number in geth's forms: a bare integer of any size, or a string with a decimal or
    /// `0x` number.
    fn number(&self, key: &str) -> Result<Option<U256>, GenesisError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let digits = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(digits) => U256::from_str_radix(digits, 16),
            None => U256::from_str_radix(digits, 10),
        };
        parsed.map(Some).map_err(|_| self.field_error(key, format_args!("{text} is not a number")))
    }

    fn u64(&self, key: &str) -> Result<Option<u64>, GenesisError> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        number.try_into().map(Some).map_err(|_| self.field_error(key, "over 64 bits"))
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn missing(&self, key: &str) -> GenesisError {
        GenesisError::Missing { field: self.path_of(key) }
    }

    fn field_error(&self, key: &str, reason: impl fmt::Display) -> GenesisError {
        GenesisError::Field { field: self.path_of(key), reason: cut(reason) }
    }
}
