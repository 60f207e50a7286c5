//! Checks the settings of a service without starting it: opens no port, file or connection.

use crate::{Config, Error};
use tandem_rpc::check_endpoint;

/// Checks whether a service could start with these settings. `endpoints` are the addresses that it
/// calls over gRPC. Settings of other services are checked too, because every service refuses a
/// file with an unknown key.
///
/// # Errors
/// [`Error::Tls`] if only some of the three files are named, [`Error::Endpoint`],
/// [`Error::Discovery`] for bootnodes and node lists, [`Error::Sessions`] for peers and limits.
pub fn check(config: &Config, endpoints: &[String]) -> Result<(), Error> {
    config.tls.check()?;
    for endpoint in endpoints.iter().chain(&config.fleet.endpoints) {
        check_endpoint(endpoint, config.tls.is_on())?;
    }
    tandem_discovery::check(&config.discovery)?;
    Ok(tandem_peer_sessions::check(&config.peer_sessions)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn refusal(change: impl FnOnce(&mut Config), endpoints: &[&str]) -> Option<String> {
        let mut config = Config::default();
        change(&mut config);
        let endpoints: Vec<_> = endpoints.iter().map(|it| (*it).to_owned()).collect();
        check(&config, &endpoints).err().map(|error| error.to_string())
    }

    #[test]
    fn settings_that_a_start_would_refuse_are_named() {
        assert_eq!(refusal(|_| {}, &["http://storage-writer:9600"]), None);
        let cases = [
            (refusal(|_| {}, &["http://a b"]), "invalid endpoint `http://a b`"),
            (refusal(|_| {}, &["https://storage-writer:9600"]), "`tls` is not set up here"),
            (
                refusal(|it| it.fleet.endpoints = vec!["https://w:1".to_owned()], &[]),
                "https://w:1 is encrypted",
            ),
            (
                refusal(|it| it.tls.ca = Some(PathBuf::from("/nowhere")), &[]),
                "`tls.ca` needs `tls.cert` beside it",
            ),
            (
                refusal(|it| it.discovery.bootnodes = vec!["enode://x".to_owned()], &[]),
                "bootnode \"enode://x\"",
            ),
            (
                refusal(|it| it.discovery.dns_lists = Some(vec!["x".to_owned()]), &[]),
                "node list \"x\"",
            ),
            (
                refusal(|it| it.peer_sessions.static_peers = vec!["x".to_owned()], &[]),
                "peer \"x\" of `peer_sessions.static_peers`",
            ),
        ];
        for (said, want) in cases {
            assert!(said.as_ref().is_some_and(|said| said.contains(want)), "{want}: {said:?}");
        }
    }

    #[test]
    fn certificates_are_not_read() {
        let files = |it: &mut Config| {
            let file = Some(PathBuf::from("/nowhere"));
            (it.tls.ca, it.tls.cert, it.tls.key) = (file.clone(), file.clone(), file);
        };
        assert_eq!(refusal(files, &["https://storage-writer:9600"]), None);
        let plain = refusal(files, &["http://storage-writer:9600"]).unwrap();
        assert!(plain.contains("is not encrypted"), "{plain}");
    }
}
