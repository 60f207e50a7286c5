//! A disk that is full for a while: writes are refused meanwhile, and go on once there is room.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread::{scope, sleep},
    time::{Duration, Instant},
};
use tandem_primitives::B256;
use tandem_small_disk::SmallDisk;
use tandem_store::{Durability, Options, Store, tables::Headers};

/// Databases at a time, each on a disk of its own: whether one goes on was a matter of the moment.
const DISKS: usize = 8;
/// How long a disk is full.
const FULL: Duration = Duration::from_secs(3);
/// RocksDB looks every five seconds.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// Writes all the time, over and over the same keys, and counts the batches that were written.
fn write(store: &Store, seed: u8, header: &[u8], written: &AtomicU64, stop: &AtomicBool) {
    let mut number = 0u64;
    while !stop.load(Relaxed) {
        number += 1;
        let mut key = [seed; 32];
        key[..8].copy_from_slice(&(number % 16).to_be_bytes());
        let mut batch = store.batch();
        batch.put::<Headers>(B256::from(key), (number, header));
        if store.write(batch, Durability::Process).is_ok() {
            written.fetch_add(1, Relaxed);
        }
        sleep(Duration::from_millis(20));
    }
}

/// Two threads write, as those of commits and of the base do. `None` when both go on after the disk was
/// full, else what RocksDB says of it.
fn fill_and_free(at: &Path, before: Duration) -> Option<String> {
    let disk = SmallDisk::mount(at)?;
    let store = Store::create(&at.join("db"), &Options::default()).unwrap();
    let written = [AtomicU64::new(0), AtomicU64::new(0)];
    let counts = || written.each_ref().map(|count| count.load(Relaxed));
    let stop = AtomicBool::new(false);
    let went_on = scope(|scope| {
        scope.spawn(|| write(&store, 1, &[1; 150 << 10], &written[0], &stop));
        scope.spawn(|| write(&store, 2, &[2; 400 << 10], &written[1], &stop));
        sleep(before);
        disk.fill();
        let full = counts();
        sleep(FULL);
        // One batch each may have been in the midst of it.
        assert!(counts().iter().zip(full).all(|(now, then)| *now <= then + 1), "it was full");
        disk.free();
        let (then, freed) = (counts(), Instant::now());
        let goes_on = || counts().iter().zip(then).all(|(now, then)| *now > then + 2);
        while !goes_on() && freed.elapsed() < RECOVERY_MAX {
            sleep(Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
        goes_on()
    });
    let log = fs::read_to_string(at.join("db/LOG")).unwrap_or_default();
    // Every write that is refused has a line of its own.
    let said = log.lines().filter(|line| !line.contains("Background IO error"));
    (!went_on).then(|| said.collect::<Vec<_>>().join("\n"))
}

#[test]
fn writes_go_on_once_a_full_disk_has_room() {
    let folder = tempfile::tempdir().unwrap();
    let run = |n: usize| {
        let before = Duration::from_millis(300 + 37 * n as u64);
        fill_and_free(&folder.path().join(n.to_string()), before)
    };
    let run = &run;
    let stuck: Vec<String> = scope(|scope| {
        let disks: Vec<_> = (0..DISKS).map(|n| scope.spawn(move || run(n))).collect();
        disks.into_iter().filter_map(|disk| disk.join().unwrap()).collect()
    });
    assert!(stuck.is_empty(), "{} of {DISKS} stay full, one says:\n{}", stuck.len(), stuck[0]);
}
