use super::*;
use std::sync::mpsc;
use tokio::time::timeout;

const LIMITS: Limits = Limits { seconds_max: 60, gas_max: 1_000 };
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a call that holds its thread until it is cut. It sends a message when it begins.
fn endless(
    began: &mpsc::Sender<()>,
) -> impl FnOnce(&Running<'_>) -> Result<(), RpcError> + Send + use<> {
    let began = began.clone();
    move |running| {
        began.send(()).unwrap();
        loop {
            running.check().map_err(cut_error)?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn usage() -> Arc<Usage> {
    Arc::default()
}

#[tokio::test]
async fn a_full_queue_refuses_and_is_served_when_a_thread_is_free_again() {
    let pool = CallPool::start("test", 1, 2, LIMITS).unwrap();
    let (began, has_begun) = mpsc::channel();
    let holder = tokio::spawn(pool.run(Lane::Public, usage(), endless(&began)));
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
    let mut waiting = Vec::new();
    for number in 0..2 {
        let mut call = Box::pin(pool.run(Lane::Public, usage(), move |_| Ok(number)));
        assert!(timeout(Duration::from_millis(1), &mut call).await.is_err());
        waiting.push(call);
    }
    let refused = pool.run(Lane::Public, usage(), |_| Ok(())).await.unwrap_err();
    assert_eq!(refused.code, code::LIMIT_EXCEEDED);
    assert!(refused.message.starts_with("limit exceeded"), "{}", refused.message);
    // The other port has its own queue, and goes first.
    let (order, in_order) = mpsc::channel();
    let told = order.clone();
    let engine = pool.run(Lane::Engine, usage(), move |_| {
        told.send("engine").unwrap();
        Ok(())
    });
    let mut engine = Box::pin(engine);
    assert!(timeout(Duration::from_millis(1), &mut engine).await.is_err());
    // One of the two gives up, which makes room for another.
    drop(waiting.remove(0));
    let told = order.clone();
    let next = pool.run(Lane::Public, usage(), move |_| {
        told.send("public").unwrap();
        Ok(())
    });
    let mut next = Box::pin(next);
    assert!(timeout(Duration::from_millis(1), &mut next).await.is_err());
    holder.abort();
    let served = async { (waiting.remove(0).await, engine.await, next.await) };
    let (second, engine, next) = timeout(PATIENCE, served).await.unwrap();
    assert_eq!((second.unwrap(), engine.unwrap(), next.unwrap()), (1, (), ()));
    assert_eq!(in_order.try_iter().collect::<Vec<_>>(), ["engine", "public"]);
}

#[tokio::test]
async fn a_caller_that_goes_away_frees_the_thread() {
    let pool = CallPool::start("test", 1, 8, LIMITS).unwrap();
    let (began, has_begun) = mpsc::channel();
    let call = tokio::spawn(pool.run(Lane::Public, usage(), endless(&began)));
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
    call.abort();
    let next = pool.run(Lane::Public, usage(), |_| Ok(7));
    assert_eq!(timeout(PATIENCE, next).await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn a_call_whose_caller_went_away_before_it_began_never_begins() {
    let pool = CallPool::start("test", 1, 8, LIMITS).unwrap();
    let (began, has_begun) = mpsc::channel();
    let holder = tokio::spawn(pool.run(Lane::Public, usage(), endless(&began)));
    let has_begun =
        tokio::task::spawn_blocking(move || has_begun.recv().map(|()| has_begun)).await.unwrap();
    let mut gone = Box::pin(pool.run(Lane::Public, usage(), endless(&began)));
    assert!(timeout(Duration::from_millis(1), &mut gone).await.is_err());
    drop(gone);
    holder.abort();
    assert!(timeout(PATIENCE, pool.run(Lane::Public, usage(), |_| Ok(()))).await.unwrap().is_ok());
    assert!(has_begun.unwrap().try_recv().is_err());
}

#[tokio::test]
async fn the_calls_of_a_batch_share_time_and_gas() {
    let limits = Limits { seconds_max: 1, ..LIMITS };
    let pool = CallPool::start("test", 1, 8, limits).unwrap();
    let batch = usage();
    let spend = |gas| {
        move |running: &Running<'_>| {
            running.check_gas().map_err(cut_error)?;
            running.add_gas(gas);
            Ok(())
        }
    };
    for gas in [400, 600] {
        pool.run(Lane::Public, batch.clone(), spend(gas)).await.unwrap();
    }
    let later = pool.run(Lane::Public, batch, spend(1)).await.unwrap_err();
    assert_eq!(later.code, code::LIMIT_EXCEEDED);
    assert!(later.message.contains("1000 gas"), "{}", later.message);

    let batch = usage();
    let (began, _has_begun) = mpsc::channel();
    for attempt in 0..3 {
        let late = pool.run(Lane::Public, batch.clone(), endless(&began)).await.unwrap_err();
        assert_eq!((late.code, &*late.message), (-32002, "request timed out"), "{attempt}");
    }
    pool.run(Lane::Public, usage(), spend(1)).await.unwrap();
}

#[tokio::test]
async fn a_call_that_waited_for_too_long_is_refused() {
    let wait_max = Duration::from_millis(5);
    let pool = CallPool::start_with("test", 1, 8, LIMITS, wait_max).unwrap();
    let holder = loop {
        let (began, has_begun) = mpsc::channel();
        let holder = tokio::spawn(pool.run(Lane::Public, usage(), endless(&began)));
        drop(began);
        // A thread that gets no processor for so long refuses this call as well.
        if tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().is_ok() {
            break holder;
        }
    };
    let mut late = Box::pin(pool.run(Lane::Public, usage(), |_| Ok(())));
    assert!(timeout(4 * wait_max, &mut late).await.is_err());
    holder.abort();
    let refused = timeout(PATIENCE, late).await.unwrap().unwrap_err();
    assert_eq!(refused.code, code::LIMIT_EXCEEDED);
}

#[tokio::test]
async fn the_end_cuts_what_runs_and_answers_what_waits() {
    let pool = Arc::new(CallPool::start("test", 1, 8, LIMITS).unwrap());
    let (began, has_begun) = mpsc::channel();
    let runs = tokio::spawn(pool.run(Lane::Public, usage(), endless(&began)));
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
    let mut waits = Box::pin(pool.run(Lane::Public, usage(), |_| Ok(())));
    assert!(timeout(Duration::from_millis(1), &mut waits).await.is_err());
    let stopping = pool.clone();
    tokio::task::spawn_blocking(move || stopping.stop()).await.unwrap();
    assert_eq!(pool.shared.state.lock().threads, 0, "the threads have ended");
    let cut = runs.await.unwrap().unwrap_err();
    assert_eq!(cut.code, code::SERVER_ERROR);
    assert_eq!(waits.await.unwrap_err().code, code::SERVER_ERROR);
    let later = pool.run(Lane::Public, usage(), |_| Ok(())).await.unwrap_err();
    assert_eq!(later.code, code::SERVER_ERROR);
}

#[tokio::test]
async fn a_call_that_panics_is_an_internal_error_and_the_thread_goes_on() {
    let pool = CallPool::start("test", 1, 8, LIMITS).unwrap();
    let panics = |_: &Running<'_>| -> Result<(), RpcError> { panic!("on purpose") };
    let error = pool.run(Lane::Public, usage(), panics).await.unwrap_err();
    assert_eq!(error.code, code::INTERNAL);
    pool.run(Lane::Public, usage(), |_| Ok(())).await.unwrap();
}

/// Rayon's own threads have the priority of threads that blocks wait for.
#[tokio::test]
async fn what_a_call_does_in_parallel_stays_on_its_own_thread() {
    use rayon::prelude::*;
    let pool = CallPool::start("test", 2, 8, LIMITS).unwrap();
    let threads = pool.run(Lane::Public, usage(), |_| {
        let name = |_| std::thread::current().name().map(str::to_owned);
        Ok((0..1000).into_par_iter().map(name).collect::<std::collections::HashSet<_>>())
    });
    let threads: Vec<_> = threads.await.unwrap().into_iter().flatten().collect();
    assert_eq!(threads.len(), 1, "{threads:?}");
    assert!(threads[0].starts_with("test-"), "{threads:?}");
}
