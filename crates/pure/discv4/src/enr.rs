//! Node records, EIP-778, with the identity scheme "v4".

use crate::{EnrError, ForkId, NodeKey, PublicKey, identity, node_id};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::{BufMut, Decodable, Encodable, Error, Header};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use secp256k1::{Message, SECP256K1, ecdsa::Signature};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Size of the largest record in bytes.
pub const ENR_BYTES_MAX: usize = 300;

/// Record of a node: keys and values signed by the node itself. Every value of this type is a valid
/// record.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Enr {
    /// Complete RLP, as sent.
    rlp: Bytes,
    seq: u64,
    key: PublicKey,
    /// Offset of the first key in `rlp`.
    pairs: usize,
}

impl Enr {
    /// Reads a record and checks its signature. No bytes may follow it.
    ///
    /// # Errors
    /// See [`EnrError`].
    pub fn decode(rlp: &[u8]) -> Result<Self, EnrError> {
        let mut rest = rlp;
        let enr = Self::decode_first(&mut rest)?;
        if rest.is_empty() { Ok(enr) } else { Err(EnrError::Rlp(Error::UnexpectedLength)) }
    }

    /// Reads the record at the start of `buf` and advances past it.
    pub(crate) fn decode_first(buf: &mut &[u8]) -> Result<Self, EnrError> {
        let start = *buf;
        let mut list = Header::decode_bytes(buf, true).map_err(EnrError::Rlp)?;
        let rlp = &start[..start.len() - buf.len()];
        if rlp.len() > ENR_BYTES_MAX {
            return Err(EnrError::TooLarge);
        }
        let signature: [u8; 64] = Decodable::decode(&mut list).map_err(EnrError::Rlp)?;
        let content = list;
        let seq = u64::decode(&mut list).map_err(EnrError::Rlp)?;
        let pairs = rlp.len() - list.len();
        let mut last: Option<&[u8]> = None;
        while !list.is_empty() {
            let name = Header::decode_bytes(&mut list, false).map_err(EnrError::Rlp)?;
            if last.is_some_and(|last| last >= name) {
                return Err(EnrError::Unsorted);
            }
            last = Some(name);
            item(&mut list).map_err(EnrError::Rlp)?;
        }
        let key = verify(&rlp[pairs..], content, &signature)?;
        Ok(Self { rlp: Bytes::copy_from_slice(rlp), seq, key, pairs })
    }

    /// Returns the RLP of the record.
    pub fn rlp(&self) -> &Bytes {
        &self.rlp
    }

    /// Returns the sequence number: the greater, the newer.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the public key of the node.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Returns the node's address in the Kademlia space.
    pub fn id(&self) -> B256 {
        node_id(&self.key)
    }

    /// Returns the RLP of the value of a key.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        find(&self.rlp[self.pairs..], name.as_bytes())
    }

    /// Returns the keys and the RLP of their values, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        pairs(&self.rlp[self.pairs..])
    }

    fn value<T: Decodable>(&self, name: &str) -> Option<T> {
        T::decode(&mut self.get(name)?).ok()
    }

    /// Returns the IPv4 address.
    pub fn ip4(&self) -> Option<Ipv4Addr> {
        self.value::<[u8; 4]>("ip").map(Into::into)
    }

    /// Returns the IPv6 address.
    pub fn ip6(&self) -> Option<Ipv6Addr> {
        self.value::<[u8; 16]>("ip6").map(Into::into)
    }

    /// Returns the discovery port.
    pub fn udp4(&self) -> Option<u16> {
        self.value("udp")
    }

    /// Returns the RLPx port.
    pub fn tcp4(&self) -> Option<u16> {
        self.value("tcp")
    }

    /// Returns the discovery port for IPv6, which defaults to the one for IPv4.
    pub fn udp6(&self) -> Option<u16> {
        self.value("udp6").or_else(|| self.udp4())
    }

    /// Returns the RLPx port for IPv6, which defaults to the one for IPv4.
    pub fn tcp6(&self) -> Option<u16> {
        self.value("tcp6").or_else(|| self.tcp4())
    }

    /// Returns chain and fork of the node: entry `eth` (EIP-2124, EIP-778).
    pub fn eth(&self) -> Option<ForkId> {
        let mut list = Header::decode_bytes(&mut self.get("eth")?, true).ok()?;
        ForkId::decode(&mut list).ok()
    }
}

/// Takes one item of any kind, including its prefix.
fn item<'a>(buf: &mut &'a [u8]) -> alloy_rlp::Result<&'a [u8]> {
    let start = *buf;
    let header = Header::decode(buf)?;
    *buf = &buf[header.payload_length..];
    Ok(&start[..start.len() - buf.len()])
}

fn pairs(mut list: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        if list.is_empty() {
            return None;
        }
        let name = Header::decode_bytes(&mut list, false).ok()?;
        Some((name, item(&mut list).ok()?))
    })
}

fn find<'a>(list: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    pairs(list).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the key in the record after checking that it signed the record.
fn verify(pairs: &[u8], content: &[u8], signature: &[u8; 64]) -> Result<PublicKey, EnrError> {
    if find(pairs, b"id") != Some(b"\x82v4") {
        return Err(EnrError::Scheme);
    }
    let key = find(pairs, b"secp256k1").and_then(|mut value| <[u8; 33]>::decode(&mut value).ok());
    let key = secp256k1::PublicKey::from_byte_array_compressed(key.ok_or(EnrError::Key)?)
        .map_err(|_| EnrError::Key)?;
    let signature = Signature::from_compact(signature).map_err(|_| EnrError::Signature)?;
    let hash = content_hash(content);
    SECP256K1
        .verify_ecdsa(Message::from_digest(hash.0), &signature, &key)
        .map_err(|_| EnrError::Signature)?;
    Ok(identity::uncompressed(&key))
}

/// Hashes the signed content: the list without the signature.
fn content_hash(content: &[u8]) -> B256 {
    let mut list = Vec::with_capacity(content.len() + 3);
    Header { list: true, payload_length: content.len() }.encode(&mut list);
    list.extend_from_slice(content);
    keccak256(list)
}

impl Encodable for Enr {
    fn length(&self) -> usize {
        self.rlp.len()
    }

    fn encode(&self, out: &mut dyn BufMut) {
        out.put_slice(&self.rlp);
    }
}

impl fmt::Display for Enr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enr:{}", URL_SAFE_NO_PAD.encode(&self.rlp))
    }
}

impl fmt::Debug for Enr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Enr {
    type Err = EnrError;

    fn from_str(text: &str) -> Result<Self, EnrError> {
        let text = text.strip_prefix("enr:").ok_or(EnrError::Text)?;
        // Four digits are three bytes, so an oversized text is rejected before decoding.
        if text.len() > ENR_BYTES_MAX.div_ceil(3) * 4 {
            return Err(EnrError::TooLarge);
        }
        Self::decode(&URL_SAFE_NO_PAD.decode(text).map_err(|_| EnrError::Text)?)
    }
}

/// Builder of signed records.
#[derive(Clone, Debug)]
pub struct EnrBuilder {
    seq: u64,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl EnrBuilder {
    /// Creates an empty record with this sequence number.
    pub fn new(seq: u64) -> Self {
        Self { seq, pairs: BTreeMap::new() }
    }

    /// Sets a key to any value.
    #[must_use]
    pub fn set(mut self, name: &str, value: &dyn Encodable) -> Self {
        let mut rlp = Vec::new();
        value.encode(&mut rlp);
        self.pairs.insert(name.as_bytes().to_vec(), rlp);
        self
    }

    /// Sets address and ports under the keys of the address family. Omits a port of 0.
    #[must_use]
    pub fn endpoint(self, ip: IpAddr, udp_port: u16, tcp_port: u16) -> Self {
        let (builder, udp, tcp) = match ip {
            IpAddr::V4(ip) => (self.set("ip", &ip.octets()), "udp", "tcp"),
            IpAddr::V6(ip) => (self.set("ip6", &ip.octets()), "udp6", "tcp6"),
        };
        builder.port(udp, udp_port).port(tcp, tcp_port)
    }

    fn port(self, name: &str, port: u16) -> Self {
        if port == 0 { self } else { self.set(name, &port) }
    }

    /// Sets the entry `eth`: a list, so that later versions can add to it.
    #[must_use]
    pub fn eth(self, fork_id: ForkId) -> Self {
        self.set("eth", &vec![fork_id])
    }

    /// Signs the record.
    ///
    /// # Errors
    /// [`EnrError::TooLarge`].
    pub fn sign(self, key: &NodeKey) -> Result<Enr, EnrError> {
        let Self { seq, pairs } = self.set("id", &"v4").set("secp256k1", &key.compressed());
        let mut content = Vec::with_capacity(ENR_BYTES_MAX);
        seq.encode(&mut content);
        let start = content.len();
        for (name, value) in &pairs {
            name[..].encode(&mut content);
            content.extend_from_slice(value);
        }
        let signature = key.sign(content_hash(&content));
        let payload_length = signature.length() + content.len();
        let mut rlp = Vec::with_capacity(ENR_BYTES_MAX);
        Header { list: true, payload_length }.encode(&mut rlp);
        signature.encode(&mut rlp);
        let pairs = rlp.len() + start;
        rlp.extend_from_slice(&content);
        if rlp.len() > ENR_BYTES_MAX {
            return Err(EnrError::TooLarge);
        }
        Ok(Enr { rlp: rlp.into(), seq, key: *key.public(), pairs })
    }
}
