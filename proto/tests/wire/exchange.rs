//! Messages between peer-sessions and tx-pool.

use super::{refused, through};
use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*, sample::select};
use tandem_primitives::{B256, B512, Bytes as Raw};
use tandem_proto::{
    blob_validator::{CELL_BYTES, CellSet},
    exchange::{PoolMessage, SessionsMessage},
    limits::{EXCHANGED_ANNOUNCEMENTS_MAX, EXCHANGED_TRANSACTIONS_MAX},
    peer_sessions::{
        AnnouncedBlobs, Announcement, Error, Found, Gossip, Misconduct, Part, PeerId,
        TransactionCells, Wanted,
    },
    wire::peer_sessions::v1::{
        self, exchange_transactions_request as pool, exchange_transactions_response as sessions,
    },
};

fn id() -> impl Strategy<Value = PeerId> {
    any::<[u8; 32]>().prop_map(|half| B512::from_slice(&[half, half].concat()))
}

fn hashes() -> impl Strategy<Value = Vec<B256>> {
    vec(any::<[u8; 32]>().prop_map(B256::from), 1..9)
}

fn transactions() -> impl Strategy<Value = Vec<Raw>> {
    vec(vec(any::<u8>(), 1..90).prop_map(Raw::from), 0..5)
}

fn cells() -> impl Strategy<Value = CellSet> {
    any::<[u8; 16]>().prop_map(CellSet)
}

fn announcements() -> impl Strategy<Value = Vec<Announcement>> {
    let one = (any::<u8>(), any::<u64>(), any::<[u8; 32]>(), any::<u64>());
    // A peer has either all blobs apart, or none.
    (vec(one, 0..5), option::of(cells())).prop_map(|(all, apart)| {
        let one = |(kind, bytes, hash, inside): (u8, u64, [u8; 32], u64)| {
            let blobs = apart.map_or(AnnouncedBlobs::Inside(inside), AnnouncedBlobs::Apart);
            Announcement { kind, bytes, hash: hash.into(), blobs }
        };
        all.into_iter().map(one).collect()
    })
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let part = prop_oneof![
        Just(Part::WithBlobs),
        Just(Part::WithoutBlobs),
        cells().prop_map(Part::Cells),
    ];
    (hashes(), part).prop_map(|(hashes, part)| Wanted { hashes, part })
}

fn found() -> impl Strategy<Value = Found> {
    let cell = any::<u8>().prop_map(|byte| Raw::from(vec![byte; CELL_BYTES]));
    let one = (any::<[u8; 32]>(), vec(cell, 0..3))
        .prop_map(|(hash, cells)| TransactionCells { hash: hash.into(), cells });
    prop_oneof![transactions().prop_map(Found::Transactions), vec(one, 0..4).prop_map(Found::Cells),]
}

fn of_pool() -> impl Strategy<Value = PoolMessage> {
    let gossip = prop_oneof![
        transactions().prop_map(Gossip::Transactions),
        announcements().prop_map(Gossip::Announcements),
    ];
    let misconduct = select(vec![Misconduct::Invalid, Misconduct::Useless, Misconduct::Slow]);
    prop_oneof![
        (id(), gossip).prop_map(|(peer, gossip)| PoolMessage::Tell { peer, gossip }),
        (any::<u64>(), id(), wanted()).prop_map(|(id, peer, wanted)| PoolMessage::Ask {
            id,
            peer,
            wanted
        }),
        (id(), misconduct).prop_map(|(peer, misconduct)| PoolMessage::Report { peer, misconduct }),
        (any::<u64>(), found()).prop_map(|(id, found)| PoolMessage::Pooled { id, found }),
    ]
}

fn of_sessions() -> impl Strategy<Value = SessionsMessage> {
    let result = prop_oneof![
        found().prop_map(Ok),
        select(vec![Error::Gone, Error::Busy, Error::Timeout]).prop_map(Err),
        ".{0,99}".prop_map(|text| Err(Error::Refused(text))),
    ];
    prop_oneof![
        id().prop_map(SessionsMessage::Joined),
        id().prop_map(SessionsMessage::Left),
        (id(), announcements())
            .prop_map(|(peer, announcements)| SessionsMessage::Announced { peer, announcements }),
        (id(), transactions())
            .prop_map(|(peer, transactions)| SessionsMessage::Received { peer, transactions }),
        (any::<u64>(), result).prop_map(|(id, result)| SessionsMessage::Answer { id, result }),
        (any::<u64>(), wanted(), any::<u64>()).prop_map(|(id, wanted, bytes_max)| {
            SessionsMessage::Wanted { id, wanted, bytes_max }
        }),
    ]
}

proptest! {
    #[test]
    fn messages_survive(of_pool in of_pool(), of_sessions in of_sessions()) {
        let got = through::<v1::ExchangeTransactionsRequest, _>(of_pool.clone());
        prop_assert_eq!(got, of_pool);
        let got = through::<v1::ExchangeTransactionsResponse, _>(of_sessions.clone());
        prop_assert_eq!(got, of_sessions);
    }
}

#[test]
fn the_sender_leaves_out_what_no_message_carries() {
    let raw = |byte| Raw::copy_from_slice(&[byte]);
    let all = v1::Transactions::from(vec![raw(1), Raw::new(), raw(2)]);
    assert_eq!(Vec::<Raw>::try_from(all).unwrap(), [raw(1), raw(2)]);
    let all = v1::Transactions::from(vec![raw(1); EXCHANGED_TRANSACTIONS_MAX + 1]);
    assert_eq!(all.sizes.len(), EXCHANGED_TRANSACTIONS_MAX);
    let blobs = AnnouncedBlobs::Inside(0);
    let one = Announcement { kind: 2, bytes: 1, hash: B256::ZERO, blobs };
    let all = v1::Announcements::from(vec![one; EXCHANGED_ANNOUNCEMENTS_MAX + 1]);
    assert_eq!(all.kinds.len(), EXCHANGED_ANNOUNCEMENTS_MAX);
}

#[test]
fn malformed_messages_name_the_field() {
    let peer = || Bytes::from(vec![0; 64]);
    let from_pool =
        |what| refused::<_, PoolMessage>(v1::ExchangeTransactionsRequest { what: Some(what) });
    let tell = |news| from_pool(pool::What::Tell(pool::Tell { peer: peer(), news }));
    let full = |sizes: Vec<u32>, bytes: usize| {
        let items = vec![2; bytes].into();
        tell(Some(pool::tell::News::Transactions(v1::Transactions { sizes, items })))
    };
    let announce = |[kinds, sizes, hashes, blob_sizes, cells]: [usize; 5]| {
        tell(Some(pool::tell::News::Announcements(v1::Announcements {
            kinds: vec![2; kinds].into(),
            sizes: vec![1; sizes],
            hashes: vec![0; hashes].into(),
            blob_sizes: vec![1; blob_sizes],
            cells: vec![1; cells].into(),
        })))
    };
    let ask = |hashes: usize, cells: usize| {
        let (hashes, cells) = (vec![0; hashes].into(), vec![0; cells].into());
        from_pool(pool::What::Ask(pool::Ask {
            id: 1,
            peer: peer(),
            hashes,
            cells,
            without_blobs: false,
        }))
    };
    let cells = |hashes: usize, counts: Vec<u32>, bytes: usize| {
        let (hashes, cells) = (vec![0; hashes].into(), vec![0; bytes].into());
        let cells = Some(v1::Cells { hashes, counts, cells });
        from_pool(pool::What::Pooled(pool::Pooled { id: 1, transactions: None, cells }))
    };
    let from_sessions =
        |what| refused::<_, SessionsMessage>(v1::ExchangeTransactionsResponse { what: Some(what) });
    let report = v1::ReportRequest { peer: peer(), misconduct: 4 };
    let received = sessions::Received { peer: peer(), transactions: None };
    let announced = sessions::Announced {
        peer: Bytes::new(),
        announcements: Some(v1::Announcements::default()),
    };
    let wanted = sessions::Wanted { id: 1, bytes_max: 1, ..sessions::Wanted::default() };
    let failed = sessions::answer::Result::Error(v1::Error::default());
    let expect = [
        (
            refused::<_, PoolMessage>(v1::ExchangeTransactionsRequest::default()),
            "exchange.what: is missing",
        ),
        (tell(None), "exchange.tell.news: is missing"),
        (full(vec![2], 3), "exchange.tell.transactions.items: expected 2 bytes, got 3"),
        (full(vec![0, 1], 1), "exchange.tell.transactions.sizes[0]: 0 is not in 1..=4294967295"),
        (full(vec![1; 5001], 5001), "exchange.tell.transactions.sizes: 5001 are more than 5000"),
        (announce([1, 2, 32, 0, 0]), "exchange.tell.announcements.sizes: expected 1 items, got 2"),
        (announce([1, 1, 64, 0, 0]), "exchange.tell.announcements.hashes: expected 1 items, got 2"),
        (
            announce([1, 1, 32, 2, 0]),
            "exchange.tell.announcements.blob_sizes: expected 1 items, got 2",
        ),
        (
            announce([1, 1, 32, 0, 15]),
            "exchange.tell.announcements.cells: expected 16 bytes, got 15",
        ),
        (
            announce([8193, 0, 0, 0, 0]),
            "exchange.tell.announcements.kinds: 8193 are more than 8192",
        ),
        (ask(0, 0), "exchange.ask.hashes: 0 is not in 1..=256"),
        (ask(257 * 32, 0), "exchange.ask.hashes: 257 is not in 1..=256"),
        (ask(32, 17), "exchange.ask.cells: expected 16 bytes, got 17"),
        (cells(32, vec![1, 1], 4096), "exchange.pooled.cells.counts: expected 1 items, got 2"),
        (cells(64, vec![1, 1], 4095), "exchange.pooled.cells.cells: expected 4096 bytes, got 4095"),
        (cells(257 * 32, vec![], 0), "exchange.pooled.cells.hashes: 257 are more than 256"),
        (from_pool(pool::What::Report(report)), "exchange.report.misconduct: 4 is not in 1..=3"),
        (
            from_pool(pool::What::Pooled(pool::Pooled::default())),
            "exchange.pooled.transactions: is missing",
        ),
        (
            refused::<_, SessionsMessage>(v1::ExchangeTransactionsResponse::default()),
            "exchange.what: is missing",
        ),
        (
            from_sessions(sessions::What::Joined(vec![0; 63].into())),
            "exchange.joined: expected 64 bytes, got 63",
        ),
        (
            from_sessions(sessions::What::Announced(announced)),
            "exchange.announced.peer: expected 64 bytes, got 0",
        ),
        (
            from_sessions(sessions::What::Received(received)),
            "exchange.received.transactions: is missing",
        ),
        (
            from_sessions(sessions::What::Answer(sessions::Answer { id: 1, result: None })),
            "exchange.answer.result: is missing",
        ),
        (
            from_sessions(sessions::What::Answer(sessions::Answer { id: 1, result: Some(failed) })),
            "exchange.answer.error.kind: is missing",
        ),
        (
            from_sessions(sessions::What::Wanted(wanted)),
            "exchange.wanted.hashes: 0 is not in 1..=256",
        ),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}
