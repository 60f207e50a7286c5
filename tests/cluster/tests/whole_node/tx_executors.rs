//! A node whose tx-executor begins to lie once it is trusted: every valid block stays valid, a block
//! with another list is invalid, and the liar is left alone.

use serde_json::json;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tandem_cluster::Config;
use tandem_cluster_tests::{Corpus, Node, Recorded, decode_status};
use tandem_executor::machines::TransactionWorkers;
use tandem_primitives::{Account, Bytes, U256};
use tandem_proto::tx_executor::{
    BlockWorker, FilledBlock, ListedBlock, OpenBlock, RangeTransaction, TxExecution, TxOutcome,
    TxResult,
};
use tandem_tx_executor::{Deps, Server, TxExecutor};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Way to make a result wrong.
type Spoil = fn(&mut TxOutcome);

/// Execution that claims to take no time, so that the executor wants it, and that may lie.
struct Liar {
    honest: TransactionWorkers,
    spoil: Spoil,
    lies: Arc<AtomicBool>,
    lied: Arc<AtomicUsize>,
}

struct LyingBlock<T: ?Sized> {
    block: Arc<T>,
    spoil: Spoil,
    lies: Arc<AtomicBool>,
    lied: Arc<AtomicUsize>,
}

struct LyingWorker {
    worker: Box<dyn BlockWorker>,
    spoil: Spoil,
    lies: Arc<AtomicBool>,
    lied: Arc<AtomicUsize>,
}

impl TxExecution for Liar {
    fn open(&self, block: ListedBlock) -> Result<Arc<dyn OpenBlock>, String> {
        let (lies, lied) = (self.lies.clone(), self.lied.clone());
        let block = self.honest.open(block)?;
        Ok(Arc::new(LyingBlock { block, spoil: self.spoil, lies, lied }))
    }
}

impl OpenBlock for LyingBlock<dyn OpenBlock> {
    fn prepare(&self, transaction: &RangeTransaction) {
        self.block.prepare(transaction);
    }

    fn fill(
        &self,
        accounts: Vec<Option<Account>>,
        codes: Vec<Bytes>,
    ) -> Result<Arc<dyn FilledBlock>, String> {
        let (lies, lied) = (self.lies.clone(), self.lied.clone());
        let block = self.block.fill(accounts, codes)?;
        Ok(Arc::new(LyingBlock { block, spoil: self.spoil, lies, lied }))
    }
}

impl FilledBlock for LyingBlock<dyn FilledBlock> {
    fn set_slots(&self, slots: Vec<U256>) -> Result<(), String> {
        self.block.set_slots(slots)
    }

    fn give_up_slots(&self) {
        self.block.give_up_slots();
    }

    fn worker(&self) -> Box<dyn BlockWorker> {
        let (worker, spoil) = (self.block.worker(), self.spoil);
        let (lies, lied) = (self.lies.clone(), self.lied.clone());
        Box::new(LyingWorker { worker, spoil, lies, lied })
    }
}

impl BlockWorker for LyingWorker {
    fn execute(&mut self, transaction: &RangeTransaction) -> TxResult {
        let mut result = self.worker.execute(transaction);
        result.took = Duration::from_nanos(1);
        if let Some(outcome) = result.outcome.as_mut().filter(|_| self.lies.load(SeqCst)) {
            (self.spoil)(outcome);
            self.lied.fetch_add(1, SeqCst);
        }
        result
    }
}

/// Tx-executor of this test.
struct Offered {
    address: SocketAddr,
    executor: Arc<TxExecutor>,
    lies: Arc<AtomicBool>,
    lied: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl Offered {
    async fn start(spoil: Spoil) -> Self {
        let (lies, lied) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let honest = TransactionWorkers::new(64 << 20);
        let liar = Liar { honest, spoil, lies: lies.clone(), lied: lied.clone() };
        let config = tandem_tx_executor::Config { threads: 2, ..Default::default() };
        let stop = CancellationToken::new();
        let deps = Deps { execution: Arc::new(liar), fatal: stop.clone() };
        let executor = TxExecutor::start(config, deps).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Server::new(executor.clone()).serve(listener, stop.clone()));
        Self { address, executor, lies, lied, stop }
    }

    async fn stop(self) {
        self.stop.cancel();
        let executor = self.executor;
        tokio::task::spawn_blocking(move || executor.stop()).await.unwrap();
    }
}

/// Replays the corpus with a tx-executor that lies from the middle on.
async fn replay(name: &str, spoil: Spoil) {
    let corpus = Corpus::amsterdam();
    let offered = Offered::start(spoil).await;
    let mut config = Config::default();
    config.executor.tx_executors = vec![format!("http://{}", offered.address)];
    // The fewer threads of its own, the more the node wants others.
    config.executor.prewarm_threads = 1;
    let mut node = Node::start_from_with(&corpus.genesis(), config).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let middle = corpus.blocks / 2;
    let (mut lied, mut blocks_with_lies) = (0, 0);
    for (index, Recorded { method, mut params, hash }) in corpus.payloads().enumerate() {
        offered.lies.store(index >= middle, SeqCst);
        let status = decode_status(node.engine.call(&method, params.clone()).await.unwrap());
        assert_eq!(status.verdict(), ("VALID", Some(hash)), "{name}, {index}: {status:?}");
        params[0]["blockAccessList"] = json!("0xc0");
        let status = decode_status(node.engine.call(&method, params).await.unwrap());
        assert_eq!(status.verdict().0, "INVALID", "{name}, {index}: {status:?}");
        node.set_head(hash).await;
        let lied_now = offered.lied.load(SeqCst);
        blocks_with_lies += u32::from(lied_now > lied);
        lied = lied_now;
    }
    let line = format!("{name}: {lied} lies\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
    assert!(lied > 0, "{name}: the tx-executor was not used");
    // The last answers of a block may come during the next one.
    assert!(blocks_with_lies <= 2, "{name}: a liar is asked again, in {blocks_with_lies} blocks");
    node.stop_and_verify().await;
    offered.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_gas_leaves_a_valid_block_valid() {
    replay("gas", |outcome| outcome.gas.spent += 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_logs_leave_a_valid_block_valid() {
    replay("logs", |outcome| drop(outcome.logs.pop())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_status_leaves_a_valid_block_valid() {
    replay("status", |outcome| outcome.success ^= true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_values_leave_a_valid_block_valid() {
    replay("values", |outcome| {
        let changed = outcome.accounts.iter_mut().find_map(|account| account.changed.as_mut());
        changed.into_iter().for_each(|(nonce, _)| *nonce += 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_reads_and_writes_leave_a_valid_block_valid() {
    replay("nothing", |outcome| outcome.accounts.clear()).await;
}
