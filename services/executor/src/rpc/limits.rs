//! What a port allows its callers.

use super::access::{Hosts, Origins};
use crate::blobs::{any_network_form_bytes_max, network_form_bytes_max};
use std::time::Duration;
use tandem_chain::ChainSpec;

/// What one listener allows its callers. Beyond each of these, the caller gets an error and the
/// server goes on.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Length of a request body in bytes; more is HTTP 413.
    pub body_bytes_max: usize,
    /// Bytes of all request bodies together; a large body beyond is HTTP 503.
    pub bodies_bytes_max: u64,
    /// Calls in a batch; more is -32600.
    pub batch_len_max: usize,
    /// Length of the answer to a batch in bytes; the calls beyond get -32003.
    pub batch_response_bytes_max: usize,
    /// Bytes of all answers that callers have not taken yet; a large answer beyond is HTTP 503.
    pub answers_bytes_max: u64,
    /// HTTP requests served at once, each until its answer is made; more is HTTP 503.
    pub requests_in_flight_max: usize,
    /// Time for a request body to arrive; more is HTTP 408.
    pub body_time_max: Duration,
    /// Names under which the port may be called; another is HTTP 403.
    pub hosts: Hosts,
    /// Web pages that may read the answers.
    pub origins: Origins,
}

impl Limits {
    /// For the Engine API: its one caller is trusted, and payloads are large.
    pub fn engine() -> Self {
        Self {
            body_bytes_max: 128 << 20,
            bodies_bytes_max: 512 << 20,
            batch_len_max: 100,
            batch_response_bytes_max: 64 << 20,
            answers_bytes_max: 256 << 20,
            requests_in_flight_max: 64,
            body_time_max: Duration::from_secs(60),
            hosts: Hosts::default(),
            origins: Origins::default(),
        }
    }

    /// For the public port.
    pub fn public() -> Self {
        Self {
            body_bytes_max: 5 << 20,
            bodies_bytes_max: 256 << 20,
            batch_len_max: 100,
            batch_response_bytes_max: 25 << 20,
            answers_bytes_max: 256 << 20,
            requests_in_flight_max: 128,
            body_time_max: Duration::from_secs(30),
            hosts: Hosts::default(),
            origins: Origins::default(),
        }
    }

    /// The same with room for the largest blob transaction that any fork of this chain allows, in
    /// hexadecimal digits.
    #[must_use]
    pub fn with_blobs(self, spec: &ChainSpec) -> Self {
        self.with_form(network_form_bytes_max(spec))
    }

    /// The same with room for the largest blob transaction of any chain.
    #[must_use]
    pub fn with_any_blobs(self) -> Self {
        self.with_form(any_network_form_bytes_max())
    }

    /// The same with room for a blob transaction of so many bytes, in hexadecimal digits.
    fn with_form(mut self, bytes: usize) -> Self {
        // Around the digits.
        const ENVELOPE_BYTES: usize = 4 << 10;
        self.body_bytes_max = self.body_bytes_max.max(2 * bytes + ENVELOPE_BYTES);
        self
    }

    /// The same for callers that name one of these hosts.
    #[must_use]
    pub fn with_hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = hosts;
        self
    }

    /// The same for web pages of these origins.
    #[must_use]
    pub fn with_origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }
}

/// A connection without a request under way is closed after this time. A consensus client calls
/// once a slot, which is shorter.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// The head of a request has this time to arrive, from its first byte.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// A caller that takes too little of its answers for this time is cut off.
pub const STALL_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes a second of its answers that a caller has to take.
pub const ANSWER_RATE_MIN: u64 = 32 << 10;

/// What one listener allows its connections.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Connections open at once. A further one takes the place of the one that is idle for the
    /// longest time; one whose caller has shown a token goes last. Has to be more than the requests
    /// that are served at once, so that there is always such a connection.
    pub connections_max: usize,
    /// The same for the connections of one address (IPv6: of one network of 64 bits).
    pub address_connections_max: usize,
    /// Requests at once on one connection (HTTP/2).
    pub streams_max: u32,
    /// Time for the head of a request, from its first byte (HTTP/1).
    pub head_time_max: Duration,
    /// Time without a request under way.
    pub idle_time_max: Duration,
    /// Time in which a caller has to take [`Self::answer_rate_min`] on average; an answer of any
    /// length has this time on top.
    pub stall_time_max: Duration,
    /// Bytes a second of its answers that a caller has to take.
    pub answer_rate_min: u64,
    /// How long requests under way may go on after the shutdown.
    pub shutdown_time_max: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 512,
            address_connections_max: 256,
            streams_max: 16,
            head_time_max: HEAD_TIME_MAX,
            idle_time_max: IDLE_TIME_MAX,
            stall_time_max: STALL_TIME_MAX,
            answer_rate_min: ANSWER_RATE_MIN,
            shutdown_time_max: Duration::from_secs(10),
        }
    }
}

impl ConnectionLimits {
    /// How often a connection is looked at, so that each limit is kept to within a quarter.
    pub(super) fn look_every(&self) -> Duration {
        let shortest = self.head_time_max.min(self.idle_time_max).min(self.stall_time_max);
        (shortest / 4).max(Duration::from_millis(1))
    }

    /// Time for a caller to take an answer of this length.
    pub(super) fn answer_time_max(&self, bytes: u64) -> Duration {
        let seconds = bytes / self.answer_rate_min.max(1);
        self.stall_time_max.saturating_add(Duration::from_secs(seconds))
    }
}
