//! QUANTITY and DATA of the Ethereum JSON-RPC encoding (execution-apis, `src/engine/common.md`,
//! section Encoding), as strict on input as geth.

use crate::BlockTag;
use alloy_primitives::{B256, U256};
use serde::de::{Error as _, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};
use tandem_json::cut;

/// Number as `0x` and hex digits without leading zeros. Wraps `u64`, `u128` or [`U256`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantity<T>(pub T);

impl<T: fmt::LowerHex> Serialize for Quantity<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl<'de, T: TryFrom<U256>> Deserialize<'de> for Quantity<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor<T>(std::marker::PhantomData<T>);
        impl<T: TryFrom<U256>> Visitor<'_> for QuantityVisitor<T> {
            type Value = Quantity<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hex number")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let number = parse_quantity(text).map_err(E::custom)?;
                let bits = size_of::<T>() * 8;
                T::try_from(number)
                    .map(Quantity)
                    .map_err(|_| E::custom(format_args!("hex number > {bits} bits")))
            }
        }
        deserializer.deserialize_str(QuantityVisitor(std::marker::PhantomData))
    }
}

/// Parses a QUANTITY.
pub(super) fn parse_quantity(text: &str) -> Result<U256, &'static str> {
    let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) else {
        return Err(match text.is_empty() {
            true => "empty hex string",
            false => "hex string without 0x prefix",
        });
    };
    match digits.as_bytes() {
        [] => return Err("hex string \"0x\""),
        [b'0', _, ..] => return Err("hex number with leading zero digits"),
        digits if !digits.iter().all(u8::is_ascii_hexdigit) => return Err("invalid hex string"),
        digits if digits.len() > 64 => return Err("hex number > 256 bits"),
        _ => {}
    }
    U256::from_str_radix(digits, 16).map_err(|_| "invalid hex string")
}

/// Parses a storage slot of `eth_getStorageAt`: up to 32 bytes, with or without leading zeros.
pub(super) fn parse_storage_key(text: &str) -> Result<U256, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    if digits.len() > 64 {
        let reason = format_args!("storage key too long (want at most 32 bytes): {text:?}");
        return Err(cut(reason));
    }
    if digits.is_empty() {
        return Ok(U256::ZERO);
    }
    match digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => U256::from_str_radix(digits, 16).map_err(|error| error.to_string()),
        false => Err(format!("invalid hex in storage key: {text:?}")),
    }
}

/// DATA: `0x` and two hex digits for each byte, of the type's length. Without this wrapper, alloy's
/// types also accept digits without `0x`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hex<T>(pub T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Hex<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HexVisitor<T>(std::marker::PhantomData<T>);
        impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for HexVisitor<T> {
            type Value = Hex<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hex string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text.is_empty() {
                    return Err(E::custom("empty hex string"));
                }
                if !text.starts_with("0x") {
                    return Err(E::custom("hex string without 0x prefix"));
                }
                text.parse().map(Hex).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(HexVisitor(std::marker::PhantomData))
    }
}

/// Number of blocks: a QUANTITY, or decimal digits with or without quotes, as older callers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockCount(pub u64);

impl<'de> Deserialize<'de> for BlockCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;
        impl Visitor<'_> for CountVisitor {
            type Value = BlockCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of blocks")
            }

            fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<Self::Value, E> {
                Ok(BlockCount(count))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let count = match parse_quantity(text) {
                    Ok(count) => u64::try_from(count).ok(),
                    Err(_) => text.parse().ok(),
                };
                count.map(BlockCount).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(CountVisitor)
    }
}

/// Block by tag or number.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberParam(pub BlockTag);

/// Block by tag, number or hash; as a string, or as an object (EIP-1898).
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockParam(pub BlockTag);

fn parse_tag(text: &str) -> Result<BlockTag, String> {
    Ok(match text {
        "latest" => BlockTag::Latest,
        "safe" => BlockTag::Safe,
        "finalized" => BlockTag::Finalized,
        "earliest" => BlockTag::Earliest,
        "pending" => BlockTag::Pending,
        number => {
            let number = parse_quantity(number)?;
            let number = i64::try_from(number).map_err(|_| "block number larger than int64")?;
            BlockTag::Number(number.unsigned_abs())
        }
    })
}

impl<'de> Deserialize<'de> for NumberParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = NumberParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block number or tag")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                parse_tag(text).map(NumberParam).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(NumberVisitor)
    }
}

impl<'de> Deserialize<'de> for BlockParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BlockVisitor)
    }
}

struct BlockVisitor;

impl<'de> Visitor<'de> for BlockVisitor {
    type Value = BlockParam;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a block number, tag or hash")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() == 66 {
            let hash: B256 = text
                .parse()
                .map_err(|_| E::invalid_value(Unexpected::Str(text), &"a block hash"))?;
            return Ok(BlockParam(BlockTag::Hash(hash)));
        }
        parse_tag(text).map(BlockParam).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut number, mut hash) = (None::<NumberParam>, None::<Hex<B256>>);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "blockNumber" => number = map.next_value()?,
                "blockHash" => hash = map.next_value()?,
                // `requireCanonical` makes no difference: any known block is served.
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (number, hash) {
            (Some(NumberParam(tag)), None) => Ok(BlockParam(tag)),
            (None, Some(Hex(hash))) => Ok(BlockParam(BlockTag::Hash(hash))),
            (Some(_), Some(_)) => Err(A::Error::custom(
                "cannot specify both BlockHash and BlockNumber, choose one or the other",
            )),
            (None, None) => Err(A::Error::custom("must specify either BlockHash or BlockNumber")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_strictly_and_written_without_leading_zeros() {
        for (text, number) in [("0x0", 0), ("0x1", 1), ("0xfF", 255), ("0X10", 16)] {
            assert_eq!(parse_quantity(text), Ok(U256::from(number)));
        }
        for text in ["", "0", "1", "0x", "0x00", "0x01", "0x-1", "0x+1", "0x_", "0xg", "x", "0x 1"]
        {
            assert!(parse_quantity(text).is_err(), "{text}");
        }
        let max = format!("0x{}", "f".repeat(64));
        assert_eq!(parse_quantity(&max), Ok(U256::MAX));
        assert!(parse_quantity(&format!("{max}f")).is_err());
        assert!(serde_json::from_str::<Quantity<u64>>("\"0xffffffffffffffff\"").is_ok());
        for text in ["\"0x10000000000000000\"", "1", "null", "\"1\"", "{}"] {
            assert!(serde_json::from_str::<Quantity<u64>>(text).is_err(), "{text}");
        }
        let zero = (Quantity(0u64), Quantity(0u128), Quantity(U256::ZERO), Quantity(255u64));
        assert_eq!(serde_json::to_string(&zero).unwrap(), r#"["0x0","0x0","0x0","0xff"]"#);
    }

    #[test]
    fn data_has_a_prefix_and_whole_bytes() {
        let hash = |text: &str| serde_json::from_str::<Hex<B256>>(&format!("\"{text}\""));
        let digits = "12".repeat(32);
        assert_eq!(hash(&format!("0x{digits}")).unwrap().0, B256::repeat_byte(0x12));
        for text in ["", "0x", "0x12", &digits, &format!("0x{digits}1"), &format!("0xz{digits}")] {
            assert!(hash(text).is_err(), "{text}");
        }
        let bytes = |text| serde_json::from_str::<Hex<alloy_primitives::Bytes>>(text);
        assert_eq!(bytes("\"0x\"").unwrap().0.len(), 0);
        for text in ["\"\"", "\"12\"", "\"0x1\"", "\"0xzz\"", "1", "null"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn block_counts_are_hex_or_decimal() {
        let count = |text| serde_json::from_str::<BlockCount>(text).ok().map(|count| count.0);
        for (text, number) in [("\"0xa\"", 10), ("\"10\"", 10), ("10", 10), ("0", 0)] {
            assert_eq!(count(text), Some(number), "{text}");
        }
        for text in ["\"\"", "\"0x\"", "-1", "1.5", "\"a\"", "null", "\"0x10000000000000000\""] {
            assert_eq!(count(text), None, "{text}");
        }
    }

    #[test]
    fn storage_keys_may_have_any_length_up_to_32_bytes() {
        for text in ["0x1", "1", "0x01", "0X1", &format!("0x{:064x}", 1)] {
            assert_eq!(parse_storage_key(text), Ok(U256::from(1)), "{text}");
        }
        assert_eq!(parse_storage_key("0x"), Ok(U256::ZERO));
        assert_eq!(
            parse_storage_key("0xasdf"),
            Err("invalid hex in storage key: \"0xasdf\"".into())
        );
        assert!(parse_storage_key(&format!("0x{}", "0".repeat(65))).is_err());
        let error = parse_storage_key(&"\u{7f}".repeat(1 << 16)).unwrap_err();
        assert!(error.starts_with("storage key too long") && error.len() < 1024, "{error}");
    }

    #[test]
    fn blocks_are_named_by_tag_number_hash_or_object() {
        let tag = |text: &str| serde_json::from_str::<BlockParam>(text).map(|param| param.0);
        assert!(matches!(tag("\"latest\""), Ok(BlockTag::Latest)));
        assert!(matches!(tag("\"pending\""), Ok(BlockTag::Pending)));
        assert!(matches!(tag("\"0x10\""), Ok(BlockTag::Number(16))));
        assert!(matches!(tag(r#"{"blockNumber":"0x1"}"#), Ok(BlockTag::Number(1))));
        let hash = B256::repeat_byte(7);
        for text in [
            format!("\"{hash}\""),
            format!(r#"{{"blockHash":"{hash}","requireCanonical":true,"x":[1]}}"#),
        ] {
            assert!(matches!(tag(&text), Ok(BlockTag::Hash(found)) if found == hash), "{text}");
        }
        for text in [
            "1",
            "null",
            "\"\"",
            "\"newest\"",
            "\"0x01\"",
            "\"-1\"",
            "[]",
            "{}",
            "\"0xffffffffffffffff\"",
            r#"{"blockNumber":"0x1","blockHash":"0x00"}"#,
        ] {
            assert!(tag(text).is_err(), "{text}");
        }
        let long = format!("\"0x{}\"", "z".repeat(64));
        assert!(tag(&long).is_err());
        assert!(serde_json::from_str::<NumberParam>(&format!("\"{hash}\"")).is_err());
    }
}
