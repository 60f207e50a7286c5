//! Terms: of several storage-writers of one chain, one takes writes.

use crate::{
    common::new_chain,
    host::{patient, wait_until},
};
use std::{path::Path, sync::Arc};
use tandem_proto::storage::{Epoch, Error, Leadership, Standing, Term, WriteLease};
use tandem_storage_writer::{
    Config, Deps,
    StartsAs::{self, Either, Follower, Leader},
    StorageWriter,
    grpc::Server,
};
use tandem_storage_writer_client::Client;
use tempfile::TempDir;
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// A storage-writer with its server.
struct Side {
    folder: TempDir,
    writer: Arc<StorageWriter>,
    endpoint: String,
    running: (CancellationToken, JoinHandle<std::io::Result<()>>),
}

fn open(datadir: &Path, starts_as: StartsAs) -> Arc<StorageWriter> {
    let config = Config { starts_as, ..Config::new(datadir) };
    StorageWriter::start(config, Deps::default()).unwrap()
}

impl Side {
    fn start(runtime: &Runtime, starts_as: StartsAs) -> Self {
        let folder = tempfile::tempdir().unwrap();
        new_chain(folder.path());
        let writer = open(folder.path(), starts_as);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let server = Server::new(writer.clone()).led_by(writer.clone());
        let task = runtime.spawn(server.serve(listener, stop.clone()));
        Self { folder, writer, endpoint, running: (stop, task) }
    }

    fn client(&self, runtime: &Runtime) -> Arc<Client> {
        Client::connect(&self.endpoint, patient(), runtime.handle()).unwrap()
    }

    fn standing(&self) -> Standing {
        *self.writer.standing().borrow()
    }

    /// Closes the database and opens it again, without a server.
    fn reopen(self, runtime: &Runtime, starts_as: StartsAs) -> (TempDir, Arc<StorageWriter>) {
        let Self { folder, writer, running: (stop, task), .. } = self;
        stop.cancel();
        runtime.block_on(task).unwrap().unwrap();
        drop(writer);
        let writer = open(folder.path(), starts_as);
        (folder, writer)
    }
}

fn is_unavailable<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unavailable(_)))
}

#[test]
fn a_promoted_follower_takes_the_executors_and_the_old_leader_takes_no_write_any_more() {
    let runtime = Runtime::new().unwrap();
    let (old, new) = (Side::start(&runtime, Leader), Side::start(&runtime, Follower));
    assert_eq!((old.standing(), new.standing()), (Standing::Leads(Term(0)), Standing::Follows));
    // The follower is named first, and is no choice.
    let endpoints = [&new.endpoint, &old.endpoint];
    let executor = Client::connect_to_one_of(&endpoints, patient(), runtime.handle()).unwrap();
    let first = executor.acquire_epoch("executor").unwrap();
    assert_eq!(first.number, 1);
    let operator = new.client(&runtime);
    // No executor writes to a follower, and it has no feed to give.
    assert!(is_unavailable(operator.acquire_epoch("executor")));
    let promoted = runtime.block_on(operator.promote(false)).unwrap();
    assert_eq!(promoted.term, Term(1));
    assert_eq!(runtime.block_on(operator.promote(false)).unwrap(), promoted, "it leads already");
    assert_eq!(old.writer.keep_epoch(first), Ok(()), "it has not heard of it");

    let told = old.client(&runtime);
    assert_eq!(runtime.block_on(told.supersede(Term(1))), Ok(Term(1)));
    assert_eq!(old.standing(), Standing::Superseded(Term(1)));
    assert!(is_unavailable(old.writer.keep_epoch(first)));
    assert!(is_unavailable(old.writer.acquire_epoch("another")));
    assert!(is_unavailable(told.acquire_epoch("another")));
    // The executor finds the new leader, which knows nothing of its epoch.
    let fenced = Error::Fenced { held: 1, granted: Term(1).floor() };
    wait_until(|| executor.keep_epoch(first) == Err(fenced.clone()));
    let second = executor.acquire_epoch("executor").unwrap();
    assert_eq!(second.number, Term(1).floor() + 1);
    assert_eq!(new.writer.keep_epoch(second), Ok(()));
    // Back and forth: the old leader serves again, and the executor finds it.
    assert!(matches!(runtime.block_on(told.promote(false)), Err(Error::Refused(_))));
    assert_eq!(runtime.block_on(told.promote(true)).unwrap().term, Term(2));
    assert_eq!(runtime.block_on(operator.supersede(Term(2))), Ok(Term(2)));
    wait_until(|| executor.keep_epoch(second).is_err_and(|error| !error.is_retryable()));
    let third = executor.acquire_epoch("executor").unwrap();
    assert_eq!(third.number, Term(2).floor() + 1);
    [executor, operator, told].iter().for_each(|client| client.stop());

    // A restart changes nothing of it, whatever the process is started as.
    let (_kept, old) = old.reopen(&runtime, Leader);
    assert_eq!(*old.standing().borrow(), Standing::Leads(Term(2)));
    assert_eq!(old.keep_epoch(third), Ok(()));
    let (kept, new) = new.reopen(&runtime, Leader);
    assert_eq!(*new.standing().borrow(), Standing::Superseded(Term(2)));
    assert!(is_unavailable(new.keep_epoch(second)));
    drop(new);
    // A superseded one may follow, and be promoted once more.
    let new = open(kept.path(), Either);
    assert_eq!(*new.standing().borrow(), Standing::Follows);
    drop(new);
    let new = open(kept.path(), Follower);
    assert_eq!(*new.standing().borrow(), Standing::Follows);
    assert_eq!(new.promote(false).unwrap().term, Term(3));
    let fourth = new.acquire_epoch("executor").unwrap();
    drop(new);
    let new = open(kept.path(), Either);
    assert_eq!(*new.standing().borrow(), Standing::Leads(Term(3)), "it was promoted");
    // An executor that comes from the new leader is proof enough.
    assert!(matches!(old.keep_epoch(fourth), Err(Error::Fenced { .. })));
    assert_eq!(*old.standing().borrow(), Standing::Superseded(Term(3)));
    assert!(is_unavailable(old.keep_epoch(third)));
}

#[test]
fn no_epoch_of_a_term_can_be_guessed_before_one_is_granted() {
    let folder = tempfile::tempdir().unwrap();
    new_chain(folder.path());
    let writer = open(folder.path(), Follower);
    let own = writer.acquire_epoch("follower").unwrap();
    assert_eq!(writer.hear_term(Term(4)), Ok(Term(4)), "that of its leader");
    assert_eq!(writer.hear_term(Term(3)), Ok(Term(4)), "an older leader");
    assert_eq!(writer.keep_epoch(own), Ok(()), "it goes on to write its copy");
    assert_eq!(writer.lead(Term(3)), Ok(Term(5)), "above what it has heard of");
    assert!(matches!(writer.keep_epoch(own), Err(Error::Fenced { .. })));
    let guessed = Epoch::numbered(Term(5).floor());
    assert!(matches!(writer.keep_epoch(guessed), Err(Error::Fenced { .. })));
    let two = writer.hear_term(Term(5)).unwrap_err().to_string();
    assert!(two.contains("two storage-writers lead in term 5"), "{two}");
    assert_eq!(*writer.standing().borrow(), Standing::Leads(Term(5)));
    assert_eq!(writer.lead(Term(4)), Ok(Term(5)), "it leads already");
    assert_eq!(writer.lead(Term(9)), Ok(Term(9)), "its lease has a later term");
    assert_eq!((writer.known_term(), writer.hear_term(Term(8))), (Term(9), Ok(Term(9))));
}
