//! Separate reactor of the public port. Its threads have the lowest priority. Requests of strangers
//! therefore take nothing from the threads on which the Engine API and blocks depend.

use axum::Router;
use std::{
    future::Future,
    io,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};
use tokio_util::sync::CancellationToken;

/// Maximum number of threads for large bodies and other blocking work; further work queues.
const BLOCKING_THREADS_MAX: usize = 16;

/// Longest wait for blocking work at the end.
const END_MAX: Duration = Duration::from_millis(100);

/// Reactor of the public port. Dropping it ends the remaining connections.
pub struct PublicReactor(Option<Runtime>);

impl PublicReactor {
    /// Starts the threads of the reactor.
    ///
    /// # Errors
    /// Returns the error of the operating system if a thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let started = AtomicUsize::new(0);
        let runtime = Builder::new_multi_thread()
            .worker_threads((cores / 2).clamp(1, 2))
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .event_interval(crate::EVENT_INTERVAL)
            .thread_name_fn(move || format!("http-{}", started.fetch_add(1, Relaxed)))
            .on_thread_start(tandem_actor::take_lowest_priority)
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Serves a port that is bound already, until `stopping`; see [`tandem_http::serve_lingering`]. The
    /// future may be awaited anywhere.
    pub fn serve(
        &self,
        listener: TcpListener,
        router: Router,
        leaving: CancellationToken,
        stopping: CancellationToken,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        // A socket belongs to the reactor in which it was bound.
        let listener = listener.into_std();
        let served = self.0.as_ref().map(|runtime| {
            runtime.spawn(async move {
                let listener = TcpListener::from_std(listener?)?;
                tandem_http::serve_lingering(listener, router, leaving, stopping).await
            })
        });
        async move {
            let Some(served) = served else { return Ok(()) };
            served.await.unwrap_or_else(|error| Err(io::Error::other(error)))
        }
    }

    /// Ends the remaining connections. May block for a moment.
    pub fn end(mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(END_MAX);
        }
    }
}

impl Drop for PublicReactor {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
