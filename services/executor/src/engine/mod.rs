//! The engine: one thread that processes payloads and forkchoice updates in order of arrival. It
//! owns the state that a block changes; [`crate::Handle`] tells the blob pool of the answer.

mod base;
mod committed;
mod forkchoice;
mod kept;
mod overlap;
mod payload;
mod policies;
mod post_state;
mod premerge;
mod synced;

use crate::{
    ahead::{predict::Prediction, senders::Senders, speculate::Prewarmers},
    block::receipts::ReceiptsThread,
    builder::{BuiltBlocks, turn::EngineTurn},
    chain::Chain,
    config::Config,
    error::Error,
    machines::Machines,
    status::{Condemned, ForkchoiceState, PayloadStatus},
};
use alloy_primitives::map::B256Map;
use committed::Committed;
use kept::{CatchUp, Kept};
use premerge::TotalDifficulties;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tandem_actor::{Envelope, Inbox, Received};
use tandem_bus::{Bus, Subscription};
use tandem_chain::Block;
use tandem_policy::{LivePolicies, Policies};
use tandem_primitives::{B256, BlockId, BlockNumber};
use tandem_proto::{
    blob_validator::BlobApi,
    event::{CHAIN_PERSISTED, ChainEvent},
    multiproof::ProofApi,
    storage::{Epoch, StorageApi},
    tx_executor::TxExecutorApi,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Time the engine waits for work before it checks events again.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// Request to the engine.
pub enum Message {
    /// Executes a decoded payload, or a block to import.
    NewPayload {
        block: Arc<Block>,
        senders: Senders,
        reply: oneshot::Sender<Result<PayloadStatus, Error>>,
    },
    /// Sets a new head.
    Forkchoice { state: ForkchoiceState, reply: oneshot::Sender<Result<PayloadStatus, Error>> },
    /// Sets a new head that only the user of this machine chose.
    MakeHead { hash: B256, reply: oneshot::Sender<Result<PayloadStatus, Error>> },
    /// Notes that blocks are invalid because an ancestor of theirs is.
    Condemn { blocks: Condemned, reply: oneshot::Sender<()> },
    /// Follow storage-writer to a state that was downloaded.
    Adopt { reply: oneshot::Sender<Result<BlockId, Error>> },
    /// Stops the engine.
    Stop,
}

/// Dependencies of the engine in the cluster.
#[derive(Clone)]
pub struct Deps {
    /// storage-writer, or a client of it.
    pub storage: Arc<dyn StorageApi>,
    /// multiproof-workers, or a client of it.
    pub proof: Arc<dyn ProofApi>,
    /// Workers of this process, for roots that no header contains, such as those of a built
    /// payload. A wrong root of `proof` is detected by its block's header, but a wrong root here
    /// would be handed out.
    pub own_proof: Arc<dyn ProofApi>,
    /// blob-validator, or a client of it.
    pub blobs: Arc<dyn BlobApi>,
    /// Bus for publishing and receiving chain events.
    pub bus: Bus,
    /// Policies for forwarding changes and receipts; loaded when a block begins.
    pub policies: LivePolicies,
    /// Processes that execute transactions of blocks with access lists, beside this one.
    pub tx_executors: Vec<Arc<dyn TxExecutorApi>>,
    /// Cancelled when one of the executor's threads panics.
    pub fatal: CancellationToken,
}

pub struct Engine {
    chain: Arc<Chain>,
    storage: Arc<dyn StorageApi>,
    proof: Arc<dyn ProofApi>,
    own_proof: Arc<dyn ProofApi>,
    bus: Bus,
    persisted: Subscription,
    epoch: Epoch,
    prewarmers: Prewarmers,
    /// The tx-executors, `None` without any.
    machines: Option<Machines>,
    prediction: Prediction,
    invalid: Invalid,
    /// Tells the builder when the engine is at work.
    turn: Arc<EngineTurn>,
    /// Results of blocks that were built here.
    built: Arc<BuiltBlocks>,
    policies: LivePolicies,
    /// Policies of the newest block, for the metrics.
    shown: Option<Policies>,
    /// Thread for the receipts root; started when a policy first needs it.
    receipts_thread: Option<ReceiptsThread>,
    fatal: CancellationToken,
    total_difficulties: TotalDifficulties,
    /// Highest block that the base has reached or is moving to.
    base_limit: BlockNumber,
    /// Blocks that wait for their execution.
    kept: Kept,
    /// Kept blocks whose parent has become valid.
    ready: VecDeque<B256>,
    /// Head that is being caught up with, if it was chosen before it was executed.
    catch_up: Option<CatchUp>,
    /// Blocks committed last.
    committed: Committed,
    /// Valid blocks that storage-writer does not know to be valid.
    unsaid: VecDeque<B256>,
}

impl Engine {
    /// Acquires the right to write and loads storage-writer's data.
    pub fn open(
        config: Config,
        deps: Deps,
        prediction: Prediction,
        turn: Arc<EngineTurn>,
        built: Arc<BuiltBlocks>,
    ) -> Result<(Self, Arc<Chain>), Error> {
        // RPC and builder handle the blobs: the engine only checks versioned hashes.
        let Deps { storage, proof, own_proof, blobs: _, bus, policies, tx_executors, fatal } = deps;
        let persisted = bus.subscribe(CHAIN_PERSISTED);
        let epoch = storage.acquire_epoch(&config.name)?;
        let chain = Arc::new(Chain::open(&config, storage.clone())?);
        let prewarmers = Prewarmers::start(config.prewarm_threads, &fatal);
        let prewarmers = prewarmers.map_err(Error::thread("prewarm"))?;
        let machines =
            Machines::start(tx_executors, &fatal).map_err(Error::thread("tx-executor"))?;
        let machines = Some(machines).filter(|machines| !machines.is_empty());
        let invalid = Invalid::new(config.invalid_blocks);
        let mut engine = Self {
            chain: chain.clone(),
            storage,
            proof,
            own_proof,
            bus,
            persisted,
            epoch,
            prewarmers,
            machines,
            prediction,
            invalid,
            turn,
            built,
            policies,
            shown: None,
            receipts_thread: None,
            fatal,
            total_difficulties: TotalDifficulties::default(),
            base_limit: 0,
            kept: Kept::default(),
            ready: VecDeque::new(),
            catch_up: None,
            committed: Committed::default(),
            unsaid: VecDeque::new(),
        };
        engine.adopt()?;
        Ok((engine, chain))
    }

    pub fn run(mut self, inbox: &Inbox<Message>) {
        loop {
            let wait = if self.has_work() { Duration::ZERO } else { self.wait() };
            match inbox.receive(wait) {
                Received::Message(envelope) => {
                    if !self.handle(envelope) {
                        return;
                    }
                }
                Received::Idle => self.idle(),
                Received::Closed => return,
            }
        }
    }

    /// Handles one message; returns false at the end. An answer without a waiting caller is
    /// dropped.
    fn handle(&mut self, envelope: Envelope<Message>) -> bool {
        let _entered = envelope.span.entered();
        let turn = self.turn.clone();
        let taken = turn.take();
        match envelope.message {
            Message::NewPayload { block, senders, reply } => {
                let _ = reply.send(self.new_payload(&block, &senders));
            }
            Message::Forkchoice { state, reply } => {
                let _ = reply.send(self.forkchoice(state));
            }
            Message::MakeHead { hash, reply } => {
                let _ = reply.send(self.make_head(hash));
            }
            Message::Condemn { blocks, reply } => {
                self.condemn(blocks);
                let _ = reply.send(());
            }
            Message::Adopt { reply } => {
                let _ = reply.send(self.adopt());
            }
            Message::Stop => return false,
        }
        drop(taken);
        // The caller may have been woken on this core, where it would wait for this thread.
        std::thread::yield_now();
        // After the answer, which does not depend on it. The caller need not wait while the cache
        // absorbs durable blocks.
        self.hear_persisted();
        true
    }

    /// Returns the time to wait for a message.
    fn wait(&self) -> Duration {
        if self.catch_up.is_some() { kept::LOOK_AGAIN } else { IDLE_WAIT }
    }

    /// Does background work while no message waits.
    fn idle(&mut self) {
        self.hear_persisted();
        if self.has_work() {
            let turn = self.turn.clone();
            let _taken = turn.take();
            self.work();
            return;
        }
        // Off the path of a payload. A restart then need not check these roots again.
        if let Some(block) = self.unsaid.pop_front()
            && let Err(error) = self.storage.prove(self.epoch, block)
        {
            tracing::debug!(%block, %error, "valid block not marked so");
        }
    }

    fn publish(&self, subject: &'static str, block: BlockId) {
        self.bus.publish(subject, ChainEvent { block }.encode());
    }
}

/// Fault of an invalid block, and the newest valid block below it if that is known.
#[derive(Clone)]
struct Verdict {
    latest_valid: Option<B256>,
    error: String,
}

impl Verdict {
    /// Returns the answer to a call that names the block, or one that builds on it.
    fn status(&self) -> PayloadStatus {
        PayloadStatus::invalid(self.latest_valid, self.error.clone())
    }
}

/// Invalid blocks; the oldest are evicted first.
struct Invalid {
    verdicts: B256Map<Verdict>,
    order: VecDeque<B256>,
    max: usize,
}

impl Invalid {
    fn new(max: usize) -> Self {
        Self { verdicts: B256Map::default(), order: VecDeque::new(), max }
    }

    fn get(&self, hash: &B256) -> Option<&Verdict> {
        self.verdicts.get(hash)
    }

    fn insert(&mut self, hash: B256, verdict: Verdict) {
        if self.verdicts.insert(hash, verdict).is_none() {
            self.order.push_back(hash);
        }
        while self.order.len() > self.max {
            if let Some(oldest) = self.order.pop_front() {
                self.verdicts.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_verdict_is_forgotten_first() {
        let mut invalid = Invalid::new(2);
        for n in 1..=3 {
            let verdict = Verdict { latest_valid: None, error: n.to_string() };
            invalid.insert(B256::with_last_byte(n), verdict);
        }
        assert!(invalid.get(&B256::with_last_byte(1)).is_none());
        assert!(invalid.get(&B256::with_last_byte(3)).is_some());
    }
}
