//! The JSON-RPC 2.0 envelope: requests read without copying their parameters, responses written
//! around results that are JSON already.

use crate::error::{RpcError, code};
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::ops::Range;

/// Call in a request body.
#[derive(Debug)]
pub(crate) struct Call {
    /// JSON text of the id, `None` for a notification.
    pub id: Option<Bytes>,
    /// Name of the method.
    pub method: String,
    /// JSON text of the parameters, empty without any.
    pub params: Bytes,
}

/// A call, or the error that replaces its answer, with the id if it could be read.
pub(crate) type ParsedCall = Result<Call, (Option<Bytes>, RpcError)>;

/// Contents of a request body.
#[derive(Debug)]
pub(crate) enum Body {
    /// One call.
    Single(ParsedCall),
    /// A batch of at least one call and at most the allowed number.
    Batch(Vec<ParsedCall>),
    /// The body cannot be answered call by call.
    Unusable(RpcError),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    /// `null` is an id; a missing id makes a notification.
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parses a request body; a batch may have at most `batch_len_max` calls.
pub(crate) fn parse(body: &Bytes, batch_len_max: usize) -> Body {
    let is_batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if !is_batch {
        // One pass for valid input; a second pass finds the error.
        return match serde_json::from_slice::<Envelope<'_>>(body) {
            Ok(envelope) => Body::Single(read_call(body, envelope)),
            Err(_) => match serde_json::from_slice::<&RawValue>(body) {
                Ok(raw) => Body::Single(parse_call(body, raw)),
                Err(error) => Body::Unusable(parse_error(&error)),
            },
        };
    }
    match serde_json::from_slice::<Batch<'_>>(body) {
        Err(error) => Body::Unusable(parse_error(&error)),
        Ok(Batch { calls, .. }) if calls.is_empty() => {
            Body::Unusable(RpcError::new(code::INVALID_REQUEST, "empty batch"))
        }
        Ok(Batch { len, .. }) if len > batch_len_max => Body::Unusable(RpcError::new(
            code::INVALID_REQUEST,
            format!("batch too large: {len} calls, at most {batch_len_max}"),
        )),
        Ok(Batch { calls, .. }) => {
            Body::Batch(calls.into_iter().map(|raw| parse_call(body, raw)).collect())
        }
    }
}

fn parse_error(error: &serde_json::Error) -> RpcError {
    RpcError::new(code::PARSE_ERROR, format!("parse error: {error}"))
}

fn invalid(id: Option<Bytes>, reason: &'static str) -> ParsedCall {
    Err((id, RpcError::new(code::INVALID_REQUEST, reason)))
}

fn parse_call(body: &Bytes, raw: &RawValue) -> ParsedCall {
    // A struct could be read from an array too, which is not a request.
    let envelope = raw.get().starts_with('{').then(|| serde_json::from_str(raw.get()));
    match envelope {
        Some(Ok(envelope)) => read_call(body, envelope),
        _ => invalid(None, "invalid request: not an object with unique members"),
    }
}

fn read_call(body: &Bytes, envelope: Envelope<'_>) -> ParsedCall {
    let id = match envelope.id {
        // An id is a number, a string or null, and is returned byte for byte.
        Some(id) if !id.get().starts_with(['{', '[', 't', 'f']) => {
            Some(body.slice(range_in(body, id)))
        }
        Some(_) => return invalid(None, "invalid request: id is not a number, a string or null"),
        None => None,
    };
    let version = envelope.jsonrpc.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    if version.as_deref() != Some("2.0") {
        return invalid(id, "invalid request: jsonrpc is not \"2.0\"");
    }
    let method = envelope.method.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
    let Some(method) = method else {
        return invalid(id, "invalid request: no method");
    };
    let params = match envelope.params {
        Some(params) => body.slice(range_in(body, params)),
        None => Bytes::new(),
    };
    Ok(Call { id, method, params })
}

/// Returns the range in the body of a value borrowed from it.
fn range_in(body: &Bytes, value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr() as usize - body.as_ptr() as usize;
    start..start + value.get().len()
}

/// Elements of a batch, kept up to the maximum of any request.
struct Batch<'a> {
    calls: Vec<&'a RawValue>,
    len: usize,
}

/// Maximum number of kept elements. Further ones are only counted: a body of `[1,1,1,…` must not
/// grow into gigabytes.
const BATCH_KEPT_MAX: usize = 4096;

impl<'de> Deserialize<'de> for Batch<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Batch<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<Self::Value, A::Error> {
                let mut batch = Batch { calls: Vec::new(), len: 0 };
                while let Some(call) = seq.next_element::<&RawValue>()? {
                    batch.len += 1;
                    if batch.len <= BATCH_KEPT_MAX {
                        batch.calls.push(call);
                    }
                }
                Ok(batch)
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}

/// Bytes after the result in a response object.
pub(crate) const RESPONSE_END: &[u8] = b"}";

/// Appends a response object up to its result, with members in geth's order.
pub(crate) fn write_result_start(out: &mut Vec<u8>, id: Option<&Bytes>) {
    write_start(out, id);
    out.extend_from_slice(br#","result":"#);
}

fn write_start(out: &mut Vec<u8>, id: Option<&Bytes>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.map_or(b"null", |id| id.as_ref()));
}

/// Appends one response object.
pub(crate) fn write_response(
    out: &mut Vec<u8>,
    id: Option<&Bytes>,
    result: &Result<Box<RawValue>, RpcError>,
) {
    match result {
        Ok(result) => {
            out.reserve(result.get().len() + 64);
            write_result_start(out, id);
            out.extend_from_slice(result.get().as_bytes());
        }
        Err(error) => {
            write_start(out, id);
            out.extend_from_slice(br#","error":"#);
            // Serializing numbers and strings into a vector cannot fail.
            if serde_json::to_writer(&mut *out, error).is_err() {
                out.extend_from_slice(b"null");
            }
        }
    }
    out.extend_from_slice(RESPONSE_END);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(body: &str) -> ParsedCall {
        match parse(&Bytes::copy_from_slice(body.as_bytes()), 3) {
            Body::Single(call) => call,
            other => panic!("{body}: {other:?}"),
        }
    }

    fn unusable(body: &[u8]) -> i32 {
        match parse(&Bytes::copy_from_slice(body), 3) {
            Body::Unusable(error) => error.code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ids_come_back_byte_for_byte() {
        for id in ["1", "-7", "1.50", "1e3", "\"a\\u0041\"", "\"\"", "null", "18446744073709551616"]
        {
            let call =
                single(&format!(r#" {{"params":[ 1 ],"id":{id},"method":"m","jsonrpc":"2.0"}} "#))
                    .unwrap();
            assert_eq!(call.id.unwrap(), id.as_bytes());
            assert_eq!(call.params, b"[ 1 ]".as_slice());
            assert_eq!(call.method, "m");
        }
    }

    #[test]
    fn a_request_without_id_is_a_notification() {
        assert!(single(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap().id.is_none());
    }

    #[test]
    fn what_is_no_request_keeps_its_id_where_it_has_one() {
        for (body, id) in [
            (r#"{"jsonrpc":"2.0","id":5}"#, Some("5")),
            (r#"{"jsonrpc":"1.0","id":5,"method":"m"}"#, Some("5")),
            (r#"{"id":"x","method":"m"}"#, Some("\"x\"")),
            (r#"{"jsonrpc":"2.0","id":5,"method":7}"#, Some("5")),
            (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, None),
            (r#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#, None),
            (r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, None),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#, None),
            ("{}", None),
            ("1", None),
            ("\"text\"", None),
            ("null", None),
        ] {
            let (found, error) = single(body).unwrap_err();
            assert_eq!(error.code, code::INVALID_REQUEST, "{body}");
            assert_eq!(found.as_deref(), id.map(str::as_bytes), "{body}");
        }
    }

    #[test]
    fn what_is_no_json_is_a_parse_error() {
        for body in [
            b"".as_slice(),
            b"   ",
            b"{",
            b"[",
            b"[1,]",
            b"{\"a\":1}x",
            b"nul",
            b"\xff\xfe",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
            b"[{}] []",
        ] {
            assert_eq!(unusable(body), code::PARSE_ERROR, "{body:?}");
        }
        assert_eq!(unusable("[".repeat(200_000).as_bytes()), code::PARSE_ERROR);
        let deep = format!("{{\"a\":{}", "[".repeat(200_000));
        assert_eq!(unusable(deep.as_bytes()), code::PARSE_ERROR);
    }

    #[test]
    fn batches_are_bounded_and_never_empty() {
        assert_eq!(unusable(b"[]"), code::INVALID_REQUEST);
        assert_eq!(unusable(b"[1,2,3,4]"), code::INVALID_REQUEST);
        let many = format!("[{}1]", "1,".repeat(100_000));
        assert_eq!(unusable(many.as_bytes()), code::INVALID_REQUEST);
        let body = r#" [{"jsonrpc":"2.0","id":1,"method":"m"},7,["2.0",1,"m",[]]]"#;
        let Body::Batch(calls) = parse(&Bytes::from_static(body.as_bytes()), 3) else {
            panic!("no batch")
        };
        assert_eq!(calls[0].as_ref().unwrap().method, "m");
        for call in &calls[1..] {
            assert_eq!(call.as_ref().unwrap_err().1.code, code::INVALID_REQUEST);
        }
    }

    #[test]
    fn responses_have_the_members_in_the_usual_order() {
        let mut out = Vec::new();
        let result = RawValue::from_string("\"0x1\"".into()).unwrap();
        write_response(&mut out, Some(&Bytes::from_static(b"7")), &Ok(result));
        write_response(&mut out, None, &Err(RpcError::new(-32601, "no \"such\" method")));
        for code in [code::UNSUPPORTED_FORK, code::SERVER_ERROR] {
            write_response(&mut out, None, &Err(RpcError::engine(code, "too early")));
        }
        assert_eq!(
            String::from_utf8(out).unwrap(),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"result":"0x1"}"#,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no \"such\" method"}}"#,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-38005,"message":"Unsupported fork"}}"#,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Server error","data":{"err":"too early"}}}"#,
            )
        );
    }
}
