//! Startup of the engine's thread and of the threads for users.

use crate::{
    ahead::{predict::Prediction, read_ahead::Prefetcher},
    config::Config,
    engine::{Deps, Engine, Message},
    error::Error,
    handle::{Handle, Parts},
    metrics,
    queries::Queries,
    rpc::CallPools,
};
use std::sync::Arc;
use tandem_actor::{Mailbox, Running, mailbox};

/// The running executor.
pub struct Executor {
    mailbox: Mailbox<Message>,
    running: Running,
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
        let (running, policies) = (Running::new(deps.fatal.clone()), deps.policies.clone());
        let (pool_config, blobs, bus) = (config.clone(), deps.blobs.clone(), deps.bus.clone());
        let (mailbox, inbox) = mailbox("engine", config.mailbox_capacity);
        let storage = deps.storage.clone();
        let prediction = Prediction::new(config.predict_reads);
        let (engine, chain) = Engine::open(config, deps, prediction.clone())?;
        let spawned = running.spawn("engine", move || engine.run(&inbox));
        spawned.map_err(Error::thread("engine"))?;
        let pools = Arc::new(CallPools::start(&pool_config)?);
        let recent = chain.recent.clone();
        let handle = Handle::new(Parts {
            engine: mailbox.clone(),
            queries: Arc::new(Queries::new(&pool_config, &chain)),
            prefetcher: Arc::new(Prefetcher { recent, storage, prediction }),
            chain,
            policies,
            bus,
            blobs,
            pools,
        });
        Ok(Arc::new(Self { mailbox, running, handle }))
    }

    /// Returns a handle for calls to the executor.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Cuts the calls of users, lets the engine finish its queue, and waits for it. May block.
    pub fn stop(&self) {
        self.handle.pools().stop();
        self.running.stop(|| {
            let _ = self.mailbox.send(Message::Stop);
        });
    }
}
