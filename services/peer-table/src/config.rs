use serde::{Deserialize, Serialize};
use std::{path::PathBuf, str::FromStr};

/// How many contacts there may be and when which of them is turned to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The data directory; the snapshot is in `peers.bin` below it. Empty for no snapshot.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Peers wanted.
    pub target_peers: u32,
    /// Who says how many peers are connected.
    pub connected: Connected,
    /// Messages that may wait for the table before callers are refused.
    pub mailbox_capacity: usize,
    /// Contacts held, those given up included.
    pub contacts_max: usize,
    /// Contacts of one subnet held.
    pub subnet_contacts_max: u32,
    /// Contacts of one subnet in one answer of the closest ones. Addresses of this machine and of
    /// private networks are not limited.
    pub subnet_answer_max: usize,
    /// Bits of an IPv4 address that make a subnet.
    pub subnet_v4_bits: u8,
    /// Bits of an IPv6 address that make a subnet.
    pub subnet_v6_bits: u8,
    /// Seconds between find node packets to one contact.
    pub ask_interval_secs: u32,
    /// Seconds between requests for the record of one contact that has sent one.
    pub enr_interval_secs: u32,
    /// Seconds that a contact is left alone after its first failure; doubled with each further one.
    pub retry_base_secs: u32,
    /// Most seconds that a contact is left alone after a failure.
    pub retry_max_secs: u32,
    /// Failures in a row after which a contact with a proven endpoint is given up.
    pub failures_max: u8,
    /// Failures in a row after which a contact that never answered is given up.
    pub unproven_failures_max: u8,
    /// Seconds for which a contact given up is not taken in again on hearsay.
    pub disposed_secs: u32,
    /// Contacts in the snapshot, the best ones.
    pub snapshot_contacts_max: usize,
    /// Seconds between snapshots; one is also written when the service stops.
    pub snapshot_interval_secs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            datadir: PathBuf::new(),
            target_peers: 50,
            connected: Connected::Reported,
            mailbox_capacity: 64,
            contacts_max: 100_000,
            subnet_contacts_max: 256,
            subnet_answer_max: 10,
            subnet_v4_bits: 24,
            subnet_v6_bits: 48,
            ask_interval_secs: 10,
            enr_interval_secs: 60,
            retry_base_secs: 30,
            retry_max_secs: 3600,
            failures_max: 5,
            unproven_failures_max: 2,
            disposed_secs: 3600,
            snapshot_contacts_max: 2048,
            snapshot_interval_secs: 300,
        }
    }
}

/// Where the number of connected peers comes from. All but the first simulate them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connected {
    /// It is reported by a call. Until the first one, contacts with a proven endpoint that still
    /// answer say how far the target is reached.
    #[default]
    Reported,
    /// Simulated: every contact with a proven endpoint counts as a connected peer.
    Proven,
    /// Simulated: so many are connected all the time.
    Fixed(u32),
}

/// The text is no [`Connected`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is neither `reported`, `proven` nor a number of peers")]
pub struct ConnectedError(String);

impl FromStr for Connected {
    type Err = ConnectedError;

    /// `reported`, `proven`, or a number.
    fn from_str(text: &str) -> Result<Self, ConnectedError> {
        match text {
            "reported" => Ok(Self::Reported),
            "proven" => Ok(Self::Proven),
            number => number.parse().map(Self::Fixed).map_err(|_| ConnectedError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_is_a_word_or_a_number() {
        assert_eq!("reported".parse(), Ok(Connected::Reported));
        assert_eq!("proven".parse(), Ok(Connected::Proven));
        assert_eq!("12".parse(), Ok(Connected::Fixed(12)));
        for wrong in ["", "-1", "all", "4294967296"] {
            assert_eq!(wrong.parse::<Connected>(), Err(ConnectedError(wrong.to_owned())));
        }
    }
}
