//! Snapshots of folders with random files, through a store that fails, and from one that lies.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "an expectation that fails here is a test that fails")]

mod counted;
mod damage;
mod interruptions;

use counted::Counted;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, fs, path::Path, sync::Arc};
use tandem_primitives::B256;
use tandem_snapshot::{
    Block, CHUNK_BYTES, Created, Manifest, PARALLEL, Repository, Restored, Subject, create,
    refuse_occupied, restore,
};
use tandem_storage_writer::SCHEMA_VERSION;
use tempfile::TempDir;

/// Time of the first snapshot.
const CREATED: u64 = 1_700_000_000;

fn subject(number: u64) -> Subject {
    let block = |number| Block {
        number,
        hash: B256::repeat_byte(number as u8),
        state_root: B256::repeat_byte(9),
    };
    Subject {
        schema_version: SCHEMA_VERSION,
        chain_id: 1337,
        genesis: B256::ZERO,
        head: block(number),
        base: block(number - 1),
    }
}

fn random_bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Makes a folder with files as a database has them. One is longer than a chunk, and one is empty.
fn database(random: &mut StdRng) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut write = |name: &str, length: usize| {
        fs::write(folder.path().join(name), random_bytes(random, length)).unwrap();
    };
    for name in ["CURRENT", "MANIFEST-000005", "OPTIONS-000007", "ACKNOWLEDGED", "LOCK", "LOG"] {
        write(name, 100);
    }
    write("000011.log", 0);
    write("000012.sst", CHUNK_BYTES as usize + 77);
    for number in 20..30 {
        write(&format!("{number:06}.sst"), 1000 + 1000 * number);
    }
    folder
}

/// Returns the files of a folder that belong to its database.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut files: BTreeMap<_, _> = files
        .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .collect();
    files.remove("LOCK");
    files.remove("LOG");
    files
}

async fn made(folder: &Path, number: u64, store: &Arc<Counted>) -> anyhow::Result<Created> {
    let repository = Repository::over(store.clone());
    create(folder, subject(number), CREATED + number, &repository, PARALLEL, &|_, _| {}).await
}

async fn restored(
    datadir: &Path,
    manifest: &Manifest,
    store: &Arc<Counted>,
) -> anyhow::Result<Restored> {
    let repository = Repository::over(store.clone());
    restore(datadir, manifest.clone(), &repository, PARALLEL, &|_, _| {}).await
}

#[tokio::test]
async fn a_snapshot_is_restored_and_a_second_one_uploads_only_what_is_new() {
    let mut random = StdRng::seed_from_u64(1);
    let (source, target, store) = (database(&mut random), TempDir::new().unwrap(), Counted::new());
    let first = made(source.path(), 7, &store).await.unwrap();
    let before = contents(source.path());
    assert_eq!(first.manifest.files.len(), before.len());
    assert_eq!((first.chunks, first.new_chunks), (before.len() as u64, first.chunks));
    let bytes: usize = before.values().map(Vec::len).sum();
    assert_eq!(first.manifest.bytes(), bytes as u64);
    // The next state of the database: another manifest, one file less, one file more.
    fs::remove_file(source.path().join("000020.sst")).unwrap();
    fs::write(source.path().join("000031.sst"), random_bytes(&mut random, 5000)).unwrap();
    fs::write(source.path().join("CURRENT"), random_bytes(&mut random, 100)).unwrap();
    let second = made(source.path(), 8, &store).await.unwrap();
    assert_eq!(second.new_chunks, 2, "the new file and CURRENT");
    assert_eq!(store.puts(), first.chunks + 2 + 2, "and two manifests");
    let repository = Repository::over(store.clone());
    let names: Vec<_> =
        repository.list().await.unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [first.name.clone(), second.name.clone()]);
    assert_eq!(repository.newest().await.unwrap(), (second.name, second.manifest));
    let manifest = repository.manifest(&first.name).await.unwrap();
    let progress = std::sync::Mutex::new(Vec::new());
    let note = |done, total| progress.lock().unwrap().push((done, total));
    let whole = restore(target.path(), manifest, &repository, 2, &note).await.unwrap();
    assert_eq!((whole.fetched_bytes, whole.kept_bytes), (bytes as u64, 0));
    assert!(!target.path().join("db").exists(), "not before the end");
    whole.finish().unwrap();
    assert_eq!(contents(&target.path().join("db")), before);
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1, "the database alone");
    let last = progress.into_inner().unwrap().into_iter().max().unwrap();
    assert_eq!(last, (bytes as u64, bytes as u64));
    let error = refuse_occupied(target.path()).unwrap_err().to_string();
    assert!(error.contains("has a database already"), "{error}");
}

#[tokio::test]
async fn directories_are_repositories_too_by_path_and_by_url() {
    let mut random = StdRng::seed_from_u64(2);
    let (source, folder) = (database(&mut random), TempDir::new().unwrap());
    let path = folder.path().join("a/b");
    let path = path.to_str().unwrap();
    let error = Repository::open(path, false).unwrap_err();
    assert!(format!("{error:#}").contains(path), "{error:#}");
    let repository = Repository::open(path, true).unwrap();
    let made =
        create(source.path(), subject(7), CREATED, &repository, 1, &|_, _| {}).await.unwrap();
    let by_url = Repository::open(&format!("file://{path}"), false).unwrap();
    assert_eq!(by_url.newest().await.unwrap().0, made.name);
    let again = create(source.path(), subject(7), CREATED, &by_url, 8, &|_, _| {}).await.unwrap();
    assert_eq!((again.new_chunks, again.new_bytes), (0, 0));
    assert_eq!(again.manifest, made.manifest);
    for (address, reason) in [
        ("ftp://host/x", "unknown scheme ftp"),
        ("file://host/x", "expected file:///PATH"),
        ("s3://", "s3://"),
    ] {
        let error = format!("{:#}", Repository::open(address, true).unwrap_err());
        assert!(error.contains(reason), "{address}: {error}");
    }
    let empty = TempDir::new().unwrap();
    let empty = Repository::open(empty.path().to_str().unwrap(), false).unwrap();
    assert!(empty.newest().await.unwrap_err().to_string().contains("has no snapshot"));
    let error = format!("{:#}", empty.manifest("../../x").await.unwrap_err());
    assert!(error.contains("there is no such snapshot"), "{error}");
}

#[tokio::test]
async fn a_folder_with_files_of_another_kind_is_refused() {
    let mut random = StdRng::seed_from_u64(3);
    let (source, store) = (database(&mut random), Counted::new());
    fs::write(source.path().join("notes.txt"), "x").unwrap();
    let error = format!("{:#}", made(source.path(), 7, &store).await.unwrap_err());
    assert!(error.contains("\"notes.txt\" is not a file of a database"), "{error}");
    let empty = TempDir::new().unwrap();
    let error = format!("{:#}", made(empty.path(), 7, &store).await.unwrap_err());
    assert!(error.contains("there is no database"), "{error}");
    assert_eq!(store.puts(), 0);
}

/// Returns a number of operations after which a store fails, the last one included.
fn point(random: &mut StdRng, operations: u64) -> u64 {
    random.random_range(0..operations)
}
