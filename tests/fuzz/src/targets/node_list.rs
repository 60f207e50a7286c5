//! Node lists in DNS: their content comes from the server that answers for a domain.

use crate::{Reader, Target, heap};
use alloy_primitives::keccak256;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use data_encoding::BASE32_NOPAD;
use rand::{SeedableRng, rngs::StdRng};
use secp256k1::{Message as Digest, SECP256K1, SecretKey};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};
use tandem_discv4::{
    EnrBuilder, EntryName, ListEntry, ListError, ListRoot, ListUrl, ListWalk, NodeKey,
};

/// Target whose first byte says what follows:
///
/// * a URL
/// * a root
/// * the content of a root, which is signed first, as no mutation would find the signature
/// * an entry, under its own name
/// * a script that makes a whole list, which is then walked
pub const TARGET: Target = Target {
    name: "node_list",
    bytes_per_byte: 4,
    structures,
    constant: 8 << 10,
    input_len_max: 4 << 10,
    mutations: 15_000,
    seeds,
    dictionary: &[
        b"enrtree://",
        b"enrtree-root:v1 ",
        b"enrtree-branch:",
        b"enr:",
        b" e=",
        b" l=",
        b" seq=",
        b" sig=",
        b"@",
        b",",
        b"JWXYDBPXYWG6FX3GMDIBFA6CJ4",
        b"18446744073709551616",
    ],
    run,
};

const DOMAIN: &str = "all.example.org";
/// Bytes of a hash in a name; 12 to 32 are allowed.
const NAME_BYTES: usize = 16;
/// Memory of a name that a walk knows: seen, waiting and in transit, in lists that grow to three
/// times their content.
const NAME: usize = 3 * (3 * size_of::<EntryName>() + NAME_BYTES.div_ceil(5) * 8);

fn secret(byte: u8) -> SecretKey {
    SecretKey::from_byte_array([byte.max(1); 32]).unwrap()
}

fn url(byte: u8, domain: &str) -> ListUrl {
    let key = secret(byte).public_key(SECP256K1).serialize();
    format!("enrtree://{}@{domain}", BASE32_NOPAD.encode(&key)).parse().unwrap()
}

fn name(text: &str) -> String {
    BASE32_NOPAD.encode(&keccak256(text)[..NAME_BYTES])
}

fn signed(content: &str) -> String {
    let digest = Digest::from_digest(keccak256(content).0);
    let signature = SECP256K1.sign_ecdsa(digest, &secret(7)).serialize_compact();
    // The last byte would identify the key, which is known.
    format!("{content} sig={}", URL_SAFE_NO_PAD.encode([&signature[..], &[0]].concat()))
}

fn root(nodes: &str, links: &str) -> String {
    signed(&format!("enrtree-root:v1 e={nodes} l={links} seq=1"))
}

fn record(byte: u8) -> String {
    let key = NodeKey::from_bytes([byte.max(1); 32]).unwrap();
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, byte));
    EnrBuilder::new(1).endpoint(ip, 30303, 0).sign(&key).unwrap().to_string()
}

fn seeds() -> Vec<Vec<u8>> {
    let text = |choice: u8, text: &str| [&[choice], text.as_bytes()].concat();
    let link = url(9, "other.example.org").to_string();
    let content = format!("enrtree-root:v1 e={} l={} seq=7", name("a"), name("b"));
    let branch = format!("enrtree-branch:{},{}", name("a"), name("b"));
    // Three nodes, a link, an entry without meaning, and branches over them.
    let script = b"\x04\x02\x01\x02\x02\x02\x03\x01\x03\x03\x09\x00\x05\x00hello\x01\x02\x01\x05";
    vec![
        text(0, &link),
        text(1, &root(&name("a"), &name("b"))),
        text(2, &content),
        text(3, &branch),
        text(3, "enrtree-branch:"),
        text(3, &link),
        text(3, &record(1)),
        script.to_vec(),
    ]
}

fn run(input: &[u8]) {
    let mut reader = Reader(input);
    let (choice, list) = (reader.byte() % 5, url(7, DOMAIN));
    if choice == 4 {
        return walk(reader, list);
    }
    let text = String::from_utf8_lossy(reader.0);
    match choice {
        0 => {
            if let Ok(url) = heap::measured(|| text.parse::<ListUrl>()) {
                assert_eq!(url.to_string(), text.trim());
            }
        }
        1 => drop(heap::measured(|| ListRoot::parse(&text, &list))),
        2 => {
            let text = signed(&text);
            if let Ok(root) = heap::measured(|| ListRoot::parse(&text, &list)) {
                assert!(text.contains(&format!("e={}", first_label(&root.nodes, &list))));
                assert!(text.contains(&format!("l={}", first_label(&root.links, &list))));
                assert_eq!(ListRoot::parse(&text, &url(8, DOMAIN)), Err(ListError::Signature));
            }
        }
        _ => entry(&text, &list),
    }
}

fn first_label(name: &EntryName, list: &ListUrl) -> String {
    name.domain(list).split('.').next().unwrap_or_default().to_owned()
}

/// Parses a text as the entry under its own name, and as the entry under another name.
fn entry(text: &str, list: &ListUrl) {
    let root = ListRoot::parse(&root(&name(text), &name(&format!("{text}."))), list).unwrap();
    let (own, other) = (root.nodes, root.links);
    let Ok(entry) = heap::measured(|| ListEntry::parse(text, &own)) else { return };
    assert_eq!(ListEntry::parse(text, &other), Err(ListError::Hash));
    match entry {
        ListEntry::Node(enr) => assert_eq!(enr.to_string(), text),
        ListEntry::Link(url) => assert_eq!(url.to_string(), text.trim()),
        ListEntry::Branch(names) => {
            let labels: Vec<_> = names.iter().map(|name| first_label(name, list)).collect();
            let written = text.trim_start_matches("enrtree-branch:").split(',');
            assert_eq!(labels, written.filter(|name| !name.is_empty()).collect::<Vec<_>>());
        }
    }
}

/// Performs a step of the script: returns one more entry.
fn step(reader: &mut Reader<'_>, names: &[String]) -> String {
    match reader.byte() % 4 {
        0 => String::from_utf8_lossy(reader.bytes()).into_owned(),
        1 => {
            let count = usize::from(reader.byte() % 14).min(names.len());
            format!("enrtree-branch:{}", names[names.len() - count..].join(","))
        }
        2 => record(reader.byte() % 4),
        _ => {
            let byte = reader.byte();
            url(byte % 8, &format!("l{byte}.org")).to_string()
        }
    }
}

/// Returns the number of names in an entry that is a branch, or is cut into fields like one.
fn named(text: &str) -> usize {
    1 + text.matches([',', ' ']).count()
}

/// Makes a list and walks it to its end, twice.
fn walk(mut reader: Reader<'_>, list: ListUrl) {
    let (mut zone, mut names) = (BTreeMap::new(), Vec::new());
    while !reader.is_empty() {
        let text = step(&mut reader, &names);
        names.push(name(&text));
        zone.insert(format!("{}.{DOMAIN}", name(&text)), text);
    }
    let (Some(top), Some(links)) = (names.last(), names.iter().rev().nth(1)) else { return };
    zone.insert(DOMAIN.to_owned(), root(top, links));
    let named: usize = zone.values().map(|text| named(text)).sum();
    let (walk, asked) = heap::measured(|| {
        let mut walk = ListWalk::new([list]);
        let asked = until_the_end(&mut walk, &zone);
        (walk, asked)
    });
    // Each name at most once, and the roots of the lists.
    assert!(asked <= named + 8, "{asked} questions for {named} names");
    let mut walk = walk;
    walk.restart();
    assert!(until_the_end(&mut walk, &zone) <= 8, "nothing is new but the roots");
}

fn until_the_end(walk: &mut ListWalk, zone: &BTreeMap<String, String>) -> usize {
    let (mut rng, mut asked) = (StdRng::seed_from_u64(1), 0);
    while let Some(question) = walk.next(&mut rng) {
        asked += 1;
        let texts: &[&String] = &zone.get(&question.domain).into_iter().collect::<Vec<_>>();
        if let Ok(Some(enr)) = walk.answer(&question, texts) {
            assert_eq!(&enr.to_string(), texts[0]);
        }
    }
    asked
}

/// Returns the memory of the names of a script's list, which a walk holds.
fn structures(input: &[u8]) -> usize {
    let mut reader = Reader(input);
    if reader.byte() % 5 != 4 {
        return 0;
    }
    let mut names = 0;
    while !reader.is_empty() {
        // The names of a branch are those of other entries.
        names += 1 + named(&step(&mut reader, &[]));
    }
    names * NAME
}
