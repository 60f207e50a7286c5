//! Parts that come from a genesis file: the configuration, and accounts beside those of the plan.

use anyhow::{Context, ensure};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};
use tandem_primitives::{Account, Address, B256, Bytes, EMPTY_CODE_HASH, Shard, U256, keccak256};
use tandem_storage_writer::{GenesisEntry, read_genesis};

/// Largest genesis file of a base in bytes, unpacked. Its accounts are held in memory.
const BYTES_MAX: u64 = 64 << 20;

/// An account and its slots, by hashed key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub account: Account,
    pub slots: BTreeMap<B256, U256>,
}

/// Configuration of the chain, and its accounts beside those of the plan: predeployed contracts,
/// accounts that pay.
#[derive(Clone, Debug)]
pub struct Base {
    /// The genesis file without `alloc`.
    pub(crate) json: String,
    /// `alloc`, as the file has it, and the accounts that were funded.
    pub(crate) alloc: Map<String, Value>,
    entries: BTreeMap<B256, Entry>,
    codes: Vec<(B256, Bytes)>,
}

impl Base {
    /// Reads a genesis file in geth's format, `.json` or `.json.gz`, of at most 64 MiB.
    ///
    /// # Errors
    /// Returns an error that names the file.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let read = || {
            let mut reader = BufReader::new(File::open(path)?);
            let packed = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
            let reader: Box<dyn Read> = match packed {
                true => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
                false => Box::new(reader),
            };
            let mut text = String::new();
            reader.take(BYTES_MAX + 1).read_to_string(&mut text)?;
            ensure!(text.len() as u64 <= BYTES_MAX, "the file has more than {BYTES_MAX} bytes");
            Self::parse(&text)
        };
        read().with_context(|| path.display().to_string())
    }

    /// Parses the text of a genesis file.
    ///
    /// # Errors
    /// Returns an error if it is none.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut entries: BTreeMap<B256, Entry> = BTreeMap::new();
        let mut codes = Vec::new();
        let file = read_genesis(text.as_bytes(), &mut |entry| {
            match entry {
                GenesisEntry::Account { address_hash, account, code } => {
                    if !code.is_empty() {
                        codes.push((account.code_hash, code));
                    }
                    entries.entry(address_hash).or_default().account = account;
                }
                GenesisEntry::Slot { key: (owner, slot), value } => {
                    entries.entry(owner).or_default().slots.insert(slot, value);
                }
            }
            Ok(())
        })?;
        let whole: Map<String, Value> = serde_json::from_str(text)?;
        let alloc = whole.get("alloc").and_then(Value::as_object).cloned().unwrap_or_default();
        ensure!(alloc.len() == entries.len(), "alloc names an account twice");
        Ok(Self { json: file.json, alloc, entries, codes })
    }

    /// Adds an account with this balance, unless the base has it.
    pub fn fund(&mut self, address: Address, balance: U256) {
        let hash = keccak256(address);
        if self.entries.contains_key(&hash) {
            return;
        }
        let account = Account { nonce: 0, balance, code_hash: EMPTY_CODE_HASH };
        self.entries.insert(hash, Entry { account, slots: BTreeMap::new() });
        let entry = serde_json::json!({ "balance": format!("{balance:#x}") });
        self.alloc.insert(format!("{address:#x}"), entry);
    }

    /// Returns the accounts of a shard in the order of their hashed addresses.
    pub(crate) fn of_shard(&self, shard: Shard) -> impl Iterator<Item = (&B256, &Entry)> {
        self.entries.iter().filter(move |(hash, _)| Shard::of(hash) == shard)
    }

    /// Returns the codes with their hashes.
    pub(crate) fn codes(&self) -> &[(B256, Bytes)] {
        &self.codes
    }

    /// Returns the number of accounts and of slots.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let slots = self.entries.values().map(|entry| entry.slots.len() as u64).sum();
        (self.entries.len() as u64, slots)
    }

    /// Returns a digest of everything. Two bases with the same digest lead to the same state.
    pub(crate) fn digest(&self) -> B256 {
        let mut bytes = keccak256(&self.json).to_vec();
        for (hash, entry) in &self.entries {
            bytes.extend(hash);
            entry.account.encode(&mut bytes);
            for (slot, value) in &entry.slots {
                bytes.extend(slot);
                bytes.extend(value.to_be_bytes::<32>());
            }
        }
        keccak256(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"config":{"chainId":1},"alloc":{
        "0x0000000000000000000000000000000000000001":{"balance":"0x1","code":"0x00",
            "storage":{"0x1":"0x2"}}}}"#;

    #[test]
    fn a_base_has_the_accounts_of_its_file_and_those_that_were_funded() {
        let mut base = Base::parse(TEXT).unwrap();
        assert_eq!(base.counts(), (1, 1));
        assert_eq!(base.codes().len(), 1);
        assert!(!base.json.contains("alloc"));
        let before = base.digest();
        // The file's account keeps its balance.
        base.fund(Address::with_last_byte(1), U256::from(7));
        assert_eq!(base.digest(), before);
        base.fund(Address::with_last_byte(2), U256::from(7));
        assert_ne!(base.digest(), before);
        assert_eq!(base.counts(), (2, 1));
        assert_eq!(base.alloc.len(), 2);
        let found: usize = Shard::all().map(|shard| base.of_shard(shard).count()).sum();
        assert_eq!(found, 2);
    }

    #[test]
    fn files_that_are_no_genesis_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.json");
        std::fs::write(&path, "[]").unwrap();
        let error = format!("{:#}", Base::open(&path).unwrap_err());
        assert!(error.contains("base.json"), "{error}");
        assert!(Base::open(&folder.path().join("missing")).is_err());
    }
}
