//! Objects with exactly the members of their structure (execution-apis, `src/engine/cancun.md`,
//! `engine_newPayloadV3`, point 1).

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Structure of the Engine API, in the widest of its versions.
pub(super) trait Members {
    /// Names of its members.
    const NAMES: &'static [&'static str];
}

/// Value read from an object without unknown members. A member that is `null` counts as not
/// provided, whatever its name.
#[derive(Debug)]
pub(super) struct Strict<T>(pub T);

impl<'de, T: Members + Deserialize<'de>> Deserialize<'de> for Strict<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Members + Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(Known { map, names: T::NAMES }))
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

/// Access to the members with these names; any other member with a value is an error.
struct Known<A> {
    map: A,
    names: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Known<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.map.next_key::<Cow<'de, str>>()? {
            if self.names.contains(&name.as_ref()) {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if self.map.next_value::<Option<IgnoredAny>>()?.is_some() {
                return Err(A::Error::custom(format_args!("unknown field {name:?}")));
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pair {
        a: u8,
        b: Option<u8>,
    }

    impl Members for Pair {
        const NAMES: &'static [&'static str] = &["a", "b"];
    }

    fn read(text: &str) -> Result<Pair, String> {
        serde_json::from_str::<Strict<Pair>>(text)
            .map(|Strict(pair)| pair)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_member_without_value_is_not_provided() {
        for text in [r#"{"a":1}"#, r#"{"a":1,"b":null}"#, r#"{"c":null,"\u0061":1,"d\n":null}"#] {
            assert_eq!(read(text), Ok(Pair { a: 1, b: None }), "{text}");
        }
    }

    #[test]
    fn a_member_of_another_name_is_refused() {
        for value in ["0", "false", "\"\"", "[]", "{}", "[null]"] {
            let error = read(&format!(r#"{{"a":1,"c":{value}}}"#)).unwrap_err();
            assert!(error.starts_with("unknown field \"c\""), "{error}");
        }
        assert!(read(r#"{"a":1,"a":1}"#).unwrap_err().starts_with("duplicate field `a`"));
        assert!(read("[1,2]").unwrap_err().contains("expected an object"));
    }
}
