//! Wiring: the thread of sync.

use crate::{actor::Actor, config::Config, metrics, sink::BlockSink};
use std::{io, sync::Arc};
use tandem_actor::{Running, take_lowest_priority};
use tandem_primitives::B256;
use tandem_proto::{peer_sessions::PeerSessionsApi, storage::StateDownloads};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Dependencies of sync on the rest of the node.
pub struct Deps {
    /// peer-sessions, or a client of it.
    pub sessions: Arc<dyn PeerSessionsApi>,
    /// Chain that is filled.
    pub sink: Arc<dyn BlockSink>,
    /// Database that a state can be downloaded to, if this process has it.
    pub downloads: Option<Arc<dyn StateDownloads>>,
    /// Head that the consensus client chose, while its block is not known. A change wakes sync, even
    /// to the same head.
    pub goal: watch::Receiver<Option<B256>>,
    /// Token cancelled when the thread panics.
    pub fatal: CancellationToken,
}

/// Running service.
pub struct BlockSync {
    running: Running,
}

impl BlockSync {
    /// Starts the threads. Without a wanted head they wait.
    ///
    /// # Errors
    /// Error of the operating system if it cannot create a thread.
    pub fn start(config: Config, deps: Deps) -> io::Result<Arc<Self>> {
        metrics::describe();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(config.check_threads.max(1))
            .thread_name("sync-check")
            .on_thread_start(take_lowest_priority)
            .build()?;
        let running = Running::new(deps.fatal.clone());
        let stopping = running.stopping().clone();
        let actor = Actor::new(config, deps);
        running.spawn("sync", move || runtime.block_on(actor.run(stopping)))?;
        Ok(Arc::new(Self { running }))
    }

    /// Stops the thread and waits for it. Blocks that are executed stay.
    pub fn stop(&self) {
        self.running.stop(|| {});
    }
}
