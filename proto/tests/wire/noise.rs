//! Random bytes that are not a message.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::Index};
use prost::Message;
use tandem_primitives::ShardSet;
use tandem_proto::{
    storage::Epoch,
    wire::{multiproof_workers::v1 as workers, storage_writer::v1 as writer},
};
use tandem_testkit::messages::{RECEIVERS, values};

/// Generates valid messages of each kind, as bytes.
fn messages() -> impl Strategy<Value = Vec<Bytes>> {
    let calls = (values::block(), values::trie_diff(), values::targets(), values::forkchoice());
    let answers = (values::read(), values::trie_nodes(), values::command(), values::answer());
    (calls, answers, values::checkpoint()).prop_map(|(calls, answers, checkpoint)| {
        let (block, diff, targets, forkchoice) = calls;
        let ((request, values), nodes, command, answer) = answers;
        let put: writer::PutTrieDiffRequest = (block.parent, ShardSet::ALL, &diff).into();
        vec![
            writer::CommitRequest::from((Epoch::numbered(1), block)).encode_to_vec().into(),
            put.encode_to_vec().into(),
            writer::WalkTrieRequest::from(&targets[..]).encode_to_vec().into(),
            writer::CanonicalizeRequest::from((Epoch::numbered(1), forkchoice))
                .encode_to_vec()
                .into(),
            writer::GetCheckpointResponse::from(checkpoint).encode_to_vec().into(),
            writer::ReadStateRequest::from(&request).encode_to_vec().into(),
            writer::ReadStateResponse::from(values).encode_to_vec().into(),
            writer::WalkTrieResponse::from(nodes).encode_to_vec().into(),
            workers::ProcessBlockRequest::from(command).encode_to_vec().into(),
            workers::ProcessBlockResponse::from(answer).encode_to_vec().into(),
        ]
    })
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        for (_, receive) in RECEIVERS {
            receive(bytes.clone().into());
        }
    }

    #[test]
    fn spoiled_messages_never_panic(
        messages in messages(), spoils in vec((any::<Index>(), any::<u8>()), 1..4), cut: Index,
    ) {
        for message in messages {
            let mut spoiled = message.to_vec();
            if spoiled.is_empty() {
                continue;
            }
            for (place, byte) in &spoils {
                spoiled[place.index(message.len())] = *byte;
            }
            for (_, receive) in RECEIVERS {
                receive(spoiled.clone().into());
                receive(message.slice(..cut.index(message.len())));
            }
        }
    }
}
