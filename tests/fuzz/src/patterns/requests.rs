//! HTTP request bodies.

use super::{Pattern, text};
use crate::seeds::OSAKA;
use serde_json::json;

pub(super) fn envelopes() -> Vec<Pattern> {
    let engine =
        |name, head: &str, unit: &str, tail: &str| text("engine_api", name, head, unit, tail);
    let open = r#"{"jsonrpc":"2.0","id":1,"method":"engine_newPayloadV4","params":["#;
    vec![
        engine("open arrays", "", "[", ""),
        engine("open objects", "", r#"{"a":"#, ""),
        engine("closed arrays", open, "[],", "1]}"),
        engine("open arrays as parameter", open, "[", ""),
        engine("open objects as parameter", open, r#"{"a":"#, ""),
        engine("a batch of numbers", "[", "1,", "1]"),
        engine("a batch of notifications", "[", r#"{"jsonrpc":"2.0","method":"x"},"#, "1]"),
        engine("a long method", r#"{"jsonrpc":"2.0","id":1,"method":""#, "x", "\"}"),
        engine("a long escaped method", r#"{"jsonrpc":"2.0","id":1,"method":""#, r"\u0001", "\"}"),
        engine("a long id", r#"{"jsonrpc":"2.0","method":"x","id":""#, "x", "\"}"),
        engine("a long number as id", r#"{"jsonrpc":"2.0","method":"x","id":"#, "7", "}"),
        engine("a long version", r#"{"id":1,"method":"x","jsonrpc":""#, "2", "\"}"),
        engine("many members", r#"{"jsonrpc":"2.0","method":"x","id":1"#, r#","y":1"#, "}"),
        engine("white space", "", " ", "1"),
        engine("a long text as payload", open, "x", ""),
        engine("a long closed text as payload", &format!("{open}\""), "x", "\"]}"),
        engine("a long text of deletes", &format!("{open}\""), "\u{7f}", "\"]}"),
        engine("a long escaped text as payload", &format!("{open}\""), r"\u0001", "\"]}"),
    ]
}

pub(super) fn payloads() -> Vec<Pattern> {
    let (method, params) = OSAKA.blocks[3].new_payload();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let replaced = |name, from: &str, head: &str, unit: &str, tail: &str| {
        let at = body.find(from).unwrap_or_else(|| panic!("{from} is in {body}"));
        let (before, behind) = (&body[..at], &body[at + from.len()..]);
        text("engine_api", name, &format!("{before}{head}"), unit, &format!("{tail}{behind}"))
    };
    let list = |name, unit| {
        replaced(
            name,
            r#""transactions":[]"#,
            r#""transactions":["#,
            unit,
            &format!("{}]", unit.trim_end_matches(',')),
        )
    };
    let hash = format!("\"0x{}\",", "ab".repeat(32));
    let address = "11".repeat(20);
    let withdrawal = format!(
        r#"{{"index":"0x0","validatorIndex":"0x0","address":"0x{address}","amount":"0x0"}},"#
    );
    let withdrawals = format!("\"withdrawals\":{}", params[0]["withdrawals"]);
    let limit = format!("\"gasLimit\":{}", params[0]["gasLimit"]);
    let extra = format!("\"extraData\":{}", params[0]["extraData"]);
    vec![
        list("empty transactions", r#""0x","#),
        list("smallest transactions", r#""0xc98080808080801b0101","#),
        list("transactions as arrays", "[],"),
        list("a transaction as an array", "[1,1,1,1,1,1,1,1],"),
        replaced(
            "one long transaction",
            r#""transactions":[]"#,
            r#""transactions":["0x"#,
            "c0",
            r#""]"#,
        ),
        replaced(
            "many withdrawals",
            &withdrawals,
            r#""withdrawals":["#,
            &withdrawal,
            &format!("{}]", withdrawal.trim_end_matches(',')),
        ),
        replaced("a long number", &limit, r#""gasLimit":"0x"#, "1", "\""),
        replaced("a long wrong number", &limit, r#""gasLimit":""#, "z", "\""),
        replaced("a long escaped number", &limit, r#""gasLimit":""#, r"\u0001", "\""),
        replaced("long extra data", &extra, r#""extraData":"0x"#, "00", "\""),
        replaced("long wrong extra data", &extra, r#""extraData":"0x"#, "zz", "\""),
        replaced("an unknown member", &extra, r#""extraData":"0x","y":""#, "x", "\""),
        text(
            "engine_api",
            "many hashes",
            r#"{"jsonrpc":"2.0","id":1,"method":"engine_getPayloadBodiesByHashV1","params":[["#,
            &hash,
            &format!("{}]]}}", hash.trim_end_matches(',')),
        ),
        text(
            "engine_api",
            "many capabilities",
            r#"{"jsonrpc":"2.0","id":1,"method":"engine_exchangeCapabilities","params":[["#,
            r#""","#,
            r#"""]]}"#,
        ),
        text(
            "engine_api",
            "a long client",
            r#"{"jsonrpc":"2.0","id":1,"method":"engine_getClientVersionV1","params":[{"code":"TD","name":"x","commit":"0x00000000","version":""#,
            "x",
            r#""}]}"#,
        ),
    ]
}

pub(super) fn calls() -> Vec<Pattern> {
    let eth = |name, head: &str, unit: &str, tail: &str| text("eth_api", name, head, unit, tail);
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"#;
    let filter = r#"{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{"#;
    let address = "11".repeat(20);
    let entry = format!(r#"{{"address":"0x{address}","storageKeys":[]}},"#);
    let key = format!("\"0x{}\",", "ab".repeat(32));
    let last = |item: &str| item.trim_end_matches(',').to_owned();
    vec![
        eth("long data", &format!("{call}\"input\":\"0x"), "00", "\"}]}"),
        eth("long wrong data", &format!("{call}\"input\":\"0x"), "zz", "\"}]}"),
        eth("data twice", &format!("{call}\"data\":\"0x00\",\"input\":\"0x"), "00", "\"}]}"),
        eth("an address of a filter as an array", &format!("{filter}\"address\":[1"), ",1", "]}]}"),
        eth("no addresses of a filter", &format!("{filter}\"address\":[null"), ",null", "]}]}"),
        eth("topics of a filter", &format!("{filter}\"topics\":[null"), ",null", "]}]}"),
        eth("topics at one place", &format!("{filter}\"topics\":[[null"), ",null", "]]}]}"),
        eth("lists of topics", &format!("{filter}\"topics\":[[]"), ",[]", "]}]}"),
        eth(
            "addresses of a filter",
            &format!("{filter}\"address\":["),
            &format!("\"0x{address}\","),
            &format!("\"0x{address}\"]}}]}}"),
        ),
        eth("data as an array", &format!("{call}\"input\":[0"), ",0", "]}]}"),
        eth(
            "an access list",
            &format!("{call}\"accessList\":["),
            &entry,
            &format!("{}]}}]}}", last(&entry)),
        ),
        eth(
            "storage keys",
            &format!(r#"{call}"accessList":[{{"address":"0x{address}","storageKeys":["#),
            &key,
            &format!("{}]}}]}}]}}", last(&key)),
        ),
        eth(
            "a long storage key",
            &format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getStorageAt","params":["0x{address}",""#
            ),
            "z",
            "\"]}",
        ),
        eth(
            "a long block",
            &format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x{address}",""#
            ),
            "z",
            "\"]}",
        ),
        eth(
            "a long member of a block",
            &format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x{address}",{{""#
            ),
            "z",
            "\":1}]}",
        ),
        eth("overrides", &format!(r#"{call}}},"latest",{{"x":""#), "z", "\"}]}"),
        eth(
            "a raw transaction",
            r#"{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["0x"#,
            "c0",
            "\"]}",
        ),
    ]
}
