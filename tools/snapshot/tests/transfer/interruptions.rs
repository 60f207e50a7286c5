//! Interruptions at random points, with resumption.

use crate::{Counted, contents, database, made, point, restored};
use rand::{SeedableRng, rngs::StdRng};
use std::fs;
use tandem_snapshot::{PARALLEL, Repository, refuse_occupied};
use tempfile::TempDir;

/// Interruptions of each kind.
const POINTS: u64 = 20;

#[tokio::test]
async fn a_create_that_is_interrupted_anywhere_leaves_no_snapshot_and_goes_on() {
    for seed in 0..POINTS {
        let mut random = StdRng::seed_from_u64(seed);
        let (source, store) = (database(&mut random), Counted::new());
        let files = contents(source.path()).len() as u64;
        // Each chunk is looked for and written, and the manifest is written: one file has two chunks, one none.
        let operations = 2 * files + 1;
        store.fail_after(point(&mut random, operations));
        let error = format!("{:#}", made(source.path(), 7, &store).await.unwrap_err());
        assert!(error.contains("the line is cut"), "seed {seed}: {error}");
        let repository = Repository::over(store.clone());
        assert_eq!(repository.list().await.unwrap(), [], "seed {seed}");
        let before = store.puts();
        store.fail_after(u64::MAX);
        let made = made(source.path(), 7, &store).await.unwrap();
        assert_eq!(made.chunks, files, "seed {seed}");
        assert_eq!(made.new_chunks, files - before, "seed {seed}: no chunk twice");
        assert_eq!(store.puts(), files + 1, "seed {seed}");
    }
}

#[tokio::test]
async fn a_restore_that_is_interrupted_anywhere_goes_on_with_what_is_there() {
    let mut random = StdRng::seed_from_u64(100);
    let (source, store) = (database(&mut random), Counted::new());
    let manifest = made(source.path(), 7, &store).await.unwrap().manifest;
    let want = contents(source.path());
    let chunks = want.len() as u64;
    for seed in 0..POINTS {
        let mut random = StdRng::seed_from_u64(seed);
        let target = TempDir::new().unwrap();
        let datadir = target.path();
        let (gets, at) = (store.gets(), point(&mut random, chunks));
        store.fail_after(at);
        let error = format!("{:#}", restored(datadir, &manifest, &store).await.unwrap_err());
        assert!(error.contains("the line is cut"), "seed {seed}: {error}");
        assert_eq!(store.gets() - gets, at);
        assert!(!datadir.join("db").exists());
        assert_eq!(refuse_occupied(datadir).unwrap().as_ref(), Some(&manifest));
        // Nothing that a killed process may leave is taken for a part of the snapshot.
        let folder = datadir.join("db.restoring/db");
        fs::write(folder.join("000099.sst"), "of another process").unwrap();
        let longest = folder.join("000012.sst");
        if seed % 2 == 0 {
            fs::write(&longest, "torn").unwrap();
        }
        store.fail_after(u64::MAX);
        let whole = restored(datadir, &manifest, &store).await.unwrap();
        assert_eq!(whole.fetched_bytes + whole.kept_bytes, manifest.bytes(), "seed {seed}");
        // Chunks that were fetched when the error came are dropped; one file was torn on purpose.
        let twice = store.gets() - gets - chunks;
        assert!(twice <= PARALLEL as u64 + 2, "seed {seed}: {twice} chunks twice");
        let error = restored(datadir, &manifest, &store).await.unwrap_err();
        assert!(format!("{error:#}").contains("another process makes or restores"), "{error:#}");
        drop(whole);
        // All files are there and checked, but the process ended before it gave them their name.
        let again = restored(datadir, &manifest, &store).await.unwrap();
        assert_eq!((again.fetched_bytes, again.kept_bytes), (0, manifest.bytes()));
        if seed % 3 == 0 {
            // The process died in the midst of the end.
            drop(again);
            fs::rename(&folder, datadir.join("db")).unwrap();
            let again = restored(datadir, &manifest, &store).await.unwrap();
            assert_eq!(again.datadir(), datadir);
            again.finish().unwrap();
        } else {
            assert_eq!(again.datadir(), datadir.join("db.restoring"));
            again.finish().unwrap();
        }
        assert_eq!(contents(&datadir.join("db")), want, "seed {seed}");
        assert_eq!(fs::read_dir(datadir).unwrap().count(), 1, "the database alone");
    }
}

#[tokio::test]
async fn a_restore_is_finished_with_its_own_snapshot_only() {
    let mut random = StdRng::seed_from_u64(200);
    let (source, target, store) = (database(&mut random), TempDir::new().unwrap(), Counted::new());
    let first = made(source.path(), 7, &store).await.unwrap();
    let second = made(source.path(), 8, &store).await.unwrap();
    store.fail_after(3);
    restored(target.path(), &first.manifest, &store).await.unwrap_err();
    store.fail_after(u64::MAX);
    let error = restored(target.path(), &second.manifest, &store).await.unwrap_err().to_string();
    assert!(error.contains(&first.name), "{error}");
    restored(target.path(), &first.manifest, &store).await.unwrap().finish().unwrap();
}
