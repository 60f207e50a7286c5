//! `TrieTests` of ethereum/tests: keys and values, and the root of the trie that holds them.
//!
//! State tries have hashed keys. The *secure* cases, where keys are hashed, run on all
//! implementations for such keys. These are one sparse trie, sixteen that are combined as the
//! shards are, the bottom-up builder, and the general trie. The other cases go to the general trie,
//! which computes the roots of transactions and receipts. They also run with their keys hashed,
//! where all implementations have to agree.

use super::support::{bytes, case, is_json, lies_in, read_cases, same, skipped};
use crate::{Case, Suite};
use anyhow::{Context as _, bail};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, path::Path};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT, Shard, SubtrieRoot, TrieDiff, keccak256};
use tandem_trie::{Blinded, Scratch, SparseTrie, TrieBuilder, combine, trie_root};

const NAME: &str = "trie";

/// Maximum length of values in sparse tries and in the builder.
const VALUE_MAX: usize = 255;

/// Suite of folders and files named `TrieTests`.
pub struct Tries;

impl Suite for Tries {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        lies_in(path, "TrieTests") && is_json(path)
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let file = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let secure = file.contains("secure");
        let any_order = file.contains("anyorder") || file.contains("any_order");
        let cases = read_cases::<Fixture>(path)?;
        Ok(cases.into_iter().map(|(name, fixture)| one(name, fixture, secure, any_order)).collect())
    }
}

#[derive(Deserialize)]
struct Fixture {
    #[serde(rename = "in")]
    input: Input,
    /// Missing if the case does not test the root.
    root: Option<B256>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    /// Entries in any order.
    Map(Map<String, Value>),
    /// Steps in order: `[key, value]`, where null removes the key.
    Steps(Vec<(String, Option<String>)>),
    /// Other input, without keys and values.
    Other(IgnoredAny),
}

/// A change; `None` removes the key.
type Step = (Vec<u8>, Option<Vec<u8>>);

fn one(name: String, fixture: Fixture, secure: bool, any_order: bool) -> Case {
    let Some(root) = fixture.root else {
        let reason = "asks for the keys around a key: Tandem's tries are not iterated, \
                      the flat tables are";
        return skipped(NAME, "-", name, reason);
    };
    case(NAME, "-", name, move || {
        let any_order = any_order || matches!(fixture.input, Input::Map(_));
        let mut steps = steps(fixture.input)?;
        check(&steps, root, secure)?;
        if any_order {
            steps.reverse();
            check(&steps, root, secure).context("in reverse order")?;
            steps.sort();
            check(&steps, root, secure).context("in ascending order")?;
        }
        Ok(())
    })
}

fn steps(input: Input) -> anyhow::Result<Vec<Step>> {
    let steps: Vec<(String, Option<String>)> = match input {
        Input::Steps(steps) => steps,
        Input::Map(map) => map
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(value) => Ok((key, Some(value))),
                Value::Null => Ok((key, None)),
                other => bail!("{other} is no value"),
            })
            .collect::<Result<_, _>>()?,
        Input::Other(_) => bail!("neither a map nor a list of keys with values"),
    };
    steps
        .into_iter()
        .map(|(key, value)| Ok((text(&key)?, value.as_deref().map(text).transpose()?)))
        .collect()
}

/// Decodes a text: hexadecimal digits after `0x`, otherwise the text's bytes.
fn text(text: &str) -> anyhow::Result<Vec<u8>> {
    if text.starts_with("0x") { bytes(text) } else { Ok(text.as_bytes().to_vec()) }
}

fn check(steps: &[Step], root: B256, secure: bool) -> anyhow::Result<()> {
    let hashed: Vec<Step> =
        steps.iter().map(|(key, value)| (keccak256(key).to_vec(), value.clone())).collect();
    let root = if secure {
        root
    } else {
        same("root of the general trie", trie_root(&last_values(steps)), root)?;
        if steps.iter().all(|(key, _)| key.len() == 32) {
            check_hashed(steps, root).context("with the keys as they are")?;
        }
        trie_root(&last_values(&hashed))
    };
    check_hashed(&hashed, root)
}

/// Returns the entries after all steps.
fn last_values(steps: &[Step]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut values = BTreeMap::new();
    for (key, value) in steps {
        match value {
            Some(value) => values.insert(key.clone(), value.clone()),
            None => values.remove(key),
        };
    }
    values
}

/// Checks all implementations with keys of 32 bytes.
fn check_hashed(steps: &[Step], root: B256) -> anyhow::Result<()> {
    let values = last_values(steps);
    same("root of the general trie", trie_root(&values), root)?;
    let mut hashed = Vec::with_capacity(steps.len());
    for (key, value) in steps {
        let value = value.as_deref().filter(|value| !value.is_empty());
        if value.is_some_and(|value| value.len() > VALUE_MAX) {
            return Ok(());
        }
        hashed.push((B256::try_from(&key[..])?, value));
    }
    same("root of the builder", built(&values)?, root)?;
    same("root of a sparse trie", sparse(&hashed, false)?, root)?;
    same("root of a sparse trie, hashed after each step", sparse(&hashed, true)?, root)?;
    same("root of sixteen shards", sharded(&hashed)?, root)
}

fn built(values: &BTreeMap<Vec<u8>, Vec<u8>>) -> anyhow::Result<B256> {
    let mut builder = TrieBuilder::new(|_: &[u8], _: &[u8]| {});
    for (key, value) in values.iter().filter(|(_, value)| !value.is_empty()) {
        builder.push(&B256::try_from(&key[..])?, value)?;
    }
    Ok(builder.finish().map_or(EMPTY_TRIE_ROOT, keccak256))
}

type Trie = SparseTrie<VALUE_MAX>;

fn step(trie: &mut Trie, key: &B256, value: Option<&[u8]>) -> anyhow::Result<()> {
    let done = match value {
        Some(value) => trie.update(key, value),
        None => trie.remove(key),
    };
    done.map_err(|Blinded { key, depth }| anyhow::anyhow!("{key} is blinded at depth {depth}"))
}

fn sparse(steps: &[(B256, Option<&[u8]>)], hash_often: bool) -> anyhow::Result<B256> {
    let mut trie = Trie::empty(None);
    let (mut diff, mut scratch) = (TrieDiff::default(), Scratch::default());
    for (key, value) in steps {
        step(&mut trie, key, *value)?;
        if hash_often {
            trie.root(None, &mut diff, &mut scratch);
        }
    }
    trie.root(None, &mut diff, &mut scratch).context("the trie is unknown")
}

fn sharded(steps: &[(B256, Option<&[u8]>)]) -> anyhow::Result<B256> {
    let mut tries: Vec<_> = Shard::all().map(|shard| Trie::empty(Some(shard.nibble()))).collect();
    for (key, value) in steps {
        step(&mut tries[Shard::of(key).index()], key, *value)?;
    }
    let (mut diff, mut scratch) = (TrieDiff::default(), Scratch::default());
    let mut tops: [SubtrieRoot; Shard::COUNT] = Default::default();
    for (trie, top) in tries.iter_mut().zip(&mut tops) {
        trie.root(None, &mut diff, &mut scratch);
        *top = trie.top().map(Into::into);
    }
    Ok(combine(&tops)?.0)
}
