//! Software that a node runs, as its record may state it: EIP-7636.

use crate::{Enr, EnrBuilder};
use alloy_rlp::{Encodable, Header};
use std::fmt;

/// Entry `client` of a record. The entry is optional, and its content is not verified.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Name of the software.
    pub name: String,
    /// Version of the software.
    pub version: String,
    /// Build of the software, if the entry contains it.
    pub build: Option<String>,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.version)?;
        self.build.as_ref().map_or(Ok(()), |build| write!(f, "/{build}"))
    }
}

impl Enr {
    /// Returns the software that the node claims to run. Returns `None` without the entry, or when
    /// the entry is not a list of two or three texts of printable ASCII.
    pub fn client(&self) -> Option<Client> {
        let mut list = Header::decode_bytes(&mut self.get("client")?, true).ok()?;
        let mut text = || {
            let bytes = Header::decode_bytes(&mut list, false).ok()?;
            // Printable only, because strangers write text that is shown on a terminal.
            let printable = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
            String::from_utf8(bytes.to_vec()).ok().filter(|_| printable)
        };
        let (name, version) = (text()?, text()?);
        Some(Client { name, version, build: text() })
    }
}

impl EnrBuilder {
    /// Sets the entry `client`.
    #[must_use]
    pub fn client(self, client: &Client) -> Self {
        let Client { name, version, build } = client;
        let texts = [Some(name), Some(version), build.as_ref()];
        self.set("client", &Texts(texts.into_iter().flatten().cloned().collect()))
    }
}

/// List of texts.
struct Texts(Vec<String>);

impl Encodable for Texts {
    fn encode(&self, out: &mut dyn alloy_rlp::BufMut) {
        let payload_length = self.0.iter().map(|text| text.as_str().length()).sum();
        Header { list: true, payload_length }.encode(out);
        self.0.iter().for_each(|text| text.as_str().encode(out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    fn record(entry: Option<&dyn Encodable>) -> Enr {
        let builder = EnrBuilder::new(1);
        let builder = match entry {
            Some(entry) => builder.set("client", entry),
            None => builder,
        };
        builder.sign(&NodeKey::from_bytes([7; 32]).unwrap()).unwrap()
    }

    #[test]
    fn a_client_survives_with_and_without_a_build() {
        for build in [None, Some("unstable-6b5c04e9".to_owned())] {
            let client = Client { name: "Tandem".into(), version: "0.1.0".into(), build };
            let key = NodeKey::from_bytes([7; 32]).unwrap();
            let record = EnrBuilder::new(1).client(&client).sign(&key).unwrap();
            assert_eq!(Enr::decode(record.rlp()).unwrap().client(), Some(client.clone()));
            let text = client.to_string();
            assert!(text.starts_with("Tandem/0.1.0"), "{text}");
        }
    }

    /// Reads the example record of the EIP.
    #[test]
    fn the_example_of_the_eip_is_read() {
        let text = "enr:-MO4QBn4OF-y-dqULg4WOIlc8gQAt-arldNFe0_YQ4HNX28jDtg41xjDyKfCXGfZaPN97I-\
                    MCfogeK91TyqmWTpb0_AChmNsaWVudNqKTmV0aGVybWluZIYxLjkuNTOHN2ZjYjU2N4JpZIJ2NIJpcI\
                    R_AAABg2lwNpAAAAAAAAAAAAAAAAAAAAABiXNlY3AyNTZrMaECn-TTdCwfZP4XgJyq8Lxoj-SgEoIFgD\
                    LVBEUqQk4HnAqDdWRwgiMshHVkcDaCIyw";
        let client = text.parse::<Enr>().unwrap().client().unwrap();
        let expect = Client {
            name: "Nethermind".into(),
            version: "1.9.53".into(),
            build: Some("7fcb567".into()),
        };
        assert_eq!(client, expect);
    }

    #[test]
    fn what_is_no_client_is_none() {
        assert_eq!(record(None).client(), None);
        assert_eq!(record(Some(&"Tandem/0.1.0")).client(), None);
        assert_eq!(record(Some(&Texts(vec!["Tandem".into()]))).client(), None);
        assert_eq!(record(Some(&vec![[0xff_u8; 4], [0xff; 4]])).client(), None);
        assert_eq!(record(Some(&vec![*b"\x1b[2J", *b"1.00"])).client(), None);
    }
}
