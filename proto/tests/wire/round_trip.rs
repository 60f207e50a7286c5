use super::{sent, through};
use bytes::Bytes;
use proptest::{option, prelude::*};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tandem_primitives::{AccountUpdate, B256, NodeChange, ShardSet, TrieDiff, WalkTarget};
use tandem_proto::{
    convert::{EpochRequest, TrieDiffParts, UpdateParts},
    event::ChainEvent,
    multiproof::StateUpdate,
    storage::{
        Block, BlockRef, Claim, Epoch, EpochToken, ExecutorAddress, Holder, KeptBlock,
        PendingBlock, Promotion, ReadState, Term, TransactionPlace,
    },
    wire::{multiproof_workers::v1 as workers, storage_writer::v1 as writer},
};
use tandem_testkit::messages::values;

proptest! {
    #[test]
    fn blocks_survive(block in values::block(), epoch in values::epoch(), kept: bool) {
        let pending = through::<writer::ListPendingResponse, _>(block.clone());
        prop_assert_eq!(&pending, &block);
        let (id, parent, header) = (block.id, block.parent, block.header.clone());
        let listed = PendingBlock { id, parent, header: header.clone(), kept };
        prop_assert_eq!(through::<writer::ListPendingResponse, _>(listed.clone()), listed);
        let diff = Some(block.diff.clone());
        prop_assert_eq!(through::<writer::GetStateDiffsResponse, _>(diff.clone()), diff);
        let unexecuted = KeptBlock { id, parent, header, body: block.body.clone() };
        let answer = Some(unexecuted.clone());
        prop_assert_eq!(through::<writer::GetKeptResponse, _>(answer.clone()), answer);
        let call = (epoch, unexecuted);
        prop_assert_eq!(through::<writer::KeepRequest, _>(call.clone()), call);
        let call = (epoch, block);
        prop_assert_eq!(through::<writer::CommitRequest, _>(call.clone()), call);
    }

    #[test]
    fn names_of_blocks_survive(
        block in values::block_ref(), hash in values::hash(), epoch in values::epoch(), number: u64,
    ) {
        prop_assert_eq!(through::<writer::GetBlockRequest, _>(block), block);
        prop_assert_eq!(through::<writer::GetHeaderRequest, BlockRef>(block), block);
        prop_assert_eq!(through::<writer::GetAccessListRequest, BlockRef>(block), block);
        prop_assert_eq!(through::<writer::GetTrieDiffRequest, _>(hash), hash);
        prop_assert_eq!(through::<writer::GetTransactionRequest, _>(hash), hash);
        prop_assert_eq!(through::<workers::DiscardRequest, _>(hash), hash);
        prop_assert_eq!(through::<writer::GetKeptRequest, _>(hash), hash);
        let hashes = vec![hash, B256::ZERO];
        let request = writer::GetStateDiffsRequest::from(&hashes[..]);
        prop_assert_eq!(sent::<_, Vec<B256>>(request), hashes);
        prop_assert_eq!(through::<writer::ProveRequest, _>((epoch, hash)), (epoch, hash));
        let discard = (epoch, hash);
        prop_assert_eq!(through::<writer::DiscardRequest, _>(discard), discard);
        let rewind = (epoch, number);
        prop_assert_eq!(through::<writer::RewindRequest, _>(rewind), rewind);
    }

    #[test]
    fn records_headers_and_places_survive(
        record in option::of(values::record()), block in values::block_id(), index: u32,
    ) {
        prop_assert_eq!(through::<writer::GetBlockResponse, _>(record.clone()), record.clone());
        let list = record.as_ref().map(|record| record.body.clone());
        prop_assert_eq!(through::<writer::GetAccessListResponse, _>(list.clone()), list);
        let header = record.map(|record| (record.id, record.header));
        prop_assert_eq!(through::<writer::GetHeaderResponse, _>(header.clone()), header);
        let place = Some(TransactionPlace { block, index });
        prop_assert_eq!(through::<writer::GetTransactionResponse, _>(place), place);
        prop_assert_eq!(through::<writer::GetTransactionResponse, Option<TransactionPlace>>(None), None);
    }

    #[test]
    fn epochs_forkchoices_and_checkpoints_survive(
        forkchoice in values::forkchoice(), checkpoint in values::checkpoint(), epoch in values::epoch(),
    ) {
        prop_assert_eq!(through::<writer::AcquireEpochResponse, _>(epoch), epoch);
        let call = (epoch, forkchoice);
        prop_assert_eq!(through::<writer::CanonicalizeRequest, _>(call), call);
        prop_assert_eq!(through::<writer::GetCheckpointResponse, _>(checkpoint.clone()), checkpoint);
    }

    #[test]
    fn reads_and_their_answers_survive((request, values) in values::read()) {
        let arrived: ReadState = sent::<writer::ReadStateRequest, _>((&request).into());
        prop_assert_eq!(&arrived, &request);
        let answer = writer::ReadStateResponse::from(values.clone()).encode_to_vec();
        let answer = writer::ReadStateResponse::decode(&answer[..]).unwrap();
        prop_assert_eq!(answer.into_values(&request).unwrap(), values);
    }

    #[test]
    fn walks_and_their_answers_survive(
        targets in values::targets(), nodes in values::trie_nodes(),
    ) {
        let arrived: Vec<WalkTarget> = sent::<writer::WalkTrieRequest, _>(targets[..].into());
        prop_assert_eq!(arrived, targets);
        prop_assert_eq!(through::<writer::WalkTrieResponse, _>(nodes.clone()), nodes);
    }

    #[test]
    fn trie_diffs_survive(diff in values::trie_diff(), block in values::hash(), bits: u16) {
        let shards = ShardSet::from_bits(bits);
        let message: writer::PutTrieDiffRequest = (block, shards, &diff).into();
        let arrived: (B256, ShardSet, TrieDiff) = sent(message);
        prop_assert_eq!(arrived, (block, shards, diff));
    }

    #[test]
    fn a_trie_diff_survives_being_cut_into_parts(diff in values::trie_diff(), part_bytes in 1..400usize) {
        let diff = Arc::new(diff);
        let parts: Vec<_> = TrieDiffParts::with_part_bytes(diff.clone(), part_bytes).collect();
        prop_assert!(!parts.is_empty());
        let mut whole = TrieDiff::default();
        for part in parts {
            prop_assert!(part.encoded_len() < part_bytes + diff.wiped.len() * 32 + 256);
            whole.append(&sent::<_, TrieDiff>(part));
        }
        prop_assert_eq!(&whole, &*diff);
    }

    #[test]
    fn an_update_survives_being_cut_into_parts(
        update in values::state_update(), part_bytes in 1..1500usize,
    ) {
        let update = Arc::new(update);
        let parts: Vec<_> = UpdateParts::with_part_bytes(update.clone(), part_bytes).collect();
        prop_assert!(!parts.is_empty());
        let mut whole = Vec::<AccountUpdate>::new();
        for part in parts {
            // Each part holds at least one account and one slot, whatever the limit.
            prop_assert!(part.encoded_len() <= part_bytes.max(128 + 66) + 32);
            for account in sent::<_, StateUpdate>(part).accounts {
                match whole.last_mut() {
                    Some(last) if last.address_hash == account.address_hash => {
                        prop_assert!(!account.wiped && !account.slots.is_empty());
                        prop_assert_eq!(last.account, account.account);
                        last.slots.extend(account.slots);
                    }
                    _ => whole.push(account),
                }
            }
        }
        prop_assert_eq!(&whole, &update.accounts);
        let whole = UpdateParts::new(update.clone()).map(sent::<_, StateUpdate>);
        prop_assert_eq!(whole.collect::<Vec<_>>(), vec![(*update).clone()]);
    }

    #[test]
    fn of_an_update_only_what_shards_need_is_sent(
        update in values::state_update(), bits in any::<u16>(),
    ) {
        let shards = ShardSet::from_bits(bits);
        let parts = UpdateParts::of_shards(Arc::new(update.clone()), shards);
        let sent = parts.flat_map(|part| sent::<_, StateUpdate>(part).accounts);
        let of_them = |account: &AccountUpdate| shards.contains(account.shard());
        let want: Vec<_> = update.accounts.into_iter().filter(of_them).collect();
        prop_assert_eq!(sent.collect::<Vec<_>>(), want);
    }

    #[test]
    fn commands_answers_and_status_survive(
        command in values::command(), answer in values::answer(), status in values::status(),
    ) {
        prop_assert_eq!(through::<workers::ProcessBlockRequest, _>(command.clone()), command);
        prop_assert_eq!(through::<workers::ProcessBlockResponse, _>(answer.clone()), answer);
        prop_assert_eq!(through::<workers::GetStatusResponse, _>(status.clone()), status);
    }

    #[test]
    fn events_survive(block in values::block_id()) {
        let event = ChainEvent { block };
        prop_assert_eq!(ChainEvent::decode(&event.encode()), Some(event));
    }
}

#[test]
fn a_name_and_a_lease_survive() {
    let lease = Duration::from_secs(2);
    let proven = Epoch { number: 7, token: Some(EpochToken([7; 16])) };
    for held in [None, Some(Epoch::numbered(7)), Some(proven)] {
        let takes_token = held != Some(Epoch::numbered(7));
        let address = held.map(|_| ExecutorAddress {
            host: "fd00::7".to_owned(),
            engine_port: 8551,
            http_port: 8545,
        });
        let claim = Claim { lease, takes_token, address, ..Claim::of("executor-1") };
        let request = EpochRequest { claim, held };
        let arrived: EpochRequest = sent::<writer::AcquireEpochRequest, _>(request.clone().into());
        assert_eq!(arrived, request);
    }
    let address = ExecutorAddress { host: "e-1".to_owned(), engine_port: 1, http_port: u16::MAX };
    for address in [None, Some(address)] {
        let holder = Holder { epoch: 7, executor: "executor-1".to_owned(), lease, address };
        for holder in [None, Some(holder)] {
            let arrived: Option<Holder> =
                sent::<writer::GetHolderResponse, _>(holder.clone().into());
            assert_eq!(arrived, holder);
        }
    }
    let head = tandem_primitives::BlockId::new(7, B256::repeat_byte(7));
    let arrived: tandem_primitives::BlockId =
        sent::<writer::CheckpointDatabaseResponse, _>(head.into());
    assert_eq!(arrived, head);
    let promotion = Promotion { term: Term(u32::MAX), head };
    let arrived: Promotion = sent::<writer::PromoteResponse, _>(promotion.into());
    assert_eq!(arrived, promotion);
    let kept = (proven, lease);
    assert_eq!(sent::<writer::KeepEpochRequest, (Epoch, Duration)>(kept.into()), kept);
}

/// The order among tries has no meaning, and the message does not keep it.
#[test]
fn changes_keep_their_order_within_each_trie() {
    let owner = |byte| Some(B256::repeat_byte(byte));
    let order = [owner(1), None, owner(2), owner(1), None];
    let mut diff = TrieDiff::default();
    for (index, owner) in order.into_iter().enumerate() {
        diff.push(NodeChange { owner, path: &[1], rlp: Some(&[index as u8]) });
    }
    let message: writer::PutTrieDiffRequest = (B256::ZERO, ShardSet::EMPTY, &diff).into();
    let (_, _, arrived): (B256, ShardSet, TrieDiff) = sent(message);
    for trie in [None, owner(1), owner(2)] {
        let of = |change: &NodeChange<'_>| change.owner == trie;
        assert!(arrived.iter().filter(of).eq(diff.iter().filter(of)));
    }
    assert_eq!(arrived.len(), diff.len());
}

#[test]
fn byte_strings_of_a_received_block_are_not_copied() {
    let body = vec![7; 1000];
    let message = writer::ListPendingResponse {
        block: Some(writer::Block {
            id: Some(tandem_primitives::BlockId::default().into()),
            parent: vec![0; 32].into(),
            body: body.clone().into(),
            ..Default::default()
        }),
        kept: false,
    };
    let bytes = Bytes::from(message.encode_to_vec());
    let block: Block =
        writer::ListPendingResponse::decode(bytes.clone()).unwrap().try_into().unwrap();
    assert_eq!(block.body, body);
    assert!(bytes.as_ptr_range().contains(&block.body.as_ptr()));
}
