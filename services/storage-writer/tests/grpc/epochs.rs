//! The right to write: one executor at a time, the next when the one before is gone.

use crate::{
    common::{Random, block, new_chain, new_chain_in_memory},
    host::{Host, patient, wait_until},
    scripted::{Scripted, unexecuted},
};
use alloy_rlp::Encodable;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_primitives::{ShardSet, keccak256};
use tandem_proto::{
    convert::EpochRequest,
    storage::{
        BaseReads, Block, BlockWrites, Claim, Epoch, EpochToken, Error, Forkchoice, Result,
        StorageApi, TrieStorage, WriteLease,
    },
    wire::storage_writer::v1,
};
use tandem_storage_writer::{Config, Deps, StorageWriter};
use tandem_storage_writer_client::ClientConfig;

fn leased(ms: u64) -> ClientConfig {
    ClientConfig { lease_ms: ms, ..patient() }
}

/// Far longer than a busy machine may delay a renewal.
const LONG: u64 = 60_000;
const SHORT: u64 = 300;

#[test]
fn nobody_takes_over_while_the_executor_says_that_it_is_there() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let first = host.client_at(host.address, leased(LONG));
    let second = host.client_at(host.address, leased(SHORT));
    let epoch = first.acquire_epoch("first").unwrap();
    let refused = second.acquire_epoch("second");
    let reason = format!("first has the right to write, epoch {}", epoch.number);
    assert_eq!(refused, Err(Error::Unavailable(reason)));
    let again = first.acquire_epoch("first").unwrap();
    assert_eq!(again.number, 2, "its own lease is not in its way");
    first.release_epoch();
    assert_eq!(second.acquire_epoch("second").unwrap().number, 3);
}

#[test]
fn an_executor_that_is_silent_for_longer_than_its_lease_is_taken_over_and_learns_of_it() {
    let (writer, _) = new_chain_in_memory(Default::default());
    let host = Host::start(writer.clone());
    let first = host.client_at(host.address, leased(SHORT));
    let second = host.client_at(host.address, leased(LONG));
    let old = first.acquire_epoch("first").unwrap();
    // For many leases: the executor renews its lease.
    let kept = Instant::now() + Duration::from_millis(4 * SHORT);
    while Instant::now() < kept {
        assert_eq!(writer.keep_epoch(old), Ok(()));
        std::thread::sleep(Duration::from_millis(10));
    }
    // A caller that asks for no lease gets the epoch, as if the first executor had fallen silent.
    let new = writer.acquire_epoch("other").unwrap();
    host.runtime.block_on(first.fenced());
    assert_eq!(
        writer.keep_epoch(old),
        Err(Error::Fenced { held: old.number, granted: new.number })
    );
    drop(first);
    let mut newest = None;
    wait_until(|| {
        newest = second.acquire_epoch("second").ok();
        newest.is_some()
    });
    assert_eq!(newest.map(|epoch| epoch.number), Some(new.number + 1));
}

#[test]
fn after_a_restart_the_executor_of_the_newest_epoch_is_admitted_first() {
    let folder = tempfile::tempdir().unwrap();
    new_chain(folder.path());
    let open =
        || StorageWriter::start(Config::with_small_limits(folder.path()), Deps::default()).unwrap();
    let mut host = Host::start(open());
    let first = host.client_at(host.address, leased(LONG));
    let epoch = first.acquire_epoch("first").unwrap();
    // As when it is killed: nothing is given back.
    drop(first);
    host.stop();
    host.start_again(open());
    let second = host.client_at(host.address, leased(SHORT));
    let reason = format!("first has the right to write, epoch {}", epoch.number);
    assert_eq!(second.acquire_epoch("second"), Err(Error::Unavailable(reason)));
    let mut raw = host.raw();
    let claim = Claim { lease: Duration::from_millis(SHORT), ..Claim::of("first") };
    let request = v1::AcquireEpochRequest::from(EpochRequest { claim, held: Some(epoch) });
    let answer = host.runtime.block_on(raw.acquire_epoch(request)).unwrap().into_inner();
    assert_eq!(answer.epoch, epoch.number + 1);
    // Then any executor, once that lease is over.
    wait_until(|| second.acquire_epoch("second").is_ok());
    // An epoch that was given back blocks no other executor.
    second.release_epoch();
    host.stop();
    host.start_again(open());
    let third = host.client_at(host.address, leased(SHORT));
    assert_eq!(third.acquire_epoch("third").unwrap().number, epoch.number + 3);
}

/// Returns the answer of every call with an epoch, by name. Each changes something, or blocks
/// others.
fn calls(api: &dyn StorageApi, epoch: Epoch, known: &Block) -> Vec<(&'static str, Result<()>)> {
    let hash = known.id.hash;
    let head = Forkchoice { head: known.id, ..Forkchoice::default() };
    vec![
        ("keep_epoch", api.keep_epoch(epoch)),
        ("commit", api.commit(epoch, known.clone())),
        ("prove", api.prove(epoch, hash)),
        ("keep", api.keep(epoch, unexecuted())),
        ("canonicalize", api.canonicalize(epoch, head).map(|_| ())),
        ("rewind", api.rewind(epoch, 0)),
        ("discard", api.discard(epoch, hash)),
        ("release_epoch", api.release_epoch(epoch)),
    ]
}

#[test]
fn a_stranger_who_guesses_the_epoch_gets_no_call_through() {
    let (writer, mut world) = new_chain_in_memory(Default::default());
    let host = Host::start(writer.clone());
    // Before the first grant, too, there is an epoch to guess.
    let stranger = host.client();
    assert!(matches!(stranger.keep_epoch(Epoch::numbered(0)), Err(Error::Fenced { .. })));
    let executor = host.client_at(host.address, leased(LONG));
    let epoch = executor.acquire_epoch("executor").unwrap();
    let mut random = Random(11);
    let diff = world.random_diff(&mut random);
    world.apply(&diff);
    let genesis = writer.checkpoint().unwrap().genesis;
    let block = block(genesis, &world, diff, &mut random);
    executor.commit(epoch, block.clone()).unwrap();

    let number = epoch.number;
    let before = (writer.checkpoint().unwrap(), writer.pending().unwrap());
    let guessed = Epoch::numbered(number);
    let wrong = Epoch { token: Some(EpochToken([0; 16])), ..guessed };
    for epoch in [guessed, wrong] {
        for (name, answer) in calls(&*stranger, epoch, &block) {
            assert_eq!(answer, Err(Error::Unproven { held: number }), "{name} of {epoch:?}");
        }
        // It does not get an epoch of its own either, while the executor's epoch has a lease.
        let claim = Claim { lease: Duration::from_secs(60), ..Claim::of("evil") };
        let request = v1::AcquireEpochRequest::from(EpochRequest { claim, held: Some(epoch) });
        let answer = host.runtime.block_on(host.raw().acquire_epoch(request));
        assert_eq!(answer.unwrap_err().code(), tonic::Code::Unavailable, "{epoch:?}");
    }
    assert_eq!((writer.checkpoint().unwrap(), writer.pending().unwrap()), before);
    for (name, answer) in calls(&*executor, epoch, &block) {
        // Any other error of a call has nothing to do with the epoch.
        let refused = matches!(answer, Err(Error::Unproven { .. } | Error::Fenced { .. }));
        assert!(!refused, "{name}: {answer:?}");
    }
}

#[test]
fn an_executor_of_version_0_1_0_writes_without_a_token() {
    let (writer, _) = new_chain_in_memory(Default::default());
    let host = Host::start(writer.clone());
    let (mut raw, executor) = (host.raw(), "old".to_owned());
    let request = v1::AcquireEpochRequest { executor, lease_ms: 60_000, ..Default::default() };
    let answer = host.runtime.block_on(raw.acquire_epoch(request)).unwrap().into_inner();
    assert!(answer.token.is_empty());
    let request = v1::KeepEpochRequest { epoch: answer.epoch, ..Default::default() };
    host.runtime.block_on(raw.keep_epoch(request)).unwrap();
    // The next executor proves its epoch.
    let new = host.client().acquire_epoch("new").unwrap();
    assert!(new.token.is_some());
    let request = v1::KeepEpochRequest { epoch: new.number, ..Default::default() };
    let refused = host.runtime.block_on(raw.keep_epoch(request)).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
}

/// Returns this block with another state root in its header.
fn with_wrong_root(block: &Block) -> Block {
    let mut header: alloy_consensus::Header =
        alloy_rlp::Decodable::decode(&mut &block.header[..]).unwrap();
    header.state_root = keccak256(b"wrong");
    let mut rlp = Vec::new();
    header.encode(&mut rlp);
    let mut wrong = block.clone();
    wrong.id.hash = keccak256(&rlp);
    wrong.header = rlp.into();
    wrong
}

#[test]
fn what_an_executor_left_unproven_is_not_known_to_the_next_one() {
    let (writer, mut world) = new_chain_in_memory(Default::default());
    let genesis = writer.checkpoint().unwrap().genesis;
    let first = writer.acquire_epoch("first").unwrap();
    let mut random = Random(7);
    let mut parent = genesis;
    let mut good = Vec::new();
    for _ in 0..3 {
        let diff = world.random_diff(&mut random);
        world.apply(&diff);
        let block = block(parent, &world, diff, &mut random);
        parent = block.id;
        good.push(block);
    }
    good.iter().for_each(|block| writer.commit(first, block.clone()).unwrap());
    let head = Forkchoice { head: good[1].id, ..Forkchoice::default() };
    writer.canonicalize(first, head).unwrap();
    // The executor dies while it waits for the root of this block; the workers have given theirs.
    let wrong = with_wrong_root(&good[2]);
    writer.commit(first, wrong.clone()).unwrap();
    let diff = writer.trie_diff(good[2].id.hash).unwrap().unwrap();
    writer.put_trie_diff(wrong.id.hash, ShardSet::ALL, diff).unwrap();

    let second = writer.acquire_epoch("second").unwrap();
    let pending = || writer.pending().unwrap().iter().map(|block| block.id).collect::<Vec<_>>();
    let all: Vec<_> = good.iter().map(|block| block.id).collect();
    assert_eq!(pending(), all);
    // The next executor's unproven block is dropped too, and the proven ones stay.
    writer.commit(second, wrong).unwrap();
    assert_eq!(pending().len(), all.len() + 1);
    writer.acquire_epoch("third").unwrap();
    assert_eq!(pending(), all);
}
