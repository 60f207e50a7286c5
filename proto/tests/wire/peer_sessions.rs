use super::{refused, snap, through};
use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*, sample::select};
use std::net::IpAddr;
use tandem_primitives::{B256, B512, Bytes as Rlp};
use tandem_proto::{
    limits::{CLIENT_NAME_BYTES_MAX, FETCH_ITEMS_MAX, SESSIONS_MAX},
    peer_sessions::{BlockRange, Direction, Error, Fetch, Fetched, Misconduct, PeerId, Session},
    storage::BlockRef,
    wire::peer_sessions::v1,
};
use tonic::{Code, Status};

fn hash() -> impl Strategy<Value = B256> {
    any::<[u8; 32]>().prop_map(B256::from)
}

fn id() -> impl Strategy<Value = PeerId> {
    any::<[u8; 32]>().prop_map(|half| B512::from_slice(&[half, half].concat()))
}

fn session() -> impl Strategy<Value = Session> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<u64>().prop_map(|n| IpAddr::from(((0x2001 << 112) | u128::from(n)).to_be_bytes())),
    ];
    let range = (any::<[u64; 2]>(), hash()).prop_map(|([a, b], latest_hash)| BlockRange {
        earliest: a.min(b),
        latest: a.max(b),
        latest_hash,
    });
    let direction = select(vec![Direction::Inbound, Direction::Outbound]);
    let versions = (any::<u32>(), option::of(1..u32::MAX));
    (id(), "[ -~]{0,128}", ip, any::<u16>(), direction, versions, range).prop_map(
        |(id, client, ip, port, direction, (eth_version, snap_version), range)| Session {
            id,
            client,
            address: (ip, port).into(),
            direction,
            eth_version,
            snap_version,
            range,
        },
    )
}

fn fetch() -> impl Strategy<Value = Fetch> {
    let start =
        prop_oneof![hash().prop_map(BlockRef::Hash), any::<u64>().prop_map(BlockRef::Number)];
    let headers = (start, 1..=FETCH_ITEMS_MAX as u32, any::<u64>(), any::<bool>())
        .prop_map(|(start, limit, skip, reverse)| Fetch::Headers { start, limit, skip, reverse });
    prop_oneof![
        headers,
        vec(hash(), 1..9).prop_map(Fetch::Bodies),
        vec(hash(), 1..9).prop_map(Fetch::AccessLists),
        snap::request().prop_map(Fetch::State),
        (any::<u64>(), vec(hash(), 1..9))
            .prop_map(|(first, hashes)| Fetch::Receipts { first, hashes }),
    ]
}

fn fetched() -> impl Strategy<Value = Fetched> {
    let item = || vec(any::<u8>(), 1..90).prop_map(Rlp::from);
    prop_oneof![
        vec(item(), 0..5).prop_map(Fetched::Headers),
        vec(item(), 0..5).prop_map(Fetched::Bodies),
        vec(option::of(item()), 0..5).prop_map(Fetched::AccessLists),
        snap::items().prop_map(Fetched::State),
        (any::<bool>(), vec(item(), 0..5))
            .prop_map(|(incomplete, blocks)| Fetched::Receipts { incomplete, blocks }),
    ]
}

fn error() -> impl Strategy<Value = Error> {
    prop_oneof![
        Just(Error::Gone),
        Just(Error::Busy),
        Just(Error::Timeout),
        ".{0,200}".prop_map(Error::Refused),
        ".{0,200}".prop_map(Error::Unavailable),
    ]
}

proptest! {
    #[test]
    fn calls_and_answers_survive(
        sessions in vec(session(), 0..4), peer in id(), fetch in fetch(), fetched in fetched(),
        misconduct in select(vec![Misconduct::Invalid, Misconduct::Useless, Misconduct::Slow]),
    ) {
        prop_assert_eq!(through::<v1::ListSessionsResponse, _>(sessions.clone()), sessions);
        let request = (peer, fetch);
        prop_assert_eq!(through::<v1::FetchRequest, _>(request.clone()), request);
        prop_assert_eq!(through::<v1::FetchResponse, _>(fetched.clone()), fetched);
        let report = (peer, misconduct);
        prop_assert_eq!(through::<v1::ReportRequest, _>(report), report);
    }

    #[test]
    fn an_error_keeps_its_variant_through_a_status(error in error()) {
        prop_assert_eq!(Error::from(Status::from(error.clone())), error);
    }
}

#[test]
fn malformed_messages_name_the_field() {
    let some = |count| {
        let range = BlockRange { earliest: 0, latest: 0, latest_hash: B256::ZERO };
        let session = Session {
            id: PeerId::ZERO,
            client: "x".to_owned(),
            address: ([127, 0, 0, 1], 1).into(),
            direction: Direction::Inbound,
            eth_version: 69,
            snap_version: None,
            range,
        };
        v1::ListSessionsResponse::from(vec![session; count])
    };
    let spoiled = |spoil: fn(&mut v1::ListSessionsResponse)| {
        let mut message = some(1);
        spoil(&mut message);
        refused::<_, Vec<Session>>(message)
    };
    let fetch = |request: v1::FetchRequest| refused::<_, (PeerId, Fetch)>(request);
    let wanted = |what| fetch(v1::FetchRequest { peer: vec![0; 64].into(), what: Some(what) });
    let what = v1::fetch_request::What::Bodies;
    let hashes = |count: usize| vec![0; 32 * count].into();
    let headers = |limit, start| {
        let headers = v1::fetch_request::Headers { limit, start, ..Default::default() };
        wanted(v1::fetch_request::What::Headers(headers))
    };
    let number = Some(v1::fetch_request::headers::Start::Number(1));
    let short = Some(v1::fetch_request::headers::Start::Hash(vec![0; 31].into()));
    let answer = |kind, sizes: Vec<u32>, bytes| {
        let items = vec![1; bytes].into();
        refused::<_, Fetched>(v1::FetchResponse {
            kind,
            sizes,
            items,
            incomplete: false,
            state: None,
        })
    };
    let report = |misconduct| {
        let peer = vec![0; 64].into();
        refused::<_, (PeerId, Misconduct)>(v1::ReportRequest { peer, misconduct })
    };
    assert_eq!(some(SESSIONS_MAX + 1).ports.len(), SESSIONS_MAX, "the sender leaves out more");
    let expect = [
        (
            spoiled(|it| it.ids = vec![0; 64 * (SESSIONS_MAX + 1)].into()),
            "list_sessions.ids: 1025 are more than 1024",
        ),
        (
            spoiled(|it| it.ids = vec![0; 63].into()),
            "list_sessions.ids: 63 bytes are not a multiple of 64",
        ),
        (spoiled(|it| it.client_sizes[0] = 2), "list_sessions.clients: expected 2 bytes, got 1"),
        (
            spoiled(|it| {
                it.client_sizes[0] = 129;
                it.clients = vec![b'x'; CLIENT_NAME_BYTES_MAX + 1].into();
            }),
            "list_sessions.client_sizes[0]: 129 is not in 0..=128",
        ),
        (spoiled(|it| it.ips = Bytes::new()), "list_sessions.ips: expected 1 items, got 0"),
        (spoiled(|it| it.ports[0] = 65536), "list_sessions.ports[0]: 65536 is not in 0..=65535"),
        (spoiled(|it| it.ports.clear()), "list_sessions.ports: expected 1 items, got 0"),
        (
            spoiled(|it| it.directions = vec![3].into()),
            "list_sessions.directions[0]: 3 is not in 1..=2",
        ),
        (
            spoiled(|it| it.earliest[0] = u64::MAX),
            "list_sessions.latest[0]: 0 is not in \
             18446744073709551615..=18446744073709551615",
        ),
        (
            spoiled(|it| it.latest_hashes = Bytes::new()),
            "list_sessions.latest_hashes: expected 1 items, got 0",
        ),
        (fetch(v1::FetchRequest::default()), "fetch.peer: expected 64 bytes, got 0"),
        (
            fetch(v1::FetchRequest { peer: vec![0; 64].into(), what: None }),
            "fetch.what: is missing",
        ),
        (wanted(what(hashes(0))), "fetch.bodies: 0 is not in 1..=1024"),
        (wanted(what(hashes(1025))), "fetch.bodies: 1025 is not in 1..=1024"),
        (wanted(what(vec![0; 31].into())), "fetch.bodies: 31 bytes are not a multiple of 32"),
        (headers(0, number.clone()), "fetch.headers.limit: 0 is not in 1..=1024"),
        (headers(1025, number), "fetch.headers.limit: 1025 is not in 1..=1024"),
        (headers(1, None), "fetch.headers.start: is missing"),
        (headers(1, short), "fetch.headers.hash: expected 32 bytes, got 31"),
        (answer(0, vec![], 0), "fetch.kind: 0 is not in 1..=5"),
        (answer(5, vec![], 0), "fetch.state: is missing"),
        (answer(1, vec![2], 3), "fetch.items: expected 2 bytes, got 3"),
        (answer(1, vec![0, 1], 1), "fetch.sizes[0]: 0 is not in 1..=4294967295"),
        (answer(1, vec![1; 1025], 1025), "fetch.sizes: 1025 are more than 1024"),
        (report(0), "report.misconduct: 0 is not in 1..=3"),
        (report(4), "report.misconduct: 4 is not in 1..=3"),
        (refused::<_, Error>(v1::Error::default()), "kind: is missing"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

#[test]
fn a_code_says_what_any_client_understands() {
    let code = |error: Error| Status::from(error).code();
    assert_eq!(code(Error::Gone), Code::NotFound);
    assert_eq!(code(Error::Busy), Code::ResourceExhausted);
    assert_eq!(code(Error::Timeout), Code::DeadlineExceeded);
    assert_eq!(code(Error::Refused(String::new())), Code::FailedPrecondition);
    let refused = Error::from(Status::unavailable("connection refused"));
    assert_eq!(refused, Error::Unavailable("Unavailable: connection refused".to_owned()));
}
