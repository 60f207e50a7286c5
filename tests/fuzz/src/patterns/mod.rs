//! Short patterns with a large effect: inputs that repeat one small piece, to measure the growth of
//! heap and time.

mod requests;
mod witness;

use crate::seeds::OSAKA;

/// Placeholder in a piece; each repetition replaces it with a number of its own.
const COUNTER: &[u8] = b"%%%%%%";

/// An input pattern of any length.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The target that the pattern is for.
    pub target: &'static str,
    /// Description of the repeated piece.
    pub name: &'static str,
    head: Vec<u8>,
    unit: Vec<u8>,
    tail: Vec<u8>,
    /// Wrappers around the repetition, such as RLP list headers, which need the length.
    lists: Vec<Wrap>,
}

/// A wrapper around the repetition.
#[derive(Clone, Debug)]
enum Wrap {
    /// Bytes before the input so far.
    Before(Vec<u8>),
    /// Bytes after the input so far.
    Behind(Vec<u8>),
    /// An RLP list (true) or string (false) of the input so far.
    Rlp(bool),
}

impl Pattern {
    /// Returns the input of about `len` bytes.
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

/// Returns all patterns.
pub fn all() -> Vec<Pattern> {
    let mut all = requests::envelopes();
    all.extend(requests::payloads());
    all.extend(requests::calls());
    all.extend(transactions());
    all.extend(blocks());
    all.extend(others());
    all.extend(witness::witnesses());
    all
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
        text(
            "node_list",
            "labels",
            "\0enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@",
            "a.",
            "n",
        ),
        text("node_list", "fields of a root", "\u{2}enrtree-root:v1 ", "e=A ", "seq=1"),
        text("node_list", "names", "\u{3}enrtree-branch:", "AAAAAAAAAAAAAAAAAAAA,", ""),
        // Each entry, then a branch over it and all before it.
        bytes("node_list", "a deep list", &[4], b"\x00\x06\x00%%%%%%\x01\x02", &[], vec![]),
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
