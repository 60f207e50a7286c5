//! Processes with a full volume report that they are not ready, live on, and become ready again by
//! themselves.

use crate::binary;
use tandem_cluster_tests::{Corpus, Service, SingleExecutor, init, send_payload};
use tandem_small_disk::SmallDisk;
use tempfile::TempDir;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_volume_turns_readiness_false_until_there_is_room() {
    let binary = binary();
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let Some(disk) = SmallDisk::mount(&folder.join("data")) else { return };
    init(binary, folder);
    let storage = Service::storage_writer(binary, folder, "storage", 0);
    let url = format!("http://{}", storage.address);
    let own = ["multiproof-worker", "--storage-writer", &url];
    let worker = Service::start(binary, folder, "worker", 0, &own);
    let calls = format!("http://{}", worker.address);
    let more = ["--storage-writer", &url, "--worker", &calls];
    let executor = SingleExecutor::start(binary, folder, "executor", &more);
    let services = [&storage, &executor.service];
    block_in_place(|| services.iter().for_each(|service| service.becomes_ready()));

    // Less room than the limit, although blocks may still fit.
    disk.fill();
    let mut engine = executor.endpoints.engine();
    let mut refused = None;
    for block in Corpus::demo().payloads() {
        if let Err(error) = send_payload(&mut engine, &block).await {
            refused = Some((block, error));
            break;
        }
    }
    let (block, error) = refused.expect("the disk is full");
    assert!(error.contains("No space left"), "{error}");
    block_in_place(|| {
        storage.waits_for("the database to be writable");
        executor.service.waits_for("storage-writer to be able to write");
    });
    for service in services {
        assert_eq!(service.get("/livez").0, 200);
    }
    let (_, metrics) = storage.get("/metrics");
    assert!(metrics.contains("tandem_storage_writer_volume_free_bytes"), "{metrics}");

    disk.free();
    block_in_place(|| services.iter().for_each(|service| service.becomes_ready()));
    send_payload(&mut engine, &block).await.unwrap();
}
