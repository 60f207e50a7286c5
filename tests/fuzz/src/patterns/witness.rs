//! Witnesses and the files that contain them.

use super::{Pattern, bytes, text};

pub(super) fn witnesses() -> Vec<Pattern> {
    let file =
        |name, head: &str, unit: &str, tail: &str| text("witness_file", name, head, unit, tail);
    let unknown = [&[0xa0][..], &[7; 32]].concat();
    vec![
        file("open arrays", "", "[", ""),
        file("open arrays as header", r#"{"headers":["#, "[", ""),
        file("arrays as header", r#"{"headers":[["#, "1,", "1]]}"),
        file("a chain id as an array", r#"{"chainId":["#, "1,", "1]}"),
        file("a long chain id", r#"{"chainId":""#, "1", r#""}"#),
        file("empty nodes", r#"{"codes":[],"headers":[],"state":["#, r#""0x","#, r#""0x"]}"#),
        file("tiny nodes", r#"{"codes":[],"headers":[],"state":["#, r#""0x80","#, r#""0x80"]}"#),
        file("empty headers", r#"{"state":[],"headers":["#, r#""0x","#, r#""0x"]}"#),
        file("a long node", r#"{"codes":[],"headers":[],"state":["0x"#, "11", r#""]}"#),
        file("members of a header", r#"{"headers":[{"#, r#""%%%%%%":1,"#, r#""b":1}]}"#),
        file("parameters", r#"{"engine":{"method":"engine_newPayloadV4","params":["#, "1,", "1]}}"),
        file(
            "parameters that are null",
            r#"{"engine":{"method":"engine_newPayloadV4","params":["#,
            "null,",
            "null]}}",
        ),
        file("digits", "", "c0", ""),
        bytes("witness_trie", "unknown accounts", &[0], &[0, 0x11, 1], &[], vec![]),
        bytes("witness_trie", "a long node", &[1, 0xff, 0xff], &unknown, &[], vec![]),
    ]
}
