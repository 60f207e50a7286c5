//! Values of records: decoded if the entry is known, otherwise as RLP.

use alloy_rlp::{BufMut, Decodable, Encodable, Header};
use serde_json::{Value, json};
use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};
use tandem_discv4::ForkId;

/// A value in a form that people read.
pub enum Shown {
    /// An address, or the text of a known entry.
    Text(String),
    /// A port.
    Number(u64),
    /// A public key, or bits.
    Bytes(Vec<u8>),
    /// A chain and fork.
    ForkId(ForkId),
    /// A list of texts.
    Texts(Vec<String>),
    /// Raw RLP of an unknown entry, or of a value that does not fit its name.
    Rlp(Vec<u8>),
}

/// Returns the value of an entry.
pub fn entry(name: &[u8], rlp: &[u8]) -> Shown {
    known(name, rlp).unwrap_or_else(|| Shown::Rlp(rlp.to_vec()))
}

fn known(name: &[u8], rlp: &[u8]) -> Option<Shown> {
    Some(match name {
        b"id" => Shown::Text(text(&mut { rlp })?),
        b"ip" => Shown::Text(Ipv4Addr::from(all::<[u8; 4]>(rlp)?).to_string()),
        b"ip6" => Shown::Text(Ipv6Addr::from(all::<[u8; 16]>(rlp)?).to_string()),
        b"udp" | b"tcp" | b"udp6" | b"tcp6" | b"quic" | b"quic6" => {
            Shown::Number(all::<u16>(rlp)?.into())
        }
        b"secp256k1" => Shown::Bytes(all::<[u8; 33]>(rlp)?.to_vec()),
        b"eth2" | b"attnets" | b"syncnets" => {
            Shown::Bytes(Header::decode_bytes(&mut { rlp }, false).ok()?.to_vec())
        }
        b"eth" => {
            let mut list = Header::decode_bytes(&mut { rlp }, true).ok()?;
            Shown::ForkId(ForkId::decode(&mut list).ok()?)
        }
        b"client" => {
            let mut list = Header::decode_bytes(&mut { rlp }, true).ok()?;
            let mut texts = Vec::new();
            while !list.is_empty() {
                texts.push(text(&mut list)?);
            }
            Shown::Texts(texts)
        }
        _ => return None,
    })
}

/// Decodes a value that takes all of the RLP.
fn all<T: Decodable>(mut rlp: &[u8]) -> Option<T> {
    T::decode(&mut rlp).ok().filter(|_| rlp.is_empty())
}

/// Decodes a text without characters that a terminal would interpret.
fn text(rlp: &mut &[u8]) -> Option<String> {
    let bytes = Header::decode_bytes(rlp, false).ok()?;
    let printable = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    String::from_utf8(bytes.to_vec()).ok().filter(|_| printable)
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "0x{}", const_hex::encode(bytes)),
            Self::ForkId(ForkId { hash, next: 0 }) => {
                write!(f, "fork 0x{}", const_hex::encode(hash))
            }
            Self::ForkId(ForkId { hash, next }) => {
                write!(f, "fork 0x{}, next at {next}", const_hex::encode(hash))
            }
            Self::Texts(texts) => f.write_str(&texts.join(", ")),
            Self::Rlp(rlp) => write!(f, "RLP 0x{}", const_hex::encode(rlp)),
        }
    }
}

impl Shown {
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(number) => json!(number),
            Self::Bytes(bytes) => json!(format!("0x{}", const_hex::encode(bytes))),
            Self::ForkId(id) => {
                json!({ "forkHash": format!("0x{}", const_hex::encode(id.hash)), "forkNext": id.next })
            }
            Self::Texts(texts) => json!(texts),
            Self::Rlp(rlp) => json!({ "rlp": format!("0x{}", const_hex::encode(rlp)) }),
        }
    }
}

/// An entry given on the command line.
#[derive(Clone, Debug)]
pub struct EncodedEntry {
    pub name: String,
    rlp: Vec<u8>,
}

impl FromStr for EncodedEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected NAME=0xRLP")?;
        if name == "id" || name == "secp256k1" {
            return Err(format!("{name} comes from the key"));
        }
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a name is printable ASCII".to_owned());
        }
        let hex = value.strip_prefix("0x").ok_or("the value is RLP in hex, from 0x on")?;
        let rlp =
            const_hex::decode(hex).map_err(|error| format!("the value is not hex: {error}"))?;
        let mut rest = &rlp[..];
        let header = Header::decode(&mut rest).map_err(|error| format!("no RLP: {error}"))?;
        if header.payload_length != rest.len() {
            return Err("the value is more than one item of RLP".to_owned());
        }
        Ok(Self { name: name.to_owned(), rlp })
    }
}

impl Encodable for EncodedEntry {
    fn encode(&self, out: &mut dyn BufMut) {
        out.put_slice(&self.rlp);
    }

    fn length(&self) -> usize {
        self.rlp.len()
    }
}
