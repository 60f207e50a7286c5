//! Clients that ask and do not read the answers, and others beside them.

use crate::{
    host::{Host, patient, wait_until},
    roles::House,
    scripted::{Scripted, block},
};
use bytes::Bytes;
use h2::{RecvStream, client::SendRequest};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tandem_primitives::{B256, NodeChange, TrieDiff};
use tandem_proto::{
    access::{EXECUTOR, MULTIPROOF_WORKER, STORAGE_WRITER},
    storage::{BaseReads, BlockReads, BlockRef, TrieStorage, WriteLease},
    wire::storage_writer::v1,
};
use tandem_storage_writer_client::ClientConfig;
use tokio::{net::TcpStream, sync::oneshot, time::timeout};
use tonic::codegen::http;

const LONGEST: Duration = Duration::from_secs(60);
/// Number of pending blocks, of a megabyte each.
const BLOCKS: usize = 6;
/// Room for all of them.
const WINDOW: u32 = 64 << 20;

fn full() -> Arc<Scripted> {
    let storage = Arc::new(Scripted::default());
    *storage.pending.lock().unwrap() = vec![block(1 << 20); BLOCKS];
    storage
}

/// Client with a window of 0 for each stream: it hears of an answer, and reads nothing of it.
struct Deaf {
    client: SendRequest<Bytes>,
    host: SocketAddr,
    opens: oneshot::Sender<()>,
}

impl Deaf {
    async fn connect(host: &Host) -> Self {
        let stream = TcpStream::connect(host.address).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(0).initial_connection_window_size(WINDOW);
        let (client, mut connection) = builder.handshake(stream).await.unwrap();
        let (opens, opened) = oneshot::channel();
        tokio::spawn(async move {
            let is_opened = tokio::select! {
                _ = &mut connection => return,
                opened = opened => opened.is_ok(),
            };
            if is_opened {
                connection.set_initial_window_size(WINDOW).unwrap();
            }
            let _ = connection.await;
        });
        Self { client, host: host.address, opens }
    }

    /// Makes a call, and waits until the answer has begun.
    async fn ask(&mut self, method: &str, message: &impl prost::Message) -> RecvStream {
        let uri = format!("http://{}/tandem.storage_writer.v1.StorageWriter/{method}", self.host);
        let request = http::Request::post(uri).header("content-type", "application/grpc");
        let request = request.header("te", "trailers").body(()).unwrap();
        let (answer, mut body) = self.client.send_request(request, false).unwrap();
        let message = message.encode_to_vec();
        let head = [&[0][..], &(message.len() as u32).to_be_bytes()].concat();
        body.send_data([head, message].concat().into(), true).unwrap();
        let answer = timeout(LONGEST, answer).await.expect("the answer begins").unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body()
    }
}

/// Returns settings that give an honest call much less time than the deaf clients have.
fn hurried() -> ClientConfig {
    ClientConfig { write_ms_max: 20_000, read_ms_max: 20_000, ..patient() }
}

#[test]
fn a_client_that_does_not_read_keeps_nobody_waiting() {
    let storage = full();
    let mut diff = TrieDiff::default();
    diff.push(NodeChange { owner: None, path: &[1], rlp: Some(&[7; 100]) });
    *storage.diff.lock().unwrap() = Some(Arc::new(diff));
    let host = Host::start_patient(storage.clone(), LONGEST);
    let held: Vec<RecvStream> = host.runtime.block_on(async {
        let mut deaf = Deaf::connect(&host).await;
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(
                deaf.ask("ListPending", &v1::ListPendingRequest { headers_only: false }).await,
            );
            let request = v1::GetTrieDiffRequest { block: vec![1; 32].into() };
            held.push(deaf.ask("GetTrieDiff", &request).await);
        }
        held
    });
    let executor = host.client_at(host.address, hurried());
    assert_eq!(executor.pending().unwrap().len(), BLOCKS);
    assert!(executor.trie_diff(B256::ZERO).unwrap().is_some());
    assert!(executor.acquire_epoch("executor").is_ok());
    assert_eq!(executor.pending().unwrap().len(), BLOCKS);
    assert_eq!(held.len(), 12);
}

#[test]
fn a_stream_of_which_nothing_is_taken_ends_and_says_why() {
    let storage = full();
    let held = storage.pending.lock().unwrap()[0].diff.clone();
    let before = Arc::strong_count(&held);
    let host = Host::start_patient(storage, Duration::from_millis(200));
    host.runtime.block_on(async {
        let mut deaf = Deaf::connect(&host).await;
        let mut body =
            deaf.ask("ListPending", &v1::ListPendingRequest { headers_only: false }).await;
        tokio::task::block_in_place(|| wait_until(|| Arc::strong_count(&held) == before));
        // It may read again now, and gets the part that was under way, and no more.
        deaf.opens.send(()).unwrap();
        let mut read = 0;
        while let Some(piece) = timeout(LONGEST, body.data()).await.unwrap() {
            read += piece.unwrap().len();
        }
        assert!(read < (BLOCKS - 1) << 20, "{read} bytes were kept for it");
        let trailers = timeout(LONGEST, body.trailers()).await.unwrap().unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "14");
        let text = trailers["grpc-message"].to_str().unwrap();
        assert!(text.contains("took%20nothing"), "{text}");
    });
    // A client that reads gets all of it.
    assert_eq!(host.client().pending().unwrap().len(), BLOCKS);
}

#[test]
fn others_that_keep_storage_busy_cannot_keep_an_executor_waiting() {
    let house = House::new();
    for is_proven in [true, false] {
        let storage = full();
        let host = match is_proven {
            true => Host::start_as(storage.clone(), house.identity(STORAGE_WRITER)),
            false => Host::start(storage.clone()),
        };
        let client = |role| {
            let identity = if is_proven { house.identity(role) } else { Default::default() };
            let mut config = hurried();
            config.connection.identity = identity;
            host.client_at(host.address, config)
        };
        let (executor, worker) = (client(EXECUTOR), client(MULTIPROOF_WORKER));
        if !is_proven {
            // It is identified by the epoch that it was granted.
            executor.acquire_epoch("executor").unwrap();
        }
        for (call, many) in [("trie_diff", 5), ("walk_trie", 40)] {
            storage.hold(Some(call));
            let asking: Vec<_> = (0..many)
                .map(|_| {
                    let worker = worker.clone();
                    std::thread::spawn(move || match call {
                        "trie_diff" => drop(worker.trie_diff(B256::ZERO)),
                        _ => drop(worker.walk_trie(&[])),
                    })
                })
                .collect();
            // As many calls run as there are places.
            let places = if call == "trie_diff" { 4 } else { 32 };
            wait_until(|| storage.count(call) == places);
            assert!(executor.checkpoint().is_ok(), "{call}");
            assert_eq!(executor.pending().unwrap().len(), BLOCKS, "{call}");
            assert!(executor.acquire_epoch("executor").is_ok(), "{call}");
            assert!(executor.block(BlockRef::Number(1)).is_ok());
            storage.hold(None);
            asking.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}
