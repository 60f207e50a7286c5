//! Node lists over DNS, EIP-1459: a tree of TXT records signed by one key.
//!
//! ```text
//!   all.example.org          enrtree-root:v1 e=AAAA… l=BBBB… seq=7 sig=…
//!   AAAA….all.example.org    enrtree-branch:CCCC…,DDDD…
//!   CCCC….all.example.org    enr:…
//!   BBBB….all.example.org    enrtree://<key>@other.example.org
//! ```
//!
//! A name is the start of the hash of its entry, so the root's signature covers the whole tree.

use crate::{Enr, EnrError};
use alloy_primitives::keccak256;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use data_encoding::BASE32_NOPAD;
use secp256k1::{Message, PublicKey, SECP256K1, ecdsa::Signature};
use std::{fmt, str::FromStr};

/// Maximum size in bytes of the text of an entry.
pub const LIST_TEXT_BYTES_MAX: usize = 2048;
/// Maximum size in bytes of a domain name (RFC 1035).
const DOMAIN_BYTES_MAX: usize = 253;
/// Minimum and maximum number of hash bytes in a name.
const NAME_BYTES: std::ops::RangeInclusive<usize> = 12..=32;

/// Reason why a text is not an entry of a node list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListError {
    /// The text is of an unknown kind or too long.
    #[error("not an entry of a node list")]
    Unknown,
    /// The text is not `enrtree://<key>@<domain>`.
    #[error("not the URL of a node list")]
    Url,
    /// The key in the URL is not a point of the curve.
    #[error("URL of a node list with a wrong key")]
    Key,
    /// The root lacks a field or has an invalid one.
    #[error("root of a node list with a wrong field")]
    Root,
    /// The list's key did not sign the root.
    #[error("root of a node list with a wrong signature")]
    Signature,
    /// A name is not the start of a hash in base32.
    #[error("node list with a wrong name")]
    Name,
    /// The hash of the text does not begin with its name.
    #[error("entry of a node list that is not the one asked for")]
    Hash,
    /// The node record is invalid.
    #[error("node list: {0}")]
    Record(#[from] EnrError),
}

/// Location of a list and the key that signs it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListUrl {
    key: PublicKey,
    domain: String,
}

impl ListUrl {
    /// Returns the domain whose TXT record is the root.
    pub fn domain(&self) -> &str {
        &self.domain
    }
}

impl FromStr for ListUrl {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        let rest = text.trim().strip_prefix("enrtree://").ok_or(ListError::Url)?;
        let (key, domain) = rest.split_once('@').ok_or(ListError::Url)?;
        let label = |label: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(plain)
        };
        if domain.len() > DOMAIN_BYTES_MAX || !domain.split('.').all(label) {
            return Err(ListError::Url);
        }
        let key = BASE32_NOPAD.decode(key.as_bytes()).map_err(|_| ListError::Key)?;
        let key = key.try_into().map_err(|_| ListError::Key)?;
        let key = PublicKey::from_byte_array_compressed(key).map_err(|_| ListError::Key)?;
        Ok(Self { key, domain: domain.to_owned() })
    }
}

impl fmt::Display for ListUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enrtree://{}@{}", BASE32_NOPAD.encode(&self.key.serialize()), self.domain)
    }
}

/// Start of an entry's hash, which is its subdomain.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EntryName(Box<str>);

impl EntryName {
    fn parse(text: &str) -> Result<Self, ListError> {
        let bytes = BASE32_NOPAD.decode_len(text.len()).map_err(|_| ListError::Name)?;
        if !NAME_BYTES.contains(&bytes) || BASE32_NOPAD.decode(text.as_bytes()).is_err() {
            return Err(ListError::Name);
        }
        Ok(Self(text.into()))
    }

    /// Returns the domain of the entry in a list.
    pub fn domain(&self, list: &ListUrl) -> String {
        format!("{}.{}", self.0, list.domain)
    }

    fn is_of(&self, text: &str) -> bool {
        let name = BASE32_NOPAD.decode(self.0.as_bytes());
        name.is_ok_and(|name| keccak256(text).starts_with(&name))
    }
}

/// Root of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListRoot {
    /// Top of the tree of node records.
    pub nodes: EntryName,
    /// Top of the tree of links to other lists.
    pub links: EntryName,
    /// Sequence number: the greater, the newer.
    pub seq: u64,
}

impl ListRoot {
    /// Returns whether a TXT record looks like a root. Other records may exist at the same domain.
    pub fn is_root(text: &str) -> bool {
        text.starts_with("enrtree-root:v1 ")
    }

    /// Reads a root and checks that the list's key signed it.
    ///
    /// # Errors
    /// [`ListError`].
    pub fn parse(text: &str, list: &ListUrl) -> Result<Self, ListError> {
        if text.len() > LIST_TEXT_BYTES_MAX || !Self::is_root(text) {
            return Err(ListError::Unknown);
        }
        let (content, signature) = text.rsplit_once(" sig=").ok_or(ListError::Root)?;
        let field = |name: &str| {
            let mut fields = content.split(' ').skip(1);
            fields.find_map(|field| field.strip_prefix(name)).ok_or(ListError::Root)
        };
        let seq = field("seq=")?.parse().map_err(|_| ListError::Root)?;
        let (nodes, links) = (EntryName::parse(field("e=")?)?, EntryName::parse(field("l=")?)?);
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| ListError::Signature)?;
        // 65 bytes: the last byte would identify the key, which is known.
        let compact = signature.first_chunk::<64>().filter(|_| signature.len() == 65);
        let signature = Signature::from_compact(compact.ok_or(ListError::Signature)?)
            .map_err(|_| ListError::Signature)?;
        SECP256K1
            .verify_ecdsa(Message::from_digest(keccak256(content).0), &signature, &list.key)
            .map_err(|_| ListError::Signature)?;
        Ok(Self { nodes, links, seq })
    }
}

/// Entry below a root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListEntry {
    /// Names of further entries.
    Branch(Vec<EntryName>),
    /// Record of a node.
    Node(Enr),
    /// Another list, with the key that this list vouches for.
    Link(ListUrl),
}

impl ListEntry {
    /// Reads the entry of this name.
    ///
    /// # Errors
    /// [`ListError`]; [`ListError::Hash`] when the text belongs to another name.
    pub fn parse(text: &str, name: &EntryName) -> Result<Self, ListError> {
        if text.len() > LIST_TEXT_BYTES_MAX {
            return Err(ListError::Unknown);
        }
        if !name.is_of(text) {
            return Err(ListError::Hash);
        }
        if let Some(names) = text.strip_prefix("enrtree-branch:") {
            let names = names.split(',').filter(|name| !name.is_empty());
            return names.map(EntryName::parse).collect::<Result<_, _>>().map(Self::Branch);
        }
        if text.starts_with("enrtree://") {
            return text.parse().map(Self::Link);
        }
        if text.starts_with("enr:") {
            return Ok(Self::Node(text.parse()?));
        }
        Err(ListError::Unknown)
    }
}
