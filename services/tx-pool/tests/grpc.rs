//! The pool over gRPC, as the executor in another process sees it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::{
    future::{pending, ready},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tandem_primitives::{Address, B256, Bytes};
use tandem_proto::{
    limits::{POOL_MESSAGE_BYTES_MAX, POOL_PAGE_BYTES},
    tx_pool::{
        Added, Arrivals, BestPage, BestQuery, Content, Counts, Error, Pending, PooledTransaction,
        TxPoolApi,
    },
    wire::tx_pool::v1::{self, tx_pool_client::TxPoolClient},
};
use tandem_tx_pool::grpc::{Server, SyncNote};
use tandem_tx_pool_client::{Client, ClientConfig};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Endpoint};

const PATIENCE: Duration = Duration::from_secs(60);

fn wait(what: &str, mut look: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !look() {
        assert!(begin.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn transaction(index: u8, bytes: usize) -> PooledTransaction {
    PooledTransaction {
        hash: B256::repeat_byte(index),
        sender: Address::repeat_byte(index),
        raw: vec![index; bytes].into(),
    }
}

/// Pool that answers the same to every call, and remembers what it was asked.
#[derive(Default)]
struct Fixed {
    content: Content,
    /// Verdict on transactions; without one they are answered with the hash of one.
    verdict: Option<Error>,
    asked: Mutex<Vec<String>>,
}

impl Fixed {
    fn note(&self, call: String) {
        self.asked.lock().unwrap().push(call);
    }
}

fn answer<T: Send + 'static>(answer: Result<T, Error>) -> Pending<T> {
    Box::pin(ready(answer))
}

impl TxPoolApi for Fixed {
    fn add(&self, raw: Vec<Bytes>) -> Added {
        let add = |raw: &Bytes| {
            self.note(format!("add {}", raw.len()));
            // A verdict is on transactions of odd length.
            let verdict = self.verdict.clone().filter(|_| raw.len() % 2 == 1);
            verdict.map_or(Ok(B256::with_last_byte(raw.len() as u8)), Err)
        };
        Box::pin(ready(raw.iter().map(add).collect()))
    }

    fn get(&self, hash: B256) -> Pending<Option<PooledTransaction>> {
        answer(Ok(self.content.pending.iter().find(|it| it.hash == hash).cloned()))
    }

    fn next_nonce(&self, sender: Address) -> Pending<Option<u64>> {
        answer(Ok((sender == Address::repeat_byte(1)).then_some(7)))
    }

    fn counts(&self) -> Pending<Counts> {
        let Content { pending, queued } = &self.content;
        answer(Ok(Counts { pending: pending.len(), queued: queued.len() }))
    }

    fn best(&self, query: BestQuery) -> Pending<BestPage> {
        self.note(format!("{query:?}"));
        let transactions = self.content.pending.clone();
        answer(Ok(BestPage { transactions, version: 3, is_last: query.skip > 0 }))
    }

    fn arrivals(&self, after: Option<u64>) -> Pending<Arrivals> {
        let Content { pending, .. } = &self.content;
        let (upto, after) = (pending.len(), after.map_or(pending.len(), |after| after as usize));
        answer(Ok(Arrivals { transactions: pending[after..].to_vec(), upto: upto as u64 }))
    }

    fn content(&self, sender: Option<Address>) -> Pending<Content> {
        let of = |all: &[PooledTransaction]| {
            all.iter().filter(|it| sender.is_none_or(|of| of == it.sender)).cloned().collect()
        };
        let Content { pending, queued } = &self.content;
        answer(Ok(Content { pending: of(pending), queued: of(queued) }))
    }
}

/// Pool that is offered at an address, on a runtime that can end as a process does.
struct Offered {
    address: SocketAddr,
    runtime: Runtime,
    sync: Arc<SyncNote>,
}

fn offer(pool: Arc<Fixed>, address: SocketAddr) -> Offered {
    let (runtime, sync) = (Runtime::new().unwrap(), Arc::<SyncNote>::default());
    let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
    let address = listener.local_addr().unwrap();
    // Calls are answered before the health says that the service does its work.
    let server = Server::new(pool, sync.clone());
    runtime.spawn(server.serve(listener, pending(), CancellationToken::new()));
    Offered { address, runtime, sync }
}

impl Offered {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the server with all its connections; returns the address.
    fn end(self) -> SocketAddr {
        self.runtime.shutdown_background();
        self.address
    }
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn connect(runtime: &Runtime, url: &str, content_bytes_max: usize) -> Arc<Client> {
    // The waits are long, so that a busy machine does not fail the test.
    let ms = PATIENCE.as_millis() as u64;
    let config = ClientConfig {
        answer_ms_max: ms,
        add_ms_max: ms,
        content_ms_max: ms,
        content_bytes_max,
        ..<_>::default()
    };
    let client = Client::connect(url, config, runtime.handle()).unwrap();
    wait("a connection", || client.is_connected());
    client
}

#[test]
fn every_call_is_answered_as_by_the_pool_itself() {
    let runtime = Runtime::new().unwrap();
    let content = Content {
        pending: vec![transaction(1, 10), transaction(2, 100)],
        queued: vec![transaction(3, 1000)],
    };
    let pool = Arc::new(Fixed { content, ..Fixed::default() });
    let offered = offer(pool.clone(), anywhere());
    let client = connect(&runtime, &offered.url(), usize::MAX);
    fn same<T, F>(runtime: &Runtime, client: &Client, pool: &Fixed, call: F)
    where
        T: PartialEq + std::fmt::Debug,
        F: Fn(&dyn TxPoolApi) -> Pending<T>,
    {
        assert_eq!(runtime.block_on(call(client)), runtime.block_on(call(pool)));
    }
    for index in [1, 9] {
        same(&runtime, &client, &pool, |it| it.get(B256::repeat_byte(index)));
        same(&runtime, &client, &pool, |it| it.next_nonce(Address::repeat_byte(index)));
        same(&runtime, &client, &pool, |it| it.content(Some(Address::repeat_byte(index))));
    }
    same(&runtime, &client, &pool, |it| it.counts());
    same(&runtime, &client, &pool, |it| it.content(None));
    for after in [None, Some(0), Some(1), Some(2)] {
        same(&runtime, &client, &pool, |it| it.arrivals(after));
    }
    let query = BestQuery {
        base_fee: u128::MAX,
        blob_fee: Some(5),
        blob_transactions_max: 36,
        skip: 1,
        transactions_max: 2_048,
        unless: Some(2),
    };
    for skip in [0, 1] {
        same(&runtime, &client, &pool, |it| it.best(BestQuery { skip, ..query }));
    }
    let asked = pool.asked.lock().unwrap().clone();
    assert!(asked.chunks(2).all(|pair| pair[0] == pair[1]) && asked.len() == 4, "{asked:?}");
    offered.end();
}

#[test]
fn a_refusal_keeps_its_reason_and_an_overload_its_pause() {
    let runtime = Runtime::new().unwrap();
    let reason = "nonce too low: next nonce 2, tx nonce 1".to_owned();
    for error in [
        Error::Refused { kind: "nonce_too_low".into(), reason },
        Error::Overloaded { retry_after: Duration::from_millis(1500) },
        Error::Unavailable("read the chain: gone".to_owned()),
    ] {
        let pool = Arc::new(Fixed { verdict: Some(error.clone()), ..Fixed::default() });
        let offered = offer(pool, anywhere());
        let client = connect(&runtime, &offered.url(), usize::MAX);
        let transactions = [1, 2, 3, 4].map(|length| Bytes::from(vec![0; length])).to_vec();
        let hash = |length| Ok(B256::with_last_byte(length));
        let expected = vec![Err(error.clone()), hash(2), Err(error), hash(4)];
        assert_eq!(runtime.block_on(client.add(transactions)), expected);
        offered.end();
    }
}

#[test]
fn many_or_large_transactions_go_in_several_messages_and_one_beyond_the_limit_fails_alone() {
    let runtime = Runtime::new().unwrap();
    let pool = Arc::<Fixed>::default();
    let offered = offer(pool.clone(), anywhere());
    let client = connect(&runtime, &offered.url(), usize::MAX);
    let lengths = [vec![9 << 20; 3], vec![7; 600], vec![POOL_MESSAGE_BYTES_MAX, 5]].concat();
    let transactions = lengths.iter().map(|&length| Bytes::from(vec![3; length])).collect();
    let added = runtime.block_on(client.add(transactions));
    let (last, rest) = added.split_last().unwrap();
    let (beyond, rest) = rest.split_last().unwrap();
    assert!(matches!(beyond, Err(Error::Unavailable(_))), "{beyond:?}");
    assert_eq!(*last, Ok(B256::with_last_byte(5)));
    let hash = |length: &usize| Ok(B256::with_last_byte(*length as u8));
    assert_eq!(rest, lengths[..603].iter().map(hash).collect::<Vec<_>>());
    assert_eq!(pool.asked.lock().unwrap().len(), 604);
    assert_eq!(runtime.block_on(client.add(Vec::new())), []);
    offered.end();
}

#[test]
fn a_large_content_comes_in_parts_and_one_beyond_the_limit_is_refused() {
    let runtime = Runtime::new().unwrap();
    let count = (POOL_MESSAGE_BYTES_MAX + POOL_PAGE_BYTES) >> 17;
    let pending: Vec<_> = (0..count).map(|index| transaction(index as u8, 128 << 10)).collect();
    let bytes = count << 17;
    let content = Content { pending, queued: vec![transaction(1, 1)] };
    let pool = Arc::new(Fixed { content: content.clone(), ..Fixed::default() });
    let offered = offer(pool, anywhere());
    let client = connect(&runtime, &offered.url(), bytes + 1);
    assert_eq!(runtime.block_on(client.content(None)), Ok(content));
    let client = connect(&runtime, &offered.url(), bytes);
    let refused = Error::Unavailable(format!("its content has more than {bytes} bytes"));
    assert_eq!(runtime.block_on(client.content(None)), Err(refused));
    offered.end();
}

#[test]
fn without_a_connection_calls_fail_at_once_until_there_is_the_next() {
    let runtime = Runtime::new().unwrap();
    let pool = Arc::<Fixed>::default();
    let offered = offer(pool.clone(), anywhere());
    let client = connect(&runtime, &offered.url(), usize::MAX);
    assert_eq!(runtime.block_on(client.counts()), Ok(Counts::default()));
    let address = offered.end();
    wait("the loss", || !client.is_connected());
    let gone = Error::Unavailable("no connection to it".to_owned());
    assert_eq!(gone.to_string(), "tx-pool is not available: no connection to it");
    let added = runtime.block_on(client.add(vec![Bytes::new(); 2]));
    assert_eq!(added, vec![Err(gone.clone()); 2]);
    assert_eq!(runtime.block_on(client.counts()), Err(gone.clone()));
    assert_eq!(runtime.block_on(client.content(None)), Err(gone.clone()));
    assert_eq!(runtime.block_on(client.note_sync(true)), Err(gone));
    let offered = offer(pool, address);
    wait("a connection", || client.is_connected());
    assert_eq!(runtime.block_on(client.counts()), Ok(Counts::default()));
    offered.end();
}

#[test]
fn the_executor_says_whether_the_head_is_behind() {
    let runtime = Runtime::new().unwrap();
    let offered = offer(Arc::default(), anywhere());
    let client = connect(&runtime, &offered.url(), usize::MAX);
    for syncing in [true, false] {
        assert_eq!(runtime.block_on(client.note_sync(syncing)), Ok(()));
        assert_eq!(offered.sync.is_syncing(Instant::now()), syncing);
    }
    offered.end();
}

#[test]
fn malformed_and_oversized_requests_are_refused_with_a_reason() {
    let runtime = Runtime::new().unwrap();
    let offered = offer(Arc::default(), anywhere());
    runtime.block_on(async {
        let to = Endpoint::from_shared(offered.url()).unwrap();
        let mut calls = TxPoolClient::connect(to).await.unwrap();
        async fn refusal<T: std::fmt::Debug>(
            answer: impl Future<Output = Result<T, tonic::Status>>,
        ) -> (Code, String) {
            let status = answer.await.unwrap_err();
            (status.code(), status.message().to_owned())
        }
        let invalid = |text: &str| (Code::InvalidArgument, text.to_owned());
        let got = refusal(calls.get(v1::GetRequest { hash: vec![0; 31].into() })).await;
        assert_eq!(got, invalid("get.hash: expected 32 bytes, got 31"));
        let got = refusal(calls.list_best(v1::ListBestRequest::default())).await;
        assert_eq!(got, invalid("list_best.transactions_max: 0 is not in 1..=4096"));
        let sender = vec![0; 19].into();
        let got = refusal(calls.list_content(v1::ListContentRequest { sender })).await;
        assert_eq!(got, invalid("list_content.sender: expected 20 bytes, got 19"));
        let raw = vec![0; POOL_MESSAGE_BYTES_MAX].into();
        let sizes = vec![POOL_MESSAGE_BYTES_MAX as u32];
        let got = refusal(calls.add(v1::AddRequest { sizes, raw })).await;
        assert_eq!(got.0, Code::OutOfRange, "{got:?}");
        let many = v1::AddRequest { sizes: vec![0; 257], ..Default::default() };
        let got = refusal(calls.add(many)).await;
        assert_eq!(got, invalid("add.sizes: 257 are more than 256"));
    });
    offered.end();
}
