//! Startup of the engine's thread and of the threads for users.

use crate::{
    ahead::read_ahead::Prefetcher,
    blobs::BlobPool,
    config::Config,
    engine::{Deps, Engine, Message},
    error::Error,
    handle::{Handle, Parts},
    metrics,
    queries::Queries,
    rpc::CallPools,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};
use tandem_actor::{Mailbox, mailbox, spawn};

/// The running executor.
pub struct Executor {
    mailbox: Mailbox<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
    handle: Handle,
}

impl Executor {
    /// Loads the recent chain from storage-writer and starts the engine. May wait for the database:
    /// not for the async reactor.
    ///
    /// # Errors
    /// [`Error`] if storage-writer does not answer or its data is invalid.
    pub fn start(config: Config, deps: Deps) -> Result<Arc<Self>, Error> {
        metrics::describe();
        crate::rpc::metrics::describe_metrics();
        let (fatal, policies) = (deps.fatal.clone(), deps.policies.clone());
        let (pool_config, blobs, bus) = (config.clone(), deps.blobs.clone(), deps.bus.clone());
        let (mailbox, inbox) = mailbox("engine", config.mailbox_capacity);
        let storage = deps.storage.clone();
        let predictor = config.predict_reads.unwrap_or(false).then(Arc::default);
        let (engine, chain) = Engine::open(config, deps, predictor.clone())?;
        let thread = spawn("engine", fatal, move || engine.run(&inbox));
        let thread = thread.map_err(Error::thread("engine"))?;
        let blobs = Arc::new(BlobPool::new(&pool_config, chain.clone(), blobs));
        let pools = Arc::new(CallPools::start(&pool_config)?);
        let recent = chain.recent.clone();
        let handle = Handle::new(Parts {
            engine: mailbox.clone(),
            queries: Arc::new(Queries::new(&pool_config, &chain)),
            prefetcher: Arc::new(Prefetcher { recent, storage, predictor }),
            chain,
            policies,
            bus,
            blobs,
            pools,
        });
        Ok(Arc::new(Self { mailbox, thread: Mutex::new(Some(thread)), handle }))
    }

    /// Returns a handle for calls to the executor.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Cuts the calls of users, lets the engine finish its queue, and waits for it. May block.
    pub fn stop(&self) {
        self.handle.pools().stop();
        let _ = self.mailbox.send(Message::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
