//! The cheapest ways to say a lot: inputs that repeat one small piece, for measuring what heap and
//! time grow by.

use crate::seeds::OSAKA;
use serde_json::json;

/// Where this stands in a piece, each repetition has a number of its own.
const COUNTER: &[u8] = b"%%%%%%";

/// An input of any length.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The target that it is for.
    pub target: &'static str,
    /// What it repeats, in words.
    pub name: &'static str,
    head: Vec<u8>,
    unit: Vec<u8>,
    tail: Vec<u8>,
    /// RLP list headers that are put around it, which need the length.
    lists: Vec<Wrap>,
}

/// What stands around the repetition.
#[derive(Clone, Debug)]
enum Wrap {
    /// Bytes before what was made so far.
    Before(Vec<u8>),
    /// Bytes behind what was made so far.
    Behind(Vec<u8>),
    /// A list (true) or a string of what was made so far.
    Rlp(bool),
}

impl Pattern {
    /// The input of about so many bytes.
    pub fn input(&self, len: usize) -> Vec<u8> {
        let fixed = self.head.len() + self.tail.len();
        let count = (len.saturating_sub(fixed) / self.unit.len().max(1)).max(1);
        let mut input = self.head.clone();
        let counter = self.unit.windows(COUNTER.len()).position(|bytes| bytes == COUNTER);
        for index in 0..count {
            let start = input.len();
            input.extend_from_slice(&self.unit);
            if let Some(at) = counter {
                let digits = format!("{index:06x}");
                input[start + at..][..COUNTER.len()].copy_from_slice(digits.as_bytes());
            }
        }
        input.extend_from_slice(&self.tail);
        for wrap in &self.lists {
            input = match wrap {
                Wrap::Before(bytes) => [bytes, &input[..]].concat(),
                Wrap::Behind(bytes) => [&input[..], bytes].concat(),
                Wrap::Rlp(list) => {
                    let header = alloy_rlp::Header { list: *list, payload_length: input.len() };
                    let mut out = Vec::new();
                    header.encode(&mut out);
                    out.extend(input);
                    out
                }
            };
        }
        input
    }
}

fn text(target: &'static str, name: &'static str, head: &str, unit: &str, tail: &str) -> Pattern {
    bytes(target, name, head.as_bytes(), unit.as_bytes(), tail.as_bytes(), vec![])
}

fn bytes(
    target: &'static str,
    name: &'static str,
    head: &[u8],
    unit: &[u8],
    tail: &[u8],
    lists: Vec<Wrap>,
) -> Pattern {
    let (head, unit, tail) = (head.to_vec(), unit.to_vec(), tail.to_vec());
    Pattern { target, name, head, unit, tail, lists }
}

/// All patterns.
pub fn all() -> Vec<Pattern> {
    let mut all = envelopes();
    all.extend(payloads());
    all.extend(calls());
    all.extend(transactions());
    all.extend(blocks());
    all.extend(others());
    all
}

fn envelopes() -> Vec<Pattern> {
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

fn payloads() -> Vec<Pattern> {
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

fn calls() -> Vec<Pattern> {
    let eth = |name, head: &str, unit: &str, tail: &str| text("eth_api", name, head, unit, tail);
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"#;
    let address = "11".repeat(20);
    let entry = format!(r#"{{"address":"0x{address}","storageKeys":[]}},"#);
    let key = format!("\"0x{}\",", "ab".repeat(32));
    let last = |item: &str| item.trim_end_matches(',').to_owned();
    vec![
        eth("long data", &format!("{call}\"input\":\"0x"), "00", "\"}]}"),
        eth("long wrong data", &format!("{call}\"input\":\"0x"), "zz", "\"}]}"),
        eth("data twice", &format!("{call}\"data\":\"0x00\",\"input\":\"0x"), "00", "\"}]}"),
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

/// Fields of an EIP-1559 transaction up to its value, and its signature.
const HEAD: [u8; 7] = [1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80];
const TAIL: [u8; 3] = [0x80, 1, 1];

fn transactions() -> Vec<Pattern> {
    let make =
        |name, unit: &[u8], wraps: Vec<Wrap>| bytes("transaction", name, &[], unit, &[], wraps);
    let typed = |ty: u8, before: &[u8], behind: &[u8]| {
        vec![
            Wrap::Rlp(true),
            Wrap::Before(before.to_vec()),
            Wrap::Behind([behind, &TAIL].concat()),
            Wrap::Rlp(true),
            Wrap::Before(vec![ty]),
        ]
    };
    // Six numbers and the recipient, then value and data.
    let start = [&[1, 0x80, 0x80, 0x80, 0x80, 0x94][..], &[7; 20], &[0x80, 0x80]].concat();
    let entry = [&[0xd6, 0x94][..], &[7; 20], &[0xc0]].concat();
    let keys = [&[0xa0][..], &[7; 32]].concat();
    let authorization = [&[0xda, 0x80, 0x94][..], &[7; 20], &[0x80, 0x80, 1, 1]].concat();
    let with_empty_list = [&start[..], &[0xc0]].concat();
    let blobs = [&start[..], &[0xc0, 0x80]].concat();
    let data = vec![
        Wrap::Rlp(false),
        Wrap::Before([&[1, 0x80, 0x80, 0x80, 0x80, 0x94][..], &[7; 20], &[0x80]].concat()),
        Wrap::Behind([&[0xc0][..], &TAIL].concat()),
        Wrap::Rlp(true),
        Wrap::Before(vec![2]),
    ];
    let mut storage_keys =
        vec![Wrap::Rlp(true), Wrap::Before([&[0x94][..], &[7; 20]].concat()), Wrap::Rlp(true)];
    storage_keys.extend(typed(2, &start, &[]));
    vec![
        make("zeros", &[0], vec![]),
        make("open lists", &[0xc1], vec![]),
        make("empty lists", &[0xc0], vec![Wrap::Rlp(true)]),
        make("giant lengths", &[0xff; 9], vec![]),
        make("data", &[0x11], data),
        make("an access list", &entry, typed(2, &start, &[])),
        make("storage keys", &keys, storage_keys),
        make("blob hashes", &keys, typed(3, &blobs, &[])),
        make("authorizations", &authorization, typed(4, &with_empty_list, &[])),
        bytes("transaction", "empty fields", &HEAD, &[0x80], &[], vec![Wrap::Rlp(true)]),
    ]
}

fn blocks() -> Vec<Pattern> {
    let header = alloy_rlp::encode(&OSAKA.blocks[3].header);
    let legacy = [0xc9, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x1b, 1, 1];
    let withdrawal = [&[0xd8, 0x80, 0x80, 0x94][..], &[7; 20], &[0x80]].concat();
    let block = |name, unit: &[u8], before: &[u8], behind: &[u8]| {
        let wraps = vec![
            Wrap::Rlp(true),
            Wrap::Before([&header[..], before].concat()),
            Wrap::Behind(behind.to_vec()),
            Wrap::Rlp(true),
            Wrap::Before(vec![0]),
        ];
        bytes("block", name, &[], unit, &[], wraps)
    };
    let log = [&[0xd7, 0x94][..], &[7; 20], &[0xc0, 0x80]].concat();
    let receipt = [0xc4, 0x80, 0x01, 0x80, 0xc0];
    vec![
        block("smallest transactions", &legacy, &[], &[0xc0, 0xc0]),
        block("empty lists", &[0xc0], &[], &[0xc0, 0xc0]),
        block("empty strings", &[0x80], &[], &[0xc0, 0xc0]),
        block("withdrawals", &withdrawal, &[0xc0, 0xc0], &[]),
        block("ommers", &[0xc0], &[0xc0], &[0xc0]),
        bytes("block", "open lists", &[0], &[0xc1], &[], vec![]),
        bytes("receipts", "smallest receipts", &[], &receipt, &[], vec![Wrap::Rlp(true)]),
        bytes("receipts", "empty lists", &[], &[0xc0], &[], vec![Wrap::Rlp(true)]),
        bytes(
            "receipts",
            "logs",
            &[],
            &log,
            &[],
            vec![
                Wrap::Rlp(true),
                Wrap::Before(vec![0x80, 1, 0x80]),
                Wrap::Rlp(true),
                Wrap::Rlp(true),
            ],
        ),
        bytes(
            "receipts",
            "topics",
            &[],
            &[&[0xa0][..], &[7; 32]].concat(),
            &[],
            vec![
                Wrap::Rlp(true),
                Wrap::Before([&[0x94][..], &[7; 20]].concat()),
                Wrap::Behind(vec![0x80]),
                Wrap::Rlp(true),
                Wrap::Rlp(true),
                Wrap::Before(vec![0x80, 1, 0x80]),
                Wrap::Rlp(true),
                Wrap::Rlp(true),
            ],
        ),
    ]
}

fn others() -> Vec<Pattern> {
    let config = r#"{"config":{"chainId":1,"terminalTotalDifficulty":0"#;
    let address = "11".repeat(20);
    let account = format!(r#""{}%%%%%%":{{}},"#, "11".repeat(17));
    vec![
        bytes("trie_node", "open lists", &[], &[0xc1], &[], vec![]),
        bytes("trie_node", "lists in lists", &[0xc2, 0x20], &[0xc2, 0x11], &[], vec![]),
        bytes(
            "trie_node",
            "a long path",
            &[],
            &[0x11],
            &[],
            vec![Wrap::Rlp(false), Wrap::Behind(vec![5]), Wrap::Rlp(true)],
        ),
        bytes(
            "trie_node",
            "a long value",
            &[],
            &[0x11],
            &[],
            vec![
                Wrap::Rlp(false),
                Wrap::Before([&[0xa1, 0x20][..], &[1; 32]].concat()),
                Wrap::Rlp(true),
            ],
        ),
        bytes("trie_shard", "prefetches", &[0], &[1, 0x11, 5, 0], &[], vec![]),
        text("genesis", "open arrays", r#"{"config":"#, "[", ""),
        text("genesis", "open arrays in alloc", r#"{"alloc":{"x":"#, "[", ""),
        text("genesis", "members", "{", r#""%%%%%%":1,"#, r#""b":1}"#),
        text("genesis", "members of config", &format!("{config},"), r#""%%%%%%":1,"#, r#""b":1}}"#),
        text("genesis", "deletes", r#"{"alloc":""#, "\u{7f}", "\"}"),
        text("genesis", "deletes in config", r#"{"config":""#, "\u{7f}", "\"}"),
        text("genesis", "forks", &format!("{config},"), r#""%%%%%%Time":9,"#, r#""bTime":1}}"#),
        text("genesis", "a long number", r#"{"gasLimit":"#, "1", "}"),
        text(
            "genesis",
            "a long difficulty",
            &format!(r#"{config}}},"gasLimit":"1","difficulty":""#),
            "z",
            "\"}",
        ),
        text("genesis", "a long fork", &format!(r#"{config},"osakaTime":""#), "z", "\"}}"),
        text(
            "genesis",
            "accounts",
            r#"{"alloc":{"#,
            &account,
            &format!(r#"{}}}}}"#, account.trim_end_matches(',').replace('%', "1")),
        ),
        text("genesis", "a long address", r#"{"alloc":{""#, "1", "\":{}}}"),
        text(
            "genesis",
            "a long balance",
            &format!(r#"{{"alloc":{{"{address}":{{"balance":""#),
            "z",
            "\"}}}",
        ),
        text(
            "genesis",
            "a long code",
            &format!(r#"{{"alloc":{{"{address}":{{"code":"0x"#),
            "00",
            "\"}}}",
        ),
        text(
            "genesis",
            "a long slot",
            &format!(r#"{{"alloc":{{"{address}":{{"storage":{{""#),
            "z",
            "\":1}}}}",
        ),
        text(
            "genesis",
            "slots",
            &format!(r#"{{"alloc":{{"{address}":{{"storage":{{"#),
            r#""1":"1","#,
            r#""1":"1"}}}}"#,
        ),
        text(
            "genesis",
            "a long unknown member",
            &format!(r#"{{"alloc":{{"{address}":{{""#),
            "z",
            "\":1}}}",
        ),
        bytes("records", "hashes", &[0, 1], &[0; 4], &[], vec![]),
        bytes("records", "accounts", &[1, 1], &[0; 37], &[], vec![]),
        text("traces", "open arrays", r#"{"resourceSpans":["#, "[", ""),
        text("traces", "documents", "", "{}\n", ""),
        text("traces", "broken documents", "", "{\"\n", ""),
        text("traces", "broken lines", "", "x\n{", ""),
        text(
            "traces",
            "empty spans",
            r#"{"resourceSpans":[{"scopeSpans":[{"spans":["#,
            "{},",
            "{}]}]}]}",
        ),
        text(
            "traces",
            "spans",
            r#"{"resourceSpans":[{"scopeSpans":[{"spans":["#,
            r#"{"traceId":"1","spanId":"%%%%%%"},"#,
            "{}]}]}]}",
        ),
        bytes("traces", "no text", &[], &[0xff], &[], vec![]),
    ]
}
