//! Limits of a port for its callers.

use crate::access::{Hosts, Origins};
use std::time::Duration;

/// Limits of one listener for its callers. A caller that exceeds one gets an error, and the server
/// goes on.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request body; more is HTTP 413.
    pub body_bytes_max: usize,
    /// Bytes of all request bodies together; a large body beyond is HTTP 503.
    pub bodies_bytes_max: u64,
    /// Number of calls in a batch; more is -32600.
    pub batch_len_max: usize,
    /// Bytes of the answer to a batch; further calls get -32003.
    pub batch_response_bytes_max: usize,
    /// Bytes of all answers that callers have not received yet; a large answer beyond is HTTP 503.
    pub answers_bytes_max: u64,
    /// Number of HTTP requests served at once, each until its answer is made; more is HTTP 503.
    pub requests_in_flight_max: usize,
    /// Time for a request body to arrive; more is HTTP 408.
    pub body_time_max: Duration,
    /// Names under which the port may be called; another is HTTP 403.
    pub hosts: Hosts,
    /// Origins of web pages that may read the answers.
    pub origins: Origins,
}

impl Limits {
    /// Returns limits for the Engine API: its one caller is trusted, and payloads are large.
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

    /// Returns limits for the public port.
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

    /// Returns the limits with room for a parameter of `bytes` bytes, in hexadecimal digits.
    #[must_use]
    pub fn with_room_for(mut self, bytes: usize) -> Self {
        // JSON around the digits.
        const ENVELOPE_BYTES: usize = 4 << 10;
        self.body_bytes_max = self.body_bytes_max.max(2 * bytes + ENVELOPE_BYTES);
        self
    }

    /// Returns the limits with these allowed hosts.
    #[must_use]
    pub fn with_hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = hosts;
        self
    }

    /// Returns the limits with these origins of web pages.
    #[must_use]
    pub fn with_origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }
}

/// Time after which an idle connection is closed. A consensus client calls once a slot, which is
/// shorter.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// Time for the head of a request to arrive, from its first byte.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// Time after which a caller that reads its answers too slowly is cut off.
pub const STALL_TIME_MAX: Duration = Duration::from_secs(30);

/// Minimum rate at which a caller must read its answers, in bytes per second.
pub const ANSWER_RATE_MIN: u64 = 32 << 10;

/// Limits of one listener for its connections.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Number of open connections. A further one evicts the connection that was idle for longest;
    /// callers that have shown a token are evicted last. Must exceed the number of requests served
    /// at once, so that an evictable connection always exists.
    pub connections_max: usize,
    /// Number of open connections of one address (IPv6: of one network of 64 bits).
    pub address_connections_max: usize,
    /// Number of simultaneous requests on one connection (HTTP/2).
    pub streams_max: u32,
    /// Time for the head of a request, from its first byte (HTTP/1).
    pub head_time_max: Duration,
    /// Time without a running request.
    pub idle_time_max: Duration,
    /// Time over which a caller must reach [`Self::answer_rate_min`] on average. Each answer,
    /// however long, gets this time in addition.
    pub stall_time_max: Duration,
    /// Minimum rate at which a caller must read its answers, in bytes per second.
    pub answer_rate_min: u64,
    /// Time for running requests to finish after the shutdown.
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
    /// Returns the interval of checks, which keeps each limit accurate to within a quarter.
    pub(crate) fn look_every(&self) -> Duration {
        let shortest = self.head_time_max.min(self.idle_time_max).min(self.stall_time_max);
        (shortest / 4).max(Duration::from_millis(1))
    }

    /// Returns the time for a caller to read an answer of this length.
    pub(crate) fn answer_time_max(&self, bytes: u64) -> Duration {
        let seconds = bytes / self.answer_rate_min.max(1);
        self.stall_time_max.saturating_add(Duration::from_secs(seconds))
    }
}
