use crate::{PeerAddress, error::Error};
use serde::{Deserialize, Serialize};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tandem_discv4::NodeUrl;
use tandem_proto::limits::SESSIONS_MAX;

/// Limits on sessions with peers, and their deadlines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address on which sessions are accepted, if `inbound_max` admits any. Port 0 takes a free
    /// port.
    pub listen: SocketAddr,
    /// Peers that are always dialled, as `enode://…`.
    pub static_peers: Vec<String>,
    /// Peers that are admitted beyond the limits, and never banned, as `enode://…`.
    pub trusted_peers: Vec<String>,
    /// Number of sessions, at most 1024.
    pub sessions_max: usize,
    /// Number of sessions that peers may open; 0 to accept none.
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
    /// Number of messages of one peer a second, on average, answers to this node aside. A session
    /// with more is read more slowly.
    pub messages_per_second_max: u32,
    /// Number of threads that read blocks to answer peers.
    pub answer_threads: usize,
    /// Seconds between changes of the chain's head that peers are told of.
    pub range_update_secs: u32,
    /// Seconds after which a peer that could not be reached is dialled again; doubled with each
    /// further failure, up to an hour.
    pub redial_secs: u32,
    /// Seconds for which a peer that broke the protocol, or was reported, gets no session; 0 to ban
    /// none.
    pub ban_secs: u32,
    /// Milliseconds between looks for further peers.
    pub dial_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, 30303).into(),
            static_peers: Vec::new(),
            trusted_peers: Vec::new(),
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
            ban_secs: 600,
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

/// Checks that sessions could start with these settings, without binding anything.
///
/// # Errors
/// [`Error::Peer`], [`Error::Limit`].
pub fn check(config: &Config) -> Result<(), Error> {
    if config.sessions_max > SESSIONS_MAX {
        let (key, got) = ("peer_sessions.sessions_max", config.sessions_max);
        return Err(Error::Limit { key, got, max: SESSIONS_MAX });
    }
    static_peers(config)?;
    trusted_peers(config)?;
    Ok(())
}

/// Returns the peers that are always dialled.
pub(crate) fn static_peers(config: &Config) -> Result<Vec<PeerAddress>, Error> {
    peers("peer_sessions.static_peers", &config.static_peers)
}

/// Returns the peers that are admitted beyond the limits.
pub(crate) fn trusted_peers(config: &Config) -> Result<Vec<PeerAddress>, Error> {
    peers("peer_sessions.trusted_peers", &config.trusted_peers)
}

fn peers(key: &'static str, urls: &[String]) -> Result<Vec<PeerAddress>, Error> {
    let read = |url: &String| {
        let node: Result<NodeUrl, _> = url.parse();
        let NodeUrl(node) = node.map_err(|error| Error::Peer { key, url: url.clone(), error })?;
        let address = (node.endpoint.ip, node.endpoint.tcp_port).into();
        Ok(PeerAddress { id: node.key, address })
    };
    urls.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_a_start_would_refuse_are_named() {
        let key = "1".repeat(128);
        let refusal = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            check(&config).err().map(|error| error.to_string())
        };
        let url = format!("enode://{key}@10.0.0.1:30303");
        assert_eq!(refusal(&|_| {}), None);
        assert_eq!(refusal(&|it| it.sessions_max = 1024), None);
        let said = refusal(&|it| it.sessions_max = 1025).unwrap();
        assert_eq!(said, "`peer_sessions.sessions_max` is 1025; expected at most 1024");
        for wrong in ["", "enr:x", "enode://11@10.0.0.1:1", &url[..url.len() - 6]] {
            let said = refusal(&|it| it.static_peers = vec![wrong.to_owned()]).unwrap();
            let begin = format!("peer {wrong:?} of `peer_sessions.static_peers`: ");
            assert!(said.starts_with(&begin), "{said}");
            let said = refusal(&|it| it.trusted_peers = vec![wrong.to_owned()]).unwrap();
            assert!(said.contains("`peer_sessions.trusted_peers`"), "{said}");
        }
    }
}
