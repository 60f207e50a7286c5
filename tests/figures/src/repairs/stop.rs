//! Time that a node takes to end while calls are in progress.

use super::beside::long_call;
use crate::{
    Setting,
    corpus::Corpus,
    figure::{Figure, Limit, Report},
    node::Node,
};
use std::time::Duration;

/// Number of calls in progress.
const CALLS: usize = 120;
/// Longest time that the node promises.
const SECONDS_MAX: f64 = 10.0;
/// Time after which the node is killed.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures the figure.
pub fn measure(setting: &Setting, report: &mut Report) {
    report.measure("stop: SIGTERM with 120 calls under way", || {
        let corpus = Corpus::load(&setting.demo, 0)?;
        let mut node = Node::start(&setting.tandem, &corpus.genesis, "")?;
        let body = crate::client::request("eth_call", &long_call());
        let took = std::thread::scope(|scope| {
            for _ in 0..CALLS {
                let mut client = node.public(PATIENCE);
                let body = &body;
                // The call's result does not matter.
                scope.spawn(move || client.post(body).is_ok());
            }
            std::thread::sleep(Duration::from_secs(1));
            node.stop(PATIENCE)
        })?;
        let name = "stop: SIGTERM to exit with 120 calls under way, seconds";
        Ok(vec![Figure::new(name, took.as_secs_f64(), Limit::AtMost(SECONDS_MAX))])
    });
}
