use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Limits on contacts, and the rules for when each is contacted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Data directory; the snapshot is in `peers.bin` below it. Empty for no snapshot.
    #[serde(skip)]
    pub datadir: PathBuf,
    /// Number of peers wanted.
    pub target_peers: u32,
    /// Number of messages that may wait for the table before callers are refused.
    pub mailbox_capacity: usize,
    /// Number of contacts held, including those given up.
    pub contacts_max: usize,
    /// Number of contacts held of one subnet.
    pub subnet_contacts_max: u32,
    /// Number of contacts of one subnet in one answer of the closest ones. Addresses of this
    /// machine and of private networks are not limited.
    pub subnet_answer_max: usize,
    /// Number of bits of an IPv4 address that make a subnet.
    pub subnet_v4_bits: u8,
    /// Number of bits of an IPv6 address that make a subnet.
    pub subnet_v6_bits: u8,
    /// Seconds between find node packets to one contact.
    pub ask_interval_secs: u32,
    /// Seconds between requests for the record of one contact that has already sent one.
    pub enr_interval_secs: u32,
    /// Seconds for which a contact is left alone after its first failure; doubled with each further
    /// one.
    pub retry_base_secs: u32,
    /// Largest number of seconds for which a contact is left alone after a failure.
    pub retry_max_secs: u32,
    /// Number of failures in a row after which a contact with a proven endpoint is given up.
    pub failures_max: u8,
    /// Number of failures in a row after which a contact that never answered is given up.
    pub unproven_failures_max: u8,
    /// Seconds for which a contact that was given up is not accepted again on hearsay.
    pub disposed_secs: u32,
    /// Number of contacts in the snapshot, which are the best ones.
    pub snapshot_contacts_max: usize,
    /// Seconds between snapshots; one is also written when the service stops.
    pub snapshot_interval_secs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            datadir: PathBuf::new(),
            target_peers: 50,
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
