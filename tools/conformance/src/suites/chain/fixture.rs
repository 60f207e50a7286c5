//! Common parts of the two formats of chains: a file with cases by name. Each case has the state
//! before, the genesis header and the state after.

use crate::{Case, Outcome, Setting};
use anyhow::Context as _;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fs, ops::Range, path::Path, sync::Arc};

/// A case's JSON, as a part of its file's text.
pub struct Text {
    file: Arc<str>,
    range: Range<usize>,
}

impl Text {
    pub fn as_str(&self) -> &str {
        &self.file[self.range.clone()]
    }
}

/// Fields of a case that are read before it runs.
#[derive(Deserialize)]
struct Head {
    network: String,
}

/// Returns the cases of a file; `run` runs each of them.
///
/// # Errors
/// If the file is not an object of cases with a network each.
pub fn load(
    path: &Path,
    suite: &'static str,
    run: fn(&Text, &Setting) -> Outcome,
) -> anyhow::Result<Vec<Case>> {
    let file: Arc<str> = fs::read_to_string(path)?.into();
    let raw: BTreeMap<String, &RawValue> = serde_json::from_str(&file)?;
    let case = |(name, raw): (String, &RawValue)| {
        let head: Head = serde_json::from_str(raw.get()).with_context(|| name.clone())?;
        // A `RawValue` is a slice of the text that it was read from.
        let start = raw.get().as_ptr() as usize - file.as_ptr() as usize;
        let text = Text { file: file.clone(), range: start..start + raw.get().len() };
        let run = Box::new(move |setting: &Setting| run(&text, setting));
        Ok(Case { suite, fork: head.network, name, run })
    };
    raw.into_iter().map(case).collect()
}

/// Parts of a case that both formats have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain<'a> {
    /// Name of the fork, or of the transition between two.
    pub network: String,
    /// Parameters that the name does not imply.
    #[serde(default, borrow)]
    pub config: Option<Config<'a>>,
    /// Accounts of the genesis.
    #[serde(borrow)]
    pub pre: &'a RawValue,
    /// Header of the genesis.
    #[serde(borrow)]
    pub genesis_block_header: GenesisHeader<'a>,
    /// Head after the last block.
    #[serde(rename = "lastblockhash")]
    pub last_block_hash: alloy_primitives::B256,
    /// Accounts after the last block …
    #[serde(default, borrow)]
    pub post_state: Option<&'a RawValue>,
    /// … or their root, if they are too many.
    #[serde(default)]
    pub post_state_hash: Option<alloy_primitives::B256>,
}

/// `config` of a case.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config<'a> {
    /// Chain id, 1 if it is missing.
    #[serde(default, borrow)]
    pub chainid: Option<&'a RawValue>,
    /// Blob parameters by the fork's name (EIP-7840).
    #[serde(default, borrow)]
    pub blob_schedule: Option<BTreeMap<String, &'a RawValue>>,
}

/// Fields of the header under their names in the fixtures, as written there.
#[derive(Deserialize)]
pub struct GenesisHeader<'a> {
    /// Hash of the header.
    pub hash: alloy_primitives::B256,
    /// All other fields.
    #[serde(flatten, borrow)]
    pub fields: BTreeMap<String, Field<'a>>,
}

/// Text of a field without quotes.
#[derive(Deserialize)]
pub struct Field<'a>(#[serde(borrow)] pub std::borrow::Cow<'a, str>);

/// Reads a part of a case.
///
/// # Errors
/// If the part has another form; the error names the part.
pub fn part<T: DeserializeOwned>(what: &'static str, raw: &RawValue) -> anyhow::Result<T> {
    serde_json::from_str(raw.get()).context(what)
}
