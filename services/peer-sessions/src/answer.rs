//! Answers to a peer's requests, from a [`BlockSource`]. Each is bounded in items and bytes.

use crate::chain::BlockSource;
use alloy_rlp::Header;
use tandem_eth_wire::{
    MESSAGE_BYTES_MAX,
    eth::{BlockStart, HeadersRequest, Message},
    limits::{ANSWER_BYTES_SOFT, HEADERS_MAX},
};
use tandem_primitives::{B256, Bytes};

/// Room for the lists around the items of an answer.
const FRAME_BYTES: usize = 1 << 10;

/// Returns the answer to a request, `None` if the message is none.
pub(crate) fn answer(source: &dyn BlockSource, request: Message, parts: bool) -> Option<Message> {
    let answer = match request {
        Message::GetBlockHeaders { id, request } => {
            Message::BlockHeaders { id, headers: headers(source, &request) }
        }
        Message::GetBlockBodies { id, hashes } => {
            let bodies = fill(&hashes, SOFT, |hash| Some(source.body(hash)));
            Message::BlockBodies { id, bodies: bodies.into_iter().flatten().collect() }
        }
        Message::GetReceipts { id, first, hashes } => {
            let (incomplete, blocks) = receipts(source, first, &hashes, parts);
            Message::Receipts { id, incomplete, blocks }
        }
        Message::GetBlockAccessLists { id, hashes } => {
            let lists = fill(&hashes, SOFT, |hash| Some(source.access_list(hash)));
            Message::BlockAccessLists { id, lists }
        }
        _ => return None,
    };
    Some(answer)
}

/// Size of an answer if the request names none.
const SOFT: u64 = ANSWER_BYTES_SOFT as u64;

/// Collects an item for each hash until the answer has `wanted` bytes, or `item` ends it.
pub(crate) fn fill(
    hashes: &[B256],
    wanted: u64,
    item: impl Fn(B256) -> Option<Option<Bytes>>,
) -> Vec<Option<Bytes>> {
    let (mut items, mut bytes) = (Vec::new(), FRAME_BYTES);
    let wanted = wanted.min(SOFT) as usize;
    for &hash in hashes {
        let Some(item) = item(hash) else { break };
        bytes += item.as_ref().map_or(1, |item| item.len());
        if bytes > MESSAGE_BYTES_MAX {
            break;
        }
        items.push(item);
        if bytes >= wanted {
            break;
        }
    }
    items
}

fn headers(source: &dyn BlockSource, request: &HeadersRequest) -> Vec<Bytes> {
    let start = match request.start {
        BlockStart::Number(number) => Some(number),
        BlockStart::Hash(hash) => source.number(hash),
    };
    let (Some(start), Some(step)) = (start, request.skip.checked_add(1)) else {
        return Vec::new();
    };
    let count = request.limit.min(HEADERS_MAX as u64);
    let numbers: Vec<u64> = (0..count)
        .map_while(|index| {
            let distance = step.checked_mul(index)?;
            if request.reverse { start.checked_sub(distance) } else { start.checked_add(distance) }
        })
        .collect();
    let mut room = ANSWER_BYTES_SOFT;
    let fits = |header: &Bytes| {
        let fits = room > 0;
        room = room.saturating_sub(header.len());
        fits
    };
    source.headers(&numbers).into_iter().take_while(fits).collect()
}

/// Returns whether the last list is cut, and the lists. `parts` says whether this version can ask
/// for the rest of a block's receipts.
fn receipts(
    source: &dyn BlockSource,
    first: u64,
    hashes: &[B256],
    parts: bool,
) -> (bool, Vec<Bytes>) {
    if !parts {
        let lists = fill(hashes, SOFT, |hash| source.receipts(hash).map(Some));
        return (false, lists.into_iter().flatten().collect());
    }
    let (mut blocks, mut room, mut skip) = (Vec::new(), MESSAGE_BYTES_MAX - FRAME_BYTES, first);
    for &hash in hashes {
        let Some(list) = source.receipts(hash) else { break };
        let Some((part, complete)) = cut(&list, skip, room) else { break };
        skip = 0;
        // A part without receipts is of use only for a block that has none.
        if !complete && part.len() <= 1 {
            break;
        }
        room = room.saturating_sub(part.len());
        blocks.push(part);
        if !complete {
            return (true, blocks);
        }
        if room < MESSAGE_BYTES_MAX - ANSWER_BYTES_SOFT {
            break;
        }
    }
    (false, blocks)
}

/// Returns the items of a list from `skip` on that fit into `room`, as a list, and whether they are
/// all of the rest. Returns `None` if it is no list, or has fewer items.
fn cut(list: &Bytes, skip: u64, room: usize) -> Option<(Bytes, bool)> {
    let items = Header::decode_bytes(&mut &list[..], true).ok()?;
    let mut rest = items;
    for _ in 0..skip {
        next(&mut rest)?;
    }
    let begin = rest;
    let mut kept = 0;
    while !rest.is_empty() {
        next(&mut rest)?;
        let bytes = begin.len() - rest.len();
        if bytes + 5 > room {
            break;
        }
        kept = bytes;
    }
    let complete = kept == begin.len();
    if complete && skip == 0 {
        return Some((list.clone(), true));
    }
    let mut out = Vec::with_capacity(kept + 5);
    Header { list: true, payload_length: kept }.encode(&mut out);
    out.extend_from_slice(&begin[..kept]);
    Some((out.into(), complete))
}

/// Skips an item of a list.
fn next(rest: &mut &[u8]) -> Option<()> {
    let header = Header::decode(rest).ok()?;
    *rest = rest.get(header.payload_length..)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_proto::snap::{StateItems, StateRequest};

    const NONE: [u64; 0] = [];

    /// Chain whose blocks have the hash of their number, and receipts of one size.
    struct Blocks {
        latest: u64,
        item_bytes: usize,
        receipts: usize,
    }

    impl Blocks {
        fn item(&self) -> Bytes {
            let mut item = Vec::new();
            let payload_length = self.item_bytes;
            Header { list: true, payload_length }.encode(&mut item);
            item.resize(item.len() + payload_length, 1);
            item.into()
        }

        fn known(&self, hash: B256) -> Option<()> {
            self.number(hash).map(|_| ())
        }
    }

    fn hash(number: u64) -> B256 {
        B256::left_padding_from(&number.to_be_bytes())
    }

    impl BlockSource for Blocks {
        fn number(&self, hash: B256) -> Option<u64> {
            let number = u64::from_be_bytes(*hash.last_chunk()?);
            (number <= self.latest).then_some(number)
        }

        fn headers(&self, numbers: &[u64]) -> Vec<Bytes> {
            let known = numbers.iter().take_while(|number| **number <= self.latest);
            known.map(|number| alloy_rlp::encode(vec![*number]).into()).collect()
        }

        fn body(&self, hash: B256) -> Option<Bytes> {
            self.known(hash).map(|()| self.item())
        }

        fn receipts(&self, hash: B256) -> Option<Bytes> {
            self.known(hash)?;
            let items = vec![self.item(); self.receipts].concat();
            let mut list = Vec::new();
            Header { list: true, payload_length: items.len() }.encode(&mut list);
            list.extend_from_slice(&items);
            Some(list.into())
        }

        fn access_list(&self, hash: B256) -> Option<Bytes> {
            self.body(hash)
        }

        fn state_items(&self, request: &StateRequest) -> StateItems {
            StateItems::none(request)
        }
    }

    fn numbers(request: HeadersRequest) -> Vec<u64> {
        let source = Blocks { latest: 3000, item_bytes: 1, receipts: 0 };
        let decode = |header: Bytes| <Vec<u64> as alloy_rlp::Decodable>::decode(&mut &header[..]);
        headers(&source, &request).into_iter().map(|header| decode(header).unwrap()[0]).collect()
    }

    #[test]
    fn headers_are_those_of_the_request_whatever_its_numbers() {
        let request = |start, limit, skip, reverse| HeadersRequest { start, limit, skip, reverse };
        let by_number = |number, limit, skip, reverse| {
            numbers(request(BlockStart::Number(number), limit, skip, reverse))
        };
        assert_eq!(by_number(5, 3, 0, false), [5, 6, 7]);
        assert_eq!(by_number(5, 3, 1, true), [5, 3, 1]);
        assert_eq!(by_number(5, 9, 1, true), [5, 3, 1]);
        assert_eq!(by_number(2999, 9, 0, false), [2999, 3000]);
        assert_eq!(by_number(5, 3, u64::MAX, false), NONE);
        assert_eq!(by_number(5, 3, u64::MAX - 1, true), [5]);
        assert_eq!(by_number(u64::MAX, 3, 7, false), NONE);
        assert_eq!(by_number(1, u64::MAX, 0, false).len(), HEADERS_MAX);
        assert_eq!(by_number(5, 0, 0, false), NONE);
        assert_eq!(numbers(request(BlockStart::Hash(hash(9)), 2, 0, true)), [9, 8]);
        assert_eq!(numbers(request(BlockStart::Hash(B256::repeat_byte(9)), 2, 0, true)), NONE);
    }

    #[test]
    fn bodies_leave_out_missing_ones_and_access_lists_keep_their_place() {
        let source = Blocks { latest: 9, item_bytes: 10, receipts: 0 };
        let hashes = vec![hash(1), hash(100), hash(2)];
        let request = Message::GetBlockBodies { id: 7, hashes: hashes.clone() };
        let item = source.item();
        let bodies = vec![item.clone(); 2];
        let expected = Message::BlockBodies { id: 7, bodies };
        assert_eq!(answer(&source, request, true), Some(expected));
        let request = Message::GetBlockAccessLists { id: 7, hashes };
        let lists = vec![Some(item.clone()), None, Some(item)];
        let expected = Message::BlockAccessLists { id: 7, lists };
        assert_eq!(answer(&source, request, true), Some(expected));
    }

    #[test]
    fn an_answer_ends_at_its_size() {
        let source = Blocks { latest: 1000, item_bytes: ANSWER_BYTES_SOFT / 4, receipts: 1 };
        let hashes: Vec<_> = (0..1000).map(hash).collect();
        assert_eq!(fill(&hashes, SOFT, |hash| Some(source.body(hash))).len(), 4);
        assert_eq!(fill(&hashes, SOFT / 2, |hash| Some(source.body(hash))).len(), 2);
        assert_eq!(fill(&hashes, 0, |hash| Some(source.body(hash))).len(), 1);
        assert_eq!(receipts(&source, 0, &hashes, false).1.len(), 4);
        assert_eq!(receipts(&source, 0, &hashes, true).1.len(), 4);
    }

    #[test]
    fn receipts_end_at_a_missing_block() {
        let source = Blocks { latest: 9, item_bytes: 10, receipts: 1 };
        for parts in [false, true] {
            let (incomplete, blocks) = receipts(&source, 0, &[hash(1), hash(99), hash(2)], parts);
            assert_eq!((incomplete, blocks.len()), (false, 1));
        }
    }

    /// A block with 30 MB of receipts, which no single message can hold.
    #[test]
    fn all_parts_of_a_blocks_receipts_are_the_block() {
        let source = Blocks { latest: 9, item_bytes: 100_000, receipts: 300 };
        let whole = source.receipts(hash(1)).unwrap();
        let (mut items, mut first, mut parts) = (Vec::new(), 0, 0);
        loop {
            let (incomplete, blocks) = receipts(&source, first, &[hash(1)], true);
            let part = &blocks[0];
            assert!(part.len() < MESSAGE_BYTES_MAX);
            let mut content = Header::decode_bytes(&mut &part[..], true).unwrap();
            items.extend_from_slice(content);
            while !content.is_empty() {
                next(&mut content).unwrap();
                first += 1;
            }
            parts += 1;
            if !incomplete {
                break;
            }
        }
        assert_eq!((first, parts), (300, 3));
        assert_eq!(items, Header::decode_bytes(&mut &whole[..], true).unwrap());
        assert_eq!(receipts(&source, 301, &[hash(1)], true), (false, Vec::new()));
        let empty = Bytes::from_static(&[0xc0]);
        assert_eq!(receipts(&source, 300, &[hash(1)], true), (false, vec![empty]));
    }
}
