//! Reader of geth's genesis file, as a stream. The entries of `alloc` go one by one to a sink. The
//! rest (a few hundred bytes) is kept as text.

use crate::Error;
use alloy_primitives::hex;
use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{fmt, io::Read};
use tandem_json::{Short, Shortened, cut};
use tandem_primitives::{Account, Address, B256, Bytes, EMPTY_CODE_HASH, U256, keccak256};

/// Maximum hex digits of contract code. No genesis file of geth has more; more is a mistake or an
/// attack.
const CODE_HEX_MAX: usize = 16 << 20;

/// One entry of `alloc`.
#[derive(Clone, Debug)]
pub enum Entry {
    /// An account, after its slots.
    Account {
        /// Hashed address.
        address_hash: B256,
        /// The account.
        account: Account,
        /// Its code, empty when it has none.
        code: Bytes,
    },
    /// A slot that is not zero.
    Slot {
        /// Hashed address and hashed slot.
        key: (B256, B256),
        /// The value.
        value: U256,
    },
}

/// Contents of a genesis file except the entries of `alloc`.
#[derive(Clone, Debug)]
pub struct GenesisFile {
    /// The file without `alloc`.
    pub json: String,
    /// Digest of `alloc` that does not depend on order or spelling: the sum of the hashes of its
    /// accounts and slots modulo 2^256.
    pub alloc_digest: B256,
    /// Number of accounts in `alloc`.
    pub accounts: u64,
    /// Number of slots in `alloc` that are not zero.
    pub slots: u64,
}

/// Reads a genesis file, and passes the entries of `alloc` to `sink`.
///
/// # Errors
/// [`Error::Genesis`] with line and column, or the error of the sink.
pub fn read(
    reader: impl Read,
    sink: &mut dyn FnMut(Entry) -> Result<(), Error>,
) -> Result<GenesisFile, Error> {
    let mut state = Reading { sink, failed: None, digest: U256::ZERO, accounts: 0, slots: 0 };
    let mut json = serde_json::Deserializer::from_reader(reader);
    let read = FileSeed(&mut state).deserialize(Shortened(&mut json)).and_then(|rest| {
        json.end().map_err(Short::custom)?;
        Ok(rest)
    });
    // The sink's error is the cause of the parser's error.
    if let Some(error) = state.failed {
        return Err(error);
    }
    Ok(GenesisFile {
        json: read.map_err(|error| Error::Genesis(error.to_string()))?,
        alloc_digest: B256::from(state.digest),
        accounts: state.accounts,
        slots: state.slots,
    })
}

struct Reading<'a> {
    sink: &'a mut dyn FnMut(Entry) -> Result<(), Error>,
    failed: Option<Error>,
    digest: U256,
    accounts: u64,
    slots: u64,
}

impl Reading<'_> {
    fn give<E: serde::de::Error>(&mut self, entry: Entry, parts: &[&[u8]]) -> Result<(), E> {
        let hash = keccak256(parts.concat());
        self.digest = self.digest.wrapping_add(hash.into());
        (self.sink)(entry).map_err(|error| {
            self.failed = Some(error);
            E::custom("stopped")
        })
    }
}

/// Seed for the whole file; its value is the text without `alloc`.
struct FileSeed<'r, 'a>(&'r mut Reading<'a>);

impl<'de> DeserializeSeed<'de> for FileSeed<'_, '_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FileSeed<'_, '_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a genesis object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        let mut text = String::from("{");
        let mut seen = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "alloc" {
                if std::mem::replace(&mut seen, true) {
                    return Err(A::Error::duplicate_field("alloc"));
                }
                map.next_value_seed(AllocSeed(self.0))?;
                continue;
            }
            let value = map.next_value::<Box<RawValue>>()?;
            if text.len() > 1 {
                text.push(',');
            }
            let key = serde_json::to_string(&key).map_err(A::Error::custom)?;
            text.extend([key.as_str(), ":", value.get()]);
        }
        text.push('}');
        Ok(text)
    }
}

struct AllocSeed<'r, 'a>(&'r mut Reading<'a>);

impl<'de> DeserializeSeed<'de> for AllocSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AllocSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of accounts by address")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(address) = map.next_key_seed(Text(parse_address))? {
            map.next_value_seed(AccountSeed { reading: &mut *self.0, address })?;
        }
        Ok(())
    }
}

struct AccountSeed<'r, 'a> {
    reading: &'r mut Reading<'a>,
    address: Address,
}

impl<'de> DeserializeSeed<'de> for AccountSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AccountSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an account object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { reading, address } = self;
        let address_hash = keccak256(address);
        let (mut nonce, mut balance, mut code) = (U256::ZERO, U256::ZERO, Bytes::new());
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "nonce" => nonce = map.next_value_seed(Quantity)?,
                "balance" => balance = map.next_value_seed(Quantity)?,
                "code" => code = map.next_value_seed(Text(parse_code))?,
                "storage" => map.next_value_seed(StorageSeed {
                    reading: &mut *reading,
                    address,
                    address_hash,
                })?,
                // Geth knows more keys (a secret key for tests), none of which is state.
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let nonce = u64::try_from(nonce).map_err(|_| A::Error::custom("nonce over 64 bits"))?;
        let code_hash = if code.is_empty() { EMPTY_CODE_HASH } else { keccak256(&code) };
        let account = Account { nonce, balance, code_hash };
        reading.accounts += 1;
        let parts: [&[u8]; 4] = [
            address.as_slice(),
            &nonce.to_be_bytes(),
            &balance.to_be_bytes::<32>(),
            code_hash.as_slice(),
        ];
        reading.give(Entry::Account { address_hash, account, code }, &parts)
    }
}

struct StorageSeed<'r, 'a> {
    reading: &'r mut Reading<'a>,
    address: Address,
    address_hash: B256,
}

impl<'de> DeserializeSeed<'de> for StorageSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for StorageSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of values by slot")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { reading, address, address_hash } = self;
        while let Some(slot) = map.next_key_seed(Text(parse_word))? {
            let value = map.next_value_seed(Text(parse_word))?;
            // A zero value is not a slot, as in geth.
            if value.is_zero() {
                continue;
            }
            let key = (address_hash, keccak256(slot));
            reading.slots += 1;
            let entry = Entry::Slot { key, value: value.into() };
            reading.give(entry, &[address.as_slice(), slot.as_slice(), value.as_slice()])?;
        }
        Ok(())
    }
}

/// String that a function parses.
struct Text<T>(fn(&str) -> Result<T, String>);

impl<'de, T> DeserializeSeed<'de> for Text<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hexadecimal string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

/// Number: hexadecimal with 0x or decimal in a string, or a JSON number.
struct Quantity;

impl<'de> DeserializeSeed<'de> for Quantity {
    type Value = U256;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<U256, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Quantity {
    type Value = U256;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a string of one")
    }

    fn visit_u64<E>(self, number: u64) -> Result<U256, E> {
        Ok(U256::from(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<U256, E> {
        let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            // Geth reads both "0x" and "" as zero.
            Some("") => return Ok(U256::ZERO),
            None if text.is_empty() => return Ok(U256::ZERO),
            Some(digits) => U256::from_str_radix(digits, 16),
            None => U256::from_str_radix(text, 10),
        };
        parsed.map_err(|_| E::custom(format_args!("{text:?} is not a number of at most 256 bits")))
    }
}

fn digits(text: &str) -> &str {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text)
}

fn parse_address(text: &str) -> Result<Address, String> {
    let mut address = Address::ZERO;
    hex::decode_to_slice(digits(text), address.as_mut_slice())
        .map_err(|error| cut(format_args!("address {text:?}: {error}")))?;
    Ok(address)
}

/// Parses up to 32 bytes, right-aligned. The number of digits may be odd.
fn parse_word(text: &str) -> Result<B256, String> {
    let digits = digits(text);
    if digits.len() > 64 {
        return Err(cut(format_args!("{text:?} has more than 32 bytes")));
    }
    let mut padded = [b'0'; 64];
    padded[64 - digits.len()..].copy_from_slice(digits.as_bytes());
    let mut word = B256::ZERO;
    hex::decode_to_slice(padded, word.as_mut_slice())
        .map_err(|error| format!("word {text:?}: {error}"))?;
    Ok(word)
}

fn parse_code(text: &str) -> Result<Bytes, String> {
    let digits = digits(text);
    if digits.len() > CODE_HEX_MAX {
        return Err("code over 8 MiB".to_owned());
    }
    hex::decode(digits).map(Bytes::from).map_err(|error| format!("code: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> (Result<GenesisFile, Error>, Vec<Entry>) {
        let mut entries = Vec::new();
        let file = read(json.as_bytes(), &mut |entry| {
            entries.push(entry);
            Ok(())
        });
        (file, entries)
    }

    const SPELLED: &str = r#"{"config":{"chainId":1,"terminalTotalDifficulty":58750000000000000000000},
        "alloc":{
          "0x0000000000000000000000000000000000000001":{"balance":"0x10","storage":{"0x1":"0x02","0x2":"0x"}},
          "0000000000000000000000000000000000000002":{"balance":"16","nonce":"0x1","code":"0x6000","secretKey":"0x00"}},
        "timestamp":"0x5"}"#;

    const OTHERWISE: &str = r#"{"alloc":{
          "0000000000000000000000000000000000000002":{"nonce":1,"code":"6000","balance":16,"storage":null},
          "0000000000000000000000000000000000000001":{
            "storage":{"0000000000000000000000000000000000000000000000000000000000000001":
                       "0x0000000000000000000000000000000000000000000000000000000000000002"},
            "balance":"16"}},
        "config":{"chainId":1,"terminalTotalDifficulty":58750000000000000000000},"timestamp":"0x5"}"#;

    #[test]
    fn spelling_and_order_do_not_matter() {
        let (file, entries) = parse(SPELLED);
        let file = file.unwrap();
        assert_eq!((file.accounts, file.slots, entries.len()), (2, 1, 3));
        assert_eq!(
            file.json,
            r#"{"config":{"chainId":1,"terminalTotalDifficulty":58750000000000000000000},"timestamp":"0x5"}"#
        );
        let (other, _) = parse(OTHERWISE);
        assert_eq!(other.unwrap().alloc_digest, file.alloc_digest);
        let (changed, _) = parse(&SPELLED.replace("0x10", "0x11"));
        assert_ne!(changed.unwrap().alloc_digest, file.alloc_digest);
    }

    #[test]
    fn what_is_no_genesis_is_refused_with_its_place() {
        for (json, reason) in [
            ("", "EOF"),
            ("[]", "genesis object"),
            (r#"{"alloc":{"0x01":{}}}"#, "address"),
            (r#"{"alloc":{"0000000000000000000000000000000000000001":{"balance":"x"}}}"#, "number"),
            (r#"{"alloc":{"0000000000000000000000000000000000000001":{"balance":-1}}}"#, "number"),
            (r#"{"alloc":{"0000000000000000000000000000000000000001":{"code":"0x0"}}}"#, "code"),
            (
                r#"{"alloc":{"0000000000000000000000000000000000000001":{"nonce":"0x10000000000000000"}}}"#,
                "nonce",
            ),
            (r#"{"alloc":{}} x"#, "trailing"),
            (r#"{"alloc":{},"alloc":{}}"#, "duplicate"),
        ] {
            let error = parse(json).0.unwrap_err().to_string();
            assert!(error.contains(reason), "{json}: {error}");
        }
        let long = "\u{7f}".repeat(1 << 16);
        let address = "11".repeat(20);
        for json in [
            format!(r#"{{"alloc":"{long}"}}"#),
            format!(r#"{{"alloc":{{"{long}":{{}}}}}}"#),
            format!(r#"{{"alloc":{{"{address}":{{"balance":"{long}"}}}}}}"#),
            format!(r#"{{"alloc":{{"{address}":{{"storage":{{"{long}":"0x1"}}}}}}}}"#),
        ] {
            let error = parse(&json).0.unwrap_err().to_string();
            assert!(error.len() < 1024, "{} bytes", error.len());
        }
    }
}
