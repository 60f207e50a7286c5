use super::{health::Backoff, lateness::LatenessPolicy};
use crate::ClientConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tandem_membership::{EndpointRules, NamePattern, Network};
use tandem_rpc::{ConnectionConfig, Identity};

/// Workers of the fleet, and the time that a worker may take.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Proof streams of workers that are used whether or not the bus announces them, such as
    /// `http://10.0.0.7:9601`.
    pub endpoints: Vec<String>,
    /// Networks in which workers announced on the bus may be, such as `10.0.0.0/8`.
    pub heard_networks: Vec<Network>,
    /// Host names that they may have: `*` for all without a dot, `.SUFFIX`, or a whole name.
    pub heard_names: Vec<NamePattern>,
    /// Lowest and highest port that they may have.
    pub heard_ports: [u16; 2],
    /// Commands that may wait for one worker's connection before the executor must wait.
    pub queue_capacity: usize,
    /// Longest time that opening a connection and its stream may take, in ms.
    pub connect_ms_max: u64,
    /// Interval between two HTTP/2 pings, and the longest wait for the answer to one, in ms.
    pub keep_alive_ms: u64,
    /// Time a worker may always take after the block's last update, in ms.
    pub late_ms_min: u64,
    /// Multiple of the time of half of the workers that a worker may take.
    pub late_factor: u32,
    /// Longest time a worker may take, in ms.
    pub late_ms_max: u64,
    /// Time for which a worker that was late or lost is first suspended, in ms; it doubles each
    /// time.
    pub suspend_ms_min: u64,
    /// Longest time for which it is suspended, in ms.
    pub suspend_ms_max: u64,
    /// Time for which a worker that gave wrong roots is not used, in seconds.
    pub quarantine_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        let EndpointRules { networks, names, ports } = EndpointRules::default();
        Self {
            endpoints: Vec::new(),
            heard_networks: networks,
            heard_names: names,
            heard_ports: ports,
            queue_capacity: 1024,
            connect_ms_max: 1_000,
            keep_alive_ms: 2_000,
            late_ms_min: 50,
            late_factor: 3,
            late_ms_max: 2_000,
            suspend_ms_min: 1_000,
            suspend_ms_max: 60_000,
            quarantine_seconds: 600,
        }
    }
}

impl Config {
    /// Returns the rules for endpoints of workers announced on the bus.
    pub fn heard(&self) -> EndpointRules {
        EndpointRules {
            networks: self.heard_networks.clone(),
            names: self.heard_names.clone(),
            ports: self.heard_ports,
        }
    }

    pub(super) fn lateness(&self) -> LatenessPolicy {
        LatenessPolicy {
            min: Duration::from_millis(self.late_ms_min),
            factor: self.late_factor,
            max: Duration::from_millis(self.late_ms_max),
        }
    }

    pub(super) fn backoff(&self) -> Backoff {
        Backoff {
            min: Duration::from_millis(self.suspend_ms_min),
            max: Duration::from_millis(self.suspend_ms_max),
        }
    }

    /// Returns the settings for a client of a worker. It does not wait for a missing connection.
    pub(super) fn client(&self, identity: Identity) -> ClientConfig {
        ClientConfig {
            connection: ConnectionConfig {
                connect_ms_max: self.connect_ms_max,
                keep_alive_ms: self.keep_alive_ms,
                identity,
            },
            queue_capacity: self.queue_capacity,
            reconnect_wait_ms: 0,
            answer_ms_max: self.late_ms_max,
        }
    }
}
