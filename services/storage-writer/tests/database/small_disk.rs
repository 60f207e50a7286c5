//! A full disk is reported: failed writes are counted, and storage-writer is not ready. It becomes
//! ready again by itself once there is room.

use crate::common::{Random, block, new_chain};
use std::time::{Duration, Instant};
use tandem_proto::storage::{BaseReads, BlockWrites, Forkchoice, WriteLease};
use tandem_small_disk::SmallDisk;
use tandem_storage_writer::{Config, Deps, StorageWriter, verify};

#[test]
fn a_full_disk_shows_until_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let datadir = folder.path().join("data");
    let Some(disk) = SmallDisk::mount(&datadir) else { return };
    let (mut parent, mut world) = new_chain(&datadir);
    let writer =
        StorageWriter::start(Config::with_small_limits(&datadir), Deps::default()).unwrap();
    let epoch = writer.acquire_epoch("test").unwrap();
    let mut random = Random(3);
    let mut next = |parent| {
        let diff = world.random_diff(&mut random);
        world.apply(&diff);
        block(parent, &world, diff, &mut random)
    };
    assert!(writer.can_write());
    let waits_for_room = |has_room: bool| {
        let started = Instant::now();
        while writer.has_room() != has_room {
            assert!(started.elapsed() < Duration::from_secs(60), "room is {}", !has_room);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    waits_for_room(true);
    disk.fill();
    // The log may still have some room of its own.
    let mut refused = None;
    for _ in 0..10_000 {
        let block = next(parent);
        if let Err(error) = writer.commit(epoch, block.clone()) {
            refused = Some((block, error));
            break;
        }
        parent = block.id;
    }
    let (block, error) = refused.unwrap();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(!writer.can_write());
    assert!(writer.write_failures() > 0);
    assert!(writer.checkpoint().unwrap().writes_fail);
    waits_for_room(false);
    disk.free();
    // No call is made meanwhile: storage-writer checks by itself.
    let started = Instant::now();
    while !writer.can_write() {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not become ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    waits_for_room(true);
    assert!(!writer.checkpoint().unwrap().writes_fail);
    writer.commit(epoch, block.clone()).unwrap();
    let forkchoice = Forkchoice { head: block.id, ..Forkchoice::default() };
    writer.canonicalize(epoch, forkchoice).unwrap();
    drop(writer);
    let report = verify(&datadir).unwrap();
    assert_eq!((report.first_difference, report.head), (None, block.id));
}
