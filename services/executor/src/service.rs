//! Startup of the engine's thread and of the threads for users.

use crate::{
    ahead::{predict::Prediction, read_ahead::Prefetcher},
    builder::{self, Builder, BuiltBlocks, Tools, turn::EngineTurn},
    config::Config,
    engine::{Deps, Engine, Message},
    error::Error,
    handle::{Handle, Parts},
    metrics,
    queries::Queries,
    rpc::CallPools,
};
use std::sync::{Arc, OnceLock};
use tandem_actor::{Mailbox, Running, mailbox};

/// The running executor.
pub struct Executor {
    mailbox: Mailbox<Message>,
    running: Running,
    handle: Handle,
    builder: Builder,
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
        let (storage, own_proof) = (deps.storage.clone(), deps.own_proof.clone());
        let has_tx_executors = !deps.tx_executors.is_empty();
        let prediction = Prediction::new(config.predict_reads);
        let (turn, built) = (Arc::<EngineTurn>::default(), Arc::<BuiltBlocks>::default());
        let (engine, chain) =
            Engine::open(config, deps, prediction.clone(), turn.clone(), built.clone())?;
        let spawned = running.spawn("engine", move || engine.run(&inbox));
        spawned.map_err(Error::thread("engine"))?;
        let (builder, transactions) = (Builder::default(), Arc::<OnceLock<_>>::default());
        let tools = Tools {
            chain: chain.clone(),
            proof: own_proof,
            turn,
            gas_limit_target: pool_config.gas_limit_target,
        };
        let parts = builder::Parts {
            tools,
            pool: transactions.clone(),
            blobs: blobs.clone(),
            blobs_max: pool_config.blobs_per_block_max,
            built,
        };
        let spawned = builder
            .worker(parts, running.stopping().clone())
            .and_then(|worker| running.spawn("builder", worker));
        spawned.map_err(Error::thread("builder"))?;
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
            builder: builder.clone(),
            transactions,
            testing: pool_config.testing_methods,
            has_tx_executors,
        });
        Ok(Arc::new(Self { mailbox, running, handle, builder }))
    }

    /// Returns a handle for calls to the executor.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Cuts the calls of users, lets the engine finish its queue, and waits for it. May block.
    pub fn stop(&self) {
        self.handle.pools().stop();
        self.running.stop(|| {
            self.builder.stop();
            let _ = self.mailbox.send(Message::Stop);
        });
    }
}

impl Drop for Executor {
    /// Ends the builder's thread, which waits for work. It would hold the workers and the pool.
    fn drop(&mut self) {
        self.running.stopping().cancel();
        self.builder.stop();
    }
}
