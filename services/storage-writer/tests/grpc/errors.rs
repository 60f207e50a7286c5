//! Errors of the server arrive unchanged at the client.

use crate::{
    common::{Random, block, new_chain_in_memory},
    host::Host,
    scripted::{Scripted, base},
};
use std::{collections::BTreeSet, sync::Arc};
use tandem_primitives::{B256, Bytes, ShardSet, StateDiff, WalkTarget};
use tandem_proto::{
    convert::ERROR_METADATA,
    limits::{CALLER_NAME_BYTES_MAX, WALK_TARGETS_MAX},
    storage::{
        BaseReads, BlockReads, BlockRef, BlockWrites, Epoch, Error, Forkchoice, ReadState,
        StorageApi, TrieStorage, WriteLease,
    },
    wire::storage_writer::v1,
};
use tonic::Code;

#[test]
fn every_error_arrives_as_it_is_from_every_call() {
    let hash = B256::repeat_byte(3);
    let errors = [
        (Error::Fenced { held: 1, granted: 2 }, Code::FailedPrecondition),
        (Error::Unproven { held: 1 }, Code::PermissionDenied),
        (Error::UnknownBlock(hash), Code::NotFound),
        (Error::RewindTooDeep { to: 1, oldest: 2 }, Code::OutOfRange),
        (Error::Pruned { number: 1, oldest: 2 }, Code::OutOfRange),
        (Error::Store("corrupt".into()), Code::Internal),
        (Error::Unavailable("stopping".into()), Code::Unavailable),
        (Error::Refused("block 1 is canonical".into()), Code::InvalidArgument),
    ];
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let (client, mut raw) = (host.client(), host.raw());
    for (error, code) in errors {
        *storage.error.lock().unwrap() = Some(error.clone());
        let before = storage.begun().len();
        let got = [
            client.acquire_epoch("test").map(|_| ()),
            client.checkpoint().map(|_| ()),
            client.pending().map(|_| ()),
            client.trie_diff(hash).map(|_| ()),
            client.read_state(&ReadState::default()).map(|_| ()),
            client.walk_trie(&[]).map(|_| ()),
            client.commit(Epoch::numbered(1), crate::scripted::block(1)),
            client.discard(Epoch::numbered(1), hash),
            client.canonicalize(Epoch::numbered(1), Forkchoice::default()).map(|_| ()),
            client.state_diffs(&[hash]).map(|_| ()),
            client.prove(Epoch::numbered(1), hash),
            client.keep(Epoch::numbered(1), crate::scripted::unexecuted()),
            client.kept(hash).map(|_| ()),
            client.rewind(Epoch::numbered(1), 1),
            client.block(BlockRef::Number(1)).map(|_| ()),
            client.header(BlockRef::Hash(hash)).map(|_| ()),
            client.transaction(hash).map(|_| ()),
        ];
        assert_eq!(storage.begun().len(), before + got.len(), "none is made again");
        for got in got {
            assert_eq!(got, Err(error.clone()));
        }
        let status = host.runtime.block_on(raw.get_checkpoint(v1::GetCheckpointRequest {}));
        let status = status.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, &*error.to_string()));
        assert!(status.metadata().get_bin(ERROR_METADATA).is_some());
    }
    // Advice has no answer.
    assert_eq!(client.put_trie_diff(hash, ShardSet::EMPTY, Arc::default()), Ok(()));
}

/// Owner, path and node of a change.
type Change = (Option<B256>, Vec<u8>, Option<Vec<u8>>);

/// Returns the changes of a block's trie diff; their order among tries has no meaning.
fn changes(api: &dyn StorageApi, block: B256) -> BTreeSet<Change> {
    let diff = api.trie_diff(block).unwrap().unwrap();
    assert!(!diff.is_empty());
    diff.iter().map(|it| (it.owner, it.path.to_vec(), it.rlp.map(<[u8]>::to_vec))).collect()
}

#[test]
fn an_executor_that_was_taken_over_is_fenced_off_over_the_wire() {
    let (writer, mut world) = new_chain_in_memory(Default::default());
    let host = Host::start(writer.clone());
    let (old, new) = (host.client(), host.client());
    let genesis = old.checkpoint().unwrap().genesis;
    let first = old.acquire_epoch("old").unwrap();
    let mut random = Random(5);
    let diff = world.random_diff(&mut random);
    world.apply(&diff);
    let one = block(genesis, &world, diff, &mut random);
    let two = block(one.id, &world, StateDiff::default(), &mut random);
    old.commit(first, one.clone()).unwrap();

    let second = new.acquire_epoch("new").unwrap();
    let fenced = Error::Fenced { held: first.number, granted: second.number };
    let head = Forkchoice { head: one.id, ..Forkchoice::default() };
    assert_eq!(old.commit(first, two.clone()), Err(fenced.clone()));
    assert_eq!(old.discard(first, one.id.hash), Err(fenced.clone()));
    assert_eq!(old.canonicalize(first, head), Err(fenced.clone()));
    assert_eq!(old.prove(first, one.id.hash), Err(fenced.clone()));
    assert_eq!(old.keep(first, crate::scripted::unexecuted()), Err(fenced.clone()));
    assert_eq!(old.rewind(first, 0), Err(fenced.clone()));
    assert_eq!(old.pending().unwrap().len(), 1, "it may still read");

    new.commit(second, two.clone()).unwrap();
    new.canonicalize(second, Forkchoice { head: two.id, ..head }).unwrap();
    assert_eq!(writer.checkpoint().unwrap().forkchoice.head, two.id);
    let pending: Vec<_> = new.pending().unwrap().iter().map(|block| block.id).collect();
    assert_eq!(pending, [one.id, two.id], "parents first");
    assert!(changes(&*new, one.id.hash) == changes(&*writer, one.id.hash));
}

#[test]
fn malformed_requests_are_refused_before_they_reach_the_storage() {
    let storage = Arc::new(Scripted::default());
    let host = Host::start(storage.clone());
    let mut raw = host.raw();
    let codes = host.runtime.block_on(async {
        let short = Bytes::from(vec![0; 31]).0;
        let target = WalkTarget { owner: None, key: B256::ZERO, from_depth: 1 };
        let many = vec![target; WALK_TARGETS_MAX + 1];
        let name = "x".repeat(CALLER_NAME_BYTES_MAX + 1);
        [
            raw.read_state(v1::ReadStateRequest { slots: short.clone(), ..Default::default() })
                .await
                .map(|_| ()),
            raw.walk_trie(v1::WalkTrieRequest::from(&many[..])).await.map(|_| ()),
            raw.commit(v1::CommitRequest::default()).await.map(|_| ()),
            raw.discard(v1::DiscardRequest { block: short.clone(), ..Default::default() })
                .await
                .map(|_| ()),
            raw.rewind(v1::RewindRequest { token: short.clone(), ..Default::default() })
                .await
                .map(|_| ()),
            raw.get_trie_diff(v1::GetTrieDiffRequest { block: short }).await.map(|_| ()),
            raw.canonicalize(v1::CanonicalizeRequest::default()).await.map(|_| ()),
            raw.get_block(v1::GetBlockRequest::default()).await.map(|_| ()),
            raw.acquire_epoch(v1::AcquireEpochRequest { executor: name, ..Default::default() })
                .await
                .map(|_| ()),
        ]
        .map(|answer| answer.unwrap_err().code())
    });
    assert_eq!(codes, [Code::InvalidArgument; 9]);
    assert_eq!(storage.begun(), [""; 0]);
    assert_eq!(host.client().checkpoint().unwrap().base, base());
}
