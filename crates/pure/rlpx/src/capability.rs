//! Capabilities, and the message ids that two peers agree on.

use alloy_rlp::{RlpDecodable, RlpEncodable};

/// Bytes of a capability's name, at most (RLPx specification, "Capability Messaging").
pub const CAPABILITY_NAME_BYTES_MAX: usize = 8;

/// Capabilities of a Hello that are looked at; clients have about ten.
pub const CAPABILITIES_MAX: usize = 64;

/// First message id after those of the capability "p2p".
pub const FIRST_SHARED_ID: u64 = 0x10;

/// Protocol that a peer speaks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, RlpEncodable, RlpDecodable)]
pub struct Capability {
    /// Name, such as "eth".
    pub name: String,
    /// Version of the protocol.
    pub version: u64,
}

/// Protocol that this node offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Name, such as "eth".
    pub name: &'static str,
    /// Version of the protocol.
    pub version: u64,
    /// Number of message ids that this version takes.
    pub messages: u64,
}

impl Offer {
    /// Returns the offer as it is announced.
    pub fn capability(&self) -> Capability {
        Capability { name: self.name.to_owned(), version: self.version }
    }
}

/// Protocol that both peers speak, with its place among the message ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    /// The offer that the peer shares.
    pub offer: Offer,
    /// Message id of the protocol's message 0.
    pub first_id: u64,
}

impl Shared {
    /// Returns the protocol's own number of a message id, `None` if the id belongs to another.
    pub fn number(&self, id: u64) -> Option<u64> {
        id.checked_sub(self.first_id).filter(|number| *number < self.offer.messages)
    }
}

/// Returns the protocols that both sides speak. Each has the highest version that both have. They
/// take their message ids one after the other, by name.
pub fn negotiate(own: &[Offer], theirs: &[Capability]) -> Vec<Shared> {
    let mut offers: Vec<_> = own
        .iter()
        .filter(|offer| {
            theirs.iter().any(|it| it.name == offer.name && it.version == offer.version)
        })
        .copied()
        .collect();
    offers.sort_unstable_by(|a, b| a.name.cmp(b.name).then(b.version.cmp(&a.version)));
    offers.dedup_by(|later, kept| later.name == kept.name);
    let mut first_id = FIRST_SHARED_ID;
    let place = |offer: Offer| {
        let shared = Shared { offer, first_id };
        first_id += offer.messages;
        shared
    };
    offers.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [Offer; 5] = [
        Offer { name: "snap", version: 1, messages: 8 },
        Offer { name: "eth", version: 69, messages: 18 },
        Offer { name: "eth", version: 71, messages: 20 },
        Offer { name: "eth", version: 70, messages: 18 },
        Offer { name: "aaa", version: 1, messages: 5 },
    ];

    fn names(theirs: &[(&str, u64)]) -> Vec<(&'static str, u64, u64)> {
        let theirs: Vec<_> = theirs
            .iter()
            .map(|&(name, version)| Capability { name: name.to_owned(), version })
            .collect();
        let shared = negotiate(&OWN, &theirs);
        shared.iter().map(|it| (it.offer.name, it.offer.version, it.first_id)).collect()
    }

    #[test]
    fn the_highest_shared_version_wins_and_names_give_the_order() {
        assert_eq!(names(&[]), []);
        assert_eq!(names(&[("ETH", 69), ("eth", 68)]), []);
        assert_eq!(names(&[("eth", 70), ("eth", 69), ("eth", 72)]), [("eth", 70, 16)]);
        let all = [("snap", 1), ("snap", 2), ("eth", 69), ("eth", 71), ("eth", 71)];
        assert_eq!(names(&all), [("eth", 71, 16), ("snap", 1, 36)]);
        let with = [("snap", 1), ("eth", 69), ("aaa", 1), ("zzz", 1)];
        assert_eq!(names(&with), [("aaa", 1, 16), ("eth", 69, 21), ("snap", 1, 39)]);
    }

    #[test]
    fn an_id_belongs_to_one_protocol() {
        let shared = Shared { offer: OWN[1], first_id: 21 };
        assert_eq!(shared.number(20), None);
        assert_eq!(shared.number(21), Some(0));
        assert_eq!(shared.number(38), Some(17));
        assert_eq!(shared.number(39), None);
    }
}
