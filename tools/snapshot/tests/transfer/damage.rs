//! Chunks and manifests that are not what they should be.

use crate::{Counted, contents, database, made, restored};
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use rand::{SeedableRng, rngs::StdRng};
use std::fs;
use tandem_primitives::Bytes;
use tandem_snapshot::{Manifest, Repository};
use tempfile::TempDir;

/// Change of a stored chunk.
type Change = fn(&[u8]) -> Vec<u8>;

/// Ways to damage a chunk, with a part of the message that they lead to.
const CHANGES: [(&str, Change, &str); 6] = [
    ("truncated", |stored| stored[..stored.len() / 2].to_vec(), "truncated or altered"),
    ("empty", |_| Vec::new(), "expected"),
    (
        "altered",
        |stored| zstd::bulk::compress(&vec![7; plain_len(stored)], 1).unwrap(),
        "its hash is",
    ),
    (
        "shorter",
        |stored| zstd::bulk::compress(&vec![7; plain_len(stored) - 1], 1).unwrap(),
        "expected",
    ),
    ("bomb", |_| zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap(), "truncated or altered"),
    ("huge", |_| vec![0; 1 << 20], "bytes are stored; expected at most"),
];

fn plain_len(stored: &[u8]) -> usize {
    zstd::bulk::decompress(stored, 32 << 20).unwrap().len()
}

#[tokio::test]
async fn a_chunk_that_is_missing_or_damaged_is_refused_by_name() {
    let mut random = StdRng::seed_from_u64(300);
    let (source, store) = (database(&mut random), Counted::new());
    let manifest = made(source.path(), 7, &store).await.unwrap().manifest;
    let file = manifest.files.iter().find(|file| file.name == "000025.sst").unwrap();
    let name = const_hex::encode(file.chunks[0].hash);
    let path = Path::from(format!("chunks/{}/{name}", &name[..2]));
    let good: Bytes = store.objects.get(&path).await.unwrap().bytes().await.unwrap().into();
    let mut damaged: Vec<(&str, Option<Vec<u8>>, &str)> =
        CHANGES.into_iter().map(|(what, change, says)| (what, Some(change(&good)), says)).collect();
    damaged.push(("missing", None, "it is missing"));
    let target = TempDir::new().unwrap();
    for (what, bytes, says) in damaged {
        match bytes {
            Some(bytes) => drop(store.objects.put(&path, PutPayload::from(bytes)).await.unwrap()),
            None => store.objects.delete(&path).await.unwrap(),
        }
        let error = restored(target.path(), &manifest, &store).await.unwrap_err();
        let error = format!("{error:#}");
        for part in ["000025.sst", &name, says] {
            assert!(error.contains(part), "{what}: {error}; expected {part}");
        }
        assert!(!target.path().join("db").exists(), "{what}");
    }
    store.objects.put(&path, PutPayload::from(good.to_vec())).await.unwrap();
    restored(target.path(), &manifest, &store).await.unwrap().finish().unwrap();
    assert_eq!(contents(&target.path().join("db")), contents(source.path()));
}

#[tokio::test]
async fn a_hostile_manifest_writes_nothing() {
    let mut random = StdRng::seed_from_u64(301);
    let (source, store) = (database(&mut random), Counted::new());
    let made = made(source.path(), 7, &store).await.unwrap();
    let repository = Repository::over(store.clone());
    let path = Path::from(format!("snapshots/{}.json", made.name));
    let put = async |text: Vec<u8>| {
        store.objects.put(&path, PutPayload::from(text)).await.unwrap();
        format!("{:#}", repository.manifest(&made.name).await.unwrap_err())
    };
    let change = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = made.manifest.clone();
        change(&mut manifest);
        serde_json::to_vec(&manifest).unwrap()
    };
    let error = put(change(&|it| it.files[0].name = "../escaped.sst".to_owned())).await;
    assert!(error.contains("\"../escaped.sst\" is not"), "{error}");
    let error = put(change(&|it| it.files[0].bytes = 1 << 60)).await;
    assert!(error.contains("chunks for"), "{error}");
    let error = put(change(&|it| it.format = 9)).await;
    assert!(error.contains("format version 9"), "{error}");
    let error = put(b"{".to_vec()).await;
    assert!(error.contains("not a manifest") && error.contains(&made.name), "{error}");
    let error = put(vec![b' '; (64 << 20) + 1]).await;
    assert!(error.contains("expected at most"), "{error}");
}

#[tokio::test]
async fn a_snapshot_that_does_not_fit_is_refused_before_anything_is_fetched() {
    let mut random = StdRng::seed_from_u64(302);
    let (source, store) = (database(&mut random), Counted::new());
    let mut manifest = made(source.path(), 7, &store).await.unwrap().manifest;
    // A hundred files with the same chunk ten thousand times, 30 TiB together.
    let file = manifest.files.iter().find(|file| file.name == "000012.sst").unwrap().clone();
    let chunk = file.chunks[0].clone();
    for number in 0..100 {
        let mut file = file.clone();
        file.name = format!("9{number:06}.sst");
        file.bytes = chunk.bytes * 10_000;
        file.chunks = vec![chunk.clone(); 10_000];
        manifest.files.push(file);
    }
    let target = TempDir::new().unwrap();
    let gets = store.gets();
    let error = format!("{:#}", restored(target.path(), &manifest, &store).await.unwrap_err());
    assert!(error.contains("bytes are needed"), "{error}");
    assert_eq!(store.gets(), gets);
    let files = fs::read_dir(target.path().join("db.restoring/db")).unwrap().count();
    assert_eq!(files, 0);
}
