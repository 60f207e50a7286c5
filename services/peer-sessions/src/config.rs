use serde::{Deserialize, Serialize};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Limits on sessions with peers, and their deadlines.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address on which sessions are accepted, `None` to accept none.
    pub listen: Option<SocketAddr>,
    /// Number of sessions.
    pub sessions_max: usize,
    /// Number of sessions that peers may open.
    pub inbound_max: usize,
    /// Number of sessions with addresses of one subnet. Addresses of this machine and of private
    /// networks are not limited.
    pub subnet_sessions_max: usize,
    /// Number of inbound handshakes under way.
    pub handshakes_max: usize,
    /// Number of inbound handshakes a second, on average.
    pub handshakes_per_second_max: u32,
    /// Milliseconds from the connection to the end of the handshake: keys, Hello, Status.
    pub handshake_ms: u32,
    /// Milliseconds in which a connection to a peer has to be made.
    pub connect_ms: u32,
    /// Milliseconds between pings.
    pub ping_ms: u32,
    /// Milliseconds in which a message has to arrive, counted from the one before.
    pub read_ms: u32,
    /// Milliseconds in which a message has to be sent.
    pub write_ms: u32,
    /// Milliseconds in which a peer has to answer a request.
    pub request_ms: u32,
    /// Number of messages that may wait to be sent to one peer.
    pub outgoing_capacity: usize,
    /// Number of requests to one peer under way.
    pub requests_max: usize,
    /// Number of a peer's requests whose answers have not been sent; with so many, the session is not
    /// read.
    pub answers_max: usize,
    /// Number of messages of one peer a second, on average. A session with more is read more
    /// slowly.
    pub messages_per_second_max: u32,
    /// Number of threads that read blocks to answer peers.
    pub answer_threads: usize,
    /// Seconds between changes of the chain's head that peers are told of.
    pub range_update_secs: u32,
    /// Seconds after which a peer that could not be reached is dialled again; doubled with each
    /// further failure, up to an hour.
    pub redial_secs: u32,
    /// Milliseconds between looks for further peers.
    pub dial_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Some((Ipv4Addr::LOCALHOST, 30303).into()),
            sessions_max: 50,
            inbound_max: 34,
            subnet_sessions_max: 4,
            handshakes_max: 50,
            handshakes_per_second_max: 50,
            handshake_ms: 8_000,
            connect_ms: 10_000,
            ping_ms: 15_000,
            read_ms: 30_000,
            write_ms: 20_000,
            request_ms: 15_000,
            outgoing_capacity: 64,
            requests_max: 8,
            answers_max: 4,
            messages_per_second_max: 200,
            answer_threads: 2,
            range_update_secs: 120,
            redial_secs: 30,
            dial_ms: 2_000,
        }
    }
}

impl Config {
    pub(crate) fn handshake(&self) -> Duration {
        Duration::from_millis(self.handshake_ms.into())
    }

    pub(crate) fn ping(&self) -> Duration {
        Duration::from_millis(self.ping_ms.max(1).into())
    }

    pub(crate) fn read(&self) -> Duration {
        Duration::from_millis(self.read_ms.into())
    }

    pub(crate) fn write(&self) -> Duration {
        Duration::from_millis(self.write_ms.into())
    }

    pub(crate) fn request(&self) -> Duration {
        Duration::from_millis(self.request_ms.into())
    }
}
