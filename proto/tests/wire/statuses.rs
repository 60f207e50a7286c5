use proptest::prelude::*;
use tandem_proto::{
    convert::{ConvertError, ERROR_METADATA, Reason},
    limits::ERROR_TEXT_BYTES_MAX,
    multiproof, storage,
};
use tandem_testkit::messages::values;
use tonic::{Code, Status, metadata::MetadataValue};

proptest! {
    #[test]
    fn an_error_keeps_its_variant_through_a_status(
        storage in values::storage_error(), multiproof in values::multiproof_error(),
    ) {
        let status = Status::from(storage.clone());
        prop_assert_eq!(storage::Error::from(status), storage);
        let status = Status::from(multiproof.clone());
        prop_assert_eq!(multiproof::Error::from(status), multiproof);
    }

    #[test]
    fn an_error_keeps_its_variant_through_http_headers(error in values::storage_error()) {
        let mut headers = tonic::codegen::http::HeaderMap::new();
        Status::from(error.clone()).add_header(&mut headers).unwrap();
        let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        prop_assert!(size < 8 * 1024, "{size} bytes of headers");
        let status = Status::from_header_map(&headers).unwrap();
        prop_assert_eq!(storage::Error::from(status), error);
    }
}

#[test]
fn a_code_says_what_any_client_understands() {
    let code = |error: storage::Error| Status::from(error).code();
    assert_eq!(code(storage::Error::Fenced { held: 1, granted: 2 }), Code::FailedPrecondition);
    assert_eq!(code(storage::Error::Unproven { held: 1 }), Code::PermissionDenied);
    assert_eq!(code(storage::Error::UnknownBlock(Default::default())), Code::NotFound);
    assert_eq!(code(storage::Error::RewindTooDeep { to: 1, oldest: 2 }), Code::OutOfRange);
    assert_eq!(code(storage::Error::Pruned { number: 1, oldest: 2 }), Code::OutOfRange);
    assert_eq!(code(storage::Error::Store(String::new())), Code::Internal);
    assert_eq!(code(storage::Error::Unavailable(String::new())), Code::Unavailable);
    assert_eq!(code(storage::Error::Refused(String::new())), Code::InvalidArgument);
}

#[test]
fn only_what_passes_by_itself_is_retried() {
    let unavailable = storage::Error::Unavailable("one has the right to write".to_owned());
    assert!(unavailable.is_retryable());
    for error in [
        storage::Error::Fenced { held: 1, granted: 2 },
        storage::Error::Unproven { held: 1 },
        storage::Error::UnknownBlock(Default::default()),
        storage::Error::RewindTooDeep { to: 1, oldest: 2 },
        storage::Error::Pruned { number: 1, oldest: 2 },
        storage::Error::Store("corrupt".to_owned()),
        storage::Error::Refused("block 1 is canonical".to_owned()),
    ] {
        assert!(!error.is_retryable(), "{error}");
    }
}

/// A receiver of this version reads a later version's error of a kind that it does not know.
#[test]
fn an_error_of_an_unknown_kind_goes_by_its_status() {
    // Field 15, a string: `later`.
    let detail = MetadataValue::from_bytes(b"\x7a\x05later");
    for (code, expected) in [
        (Code::Unavailable, storage::Error::Unavailable("Unavailable: text".to_owned())),
        (
            Code::ResourceExhausted,
            storage::Error::Unavailable("ResourceExhausted: text".to_owned()),
        ),
        (Code::InvalidArgument, storage::Error::Refused("InvalidArgument: text".to_owned())),
        (Code::Internal, storage::Error::Store("Internal: text".to_owned())),
    ] {
        let mut status = Status::new(code, "text");
        status.metadata_mut().insert_bin(ERROR_METADATA, detail.clone());
        assert_eq!(storage::Error::from(status), expected);
    }
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let text = "é".repeat(10_000);
    let status = Status::from(storage::Error::Store(format!("x{text}")));
    assert!(status.message().len() <= ERROR_TEXT_BYTES_MAX);
    let storage::Error::Store(arrived) = status.into() else { panic!("another variant") };
    assert_eq!(arrived.len(), ERROR_TEXT_BYTES_MAX - 1);
}

#[test]
fn without_detail_the_code_decides() {
    let unavailable = storage::Error::Unavailable("Unavailable: connection refused".to_owned());
    assert_eq!(storage::Error::from(Status::unavailable("connection refused")), unavailable);
    let refused = ConvertError::from(Reason::Missing);
    let storage::Error::Refused(text) = Status::from(refused).into() else {
        panic!("another variant")
    };
    assert!(text.starts_with("InvalidArgument: "), "{text}");

    let mut damaged = Status::internal("disk");
    damaged.metadata_mut().insert_bin(ERROR_METADATA, MetadataValue::from_bytes(&[0xff, 1, 2]));
    let store = storage::Error::Store("Internal: disk".to_owned());
    assert_eq!(storage::Error::from(damaged.clone()), store);
    assert_eq!(multiproof::Error::from(damaged), multiproof::Error::Unavailable);
}
