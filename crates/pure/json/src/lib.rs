//! JSON parsing with short errors. serde quotes an unexpected value in full, escaped, and every
//! layer above copies that text. A parameter of many megabytes would be answered with several times
//! as many bytes. Here the text is cut where it is made.
//!
//! The wrappers stand between serde_json, or another self-describing format, and the types that are
//! read. Every failure on either side passes through [`Short`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use serde::Deserialize;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Visitor,
};
use std::fmt::{self, Write};

/// Maximum size of the text in bytes.
pub const TEXT_BYTES_MAX: usize = 256;

/// Reason why a value cannot be read, as a short text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Short(String);

impl de::Error for Short {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(cut(text))
    }
}

/// Formats a value, cut after [`TEXT_BYTES_MAX`] bytes. The rest is never formatted.
pub fn cut(text: impl fmt::Display) -> String {
    struct Cutting(String);
    impl Write for Cutting {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = TEXT_BYTES_MAX - self.0.len();
            if text.len() <= room {
                self.0.push_str(text);
                return Ok(());
            }
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            Err(fmt::Error)
        }
    }
    let mut cutting = Cutting(String::new());
    if write!(cutting, "{text}").is_err() {
        cutting.0.push('…');
    }
    cutting.0
}

/// Reads a whole JSON text.
///
/// # Errors
/// [`Short`].
pub fn from_str<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Short> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = T::deserialize(Shortened(&mut json))?;
    json.end().map_err(Short::custom)?;
    Ok(value)
}

/// Wrapper around a deserializer, or another part of serde, whose errors are [`Short`].
#[derive(Debug)]
pub struct Shortened<T>(pub T);

macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(
            self, $($argument: $type,)* visitor: V,
        ) -> Result<V::Value, Short> {
            self.0.$method($($argument,)* Shortened(visitor)).map_err(Short::custom)
        }
    )*};
}

macro_rules! forward_any {
    ($($method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(
            self, $($argument: $type,)* visitor: V,
        ) -> Result<V::Value, Short> {
            self.deserialize_any(visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Shortened<D> {
    type Error = Short;

    // When asked for a kind, serde_json quotes a value of another kind before any visitor sees it.
    // When asked for any kind, it leaves the error to the visitor, whose errors are short.
    forward_any! {
        deserialize_bool(), deserialize_i8(), deserialize_i16(), deserialize_i32(),
        deserialize_i64(), deserialize_u8(), deserialize_u16(), deserialize_u32(),
        deserialize_u64(), deserialize_f32(), deserialize_f64(), deserialize_char(),
        deserialize_str(), deserialize_string(), deserialize_unit(), deserialize_seq(),
        deserialize_map(),
        deserialize_unit_struct(_name: &'static str),
        deserialize_tuple(_len: usize),
        deserialize_tuple_struct(_name: &'static str, _len: usize),
        deserialize_struct(_name: &'static str, _fields: &'static [&'static str]),
    }

    forward! {
        deserialize_any(), deserialize_i128(), deserialize_u128(), deserialize_bytes(),
        deserialize_byte_buf(), deserialize_option(), deserialize_identifier(),
        deserialize_ignored_any(),
        deserialize_newtype_struct(name: &'static str),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($type:ty)),* $(,)?) => {$(
        fn $method<E: de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method::<Short>(value).map_err(E::custom)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Shortened<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool), visit_i64(i64), visit_i128(i128), visit_u64(u64), visit_u128(u128),
        visit_f64(f64), visit_char(char), visit_str(&str), visit_borrowed_str(&'de str),
        visit_string(String), visit_bytes(&[u8]), visit_borrowed_bytes(&'de [u8]),
        visit_byte_buf(Vec<u8>),
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none::<Short>().map_err(E::custom)
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit::<Short>().map_err(E::custom)
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Shortened(value)).map_err(D::Error::custom)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Shortened(value)).map_err(D::Error::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Shortened(seq)).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Shortened(map)).map_err(A::Error::custom)
    }

    // Variants with values are read without the wrapper: no type here has any.
    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(data)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Shortened<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Shortened(deserializer)).map_err(D::Error::custom)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Shortened<A> {
    type Error = Short;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Short> {
        self.0.next_element_seed(Shortened(seed)).map_err(Short::custom)
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Shortened<A> {
    type Error = Short;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Short> {
        self.0.next_key_seed(Shortened(seed)).map_err(Short::custom)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Short> {
        self.0.next_value_seed(Shortened(seed)).map_err(Short::custom)
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;

    type Everything = BTreeMap<String, Vec<Option<(u64, bool, String, f64)>>>;

    #[test]
    fn values_are_read_as_without_it() {
        let text = r#"{"a":[null,[1,true,"x\n",1.5]],"b":[]}"#;
        assert_eq!(
            from_str::<Everything>(text).unwrap(),
            serde_json::from_str::<Everything>(text).unwrap()
        );
        let raw = from_str::<Vec<Box<RawValue>>>("[ {\"a\": 1} ,2]").unwrap();
        assert_eq!((raw[0].get(), raw[1].get()), ("{\"a\": 1}", "2"));
        for wrong in ["", "{", "[] x", "{\"a\":[[1,true,\"x\"]]}"] {
            assert!(from_str::<Everything>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_does_not_quote_a_long_value_in_full() {
        let error = from_str::<u64>("\"x\"").unwrap_err().to_string();
        assert!(error.starts_with("invalid type: string \"x\", expected u64"), "{error}");
        // Each of these characters takes six bytes when escaped.
        let long = format!("[[\"{}\"]]", "\u{7f}".repeat(1 << 20));
        let error = from_str::<Vec<Vec<u64>>>(&long).unwrap_err().to_string();
        assert!(error.starts_with("invalid type: string"), "{error}");
        assert!(error.len() < 2 * TEXT_BYTES_MAX, "{}", error.len());
        for kind in
            [from_str::<u64>(&long[1..long.len() - 1]).err(), from_str::<Everything>(&long).err()]
        {
            assert!(kind.is_some_and(|error| error.to_string().len() < 2 * TEXT_BYTES_MAX));
        }
        assert_eq!(cut("ü".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX + '…'.len_utf8());
    }
}
