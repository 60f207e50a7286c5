//! Faults of whole processes, in `tandem cluster`.

use crate::{binary, replay::Replay, table::Table};
use rand::seq::SliceRandom;
use std::{
    fmt::{Display, Formatter, Result},
    time::Duration,
};
use tandem_bus_tests::NatsServer;
use tandem_cluster_tests::{Corpus, Six};
use tempfile::TempDir;
use tokio::time::sleep;

/// A fault to inject.
#[derive(Clone, Copy)]
pub enum Fault {
    /// SIGKILL to a service.
    Kill(&'static str),
    /// SIGSTOP to a service, and SIGCONT after the pause.
    Pause(&'static str),
    /// NATS is killed, and restarted after the pause.
    KillNats,
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Kill(service) => write!(f, "SIGKILL {service}"),
            Self::Pause(service) => write!(f, "SIGSTOP {service}"),
            Self::KillNats => write!(f, "NATS killed, restarted"),
        }
    }
}

/// The event bus of a run.
pub enum Nats {
    /// No bus.
    None,
    /// A server that runs and can be killed.
    Runs(NatsServer),
    /// A server with an address that never starts.
    NeverComes(NatsServer),
}

/// Replays through six processes with each of these faults, in a random order.
pub async fn run(seed: u64, mut nats: Nats, faults: &[Fault], pause: Duration, table: &mut Table) {
    let (url, suffix) = match &nats {
        Nats::None => ("none".to_owned(), ""),
        Nats::Runs(nats) => (nats.url(), ""),
        Nats::NeverComes(nats) => (nats.url(), ", without NATS"),
    };
    let folder = TempDir::new().unwrap();
    eprintln!("seed {seed}, NATS {url}{suffix}");
    let genesis = Corpus::demo().genesis();
    let mut six = Six::start(binary(), folder.path(), &genesis, &["--nats", &url]);
    let mut replay = Replay::new(seed, &six.endpoints, folder.path());
    let mut order = faults.to_vec();
    order.shuffle(&mut replay.rng);
    for fault in order {
        replay.calm(1).await;
        let name = format!("{fault}{suffix}");
        let took = replay.suffer(&name, strike(&six, &mut nats, fault, pause)).await;
        table.add(name, took);
    }
    replay.finish().await;
    let (status, _) = six.stop();
    assert!(status.success(), "seed {seed}: {status}\n{}", six.log());
    replay.verify();
}

async fn strike(six: &Six, nats: &mut Nats, fault: Fault, pause: Duration) {
    match (fault, nats) {
        (Fault::Kill(service), _) => six.kill(service),
        (Fault::Pause(service), _) => six.pause(service, pause).await,
        (Fault::KillNats, Nats::Runs(nats)) => {
            nats.kill();
            sleep(pause).await;
            nats.restart();
        }
        (Fault::KillNats, _) => {}
    }
}
