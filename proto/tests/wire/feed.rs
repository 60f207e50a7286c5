//! Messages of the feed: blocks in parts, and parts that do not fit together.

use std::sync::Arc;
use tandem_primitives::{
    Account, AccountUpdate, B256, BlockId, Bytes, SlotUpdate, StateDiff, U256,
};
use tandem_proto::{
    convert::{FeedDecoder, FeedParts},
    feed::{Changes, FeedBlock, FeedMessage, FeedStatus, FollowRequest},
    limits::{FEED_KNOWN_MAX, FEED_PART_BYTES, STORAGE_MESSAGE_BYTES_MAX},
    storage::{Forkchoice, Term},
    wire::storage_writer::v1::{self, follow_response::Item},
};

fn block(body: usize, changes: Changes) -> FeedBlock {
    FeedBlock {
        id: BlockId::new(7, B256::repeat_byte(7)),
        header: Bytes::from_static(&[1, 2]),
        body: vec![9; body].into(),
        receipts: Bytes::from_static(&[3]),
        changes,
    }
}

fn diff() -> Changes {
    let slots = vec![SlotUpdate { key: B256::repeat_byte(2), value: U256::from(5) }];
    let account = Some(Account { nonce: 1, ..Account::default() });
    let address_hash = B256::repeat_byte(1);
    let accounts = vec![AccountUpdate { address_hash, account, wiped: false, slots }];
    let codes = vec![(B256::repeat_byte(4), Bytes::from_static(&[6, 7]))];
    Changes::Diff(Arc::new(StateDiff { accounts, codes }))
}

fn part(data: usize, left: u64) -> v1::FollowResponse {
    let part = v1::FeedPart { data: vec![0; data].into(), left };
    v1::FollowResponse { item: Some(Item::Part(part)) }
}

/// Returns what a decoder says to these messages: the error of the first one that it refuses.
fn refusal(messages: impl IntoIterator<Item = v1::FollowResponse>) -> Option<String> {
    let mut decoder = FeedDecoder::default();
    messages.into_iter().find_map(|message| decoder.take(message).err()).map(|it| it.to_string())
}

#[test]
fn blocks_of_all_kinds_and_sizes_come_back() {
    let changes = [Changes::Omitted, Changes::List(Bytes::from_static(&[0xc0])), diff()];
    for changes in changes {
        for body in [0, 1000, FEED_PART_BYTES, 3 * FEED_PART_BYTES + 5] {
            let block = block(body, changes.clone());
            let parts: Vec<_> = FeedParts::new(block.clone()).collect();
            assert_eq!(parts.len() > 1, body >= FEED_PART_BYTES);
            let mut decoder = FeedDecoder::default();
            let (last, first) = parts.split_last().unwrap();
            for part in first {
                assert_eq!(decoder.take(part.clone()).unwrap(), None);
            }
            let whole = decoder.take(last.clone()).unwrap();
            assert_eq!(whole, Some(FeedMessage::Block(Box::new(block))));
        }
    }
}

#[test]
fn positions_and_requests_come_back() {
    let (id, other) = (BlockId::new(3, B256::repeat_byte(3)), BlockId::new(1, B256::ZERO));
    let forkchoice = Forkchoice { head: id, safe: None, finalized: Some(other) };
    let status = FeedStatus { forkchoice, base: other, term: Term(2) };
    for (item, want) in [
        (Item::Status(status.into()), FeedMessage::Status(status)),
        (Item::Resume(id.into()), FeedMessage::Resume(id)),
    ] {
        let message = v1::FollowResponse { item: Some(item) };
        assert_eq!(FeedDecoder::default().take(message).unwrap(), Some(want));
    }
    let request = FollowRequest { known: vec![id, other], without_changes_to: 9 };
    let wire = v1::FollowRequest::from(request.clone());
    assert_eq!(FollowRequest::try_from(wire).unwrap(), request);
    for known in [Vec::new(), vec![id.into(); FEED_KNOWN_MAX + 1]] {
        let wire = v1::FollowRequest { known, without_changes_to: 0 };
        let error = FollowRequest::try_from(wire).unwrap_err().to_string();
        assert!(error.starts_with("follow.known: "), "{error}");
    }
}

#[test]
fn parts_that_are_cut_missing_twice_or_too_many_are_refused() {
    let parts = || FeedParts::new(block(3 * FEED_PART_BYTES, diff()));
    let without = |index: usize| {
        let parts = parts().enumerate().filter(move |(at, _)| *at != index);
        parts.map(|(_, part)| part).collect::<Vec<_>>()
    };
    let twice = parts().take(1).chain(parts());
    let resume = v1::FollowResponse { item: Some(Item::Resume(BlockId::default().into())) };
    let cut = parts().take(1).chain([resume]);
    let short = parts().map(|mut message| {
        if let Some(Item::Part(part)) = &mut message.item
            && part.left > 0
        {
            part.data.truncate(100);
        }
        message
    });
    for (name, refused) in [
        ("dropped", refusal(without(1))),
        ("twice", refusal(twice)),
        ("interrupted", refusal(cut)),
        ("truncated", refusal(short)),
        ("too long for a block", refusal([part(1, STORAGE_MESSAGE_BYTES_MAX as u64)])),
        ("overflowing", refusal([part(1, u64::MAX)])),
        ("too long for a part", refusal([part(FEED_PART_BYTES + 1, 0)])),
        ("empty", refusal([part(0, 5)])),
        ("without an item", refusal([v1::FollowResponse { item: None }])),
        ("no block", refusal([part(3, 0)])),
    ] {
        let refused = refused.unwrap_or_else(|| panic!("{name} is taken"));
        assert!(refused.starts_with("follow."), "{name}: {refused}");
    }
}
