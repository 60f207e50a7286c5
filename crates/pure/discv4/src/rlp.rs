//! RLP shapes that packets share. Lists are read field by field, and anything after the last known
//! field is ignored (EIP-8).

use alloy_rlp::{BufMut, Decodable, Encodable, Error, Header, Result};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads the next field of a list.
pub fn field<T: Decodable>(list: &mut &[u8]) -> Result<T> {
    if list.is_empty() {
        return Err(Error::InputTooShort);
    }
    T::decode(list)
}

/// Reads the next field, which a sender may omit. Returns `None` also for any other item, because
/// it may come from an unknown version.
pub fn optional_u64(list: &[u8]) -> Option<u64> {
    let mut list = list;
    if list.is_empty() { None } else { u64::decode(&mut list).ok() }
}

/// Reads an IP address. Returns `None` when it is empty.
pub fn ip(list: &mut &[u8]) -> Result<Option<IpAddr>> {
    if list.is_empty() {
        return Err(Error::InputTooShort);
    }
    let bytes = Header::decode_bytes(list, false)?;
    match bytes.len() {
        0 => Ok(None),
        4 => Ok(<[u8; 4]>::try_from(bytes).ok().map(|ip| Ipv4Addr::from(ip).into())),
        16 => Ok(<[u8; 16]>::try_from(bytes).ok().map(|ip| Ipv6Addr::from(ip).to_canonical())),
        _ => Err(Error::UnexpectedLength),
    }
}

pub fn ip_length(ip: &IpAddr) -> usize {
    match ip {
        IpAddr::V4(ip) => ip.octets().length(),
        IpAddr::V6(ip) => ip.octets().length(),
    }
}

pub fn encode_ip(ip: &IpAddr, out: &mut dyn BufMut) {
    match ip {
        IpAddr::V4(ip) => ip.octets().encode(out),
        IpAddr::V6(ip) => ip.octets().encode(out),
    }
}
