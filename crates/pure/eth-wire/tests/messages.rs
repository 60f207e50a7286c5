//! Messages survive the wire, no part of one is a message, and too many items are refused.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use alloy_primitives::{B128, B256, Bytes, hex};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tandem_discv4::ForkId;
use tandem_eth_wire::{
    Error,
    eth::{
        self, Announcement, BlockRange, BlockStart, CELL_BYTES, HeadersRequest, Status,
        TransactionCells,
    },
    limits::{
        ANNOUNCEMENTS_MAX, BODIES_MAX, HEADERS_MAX, PROOF_NODES_MAX, RANGE_ITEMS_MAX,
        TRIE_NODES_MAX,
    },
    snap::{self, Leaf},
};

struct Random(StdRng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    fn number(&mut self) -> u64 {
        let shift = self.0.random_range(0..64);
        self.0.random::<u64>() >> shift
    }

    fn hash(&mut self) -> B256 {
        B256::from(self.0.random::<[u8; 32]>())
    }

    fn bytes(&mut self, max: usize) -> Bytes {
        let bytes = self.0.random_range(0..=max);
        (0..bytes).map(|_| self.0.random::<u8>()).collect()
    }

    fn many<T>(&mut self, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        let items = self.0.random_range(0..6);
        (0..items).map(|_| item(self)).collect()
    }

    /// Makes an item that stays RLP: a list.
    fn list(&mut self) -> Bytes {
        alloy_rlp::encode(self.many(|random| random.bytes(80))).into()
    }

    fn transaction(&mut self) -> Bytes {
        if self.0.random() { self.list() } else { alloy_rlp::encode(self.bytes(80)).into() }
    }

    fn range(&mut self) -> BlockRange {
        let latest = self.number();
        let earliest = self.0.random_range(0..=latest);
        BlockRange { earliest, latest, latest_hash: self.hash() }
    }

    fn leaf(&mut self, value: Bytes) -> Leaf {
        Leaf { hash: self.hash(), value }
    }

    /// Makes one of each message of the version.
    fn eth(&mut self, version: eth::Version) -> Vec<eth::Message> {
        use eth::Message as M;
        let parts = version >= eth::Version::Eth70;
        let id = self.number();
        let start = if self.0.random() {
            BlockStart::Hash(self.hash())
        } else {
            BlockStart::Number(self.number())
        };
        let status = Status {
            version: version.number(),
            network: self.number(),
            genesis: self.hash(),
            fork_id: ForkId { hash: self.0.random(), next: self.number() },
            range: self.range(),
        };
        let request = HeadersRequest {
            start,
            limit: self.number(),
            skip: self.number(),
            reverse: self.0.random(),
        };
        let announcement = |random: &mut Self| Announcement {
            kind: random.0.random(),
            bytes: random.number(),
            hash: random.hash(),
        };
        let mut messages = vec![
            M::Status(status),
            M::BlockRangeUpdate(self.range()),
            M::Transactions(self.many(Self::transaction)),
            M::GetBlockHeaders { id, request },
            M::BlockHeaders { id, headers: self.many(Self::list) },
            M::GetBlockBodies { id, hashes: self.many(Self::hash) },
            M::BlockBodies { id, bodies: self.many(Self::list) },
            M::Announcements {
                transactions: self.many(announcement),
                cells: match version {
                    eth::Version::Eth72 => self.0.random::<[u8; 16]>().into(),
                    _ => B128::ZERO,
                },
            },
            M::GetPooledTransactions { id, hashes: self.many(Self::hash) },
            M::PooledTransactions { id, transactions: self.many(Self::transaction) },
            M::GetReceipts {
                id,
                first: if parts { self.number() } else { 0 },
                hashes: self.many(Self::hash),
            },
            M::Receipts {
                id,
                incomplete: parts && self.0.random::<bool>(),
                blocks: self.many(Self::list),
            },
        ];
        if version >= eth::Version::Eth71 {
            let list = |random: &mut Self| {
                let list = random.list();
                random.0.random::<bool>().then_some(list)
            };
            messages.push(M::GetBlockAccessLists { id, hashes: self.many(Self::hash) });
            messages.push(M::BlockAccessLists { id, lists: self.many(list) });
        }
        if version >= eth::Version::Eth72 {
            let of_one = |random: &mut Self| TransactionCells {
                hash: random.hash(),
                cells: vec![
                    vec![random.0.random(); CELL_BYTES].into();
                    random.0.random_range(0..2)
                ],
            };
            let cells = self.0.random::<[u8; 16]>().into();
            messages.push(M::GetCells { id, hashes: self.many(Self::hash), cells });
            messages.push(M::Cells { id, transactions: self.many(of_one), cells });
        }
        messages
    }

    /// Makes one of each message of the version.
    fn snap(&mut self, version: snap::Version) -> Vec<snap::Message> {
        use snap::Message as M;
        let (id, bytes) = (self.number(), self.number());
        let account = |random: &mut Self| {
            let value = random.list();
            random.leaf(value)
        };
        let slot = |random: &mut Self| {
            let value = random.bytes(33);
            random.leaf(value)
        };
        let strings = |random: &mut Self| random.many(|random| random.bytes(33));
        let mut messages = vec![
            M::GetAccountRange {
                id,
                root: self.hash(),
                start: self.hash(),
                limit: self.hash(),
                bytes,
            },
            M::AccountRange { id, accounts: self.many(account), proof: strings(self) },
            M::GetStorageRanges {
                id,
                root: self.hash(),
                accounts: self.many(Self::hash),
                start: self.bytes(32),
                limit: self.bytes(32),
                bytes,
            },
            M::StorageRanges {
                id,
                slots: self.many(|random| random.many(slot)),
                proof: strings(self),
            },
            M::GetByteCodes { id, hashes: self.many(Self::hash), bytes },
            M::ByteCodes { id, codes: strings(self) },
        ];
        if version == snap::Version::Snap1 {
            messages.push(M::GetTrieNodes {
                id,
                root: self.hash(),
                paths: self.many(strings),
                bytes,
            });
            messages.push(M::TrieNodes { id, nodes: strings(self) });
        } else {
            messages.push(M::GetBlockAccessLists { id, hashes: self.many(Self::hash), bytes });
            let list = |random: &mut Self| {
                let list = random.list();
                random.0.random::<bool>().then_some(list)
            };
            messages.push(M::BlockAccessLists { id, lists: self.many(list) });
        }
        messages
    }
}

/// Checks that no beginning of a message is a message, and none with an item more.
fn check_ends<T, E>(content: &Bytes, decode: impl Fn(Bytes) -> Result<T, E>) {
    for end in 0..content.len() {
        assert!(decode(content.slice(..end)).is_err(), "{end} of {} bytes", content.len());
    }
    assert!(decode([content, &[0x80][..]].concat().into()).is_err(), "a byte after the list");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_message_of_eth_survives(seed: u64) {
        for version in eth::Version::ALL {
            for message in Random::new(seed).eth(version) {
                let content = Bytes::from(message.encode(version));
                let decode = |content| eth::Message::decode(version, message.number(), &content);
                prop_assert_eq!(decode(content.clone()).unwrap(), message.clone());
                prop_assert!(message.number() < version.offer().messages);
                check_ends(&content, decode);
            }
        }
    }

    #[test]
    fn every_message_of_snap_survives(seed: u64) {
        for version in snap::Version::ALL {
            for message in Random::new(seed).snap(version) {
                let content = Bytes::from(message.encode());
                let decode = |content| snap::Message::decode(version, message.number(), &content);
                prop_assert_eq!(decode(content.clone()).unwrap(), message.clone());
                prop_assert!(message.number() < version.offer().messages);
                check_ends(&content, decode);
            }
        }
    }

    #[test]
    fn noise_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), list: bool) {
        let mut content = Vec::new();
        if list {
            // The outer list is right, so that its items are looked at.
            let payload_length = bytes.len();
            alloy_rlp::Header { list, payload_length }.encode(&mut content);
        }
        content.extend_from_slice(&bytes);
        let content = Bytes::from(content);
        for number in 0..0x16 {
            for version in eth::Version::ALL {
                if let Ok(message) = eth::Message::decode(version, number, &content) {
                    let again = Bytes::from(message.encode(version));
                    prop_assert_eq!(eth::Message::decode(version, number, &again), Ok(message));
                }
            }
            for version in snap::Version::ALL {
                if let Ok(message) = snap::Message::decode(version, number, &content) {
                    let again = Bytes::from(message.encode());
                    prop_assert_eq!(snap::Message::decode(version, number, &again), Ok(message));
                }
            }
        }
    }
}

/// The examples of EIP-2481 for messages that have kept their form.
#[test]
fn requests_have_the_bytes_of_the_eip() {
    let version = eth::Version::Eth69;
    let hashes = vec![
        B256::from(hex!("00000000000000000000000000000000000000000000000000000000deadc0de")),
        B256::from(hex!("00000000000000000000000000000000000000000000000000000000feedbeef")),
    ];
    let tail = "00000000000000000000000000000000000000000000000000000000deadc0dea0\
                00000000000000000000000000000000000000000000000000000000feedbeef";
    let message = eth::Message::GetBlockBodies { id: 1111, hashes: hashes.clone() };
    assert_eq!(hex::encode(message.encode(version)), format!("f847820457f842a0{tail}"));
    let message = eth::Message::GetReceipts { id: 1111, first: 0, hashes };
    assert_eq!(hex::encode(message.encode(version)), format!("f847820457f842a0{tail}"));
    let headers = |start| {
        let request = HeadersRequest { start, limit: 5, skip: 5, reverse: false };
        hex::encode(eth::Message::GetBlockHeaders { id: 1111, request }.encode(version))
    };
    assert_eq!(headers(BlockStart::Number(9999)), "ca820457c682270f050580");
    let hash = B256::from(hex!("00000000000000000000000000000000000000000000000000000000deadc0de"));
    assert_eq!(
        headers(BlockStart::Hash(hash)),
        "e8820457e4a000000000000000000000000000000000000000000000000000000000deadc0de050580"
    );
}

#[test]
fn numbers_of_other_versions_and_of_the_past_are_unknown() {
    let content = Bytes::from_static(&[0xc0]);
    for (version, numbers) in [
        (eth::Version::Eth69, &[0x01, 0x07, 0x0b, 0x0d, 0x0e, 0x12, 0x13, 0x14][..]),
        (eth::Version::Eth71, &[0x01, 0x07, 0x14, 0x15, u64::MAX]),
        (eth::Version::Eth72, &[0x01, 0x07, 0x16]),
    ] {
        for &number in numbers {
            let error = eth::Message::decode(version, number, &content).unwrap_err();
            let version = version.number();
            assert_eq!(error, Error::Number { protocol: "eth", version, number });
        }
    }
    for (version, numbers) in
        [(snap::Version::Snap1, [8, 9, 10]), (snap::Version::Snap2, [6, 7, 10])]
    {
        for number in numbers {
            let error = snap::Message::decode(version, number, &content).unwrap_err();
            let version = version.number();
            assert_eq!(error, Error::Number { protocol: "snap", version, number });
        }
    }
}

#[test]
fn requests_are_cut_and_answers_refused_at_the_limit() {
    let version = eth::Version::Eth69;
    let decode = |message: &eth::Message| {
        eth::Message::decode(version, message.number(), &message.encode(version).into())
    };
    let hashes = vec![B256::ZERO; BODIES_MAX + 1];
    let message = eth::Message::GetBlockBodies { id: 1, hashes: hashes.clone() };
    let kept = eth::Message::GetBlockBodies { id: 1, hashes: hashes[1..].to_vec() };
    assert_eq!(decode(&message).unwrap(), kept);
    for (items, fits) in [(HEADERS_MAX, true), (HEADERS_MAX + 1, false)] {
        let headers = vec![Bytes::from_static(&[0xc0]); items];
        let read = decode(&eth::Message::BlockHeaders { id: 1, headers });
        assert_eq!(read.is_ok(), fits, "{items}");
    }
    let announced = Announcement { kind: 2, bytes: 100, hash: B256::ZERO };
    let (transactions, cells) = (vec![announced; ANNOUNCEMENTS_MAX + 1], B128::ZERO);
    let message = eth::Message::Announcements { transactions, cells };
    let error = decode(&message).unwrap_err();
    let message = "NewPooledTransactionHashes";
    assert_eq!(error, Error::TooMany { message, max: ANNOUNCEMENTS_MAX });
}

#[test]
fn lists_that_belong_together_have_one_length() {
    let version = eth::Version::Eth69;
    let announced = Announcement { kind: 2, bytes: 100, hash: B256::ZERO };
    let (transactions, cells) = (vec![announced], B128::ZERO);
    let mut content = eth::Message::Announcements { transactions, cells }.encode(version);
    // Two types for one transaction: 0x02 becomes a string of two bytes.
    let at = content.iter().position(|&byte| byte == 2).unwrap();
    content.splice(at..=at, [0x82, 2, 2]);
    content[0] += 2;
    let error = eth::Message::decode(version, 8, &content.into()).unwrap_err();
    assert_eq!(error, Error::Lengths { message: "NewPooledTransactionHashes" });
    let range = BlockRange { earliest: 2, latest: 1, latest_hash: B256::ZERO };
    let content = eth::Message::BlockRangeUpdate(range).encode(version);
    let error = eth::Message::decode(version, 0x11, &content.into()).unwrap_err();
    assert_eq!(error, Error::Range { message: "BlockRangeUpdate", earliest: 2, latest: 1 });
}

/// Cells of another length, and lists of cells without a hash, do not get further.
#[test]
fn cells_have_their_length_and_their_transaction() {
    let (version, error) = (eth::Version::Eth72, Error::Lengths { message: "Cells" });
    let decode = |bytes: usize| {
        let one = TransactionCells { hash: B256::ZERO, cells: vec![vec![1; bytes].into()] };
        let message = eth::Message::Cells { id: 1, transactions: vec![one], cells: B128::ZERO };
        let read = eth::Message::decode(version, 0x15, &message.encode(version).into());
        read.map(|read| assert_eq!(read, message))
    };
    assert_eq!(decode(CELL_BYTES), Ok(()));
    assert_eq!(decode(CELL_BYTES - 1), Err(error));
    assert!(decode(CELL_BYTES + 1).is_err());
    // [1, [], [[]], 16 zeros]
    let content = Bytes::from(hex!("d501c0c1c09000000000000000000000000000000000"));
    let read = eth::Message::decode(version, 0x15, &content);
    assert_eq!(read, Err(error));
}

#[test]
fn ranges_and_paths_are_limited_over_all_accounts() {
    let version = snap::Version::Snap1;
    let decode = |message: &snap::Message| {
        snap::Message::decode(version, message.number(), &message.encode().into())
    };
    let slot = Leaf { hash: B256::ZERO, value: Bytes::from_static(&[1]) };
    let half = vec![slot.clone(); RANGE_ITEMS_MAX / 2];
    let mut slots = vec![half.clone(), half];
    let fits = snap::Message::StorageRanges { id: 1, slots: slots.clone(), proof: Vec::new() };
    assert!(decode(&fits).is_ok());
    slots.push(vec![slot]);
    let message = snap::Message::StorageRanges { id: 1, slots, proof: Vec::new() };
    assert!(matches!(decode(&message), Err(Error::TooMany { .. })));
    let proof = vec![Bytes::new(); PROOF_NODES_MAX + 1];
    let message = snap::Message::AccountRange { id: 1, accounts: Vec::new(), proof };
    assert!(matches!(decode(&message), Err(Error::TooMany { .. })));
    let set = |paths| vec![Bytes::from_static(&[0]); paths];
    for sets in
        [vec![set(TRIE_NODES_MAX * 2)], vec![set(1); TRIE_NODES_MAX * 2], vec![set(0); 2000]]
    {
        let message =
            snap::Message::GetTrieNodes { id: 1, root: B256::ZERO, paths: sets, bytes: 1 };
        let snap::Message::GetTrieNodes { paths, .. } = decode(&message).unwrap() else { panic!() };
        let nodes: usize = paths.iter().map(|set| set.len().max(2) - 1).sum();
        assert!(nodes <= TRIE_NODES_MAX + 1, "{nodes}");
    }
}
