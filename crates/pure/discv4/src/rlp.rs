//! The few shapes of RLP that packets share. Lists are read field by field, and what follows the
//! last known field is left alone (EIP-8).

use alloy_rlp::{BufMut, Decodable, Encodable, Error, Header, Result};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The next field of a list.
pub fn field<T: Decodable>(list: &mut &[u8]) -> Result<T> {
    if list.is_empty() {
        return Err(Error::InputTooShort);
    }
    T::decode(list)
}

/// The next field where a sender may have left it out; `None` too when it is something else, as
/// whatever stands there may come from a version that we do not know.
pub fn optional_u64(list: &[u8]) -> Option<u64> {
    let mut list = list;
    if list.is_empty() { None } else { u64::decode(&mut list).ok() }
}

/// An IP address, `None` when it is empty.
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
