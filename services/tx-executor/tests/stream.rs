//! The stream between an executor and a tx-executor, over a real connection.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::tx_executor::{
    BeginTransactions, BlockValues, BlockWorker, Environment, OpenBlock, ParentValues,
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
struct Lengths;

struct Block(usize);

impl TxExecution for Lengths {
    fn open(&self, block: BlockValues) -> Result<Arc<dyn OpenBlock>, String> {
        match block.list.len() {
            0 => Err("no list".to_owned()),
            length => Ok(Arc::new(Block(length))),
        }
    }
}

impl OpenBlock for Block {
    fn worker(&self) -> Box<dyn BlockWorker> {
        Box::new(Self(self.0))
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
    stop: CancellationToken,
}

fn offer(runtime: &Runtime, address: SocketAddr) -> (Offered, SocketAddr) {
    let config = Config { threads: 3, ..Config::default() };
    let stop = CancellationToken::new();
    let deps = Deps { execution: Arc::new(Lengths), fatal: stop.clone() };
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
    (Offered { executor, stop }, address)
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
        // Transactions may come before the values.
        send(session, range(0..10, &[1, 2]));
        send(session, TxCommand::List(vec![1; 4].into()));
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
    // A block that cannot be opened, and one that is not as announced.
    for (session, list_bytes) in [(5, 0), (6, 9)] {
        send(session, begin(list_bytes));
        send(session, last());
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
