//! Completion of the wanted number of peers.

use crate::{
    config::{Config, Connected},
    table::Counts,
};
use tandem_proto::peer_table::completion;

/// Share of the wanted peers, with the record of what was published.
///
/// Until sessions are reported, the nodes that are alive stand in for them. A node without sessions
/// would otherwise look for peers at full speed for ever.
#[derive(Debug)]
pub struct Target {
    wanted: u32,
    source: Connected,
    reported: Option<u32>,
    published: Option<f64>,
}

impl Target {
    /// Makes a target of which nothing was published.
    pub fn new(config: &Config) -> Self {
        let (wanted, source) = (config.target_peers, config.connected);
        Self { wanted, source, reported: None, published: None }
    }

    /// Returns the number of peers wanted.
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Records how many peers are connected. Returns false, with nothing changed, if peers are
    /// simulated.
    pub fn report(&mut self, count: u32) -> bool {
        let heard = self.source == Connected::Reported;
        if heard {
            self.reported = Some(count);
        }
        heard
    }

    /// Returns the number of connected peers, as last reported or simulated.
    pub fn connected(&self, counts: &Counts) -> u32 {
        match self.source {
            Connected::Reported => self.reported.unwrap_or(0),
            Connected::Proven => number(counts.proven),
            Connected::Fixed(count) => count,
        }
    }

    /// Returns the number of peers divided by the wanted number, limited to 0 to 1.
    pub fn completion(&self, counts: &Counts) -> f64 {
        let stands_in = self.source == Connected::Reported && self.reported.is_none();
        let peers = if stands_in { number(counts.alive) } else { self.connected(counts) };
        completion(peers, self.wanted)
    }

    /// Returns the completion if it differs from the one published last.
    pub fn changed(&mut self, counts: &Counts) -> Option<f64> {
        let completion = self.completion(counts);
        (self.published.replace(completion) != Some(completion)).then_some(completion)
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(connected: Connected) -> Target {
        Target::new(&Config { target_peers: 10, connected, ..Config::default() })
    }

    #[test]
    fn nodes_that_are_there_stand_in_until_sessions_are_reported() {
        let mut target = target(Connected::Reported);
        let counts = |proven, alive| Counts { proven, alive, ..Counts::default() };
        assert_eq!(target.changed(&counts(0, 0)), Some(0.0));
        assert_eq!(target.changed(&counts(5, 5)), Some(0.5));
        assert_eq!(target.changed(&counts(5, 5)), None);
        assert_eq!(target.changed(&counts(20, 20)), Some(1.0));
        assert_eq!(target.changed(&counts(20, 9)), Some(0.9), "most no longer answer");
        assert_eq!(target.connected(&counts(20, 9)), 0, "they are no peers");
        assert!(target.report(0));
        assert_eq!(target.changed(&counts(20, 20)), Some(0.0), "sessions alone count from now on");
        assert!(target.report(3));
        assert_eq!(target.changed(&counts(20, 20)), Some(0.3));
        assert_eq!(target.connected(&counts(20, 20)), 3);
    }

    #[test]
    fn simulated_peers_are_not_reported() {
        let counts = Counts { proven: 4, alive: 2, ..Counts::default() };
        for (source, connected) in [(Connected::Proven, 4), (Connected::Fixed(7), 7)] {
            let mut target = target(source);
            assert!(!target.report(1));
            assert_eq!(target.connected(&counts), connected);
            assert_eq!(target.completion(&counts), f64::from(connected) / 10.0);
        }
    }
}
