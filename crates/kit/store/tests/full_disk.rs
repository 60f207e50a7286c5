//! A disk that is full for a while: writes are refused meanwhile, and go on once there is space.
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

/// Number of databases at a time, each on a disk of its own: recovery of a single one depended on
/// timing.
const DISKS: usize = 8;
/// Time for which a disk is full.
const FULL: Duration = Duration::from_secs(3);
/// Longest wait for the recovery; RocksDB checks every five seconds.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// Numbers of a thread's batches that were written and refused.
#[derive(Default)]
struct Counts {
    written: AtomicU64,
    refused: AtomicU64,
}

/// Writes to the same keys without a pause.
fn write(store: &Store, seed: u8, header: &[u8], counts: &Counts, stop: &AtomicBool) {
    let mut number = 0u64;
    while !stop.load(Relaxed) {
        number += 1;
        let mut key = [seed; 32];
        key[..8].copy_from_slice(&(number % 16).to_be_bytes());
        let mut batch = store.batch();
        batch.put::<Headers>(B256::from(key), (number, header));
        let done = store.write(batch, Durability::Process).is_ok();
        if done { &counts.written } else { &counts.refused }.fetch_add(1, Relaxed);
        sleep(Duration::from_millis(20));
    }
}

/// Guard that stops the threads even if the test fails, as they are waited for.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Fills a disk and frees it while two threads write, as those of commits and of the base do.
/// Returns `None` if both go on after the disk was full, otherwise a description of the fault.
fn fill_and_free(at: &Path, before: Duration) -> Option<String> {
    let disk = SmallDisk::mount(at)?;
    let store = Store::create(&at.join("db"), &Options::default()).unwrap();
    let counts = [Counts::default(), Counts::default()];
    let written = || counts.each_ref().map(|counts| counts.written.load(Relaxed));
    let stop = AtomicBool::new(false);
    let went_on = scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| write(&store, 1, &[1; 150 << 10], &counts[0], &stop));
        scope.spawn(|| write(&store, 2, &[2; 400 << 10], &counts[1], &stop));
        sleep(before);
        disk.fill();
        sleep(FULL);
        disk.free();
        let (then, freed) = (written(), Instant::now());
        let goes_on = || written().iter().zip(then).all(|(now, then)| *now > then + 2);
        while !goes_on() && freed.elapsed() < RECOVERY_MAX {
            sleep(Duration::from_millis(20));
        }
        goes_on()
    });
    // One of the two may have been made to wait for that long, instead of being refused.
    if counts.iter().all(|counts| counts.refused.load(Relaxed) == 0) {
        return Some("the disk was not full".to_owned());
    }
    let log = fs::read_to_string(at.join("db/LOG")).unwrap_or_default();
    // Every refused write has a line of its own.
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
    assert!(stuck.is_empty(), "{} of {DISKS} failed, one says:\n{}", stuck.len(), stuck[0]);
}
