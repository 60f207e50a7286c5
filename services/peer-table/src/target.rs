//! Completion of the wanted number of peers.

use crate::{config::Config, table::Counts};
use tandem_proto::peer_table::completion;

/// Share of the wanted peers, with the record of what was published.
///
/// Until sessions are reported, the nodes that are alive stand in for them. A node without sessions
/// would otherwise look for peers at full speed for ever.
#[derive(Debug)]
pub struct Target {
    wanted: u32,
    reported: Option<u32>,
    published: Option<f64>,
}

impl Target {
    /// Makes a target of which nothing was published.
    pub fn new(config: &Config) -> Self {
        Self { wanted: config.target_peers, reported: None, published: None }
    }

    /// Returns the number of peers wanted.
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Records how many peers are connected.
    pub fn report(&mut self, count: u32) {
        self.reported = Some(count);
    }

    /// Returns the number of connected peers, as last reported.
    pub fn connected(&self) -> u32 {
        self.reported.unwrap_or(0)
    }

    /// Returns the number of peers divided by the wanted number, limited to 0 to 1.
    pub fn completion(&self, counts: &Counts) -> f64 {
        completion(self.reported.unwrap_or_else(|| number(counts.alive)), self.wanted)
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

    #[test]
    fn nodes_that_are_there_stand_in_until_sessions_are_reported() {
        let mut target = Target::new(&Config { target_peers: 10, ..Config::default() });
        let counts = |proven, alive| Counts { proven, alive, ..Counts::default() };
        assert_eq!(target.changed(&counts(0, 0)), Some(0.0));
        assert_eq!(target.changed(&counts(5, 5)), Some(0.5));
        assert_eq!(target.changed(&counts(5, 5)), None);
        assert_eq!(target.changed(&counts(20, 20)), Some(1.0));
        assert_eq!(target.changed(&counts(20, 9)), Some(0.9), "most no longer answer");
        assert_eq!(target.connected(), 0, "they are no peers");
        target.report(0);
        assert_eq!(target.changed(&counts(20, 20)), Some(0.0), "sessions alone count from now on");
        target.report(3);
        assert_eq!(target.changed(&counts(20, 20)), Some(0.3));
        assert_eq!(target.connected(), 3);
    }
}
