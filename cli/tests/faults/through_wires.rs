//! Faults between processes, and of the disk below one.

use crate::{binary, replay::Replay, table::Table};
use rand::seq::SliceRandom;
use std::time::Duration;
use tandem_bus_tests::NatsServer;
use tandem_cluster_tests::{Corpus, Wired, Wiring};
use tandem_small_disk::SmallDisk;
use tempfile::TempDir;
use tokio::{runtime::Handle, time::sleep};

/// A fault to inject.
#[derive(Clone, Copy)]
enum Fault {
    /// Every connection between the executor and this one is reset.
    Reset(&'static str),
    /// The disk of storage-writer is full for the duration of the pause.
    FullDisk,
}

impl Fault {
    fn name(self) -> String {
        match self {
            Self::Reset(peer) => format!("connection to {peer} reset"),
            Self::FullDisk => "disk of storage-writer full".to_owned(),
        }
    }
}

/// Replays with each of these faults, in a random order. None of the faults ends a process.
pub async fn run(seed: u64, pause: Duration, table: &mut Table) {
    let (folder, nats) = (TempDir::new().unwrap(), NatsServer::start());
    eprintln!("seed {seed}, wired");
    let disk = SmallDisk::mount(&folder.path().join("data"));
    let wired = Wired::start(
        &Wiring {
            binary: binary(),
            folder: folder.path(),
            genesis: &Corpus::demo().genesis(),
            settings: "",
            nats: nats.as_ref().map(NatsServer::address),
            runtime: &Handle::current(),
        },
        |_| Vec::new(),
    );
    let mut replay = Replay::new(seed, &wired.endpoints, folder.path());
    let mut order: Vec<_> = wired.peers().map(Fault::Reset).collect();
    order.extend(disk.as_ref().map(|_| Fault::FullDisk));
    order.shuffle(&mut replay.rng);
    for fault in order {
        replay.calm(3).await;
        let name = fault.name();
        let strike = async {
            match (fault, &disk) {
                (Fault::Reset(peer), _) => reset(&wired, peer).await,
                (Fault::FullDisk, Some(disk)) => {
                    disk.fill();
                    sleep(pause).await;
                    disk.free();
                }
                (Fault::FullDisk, None) => {}
            }
        };
        let took = replay.suffer(&name, strike).await;
        if matches!(fault, Fault::FullDisk) {
            let met = replay.errors.iter().any(|error| error.contains("No space left"));
            assert!(met, "the disk was not full: {:?}", replay.errors);
        }
        table.add(name, took);
    }
    replay.assert_all_there().await;
    wired.stop();
    replay.verify();
}

/// Resets once there is a connection, because the previous one may just have been reset.
async fn reset(wired: &Wired, peer: &str) {
    while wired.reset(peer) == 0 {
        sleep(Duration::from_millis(5)).await;
    }
}
