//! The best contacts in a file, so that a restart does not begin with the bootnodes.
//!
//! ```text
//! magic "tndmpeer" · version u16 · count u32 · contact… · keccak256 of all before
//! contact: id 64 · ip 16 (IPv4-mapped) · udp u16 · tcp u16 · score u8 · flags u8
//!          [flag 1: sequence number u64] [flag 2: record's own sequence number u64, length u16, RLP]
//! ```
//!
//! Integers are big-endian. The file is replaced as a whole, so it is either the old or the new
//! one. Any other content is refused.

use crate::table::Ranked;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{IpAddr, Ipv6Addr},
    path::Path,
};
use tandem_primitives::{B512, Bytes, keccak256};
use tandem_proto::{
    event::{Contact, ContactEvent},
    limits::ENR_BYTES_MAX,
};

/// Name of the file in the data directory.
pub(crate) const FILE: &str = "peers.bin";

/// Largest number of contacts in one snapshot.
pub(crate) const CONTACTS_MAX: usize = 1 << 16;

const MAGIC: &[u8; 8] = b"tndmpeer";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 8 + 2 + 4;
const CHECKSUM_BYTES: usize = 32;
const CONTACT_BYTES_MIN: usize = 64 + 16 + 2 + 2 + 1 + 1;
const CONTACT_BYTES_MAX: usize = CONTACT_BYTES_MIN + 8 + 8 + 2 + ENR_BYTES_MAX;
const FILE_BYTES_MAX: usize = HEADER_BYTES + CONTACTS_MAX * CONTACT_BYTES_MAX + CHECKSUM_BYTES;

const HAS_ENR_SEQ: u8 = 1;
const HAS_RECORD: u8 = 2;

/// Reason why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it is not a snapshot of peers")]
    Magic,
    #[error("it has format {0}, expected {VERSION}")]
    Version(u16),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("contact {0} is malformed")]
    Contact(u32),
    #[error("{0} bytes are left over")]
    TrailingBytes(usize),
}

/// Reads the snapshot, best contact first; returns nothing if there is none.
pub(crate) fn load(path: &Path) -> Result<Vec<Ranked>, Error> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(Error::TooLarge);
    }
    decode(&bytes)
}

/// Replaces the snapshot.
pub(crate) fn save(path: &Path, contacts: &[Ranked]) -> io::Result<()> {
    let next = path.with_extension("bin.next");
    let mut file = File::create(&next)?;
    file.write_all(&encode(contacts))?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    // The rename becomes durable with the directory.
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn encode(contacts: &[Ranked]) -> Vec<u8> {
    let contacts = &contacts[..contacts.len().min(CONTACTS_MAX)];
    let mut bytes = Vec::with_capacity(HEADER_BYTES + contacts.len() * 256 + CHECKSUM_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&(contacts.len() as u32).to_be_bytes());
    for ranked in contacts {
        encode_contact(ranked, &mut bytes);
    }
    let checksum = keccak256(&bytes);
    bytes.extend_from_slice(checksum.as_slice());
    bytes
}

fn encode_contact(ranked: &Ranked, bytes: &mut Vec<u8>) {
    let contact = &ranked.contact;
    let ip = match contact.ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let record = contact.enr.as_ref().filter(|rlp| rlp.len() <= ENR_BYTES_MAX);
    let has_seq = if contact.enr_seq.is_some() { HAS_ENR_SEQ } else { 0 };
    let has_record = if record.is_some() { HAS_RECORD } else { 0 };
    bytes.extend_from_slice(contact.id.as_slice());
    bytes.extend_from_slice(&ip.octets());
    bytes.extend_from_slice(&contact.udp_port.to_be_bytes());
    bytes.extend_from_slice(&contact.tcp_port.to_be_bytes());
    bytes.extend_from_slice(&[ranked.score, has_seq | has_record]);
    if let Some(seq) = contact.enr_seq {
        bytes.extend_from_slice(&seq.to_be_bytes());
    }
    if let Some(rlp) = record {
        bytes.extend_from_slice(&ranked.record_seq.to_be_bytes());
        bytes.extend_from_slice(&(rlp.len() as u16).to_be_bytes());
        bytes.extend_from_slice(rlp);
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Ranked>, Error> {
    let mut reader = Reader(bytes);
    if reader.take() != Some(*MAGIC) {
        return Err(Error::Magic);
    }
    let version = reader.take().map(u16::from_be_bytes).ok_or(Error::Magic)?;
    if version != VERSION {
        return Err(Error::Version(version));
    }
    let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(Error::Checksum);
    };
    if keccak256(content) != *checksum {
        return Err(Error::Checksum);
    }
    let mut reader = Reader(content.get(MAGIC.len() + 2..).unwrap_or_default());
    let count = reader.take().map(u32::from_be_bytes).ok_or(Error::Checksum)?;
    // The capacity is limited to what the existing bytes can fill.
    let room = (count as usize).min(content.len() / CONTACT_BYTES_MIN);
    let mut contacts = Vec::with_capacity(room);
    for index in 0..count {
        contacts.push(decode_contact(&mut reader).ok_or(Error::Contact(index))?);
    }
    match reader.0.len() {
        0 => Ok(contacts),
        left => Err(Error::TrailingBytes(left)),
    }
}

fn decode_contact(reader: &mut Reader<'_>) -> Option<Ranked> {
    let id = B512::from(reader.take::<64>()?);
    let ip = Ipv6Addr::from(reader.take::<16>()?).to_canonical();
    let udp_port = u16::from_be_bytes(reader.take()?);
    let tcp_port = u16::from_be_bytes(reader.take()?);
    let [score, flags] = reader.take()?;
    if flags > HAS_ENR_SEQ | HAS_RECORD {
        return None;
    }
    let mut enr_seq = None;
    if flags & HAS_ENR_SEQ != 0 {
        enr_seq = Some(u64::from_be_bytes(reader.take()?));
    }
    let (mut record_seq, mut enr) = (0, None);
    if flags & HAS_RECORD != 0 {
        record_seq = u64::from_be_bytes(reader.take()?);
        let length = u16::from_be_bytes(reader.take()?);
        let rlp = reader.slice(length.into())?;
        enr = Some(Bytes::copy_from_slice(rlp)).filter(|rlp| rlp.len() <= ENR_BYTES_MAX);
        enr.as_ref()?;
    }
    let event = ContactEvent::Seen;
    let contact = Contact { id, ip, udp_port, tcp_port, enr_seq, enr, event };
    Some(Ranked { contact, record_seq, score })
}

/// Bytes still to be read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn slice(&mut self, length: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, option, prelude::*};

    fn ranked() -> impl Strategy<Value = Ranked> {
        let ip = prop_oneof![
                any::<[u8; 4]>().prop_map(IpAddr::from),
                // IPv4-mapped addresses are excluded: here they are IPv4 addresses.
                any::<u64>()
                    .prop_map(
                        |host| Ipv6Addr::from_bits((0x2001_0db8 << 96) | u128::from(host)).into()
                    ),
            ];
        let record = option::of((any::<u64>(), vec(any::<u8>(), 1..=ENR_BYTES_MAX)));
        let standing = (any::<u8>(), option::of(any::<u64>()), record);
        (vec(any::<u8>(), 64), ip, any::<[u16; 2]>(), standing).prop_map(
            |(id, ip, [udp_port, tcp_port], (score, enr_seq, record))| {
                let (record_seq, enr) = record.unzip();
                let enr = enr.map(Bytes::from);
                let (id, event) = (B512::from_slice(&id), ContactEvent::Seen);
                let contact = Contact { id, ip, udp_port, tcp_port, enr_seq, enr, event };
                Ranked { contact, record_seq: record_seq.unwrap_or(0), score }
            },
        )
    }

    proptest! {
        #[test]
        fn a_snapshot_survives_the_disk(contacts in vec(ranked(), 0..20)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(FILE);
            save(&path, &contacts).unwrap();
            prop_assert_eq!(load(&path).unwrap(), contacts);
        }

        #[test]
        fn a_damaged_snapshot_is_refused(
            contacts in vec(ranked(), 0..5), place: prop::sample::Index, bit in 0..8u8,
        ) {
            let mut bytes = encode(&contacts);
            prop_assert!(decode(&bytes[..place.index(bytes.len())]).is_err());
            prop_assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_err());
        }

        /// Checks that invalid content with a right checksum causes an error, never a panic.
        #[test]
        fn nonsense_with_a_right_checksum_is_refused_or_read(
            mut bytes in vec(any::<u8>(), 0..600), count: u32,
        ) {
            let header = [&MAGIC[..], &VERSION.to_be_bytes(), &count.to_be_bytes()].concat();
            bytes.splice(..0, header);
            let checksum = keccak256(&bytes);
            bytes.extend_from_slice(checksum.as_slice());
            if let Ok(contacts) = decode(&bytes) {
                prop_assert_eq!(contacts.len(), count as usize);
            }
        }
    }

    #[test]
    fn another_version_is_named_and_no_file_is_no_error() {
        let mut bytes = encode(&[]);
        bytes[9] = 2;
        assert!(matches!(decode(&bytes), Err(Error::Version(2))));
        assert!(matches!(decode(b"something else"), Err(Error::Magic)));
        assert!(load(Path::new("/does/not/exist")).unwrap().is_empty());
    }
}
