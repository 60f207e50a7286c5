//! Messages that peers send over an established session, and the first ones of a session.

use crate::{Target, heap};
use alloy_primitives::{B128, B256, B512, Bytes};
use std::fmt::Debug;
use tandem_discv4::ForkId;
use tandem_eth_wire::{
    eth::{
        self, Announcement, BlockRange, BlockStart, CELL_BYTES, HeadersRequest, Status,
        TransactionCells,
    },
    limits::RANGE_ITEMS_MAX,
    snap::{self, Leaf},
};
use tandem_rlpx::{
    Capability, DisconnectReason, Hello, VERSION, decode_disconnect, encode_disconnect,
};

/// Target for messages. The first byte chooses the protocol and its version, the second one the
/// message; the rest is the content after decompression.
pub const TARGET: Target = Target {
    name: "peer_message",
    bytes_per_byte: 4,
    structures: listed,
    constant: 4 << 10,
    input_len_max: 4 << 10,
    mutations: 30_000,
    seeds,
    dictionary: &[
        b"\xc0",
        b"\x80",
        b"\xc1\xc0",
        b"\xc2\x80\xc0",
        b"\xf9\x01\x00",
        b"\xa0",
        b"\x83eth",
        b"\x84snap",
        b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    run: read,
};

/// Returns the memory of the items of a list, of which the smallest has one byte. No message may
/// list more than the protocol's limit.
fn listed(input: &[u8]) -> usize {
    input.len().min(RANGE_ITEMS_MAX) * size_of::<Announcement>().max(size_of::<Leaf>()) * 3
}

fn protocol(version: u8, number: u64, content: &[u8]) -> Vec<u8> {
    [&[version, u8::try_from(number).unwrap()], content].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let hashes = vec![B256::repeat_byte(1), B256::repeat_byte(2)];
    let list = Bytes::from_static(b"\xc2\x01\x02");
    let range = BlockRange { earliest: 1, latest: 9, latest_hash: hashes[0] };
    let fork_id = ForkId { hash: [1, 2, 3, 4], next: 5 };
    let request = |start| HeadersRequest { start, limit: 7, skip: 1, reverse: true };
    let of_eth = |version: eth::Version| {
        let number = version.number();
        let genesis = hashes[1];
        [
            eth::Message::Status(Status { version: number, network: 1, genesis, fork_id, range }),
            eth::Message::BlockRangeUpdate(range),
            eth::Message::Transactions(vec![list.clone(), Bytes::from_static(b"\x82\x02\xc0")]),
            eth::Message::GetBlockHeaders { id: 1, request: request(BlockStart::Number(300)) },
            eth::Message::GetBlockHeaders { id: 2, request: request(BlockStart::Hash(hashes[0])) },
            eth::Message::BlockHeaders { id: 3, headers: vec![list.clone(); 2] },
            eth::Message::GetBlockBodies { id: 4, hashes: hashes.clone() },
            eth::Message::BlockBodies { id: 5, bodies: vec![list.clone()] },
            eth::Message::Announcements {
                transactions: vec![Announcement { kind: 2, bytes: 9, hash: hashes[0] }],
                cells: B128::ZERO,
            },
            eth::Message::GetPooledTransactions { id: 6, hashes: hashes.clone() },
            eth::Message::GetReceipts { id: 7, first: 0, hashes: hashes.clone() },
            eth::Message::Receipts { id: 8, incomplete: false, blocks: vec![list.clone()] },
        ]
        .map(|message| protocol((number - 69) as u8, message.number(), &message.encode(version)))
    };
    let [origin, limit] = [B256::ZERO, B256::repeat_byte(0xff)];
    let leaf = Leaf { hash: hashes[0], value: list.clone() };
    let of_snap = [
        snap::Message::GetAccountRange { id: 1, root: hashes[0], start: origin, limit, bytes: 9 },
        snap::Message::AccountRange { id: 1, accounts: vec![leaf], proof: vec![list.clone()] },
        snap::Message::GetByteCodes { id: 2, hashes: hashes.clone(), bytes: 9 },
        snap::Message::ByteCodes { id: 2, codes: vec![list.clone()] },
    ]
    .map(|message| protocol(4, message.number(), &message.encode()));
    let one = TransactionCells { hash: hashes[0], cells: vec![vec![1; CELL_BYTES].into()] };
    let cells = B128::repeat_byte(1);
    let of_cells = [
        eth::Message::GetCells { id: 9, hashes: hashes.clone(), cells },
        eth::Message::Cells { id: 9, transactions: vec![one], cells },
    ]
    .map(|message| protocol(3, message.number(), &message.encode(eth::Version::Eth72)));
    let capabilities = vec![Capability { name: "eth".to_owned(), version: 71 }];
    let hello = Hello {
        version: VERSION,
        client: "a/1".to_owned(),
        capabilities,
        port: 30303,
        id: B512::repeat_byte(3),
    };
    let mut seeds: Vec<_> = eth::Version::ALL.into_iter().flat_map(of_eth).collect();
    seeds.extend(of_cells);
    seeds.extend(of_snap);
    seeds.push(protocol(6, 0, &hello.encode()));
    seeds.push(protocol(6, 1, &encode_disconnect(DisconnectReason::TooManyPeers)));
    seeds
}

/// Checks that what is decoded says the same when it is sent on.
fn again<T: PartialEq + Debug, E: Debug>(first: Result<T, E>, round: impl Fn(&T) -> Result<T, E>) {
    if let Ok(message) = first {
        assert_eq!(round(&message).unwrap(), message);
    }
}

fn read(input: &[u8]) {
    let [protocol, number, content @ ..] = input else { return };
    let (number, content) = (u64::from(*number), Bytes::copy_from_slice(content));
    match protocol % 7 {
        index @ 0..4 => {
            let version = eth::Version::ALL[usize::from(index)];
            let decode = |content: &Bytes| eth::Message::decode(version, number, content);
            let message = heap::measured(|| decode(&content));
            again(message, |message| decode(&message.encode(version).into()));
        }
        index @ 4..6 => {
            let version = snap::Version::ALL[usize::from(index) - 4];
            let decode = |content: &Bytes| snap::Message::decode(version, number, content);
            let message = heap::measured(|| decode(&content));
            again(message, |message| decode(&message.encode().into()));
        }
        _ if number == 0 => {
            let hello = heap::measured(|| Hello::decode(&content));
            again(hello, |hello| Hello::decode(&hello.encode()));
        }
        _ => {
            let reason = heap::measured(|| decode_disconnect(&content));
            again(reason, |reason| decode_disconnect(&encode_disconnect(*reason)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_messages() {
        for seed in seeds() {
            let (number, content) = (u64::from(seed[1]), Bytes::copy_from_slice(&seed[2..]));
            let version = usize::from(seed[0]);
            let is_message = match version {
                0..4 => eth::Message::decode(eth::Version::ALL[version], number, &content).is_ok(),
                4 => snap::Message::decode(snap::Version::Snap1, number, &content).is_ok(),
                _ => Hello::decode(&content).is_ok() || decode_disconnect(&content).is_ok(),
            };
            assert!(is_message, "{seed:?}");
        }
    }
}
