//! Checkpoints of a database that is in use, and a server that gives no right to write.

use crate::common::new_chain;
use std::{fs, sync::Arc};
use tandem_proto::storage::{BaseReads, Error, Holder, WriteLease};
use tandem_storage_writer::{
    Config, Deps, StorageWriter, checkpoint_path, database_subject, grpc::Server, make_checkpoint,
    remove_checkpoint, restore_path, seal_checkpoint, verify,
};
use tandem_storage_writer_client::{Client, ClientConfig};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Serves storage-writer as `tandem node` does.
struct Served {
    runtime: Runtime,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
    client: Arc<Client>,
}

impl Served {
    fn start(server: Server) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let task = runtime.spawn(server.serve(listener, stop.clone()));
        let client = Client::connect(&endpoint, ClientConfig::default(), runtime.handle()).unwrap();
        Self { runtime, stop, task, client }
    }

    fn stop(self) {
        self.client.stop();
        self.stop.cancel();
        self.runtime.block_on(self.task).unwrap().unwrap();
    }
}

fn text(error: Error) -> String {
    match error {
        Error::Refused(text) => text,
        other => panic!("{other}"),
    }
}

#[test]
fn a_checkpoint_of_a_database_in_use_is_a_whole_database() {
    let folder = tempfile::tempdir().unwrap();
    let datadir = folder.path();
    let (genesis, _) = new_chain(datadir);
    let writer = StorageWriter::start(Config::new(datadir), Deps::default()).unwrap();
    let served = Served::start(Server::new(writer.clone()).checkpointing(writer.clone()));
    let made = |served: &Served| served.runtime.block_on(served.client.checkpoint_database());
    assert_eq!(made(&served), Ok(genesis));
    let again = text(made(&served).unwrap_err());
    assert!(again.contains("checkpoint") && again.contains("exists"), "{again}");
    let (files, subject) = seal_checkpoint(datadir).unwrap();
    assert!(files.starts_with(checkpoint_path(datadir)));
    assert_eq!((subject.head.id, subject.base.id, subject.genesis), (genesis, genesis, genesis));
    let report = verify(&checkpoint_path(datadir)).unwrap();
    assert!(report.is_clean() && report.accounts > 0, "{report:?}");
    remove_checkpoint(datadir).unwrap();
    assert_eq!(made(&served), Ok(genesis), "there is room again");
    remove_checkpoint(datadir).unwrap();
    served.stop();
    drop(writer);
    assert_eq!(database_subject(datadir).unwrap(), subject);
    make_checkpoint(datadir).unwrap();
    assert_eq!(seal_checkpoint(datadir).unwrap().1, subject);
    assert!(make_checkpoint(datadir).unwrap_err().to_string().contains("checkpoint"));
    assert!(verify(datadir).unwrap().is_clean());
}

#[test]
fn a_server_beside_an_executor_gives_no_right_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let (genesis, _) = new_chain(folder.path());
    let writer = StorageWriter::start(Config::new(folder.path()), Deps::default()).unwrap();
    let own = writer.acquire_epoch("own").unwrap();
    let served = Served::start(Server::new(writer.clone()).without_writes());
    let refused = text(served.client.acquire_epoch("stranger").unwrap_err());
    assert!(refused.contains("the executor of this process alone writes"), "{refused}");
    let holder = served.runtime.block_on(served.client.find_holder());
    assert!(matches!(holder, Ok(None | Some(Holder { .. }))), "{holder:?}");
    assert_eq!(served.client.checkpoint().unwrap().base, genesis);
    writer.keep_epoch(own).unwrap();
    let none = served.runtime.block_on(served.client.checkpoint_database()).unwrap_err();
    assert!(text(none).contains("makes no checkpoints"));
    served.stop();
}

#[test]
fn a_directory_with_half_a_snapshot_is_not_opened_and_gets_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let datadir = folder.path();
    new_chain(datadir);
    fs::create_dir(restore_path(datadir)).unwrap();
    let says = |error: String| {
        assert!(error.contains("finish with `tandem snapshot restore`"), "{error}");
    };
    let started = StorageWriter::start(Config::new(datadir), Deps::default());
    says(started.unwrap_err().to_string());
    says(make_checkpoint(datadir).unwrap_err().to_string());
    let json = datadir.join("genesis.json");
    says(tandem_storage_writer::init(&json, datadir, |_| {}).unwrap_err().to_string());
    let target = tempfile::tempdir().unwrap();
    fs::create_dir(restore_path(target.path())).unwrap();
    says(tandem_storage_writer::init(&json, target.path(), |_| {}).unwrap_err().to_string());
    assert!(!target.path().join("db").exists());
    fs::remove_dir(restore_path(datadir)).unwrap();
    StorageWriter::start(Config::new(datadir), Deps::default()).unwrap();
}
