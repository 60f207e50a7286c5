//! Wiring: the threads, and the contract.

use crate::{
    accounts::ReadOnce,
    actor::{Actor, Message},
    arrived::Arrived,
    chain::{ChainError, ChainReads, Head},
    config::Config,
    error::Error,
    intake::{Intake, Worker, queues},
    journal::Journal,
    locals::Locals,
    metrics,
    peers::{News, Peers, Registry},
    pool::{Pool, Pooled},
};
use ::metrics::counter;
use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    future::ready,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Mailbox, Running, TaskSender, mailbox, task_queue};
use tandem_admission::{any_network_form_bytes_max, network_form_bytes_max};
use tandem_bus::Bus;
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::{
    blob_validator::BlobApi,
    event::CHAIN_HEAD,
    limits::BLOBS_PER_BUNDLE_MAX,
    tx_pool::{
        Added, Arrivals, BestPage, BestQuery, Content, Counts, Pending, PooledTransaction,
        TxPoolApi,
    },
};
use tokio::runtime;
use tokio_util::sync::CancellationToken;

/// Messages that wait for the actor. The threads of the intake wait beyond it.
const MAILBOX_CAPACITY: usize = 256;

/// News that wait for the task of the peers.
const NEWS_CAPACITY: usize = 1024;

/// Dependencies of the pool on the rest of the node.
pub struct Deps {
    /// Chain whose head the transactions are checked against.
    pub chain: Arc<dyn ChainReads>,
    /// blob-validator, which verifies and holds the blobs.
    pub blobs: Arc<dyn BlobApi>,
    /// Bus with the events of the chain.
    pub bus: Bus,
    /// Token cancelled when a thread panics.
    pub fatal: CancellationToken,
}

/// Reason why the pool cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The head of the chain cannot be read.
    #[error("read the head for the pool: {0}")]
    Chain(#[from] ChainError),
    /// The journal cannot be used.
    #[error("open the journal of transactions: {0}")]
    Journal(io::Error),
    /// The operating system cannot create a thread.
    #[error("start the threads of tx-pool: {0}")]
    Threads(#[from] io::Error),
}

/// State that the threads share. Locks are held for the time of a look-up or a change in memory.
pub(crate) struct Shared {
    pub(crate) chain: Arc<dyn ChainReads>,
    pub(crate) blobs: Arc<dyn BlobApi>,
    pub(crate) pool: Mutex<Pool>,
    /// Transactions that became pending lately.
    pub(crate) arrived: Mutex<Arrived>,
    pub(crate) registry: Mutex<Registry>,
    /// Time from which on the blobs of a transaction that the pool refuses are verified.
    pub(crate) unwanted_next: Mutex<Duration>,
    /// Held by the thread that extends blobs for a peer.
    pub(crate) extending: Mutex<()>,
    pub(crate) tip_min: u128,
    /// Bytes of the largest transaction that a peer may announce.
    pub(crate) network_bytes_max: u64,
    head: Mutex<Arc<Head>>,
    news: TaskSender<News>,
    begin: Instant,
    /// Reactor for the few waits of threads that may block.
    pub(crate) reactor: runtime::Handle,
}

impl Shared {
    /// Returns the time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Returns the head on which the pool stands.
    pub(crate) fn head(&self) -> Arc<Head> {
        self.head.lock().clone()
    }

    pub(crate) fn set_head(&self, head: Head) {
        *self.head.lock() = Arc::new(head);
    }

    /// Tells peers and subscribers of transactions that became pending.
    pub(crate) fn tell_of_pending(&self, pending: Vec<Arc<Pooled>>) {
        self.arrived.lock().push(&pending);
        self.tell_peers(News::Pending(pending));
    }

    /// Tells the task of the peers, if it keeps up.
    pub(crate) fn tell_peers(&self, news: News) {
        if !news.is_empty() && self.news.try_send(news).is_err() {
            counter!(metrics::DROPPED_NEWS).increment(1);
        }
    }

    pub(crate) fn forget(&self, blobs: &[B256]) {
        if !blobs.is_empty() {
            self.blobs.forget(blobs);
        }
    }
}

/// Running service.
pub struct TxPool {
    pub(crate) shared: Arc<Shared>,
    pub(crate) intake: Intake,
    actor: Mailbox<Message>,
    /// Dropped to end the threads of the intake, which may be waiting for transactions.
    awake: Mutex<Option<Sender<Infallible>>>,
    running: Running,
}

impl TxPool {
    /// Reads the journal, if there is one, and starts the threads. May wait for the database: not
    /// for the async reactor.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config, deps: Deps) -> Result<Arc<Self>, StartError> {
        metrics::describe();
        let Deps { chain, blobs, bus, fatal } = deps;
        let chain: Arc<dyn ChainReads> = Arc::new(ReadOnce::new(chain));
        // Heads are heard from before the first look on, so none is missed.
        let heads = bus.subscribe_here(CHAIN_HEAD);
        let has_journal = !config.datadir.as_os_str().is_empty();
        let record_max = any_network_form_bytes_max(BLOBS_PER_BUNDLE_MAX);
        let open = || Journal::open(&config.datadir, config.local_bytes_max, record_max);
        let journal = has_journal.then(open).transpose().map_err(StartError::Journal)?;
        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let (news, heard) = task_queue("tx-pool-peers", NEWS_CAPACITY);
        let blob_bytes = network_form_bytes_max(chain.spec(), BLOBS_PER_BUNDLE_MAX);
        let shared = Arc::new(Shared {
            head: Mutex::new(Arc::new(chain.head()?)),
            chain,
            blobs,
            pool: Mutex::new(Pool::new(config.limits())),
            arrived: Mutex::default(),
            registry: Mutex::default(),
            unwanted_next: Mutex::default(),
            extending: Mutex::default(),
            tip_min: config.tip_min.into(),
            network_bytes_max: blob_bytes as u64,
            news,
            begin: Instant::now(),
            reactor: runtime.handle().clone(),
        });
        let (intake, waiting) = queues(config.intake_max, config.intake_bytes_max);
        let (actor, inbox) = mailbox("tx-pool", MAILBOX_CAPACITY);
        let running = Running::new(fatal);
        let locals = Locals::new(config.local_max, config.local_bytes_max);
        let retry = Duration::from_secs(config.local_retry_seconds.max(1));
        let its = Actor::new(shared.clone(), intake.clone(), locals, retry, journal);
        running.spawn("tx-pool", move || its.run(&inbox))?;
        let (awake, ended) = bounded(0);
        for index in 0..config.intake_threads.clamp(1, 64) {
            let worker = Worker::new(shared.clone(), actor.clone(), running.stopping().clone())?;
            let (queues, ended) = (waiting.clone(), ended.clone());
            let run = move || worker.run(&queues, &ended);
            running.spawn(&format!("tx-intake-{index}"), run)?;
        }
        let peers = Peers::new(shared.clone(), intake.clone(), actor.clone());
        let stopping = running.stopping().clone();
        let run = move || runtime.block_on(peers.run(heard, heads, stopping));
        running.spawn("tx-pool-peers", run)?;
        Ok(Arc::new(Self { shared, intake, actor, awake: Mutex::new(Some(awake)), running }))
    }

    /// Stops the threads and waits for them. Blocks, so never call it in async code.
    pub fn stop(&self) {
        self.running.stop(|| {
            drop(self.awake.lock().take());
            let _ = self.actor.send(Message::Stop);
        });
    }
}

fn described(tx: &Pooled) -> PooledTransaction {
    PooledTransaction { hash: tx.hash, sender: tx.sender, raw: tx.raw.clone() }
}

impl TxPoolApi for TxPool {
    fn add(&self, raw: Vec<Bytes>) -> Added {
        let submitted = self.intake.submit(&raw);
        Box::pin(async move {
            let mut added = Vec::with_capacity(submitted.len());
            for submitted in submitted {
                let hash = match submitted {
                    Ok(answer) => answer.await.unwrap_or(Err(Error::Stopping)),
                    Err(error) => Err(error),
                };
                added.push(hash.map_err(Into::into));
            }
            added
        })
    }

    fn get(&self, hash: B256) -> Pending<Option<PooledTransaction>> {
        let found = self.shared.pool.lock().get(&hash).map(|tx| described(tx));
        Box::pin(ready(Ok(found)))
    }

    fn next_nonce(&self, sender: Address) -> Pending<Option<u64>> {
        let nonce = self.shared.pool.lock().next_nonce(&sender);
        Box::pin(ready(Ok(nonce)))
    }

    fn counts(&self) -> Pending<Counts> {
        let sizes = self.shared.pool.lock().sizes();
        let counts = Counts {
            pending: sizes.plain.0 + sizes.blobs.0,
            queued: sizes.plain.1 + sizes.blobs.1,
        };
        Box::pin(ready(Ok(counts)))
    }

    fn best(&self, query: BestQuery) -> Pending<BestPage> {
        let ((best, is_last), version) = {
            let pool = self.shared.pool.lock();
            let is_known = query.unless == Some(pool.version());
            (if is_known { (Vec::new(), true) } else { pool.best(&query) }, pool.version())
        };
        let transactions = best.iter().map(|tx| described(tx)).collect();
        Box::pin(ready(Ok(BestPage { transactions, version, is_last })))
    }

    fn arrivals(&self, after: Option<u64>) -> Pending<Arrivals> {
        let (found, upto) = self.shared.arrived.lock().after(after);
        let transactions = found.iter().map(|tx| described(tx)).collect();
        Box::pin(ready(Ok(Arrivals { transactions, upto })))
    }

    fn content(&self, sender: Option<Address>) -> Pending<Content> {
        let mut found: Vec<_> = {
            let pool = self.shared.pool.lock();
            let owned = |(pending, tx): (bool, &Arc<Pooled>)| (pending, tx.clone());
            match sender {
                Some(sender) => pool.of(&sender).map(owned).collect(),
                None => pool.all().map(owned).collect(),
            }
        };
        found.sort_by_key(|(_, tx)| (tx.sender, tx.nonce));
        let mut content = Content::default();
        for (pending, tx) in found {
            let list = if pending { &mut content.pending } else { &mut content.queued };
            list.push(described(&tx));
        }
        Box::pin(ready(Ok(content)))
    }
}
