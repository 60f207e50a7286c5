//! Answers over gRPC equal those in one process.

use crate::{
    common::{Random, block, new_chain, new_chain_in_memory},
    histories::{Front, Model, run, seeds},
    host::{Host, wait_until},
    readers::{Events, deps, move_and_read},
    scripted::Scripted,
};
use std::sync::Arc;
use tandem_primitives::StateDiff;
use tandem_proto::storage::{
    BaseReads, BlockReads, BlockRef, BlockWrites, StorageApi, TrieStorage, WriteLease,
};
use tandem_storage_writer::{Config, StorageWriter, verify};
use tandem_storage_writer_client::Client;
use tandem_telemetry::{Recorder, Ring, SpanContext, TraceLevel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tracing_subscriber::layer::SubscriberExt;

/// One client for all storage-writers, one after the other, at one address.
#[derive(Default)]
struct Wire(Option<(Host, Arc<Client>)>);

impl Front for Wire {
    fn open(&mut self, writer: &Arc<StorageWriter>) -> Arc<dyn StorageApi> {
        if let Some((host, _)) = &mut self.0 {
            host.start_again(writer.clone());
        }
        let (_, client) = self.0.get_or_insert_with(|| {
            let host = Host::start(writer.clone());
            let client = host.client();
            (host, client)
        });
        client.clone()
    }

    fn close(&mut self) {
        if let Some((host, client)) = &mut self.0 {
            host.stop();
            // Otherwise a call would find the old server as it ends.
            wait_until(|| !client.is_connected());
        }
    }
}

#[test]
fn random_histories_over_the_wire_agree_with_the_model() {
    for seed in seeds(3) {
        let directory = tempfile::tempdir().unwrap();
        run(Model::new(Wire::default(), directory.path().to_owned(), seed), 40);
    }
}

#[test]
fn random_histories_in_memory_over_the_wire_agree_with_the_model() {
    for seed in seeds(3) {
        run(Model::in_memory(Wire::default(), seed), 40);
    }
}

#[test]
fn an_answer_over_the_wire_is_of_one_block_while_the_base_moves_forward_and_back() {
    let (directory, events) = (tempfile::tempdir().unwrap(), Events::default());
    let (_, world) = new_chain(directory.path());
    let writer =
        StorageWriter::start(Config::with_small_limits(directory.path()), deps(&events)).unwrap();
    let mut host = Host::start(writer.clone());
    let client = host.client();
    // The server has the last handle: the database is closed when the server has ended.
    move_and_read(writer, client, world, &events);
    host.stop();
    assert_eq!(verify(directory.path()).unwrap().first_difference, None);
}

#[test]
fn all_lookups_give_what_is_there() {
    let (writer, _) = new_chain_in_memory(Default::default());
    let host = Host::start(writer.clone());
    let client = host.client();
    let genesis = writer.checkpoint().unwrap().genesis;
    assert_eq!(client.checkpoint(), writer.checkpoint());
    for block in [BlockRef::Number(0), BlockRef::Hash(genesis.hash), BlockRef::Number(9)] {
        assert_eq!(client.block(block), writer.block(block));
        assert_eq!(client.header(block), writer.header(block));
    }
    assert!(client.block(BlockRef::Number(0)).unwrap().is_some());
    assert_eq!(client.transaction(genesis.hash), Ok(None));
    assert_eq!(client.pending(), Ok(Vec::new()));
    assert_eq!(client.trie_diff(genesis.hash), Ok(None), "not pending");
    assert_eq!(client.walk_trie(&[]), writer.walk_trie(&[]));
    let nothing = Default::default();
    assert_eq!(client.read_state(&nothing), writer.read_state(&nothing));
}

#[test]
fn health_says_that_it_serves_until_it_stops() {
    let mut host = Host::start(Arc::new(Scripted::default()));
    let mut health = HealthClient::new(host.channel());
    let request =
        HealthCheckRequest { service: "tandem.storage_writer.v1.StorageWriter".to_owned() };
    let mut watched = host.runtime.block_on(health.watch(request)).unwrap().into_inner();
    let first = host.runtime.block_on(watched.message()).unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    host.stop();
    // The watch hears that the server stops before the connection ends, or is cut off.
    let last = host.runtime.block_on(watched.message());
    let told = last.as_ref().ok().and_then(Option::as_ref);
    assert!(told.is_none_or(|told| told.status() == ServingStatus::NotServing), "{last:?}");
}

#[test]
fn a_commit_continues_the_trace_of_its_caller() {
    let recorder = Recorder::new(TraceLevel::Stage, Arc::new(Ring::new(100_000, 64 << 20)));
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    // The server's threads have no subscriber of their own.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let (writer, world) = new_chain_in_memory(Default::default());
    let host = Host::start(writer);
    let client = host.client();
    let genesis = client.checkpoint().unwrap().genesis;
    let epoch = client.acquire_epoch("test").unwrap();
    let block = block(genesis, &world, StateDiff::default(), &mut Random(9));
    let context = {
        let span = tracing::info_span!(target: "tandem_executor", "caller").entered();
        client.commit(epoch, block).unwrap();
        SpanContext::of(&span).unwrap()
    };
    let find = |name: &str| {
        let spans = recorder.ring().traces(usize::MAX).into_iter().flatten();
        spans.into_iter().find(|span| span.name == name && span.trace_id == context.trace_id)
    };
    wait_until(|| find("storage_call").is_some());
    let (call, commit) = (find("storage_call").unwrap(), find("commit_block").unwrap());
    assert_eq!((call.parent_id, commit.parent_id), (context.span_id, call.span_id));
    assert_eq!((call.service, commit.service), ("storage-writer", "storage-writer"));
}
