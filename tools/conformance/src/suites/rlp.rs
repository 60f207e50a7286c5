//! `RLPTests` of ethereum/tests: encodings with their meaning, and encodings that must be refused.
//!
//! Items are decoded by the walker that also decodes blocks and bodies, and encoded by alloy-rlp.
//! Every decoder of foreign bytes has to refuse invalid RLP.

use super::support::{bytes, case, is_json, lies_in, read_cases, same};
use crate::{Case, Suite};
use alloy_rlp::{Encodable, Header};
use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use tandem_chain::{Block, decode_receipts, decode_transaction, take_item};
use tandem_trie::StorageTrie;

const NAME: &str = "rlp";

/// Suite of folders named `RLPTests`.
pub struct Rlp;

impl Suite for Rlp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        lies_in(path, "RLPTests") && is_json(path)
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let cases = read_cases::<Fixture>(path)?;
        Ok(cases
            .into_iter()
            .map(|(name, fixture)| case(NAME, "-", name, || run(fixture)))
            .collect())
    }
}

#[derive(Deserialize)]
struct Fixture {
    /// The item, or `VALID` or `INVALID`.
    #[serde(rename = "in")]
    item: Value,
    /// The encoding.
    out: String,
}

fn run(fixture: Fixture) -> anyhow::Result<()> {
    let encoding = bytes(&fixture.out)?;
    let decoded = decode_all(&encoding);
    match fixture.item.as_str() {
        Some("INVALID") => {
            ensure!(decoded.is_err(), "decoded to {decoded:?}");
            refused(&encoding)
        }
        Some("VALID") => same("encoded again", encode(&decoded?), encoding),
        _ => {
            let item = item(&fixture.item)?;
            same("encoded", encode(&item), encoding)?;
            same("decoded", decoded?, item)
        }
    }
}

#[derive(PartialEq, Eq, Debug)]
enum Item {
    String(Vec<u8>),
    List(Vec<Item>),
}

/// Returns the item that a fixture means. Strings are their bytes, numbers are big endian without
/// leading zeros. Large numbers are in decimal digits after `#`.
fn item(value: &Value) -> anyhow::Result<Item> {
    Ok(match value {
        Value::Array(items) => Item::List(items.iter().map(item).collect::<Result<_, _>>()?),
        Value::Number(number) => Item::String(big_endian(&number.to_string())?),
        Value::String(text) => Item::String(match text.strip_prefix('#') {
            Some(digits) => big_endian(digits)?,
            None => text.as_bytes().to_vec(),
        }),
        other => bail!("{other} is no item"),
    })
}

fn big_endian(digits: &str) -> anyhow::Result<Vec<u8>> {
    let mut number: Vec<u8> = Vec::new();
    for digit in digits.chars() {
        let mut carry = digit.to_digit(10).with_context(|| format!("{digits} is not a number"))?;
        for byte in number.iter_mut().rev() {
            carry += u32::from(*byte) * 10;
            *byte = carry as u8;
            carry >>= 8;
        }
        if carry > 0 {
            number.insert(0, carry as u8);
        }
    }
    Ok(number)
}

/// Decodes the one item that uses up all bytes.
fn decode_all(mut rlp: &[u8]) -> alloy_rlp::Result<Item> {
    let item = decode(&mut rlp)?;
    if rlp.is_empty() { Ok(item) } else { Err(alloy_rlp::Error::UnexpectedLength) }
}

fn decode(rlp: &mut &[u8]) -> alloy_rlp::Result<Item> {
    let (header, mut payload) = take_item(rlp)?;
    if !header.list {
        return Ok(Item::String(payload.to_vec()));
    }
    let mut items = Vec::new();
    while !payload.is_empty() {
        items.push(decode(&mut payload)?);
    }
    Ok(Item::List(items))
}

fn encode(item: &Item) -> Vec<u8> {
    let mut out = Vec::new();
    match item {
        Item::String(bytes) => bytes.as_slice().encode(&mut out),
        Item::List(items) => {
            let items: Vec<_> = items.iter().map(encode).collect();
            let payload_length = items.iter().map(Vec::len).sum();
            Header { list: true, payload_length }.encode(&mut out);
            items.iter().for_each(|item| out.extend_from_slice(item));
        }
    }
    out
}

/// Checks that every decoder refuses these bytes, which are not RLP.
fn refused(rlp: &[u8]) -> anyhow::Result<()> {
    ensure!(decode_transaction(rlp).is_err(), "taken as a transaction");
    ensure!(Block::from_rlp(rlp).is_err(), "taken as a block");
    ensure!(decode_receipts(rlp).is_err(), "taken as receipts");
    let mut trie = StorageTrie::unknown(None);
    ensure!(trie.reveal(&[], rlp, false).is_err(), "taken as a trie node");
    Ok(())
}
