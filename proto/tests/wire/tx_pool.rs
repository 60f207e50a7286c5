use super::{refused, sent, through};
use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use std::time::Duration;
use tandem_primitives::{Address, B256, Bytes as Raw};
use tandem_proto::{
    convert::ContentParts,
    limits::{POOL_MESSAGE_BYTES_MAX, POOL_PAGE_BYTES, POOL_PAGE_TRANSACTIONS_MAX},
    tx_pool::{Arrivals, BestPage, BestQuery, Content, Counts, Error, PooledTransaction},
    wire::tx_pool::v1,
};
use tonic::{Code, Status};

fn transaction() -> impl Strategy<Value = PooledTransaction> {
    (any::<[u8; 32]>(), any::<[u8; 20]>(), vec(any::<u8>(), 1..90)).prop_map(
        |(hash, sender, raw)| PooledTransaction {
            hash: hash.into(),
            sender: sender.into(),
            raw: raw.into(),
        },
    )
}

fn query() -> impl Strategy<Value = BestQuery> {
    let numbers = (any::<usize>(), any::<usize>(), 1..=POOL_PAGE_TRANSACTIONS_MAX);
    (any::<u128>(), option::of(any::<u128>()), numbers, option::of(any::<u64>())).prop_map(
        |(base_fee, blob_fee, (blob_transactions_max, skip, transactions_max), unless)| BestQuery {
            base_fee,
            blob_fee,
            blob_transactions_max,
            skip,
            transactions_max,
            unless,
        },
    )
}

fn error() -> impl Strategy<Value = Error> {
    prop_oneof![
        ("[a-z0-9_]{1,64}", ".{0,200}")
            .prop_map(|(kind, reason)| Error::Refused { kind: kind.into(), reason }),
        (0..60_000_u64).prop_map(|ms| Error::Overloaded { retry_after: Duration::from_millis(ms) }),
        ".{0,200}".prop_map(Error::Unavailable),
    ]
}

fn outcome() -> impl Strategy<Value = Result<B256, Error>> {
    let hash = any::<[u8; 32]>().prop_map(B256::from);
    prop_oneof![hash.prop_map(Ok), error().prop_map(Err)]
}

proptest! {
    #[test]
    fn calls_and_answers_survive(
        list in vec(transaction(), 0..5), queued in vec(transaction(), 0..5), query in query(),
        found in option::of(transaction()), hash in any::<[u8; 32]>(), sender in any::<[u8; 20]>(),
        numbers in any::<[u64; 3]>(), is_last: bool, outcomes in vec(outcome(), 0..9),
    ) {
        let (hash, sender) = (B256::from(hash), Address::from(sender));
        let raw: Vec<Raw> = list.iter().chain(&queued).map(|it| it.raw.clone()).collect();
        prop_assert_eq!(Vec::<Raw>::try_from(v1::AddRequest::from(&raw[..])).unwrap(), raw);
        prop_assert_eq!(through::<v1::AddResponse, _>(outcomes.clone()), outcomes);
        prop_assert_eq!(through::<v1::GetRequest, _>(hash), hash);
        prop_assert_eq!(through::<v1::GetResponse, _>(found.clone()), found);
        prop_assert_eq!(through::<v1::GetNextNonceRequest, _>(sender), sender);
        prop_assert_eq!(through::<v1::ListBestRequest, _>(query), query);
        let page = BestPage { transactions: list.clone(), version: numbers[0], is_last };
        prop_assert_eq!(through::<v1::ListBestResponse, _>(page.clone()), page);
        let page = Arrivals { transactions: list.clone(), upto: numbers[0] };
        prop_assert_eq!(through::<v1::ListArrivalsResponse, _>(page.clone()), page);
        for sender in [None, Some(sender)] {
            prop_assert_eq!(through::<v1::ListContentRequest, _>(sender), sender);
        }
        let counts = Counts { pending: numbers[1] as usize, queued: numbers[2] as usize };
        prop_assert_eq!(Counts::from(v1::GetCountsResponse::from(counts)), counts);
        let content = Content { pending: list, queued };
        let parts: Vec<Content> = ContentParts::from(content.clone()).map(sent).collect();
        prop_assert_eq!(joined(parts), content);
    }

    #[test]
    fn an_error_keeps_its_variant_through_a_status(error in error()) {
        prop_assert_eq!(Error::from(Status::from(error.clone())), error);
    }
}

fn joined(parts: Vec<Content>) -> Content {
    let mut content = Content::default();
    for part in parts {
        content.pending.extend(part.pending);
        content.queued.extend(part.queued);
    }
    content
}

#[test]
fn a_large_content_comes_in_parts_that_fit_into_a_message() {
    let large = |index: u8| PooledTransaction {
        hash: B256::repeat_byte(index),
        sender: Address::ZERO,
        raw: vec![index; 128 << 10].into(),
    };
    let pending: Vec<_> = (0..70).map(large).collect();
    let content = Content { queued: pending[..50].to_vec(), pending };
    let parts: Vec<_> = ContentParts::from(content.clone()).collect();
    let bytes = |part: &v1::ListContentResponse| prost::Message::encoded_len(part);
    assert!(parts.len() > 2 && parts.iter().all(|part| bytes(part) < POOL_MESSAGE_BYTES_MAX / 2));
    assert!(parts.iter().any(|part| bytes(part) > POOL_PAGE_BYTES));
    assert_eq!(joined(parts.into_iter().map(sent).collect()), content);
    assert_eq!(ContentParts::from(Content::default()).count(), 0);
}

#[test]
fn a_query_asks_for_no_more_than_a_page() {
    let all = BestQuery {
        base_fee: 0,
        blob_fee: None,
        blob_transactions_max: 0,
        skip: 0,
        transactions_max: usize::MAX,
        unless: None,
    };
    let asked = through::<v1::ListBestRequest, BestQuery>(all);
    assert_eq!(asked, BestQuery { transactions_max: POOL_PAGE_TRANSACTIONS_MAX, ..all });
}

#[test]
fn malformed_messages_name_the_field() {
    let transaction =
        PooledTransaction { hash: B256::ZERO, sender: Address::ZERO, raw: Raw::from_static(&[2]) };
    let page = |spoil: fn(&mut v1::Transactions)| {
        let mut transactions = v1::Transactions::from(&[transaction.clone()][..]);
        spoil(&mut transactions);
        let transactions = Some(transactions);
        refused::<_, BestPage>(v1::ListBestResponse { transactions, version: 1, is_last: true })
    };
    let query = |spoil: fn(&mut v1::ListBestRequest)| {
        let mut wire = v1::ListBestRequest {
            base_fee: vec![0; 16].into(),
            transactions_max: 1,
            ..Default::default()
        };
        spoil(&mut wire);
        refused::<_, BestQuery>(wire)
    };
    let error = |kind| refused::<_, Error>(v1::Error { kind: Some(kind) });
    let refusal = |kind: &str| {
        let (kind, reason) = (kind.to_owned(), String::new());
        error(v1::error::Kind::Refused(v1::error::Refused { kind, reason }))
    };
    let late = v1::error::Overloaded { retry_after_ms: 60_001 };
    let found = |count| {
        let transaction = Some(v1::Transactions::from(&vec![transaction.clone(); count][..]));
        refused::<_, Option<PooledTransaction>>(v1::GetResponse { transaction })
    };
    let short = |length| Bytes::from(vec![0; length]);
    let adding = |sizes, bytes| refused::<_, Vec<Raw>>(v1::AddRequest { sizes, raw: short(bytes) });
    let added = |error_sizes, error_bytes, hash_bytes| {
        let (errors, hashes) = (short(error_bytes), short(hash_bytes));
        refused::<_, Vec<Result<B256, Error>>>(v1::AddResponse { error_sizes, errors, hashes })
    };
    let expect = [
        (
            page(|it| it.hashes = vec![0; 31].into()),
            "list_best.transactions.hashes: 31 bytes are not a multiple of 32",
        ),
        (
            page(|it| it.hashes = vec![0; 32 * (POOL_PAGE_TRANSACTIONS_MAX + 1)].into()),
            "list_best.transactions.hashes: 4097 are more than 4096",
        ),
        (
            page(|it| it.senders = vec![0; 40].into()),
            "list_best.transactions.senders: expected 1 items, got 2",
        ),
        (page(|it| it.sizes.clear()), "list_best.transactions.sizes: expected 1 items, got 0"),
        (page(|it| it.sizes[0] = 2), "list_best.transactions.raw: expected 2 bytes, got 1"),
        (
            page(|it| {
                it.sizes[0] = 0;
                it.raw = Bytes::new();
            }),
            "list_best.transactions.sizes[0]: 0 is not in 1..=4294967295",
        ),
        (
            refused::<_, BestPage>(v1::ListBestResponse::default()),
            "list_best.transactions: is missing",
        ),
        (
            refused::<_, Arrivals>(v1::ListArrivalsResponse::default()),
            "list_arrivals.transactions: is missing",
        ),
        (query(|it| it.transactions_max = 0), "list_best.transactions_max: 0 is not in 1..=4096"),
        (
            query(|it| it.transactions_max = 4097),
            "list_best.transactions_max: 4097 is not in 1..=4096",
        ),
        (query(|it| it.base_fee = Bytes::new()), "list_best.base_fee: expected 16 bytes, got 0"),
        (
            query(|it| it.blob_fee = vec![0; 17].into()),
            "list_best.blob_fee: expected 16 bytes, got 17",
        ),
        (adding(vec![0; 257], 0), "add.sizes: 257 are more than 256"),
        (adding(vec![1, 2], 4), "add.raw: expected 3 bytes, got 4"),
        (added(vec![0; 257], 0, 0), "add.error_sizes: 257 are more than 256"),
        (added(vec![2], 1, 0), "add.errors: expected 2 bytes, got 1"),
        (added(vec![0], 0, 31), "add.hashes: 31 bytes are not a multiple of 32"),
        (added(vec![0], 0, 0), "add.hashes: expected 1 items, got 0"),
        (added(vec![], 0, 32), "add.hashes: expected 0 items, got 1"),
        (added(vec![0, 1], 1, 32), "add.errors[1]: is not a message of its kind"),
        (
            refused::<_, B256>(v1::GetRequest { hash: short(33) }),
            "get.hash: expected 32 bytes, got 33",
        ),
        (found(0), "get.transaction.hashes: expected 1 items, got 0"),
        (found(2), "get.transaction.hashes: 2 are more than 1"),
        (
            refused::<_, Address>(v1::GetNextNonceRequest { sender: short(0) }),
            "get_next_nonce.sender: expected 20 bytes, got 0",
        ),
        (
            refused::<_, Option<Address>>(v1::ListContentRequest { sender: short(19) }),
            "list_content.sender: expected 20 bytes, got 19",
        ),
        (
            refused::<_, Content>(v1::ListContentResponse {
                pending: None,
                queued: Some(v1::Transactions { hashes: short(1), ..Default::default() }),
            }),
            "list_content.queued.hashes: 1 bytes are not a multiple of 32",
        ),
        (refusal(""), "refused.kind: is not 1 to 64 lower-case letters, digits and underscores"),
        (refusal("Bad"), "refused.kind: is not 1 to 64 lower-case letters, digits and underscores"),
        (
            error(v1::error::Kind::Overloaded(late)),
            "overloaded.retry_after_ms: 60001 is not in 0..=60000",
        ),
        (refused::<_, Error>(v1::Error::default()), "kind: is missing"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

#[test]
fn a_code_says_what_any_client_understands() {
    let code = |error: Error| Status::from(error).code();
    let refused = Error::Refused { kind: "nonce_too_low".into(), reason: String::new() };
    assert_eq!(code(refused), Code::FailedPrecondition);
    assert_eq!(code(Error::Overloaded { retry_after: Duration::ZERO }), Code::ResourceExhausted);
    assert_eq!(code(Error::Unavailable(String::new())), Code::Unavailable);
    let refused = Error::from(Status::unavailable("connection refused"));
    assert_eq!(refused, Error::Unavailable("Unavailable: connection refused".to_owned()));
}
