//! The stream between an executor and a tx-executor, over a real connection.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tandem_primitives::{Account, Address, B256, Bytes, U256};
use tandem_proto::tx_executor::{
    BeginTransactions, BlockWorker, Environment, FilledBlock, ListedBlock, OpenBlock, ParentValues,
    RangeTransaction, TxCommand, TxExecution, TxExecutorApi, TxFork, TxOutcome, TxReply, TxResult,
};
use tandem_tx_executor::{Config, Deps, Server, TxExecutor};
use tandem_tx_executor_client::{Client, ClientConfig};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;

/// Longest wait for anything here.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Execution that needs no EVM: the gas of a transaction is the length of its bytes, and the first
/// byte may ask for trouble.
#[derive(Default)]
struct Lengths {
    /// Number of transactions that were prepared.
    prepared: Arc<AtomicUsize>,
}

/// Block by the length of its list, with the number of prepared transactions.
struct Block(usize, Arc<AtomicUsize>);

impl TxExecution for Lengths {
    fn open(&self, block: ListedBlock) -> Result<Arc<dyn OpenBlock>, String> {
        match block.list.first() {
            Some(0) => Err("not a list".to_owned()),
            _ => Ok(Arc::new(Block(block.list.len(), self.prepared.clone()))),
        }
    }
}

impl OpenBlock for Block {
    fn prepare(&self, _transaction: &RangeTransaction) {
        self.1.fetch_add(1, SeqCst);
    }

    fn fill(
        &self,
        accounts: Vec<Option<Account>>,
        _codes: Vec<Bytes>,
    ) -> Result<Arc<dyn FilledBlock>, String> {
        match accounts.is_empty() {
            true => Ok(Arc::new(Self(self.0, self.1.clone()))),
            false => Err("an account that the list does not name".to_owned()),
        }
    }
}

impl FilledBlock for Block {
    fn set_slots(&self, slots: Vec<U256>) -> Result<(), String> {
        match slots.is_empty() {
            true => Ok(()),
            false => Err("a slot that the list does not name".to_owned()),
        }
    }

    fn give_up_slots(&self) {}

    fn worker(&self) -> Box<dyn BlockWorker> {
        Box::new(Self(self.0, self.1.clone()))
    }
}

impl BlockWorker for Block {
    fn execute(&mut self, transaction: &RangeTransaction) -> TxResult {
        let mut outcome = TxOutcome { success: true, ..TxOutcome::default() };
        outcome.gas.spent = (self.0 + transaction.bytes.len()) as u64;
        if transaction.bytes.first() == Some(&0xff) {
            // A result that is too long for a message.
            let data: Bytes = vec![1; 5 << 20].into();
            let (address, topics) = (Address::ZERO, Vec::new());
            outcome.logs.push(tandem_proto::tx_executor::TxLog { address, topics, data });
        }
        let (index, took) = (transaction.index, Duration::from_micros(1));
        TxResult { index, took, outcome: Some(outcome), code_missing: false }
    }
}

struct Offered {
    executor: Arc<TxExecutor>,
    prepared: Arc<AtomicUsize>,
    stop: CancellationToken,
}

fn offer(runtime: &Runtime, address: SocketAddr) -> (Offered, SocketAddr) {
    let config = Config { threads: 3, ..Config::default() };
    let stop = CancellationToken::new();
    let execution = Lengths::default();
    let prepared = execution.prepared.clone();
    let deps = Deps { execution: Arc::new(execution), fatal: stop.clone() };
    let executor = TxExecutor::start(config, deps).unwrap();
    let listener = runtime.block_on(async {
        let until = Instant::now() + WAIT_MAX;
        loop {
            // The port may be in use for a moment after the end of another server.
            match TcpListener::bind(address).await {
                Ok(listener) => return listener,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let address = listener.local_addr().unwrap();
    runtime.spawn(Server::new(executor.clone()).serve(listener, stop.clone()));
    (Offered { executor, prepared, stop }, address)
}

fn connection(client: &Client, after: u64) -> u64 {
    let until = Instant::now() + WAIT_MAX;
    loop {
        if let Some(connection) = client.connection().filter(|number| *number > after) {
            return connection;
        }
        assert!(Instant::now() < until, "no connection");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn begin(list_bytes: usize) -> TxCommand {
    let environment = Environment {
        fork: TxFork::Amsterdam,
        chain_id: 1,
        number: 7,
        beneficiary: Address::ZERO,
        timestamp: 0,
        gas_limit: 0,
        base_fee: 0,
        prev_randao: B256::ZERO,
        excess_blob_gas: 0,
        blob_gas_price: 1,
        slot_number: 0,
        blobs_per_tx_max: None,
    };
    let traceparent = String::new();
    let begin = BeginTransactions { block_number: 7, traceparent, environment, list_bytes };
    TxCommand::Begin(Box::new(begin))
}

fn last() -> TxCommand {
    TxCommand::Values(ParentValues { last: true, ..ParentValues::default() })
}

fn range(indices: std::ops::Range<u32>, bytes: &[u8]) -> TxCommand {
    let transaction = |index| RangeTransaction { index, bytes: bytes.to_vec().into() };
    TxCommand::Range(indices.map(transaction).collect())
}

/// Returns the indices and the gas of so many results of a session, and the number of empty ones.
fn results(client: &Client, session: u64, count: usize) -> (Vec<(u32, u64)>, usize) {
    let (mut executed, mut empty) = (Vec::new(), 0);
    while executed.len() + empty < count {
        match client.receive(WAIT_MAX).expect("an answer") {
            (at, TxReply::Results(results)) if at == session => {
                for result in results {
                    match result.outcome {
                        Some(outcome) => executed.push((result.index, outcome.gas.spent)),
                        None => empty += 1,
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
    executed.sort_unstable();
    (executed, empty)
}

#[test]
fn blocks_follow_one_another_on_one_stream() {
    let runtime = Runtime::new().unwrap();
    let (offered, address) = offer(&runtime, "127.0.0.1:0".parse().unwrap());
    let settings = ClientConfig::default();
    let client = Client::connect(&format!("http://{address}"), settings, runtime.handle()).unwrap();
    let connection = connection(&client, 0);
    let send = |session, command| client.send(connection, session, command).unwrap();
    send(0, TxCommand::Ping(5));
    assert_eq!(client.receive(WAIT_MAX), Some((0, TxReply::Pong(5, 3))));
    for session in 1..=3 {
        send(session, begin(4));
        send(session, TxCommand::List(vec![1; 4].into()));
        // Transactions may come before the values.
        send(session, range(0..10, &[1, 2]));
        let until = Instant::now() + WAIT_MAX;
        while offered.prepared.load(SeqCst) < 10 * session as usize {
            assert!(Instant::now() < until, "not prepared");
            std::thread::sleep(Duration::from_millis(1));
        }
        send(session, last());
        for at in 1..20 {
            send(session, range(at * 100..at * 100 + 100, &[1]));
        }
        let (executed, empty) = results(&client, session, 1_910);
        assert_eq!((executed[0], executed[10], empty), ((0, 6), (100, 5), 0));
        assert!(executed.windows(2).all(|pair| pair[0].0 < pair[1].0), "each once");
        send(session, TxCommand::End);
    }
    // A result that is too long travels without its outcome.
    send(4, begin(1));
    send(4, TxCommand::List(vec![1].into()));
    send(4, last());
    send(4, range(0..1, &[0xff]));
    assert_eq!(results(&client, 4, 1), (Vec::new(), 1));
    // A list that does not decode, values that are not those of the list, and a block that is not as
    // announced.
    let (slots, accounts) = (vec![U256::ONE], vec![None]);
    let slot = ParentValues { slots, last: true, ..ParentValues::default() };
    let account = ParentValues { accounts, last: true, ..ParentValues::default() };
    let follow = ParentValues { slots_follow: true, ..ParentValues::default() };
    for (session, list, values) in [
        (5, vec![0; 9], vec![follow.clone()]),
        (6, vec![1; 9], vec![slot.clone()]),
        (7, vec![1; 9], vec![account]),
        (8, vec![1; 9], vec![follow.clone(), slot]),
        (9, vec![1; 5], vec![follow]),
    ] {
        send(session, begin(9));
        send(session, TxCommand::List(list.into()));
        values.into_iter().for_each(|values| send(session, TxCommand::Values(values)));
        send(session, range(0..1, &[1]));
        let answer = client.receive(WAIT_MAX);
        assert!(matches!(answer, Some((at, TxReply::Refused(_))) if at == session), "{answer:?}");
    }
    offered.stop.cancel();
    offered.executor.stop();
}

#[test]
fn another_process_is_another_connection() {
    let runtime = Runtime::new().unwrap();
    let (offered, address) = offer(&runtime, "127.0.0.1:0".parse().unwrap());
    let settings = ClientConfig::default();
    let client = Client::connect(&format!("http://{address}"), settings, runtime.handle()).unwrap();
    let first = connection(&client, 0);
    offered.stop.cancel();
    offered.executor.stop();
    let (offered, _) = offer(&runtime, address);
    let second = connection(&client, first);
    assert!(client.send(first, 0, TxCommand::Ping(1)).is_err(), "the first one is lost");
    client.send(second, 0, TxCommand::Ping(2)).unwrap();
    assert_eq!(client.receive(WAIT_MAX), Some((0, TxReply::Pong(2, 3))));
    offered.stop.cancel();
    offered.executor.stop();
}
