use super::*;
use scripted::{Scripted, block};
use tandem_primitives::B256;
use tandem_proto::storage::{Epoch, Forkchoice};
use tokio::{task::JoinHandle, time::sleep};
use tonic::Code;

#[allow(dead_code, reason = "shared with the tests over the wire, which use all of it")]
#[path = "../../../tests/grpc/scripted.rs"]
mod scripted;

fn lanes() -> (Arc<Scripted>, Arc<dyn StorageApi>, Arc<CallScheduler>) {
    let storage = Arc::new(Scripted::default());
    let api: Arc<dyn StorageApi> = storage.clone();
    let lanes = Arc::new(CallScheduler::new(&api, Duration::from_secs(60)));
    (storage, api, lanes)
}

/// Makes a call. Its place in the lane is free again when the call has returned.
async fn run(
    lanes: &CallScheduler,
    lane: Lane,
    call: fn(&dyn StorageApi) -> Result<(), Error>,
) -> Result<(), Status> {
    lanes.run(lane, Request::new(()), move |api, ()| Ok(call(api)?)).await
}

/// Starts a rewind that stays under way until the test releases it.
async fn hold_rewind(
    storage: &Scripted,
    lanes: &Arc<CallScheduler>,
) -> JoinHandle<Result<(), Status>> {
    storage.hold(Some("rewind"));
    let lanes = lanes.clone();
    let rewind =
        async move { run(&lanes, Lane::Write, |api| api.rewind(Epoch::numbered(1), 1)).await };
    let rewind = tokio::spawn(rewind);
    let end = Instant::now() + Duration::from_secs(60);
    while storage.begun().is_empty() {
        assert!(Instant::now() < end, "it never began");
        sleep(Duration::from_millis(1)).await;
    }
    rewind
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_made_in_their_order_and_none_whose_caller_went_away() {
    let (storage, _api, lanes) = lanes();
    let first = hold_rewind(&storage, &lanes).await;
    let mut gone =
        Box::pin(run(&lanes, Lane::Write, |api| api.discard(Epoch::numbered(1), B256::ZERO)));
    let forkchoice = |api: &dyn StorageApi| {
        api.canonicalize(Epoch::numbered(1), Forkchoice::default()).map(|_| ())
    };
    let mut second = Box::pin(run(&lanes, Lane::Write, forkchoice));
    let mut third =
        Box::pin(run(&lanes, Lane::Write, |api| api.commit(Epoch::numbered(1), block(1))));
    for waiting in [&mut gone, &mut second, &mut third] {
        assert!(timeout(Duration::ZERO, waiting).await.is_err(), "it waits");
    }
    drop(gone);
    storage.hold(None);
    let (third, second) = tokio::join!(third, second);
    assert!(first.await.unwrap().is_ok() && second.is_ok() && third.is_ok());
    assert_eq!(storage.begun(), ["rewind", "canonicalize", "commit"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_a_take_over_pass_a_write() {
    let (storage, _api, lanes) = lanes();
    let write = hold_rewind(&storage, &lanes).await;
    for lane in [Lane::Short, Lane::Long, Lane::Grant] {
        assert!(run(&lanes, lane, |api| api.checkpoint().map(drop)).await.is_ok());
    }
    assert_eq!(storage.begun(), ["rewind", "checkpoint", "checkpoint", "checkpoint"]);
    storage.hold(None);
    assert!(write.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_panics_fails_alone() {
    let (storage, api, lanes) = lanes();
    let panics = run(&lanes, Lane::Write, |_| panic!("a defect"));
    assert_eq!(panics.await.unwrap_err().code(), Code::Internal);
    assert!(run(&lanes, Lane::Write, |api| api.rewind(Epoch::numbered(1), 1)).await.is_ok());
    drop((storage, api));
    let gone = run(&lanes, Lane::Short, |api| api.checkpoint().map(drop)).await;
    assert_eq!(Error::from(gone.unwrap_err()), Error::Unavailable("stopping".into()));
}
