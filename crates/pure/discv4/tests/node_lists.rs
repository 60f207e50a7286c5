//! Node lists over DNS.
#![allow(clippy::unwrap_used, missing_docs)]

use alloy_primitives::{hex, keccak256};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use data_encoding::BASE32_NOPAD;
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use secp256k1::{Message, SECP256K1, SecretKey};
use std::collections::{BTreeMap, BTreeSet};
use tandem_discv4::{Enr, EnrBuilder, ListError, ListUrl, ListWalk, NodeKey};

/// Example of EIP-1459.
const URL: &str = "enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@n";

/// TXT records by domain.
#[derive(Clone, Default)]
struct Zone(BTreeMap<String, Vec<String>>);

fn secret() -> SecretKey {
    let secret = hex!("dc599867fc513f8f5e2c2c9c489cde5e71362d1d9ec6e693e0de063236ed1240");
    SecretKey::from_byte_array(secret).unwrap()
}

fn url(secret: &SecretKey, domain: &str) -> ListUrl {
    let key = BASE32_NOPAD.encode(&secret.public_key(SECP256K1).serialize());
    format!("enrtree://{key}@{domain}").parse().unwrap()
}

impl Zone {
    /// Puts an entry at the domain of its hash and returns its name.
    fn put(&mut self, domain: &str, text: &str) -> String {
        let name = BASE32_NOPAD.encode(&keccak256(text)[..16]);
        self.0.insert(format!("{name}.{domain}"), vec![text.to_owned()]);
        name
    }

    fn branch(&mut self, domain: &str, names: &[String]) -> String {
        // At most 13 names per entry, so that it fits into 370 characters, in as many levels as
        // needed.
        if names.len() <= 13 {
            return self.put(domain, &format!("enrtree-branch:{}", names.join(",")));
        }
        let size = names.len().div_ceil(13).max(13);
        let names: Vec<_> = names.chunks(size).map(|names| self.branch(domain, names)).collect();
        self.branch(domain, &names)
    }

    fn root(&mut self, domain: &str, secret: &SecretKey, nodes: &str, links: &str, seq: u64) {
        let content = format!("enrtree-root:v1 e={nodes} l={links} seq={seq}");
        let digest = Message::from_digest(keccak256(&content).0);
        let (recovery, compact) =
            SECP256K1.sign_ecdsa_recoverable(digest, secret).serialize_compact();
        let mut signature = compact.to_vec();
        signature.push(i32::from(recovery) as u8);
        let text = format!("{content} sig={}", URL_SAFE_NO_PAD.encode(signature));
        self.0.insert(domain.to_owned(), vec!["v=spf1 -all".to_owned(), text]);
    }

    fn list(
        &mut self,
        domain: &str,
        secret: &SecretKey,
        nodes: &[Enr],
        links: &[&ListUrl],
        seq: u64,
    ) {
        let nodes: Vec<_> = nodes.iter().map(|enr| self.put(domain, &enr.to_string())).collect();
        let links: Vec<_> = links.iter().map(|url| self.put(domain, &url.to_string())).collect();
        let (nodes, links) = (self.branch(domain, &nodes), self.branch(domain, &links));
        self.root(domain, secret, &nodes, &links, seq);
    }

    /// Walks until nothing is left. Returns the nodes found, the number of questions, and the
    /// errors.
    fn walk(&self, walk: &mut ListWalk, seed: u64) -> (BTreeSet<String>, usize, Vec<ListError>) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut nodes, mut questions, mut wrong) = (BTreeSet::new(), 0, Vec::new());
        while let Some(question) = walk.next(&mut rng) {
            questions += 1;
            let texts = self.0.get(&question.domain).cloned().unwrap_or_default();
            match walk.answer(&question, &texts) {
                Ok(found) => nodes.extend(found.map(|enr| enr.to_string())),
                Err(error) => wrong.push(error),
            }
        }
        (nodes, questions, wrong)
    }
}

fn node(index: u64) -> Enr {
    let key = NodeKey::random(&mut StdRng::seed_from_u64(index));
    EnrBuilder::new(1).endpoint([10, 0, 0, 1].into(), 30303, 0).sign(&key).unwrap()
}

fn texts(nodes: &[Enr]) -> BTreeSet<String> {
    nodes.iter().map(Enr::to_string).collect()
}

/// Tree of geth's tests (p2p/dnsdisc), which is that of the EIP: URL with key, root, names.
#[test]
fn a_tree_that_geth_made_is_read() {
    let enrs = [
        "enr:-HW4QOFzoVLaFJnNhbgMoDXPnOvcdVuj7pDpqRvh6BRDO68aVi5ZcjB3vzQRZH2IcLBGHzo8uUN3snqmgTiE56CH3AMBgmlkgnY0iXNlY3AyNTZrMaECC2_24YYkYHEgdzxlSNKQEnHhuNAbNlMlWJxrJxbAFvA",
        "enr:-HW4QAggRauloj2SDLtIHN1XBkvhFZ1vtf1raYQp9TBW2RD5EEawDzbtSmlXUfnaHcvwOizhVYLtr7e6vw7NAf6mTuoCgmlkgnY0iXNlY3AyNTZrMaECjrXI8TLNXU0f8cthpAMxEshUyQlK-AM0PW2wfrnacNI",
        "enr:-HW4QLAYqmrwllBEnzWWs7I5Ev2IAs7x_dZlbYdRdMUx5EyKHDXp7AV5CkuPGUPdvbv1_Ms1CPfhcGCvSElSosZmyoqAgmlkgnY0iXNlY3AyNTZrMaECriawHKWdDRk2xeZkrOXBQ0dfMFLHY4eENZwdufn1S1o",
    ];
    let link =
        "enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@morenodes.example.org";
    let mut zone = Zone::default();
    for (domain, text) in [
        (
            "n",
            "enrtree-root:v1 e=JWXYDBPXYWG6FX3GMDIBFA6CJ4 l=C7HRFPF3BLGF3YR4DY5KX3SMBE seq=1 sig=o908WmNp7LibOfPsr4btQwatZJ5URBr2ZAuxvK4UWHlsB9sUOTJQaGAlLPVAhM__XJesCHxLISo94z5Z2a463gA",
        ),
        ("C7HRFPF3BLGF3YR4DY5KX3SMBE.n", link),
        (
            "JWXYDBPXYWG6FX3GMDIBFA6CJ4.n",
            "enrtree-branch:2XS2367YHAXJFGLZHVAWLQD4ZY,H4FHT4B454P6UXFD7JCYQ5PWDY,MHTDO6TMUBRIA2XWG5LUDACK24",
        ),
        ("2XS2367YHAXJFGLZHVAWLQD4ZY.n", enrs[0]),
        ("H4FHT4B454P6UXFD7JCYQ5PWDY.n", enrs[1]),
        ("MHTDO6TMUBRIA2XWG5LUDACK24.n", enrs[2]),
    ] {
        zone.0.insert(domain.to_owned(), vec![text.to_owned()]);
    }
    let url = "enrtree://AKPYQIUQIL7PSIACI32J7FGZW56E5FKHEFCCOFHILBIMW3M6LWXS2@n";
    let mut walk = ListWalk::new([url.parse().unwrap()]);
    let (nodes, questions, wrong) = zone.walk(&mut walk, 1);
    assert_eq!(nodes, enrs.iter().map(ToString::to_string).collect());
    // The linked list is requested and does not exist.
    assert_eq!((questions, wrong), (7, vec![ListError::Unknown]));
    // Another key did not sign it.
    let (nodes, questions, wrong) = zone.walk(&mut ListWalk::new([URL.parse().unwrap()]), 1);
    assert!(nodes.is_empty());
    assert_eq!((questions, wrong), (1, vec![ListError::Signature]));
}

#[test]
fn all_nodes_of_a_large_list_are_found_once_and_changes_cost_little() {
    let mut nodes: Vec<_> = (0..500).map(node).collect();
    let (secret, mut zone) = (secret(), Zone::default());
    zone.list("all.example.org", &secret, &nodes, &[], 1);
    let mut walk = ListWalk::new([url(&secret, "all.example.org")]);
    let (found, questions, wrong) = zone.walk(&mut walk, 1);
    assert_eq!(found, texts(&nodes));
    assert_eq!((questions, wrong), (zone.0.len(), vec![]), "every entry once");

    // One more node changes only the branches above it.
    nodes.push(node(500));
    zone.list("all.example.org", &secret, &nodes, &[], 2);
    walk.restart();
    let (found, questions, _) = zone.walk(&mut walk, 2);
    assert_eq!(found, texts(&nodes[500..]));
    assert!(questions < 10, "{questions} questions");
    // Nothing new, then an outdated root.
    walk.restart();
    assert_eq!(zone.walk(&mut walk, 3).1, 1);
    let mut older = Zone::default();
    older.list("all.example.org", &secret, &[node(900)], &[], 1);
    walk.restart();
    assert_eq!(older.walk(&mut walk, 4), (BTreeSet::new(), 1, vec![]));
}

#[test]
fn links_are_followed_under_the_key_they_name_and_circles_end() {
    let (one, other) = (secret(), SecretKey::from_byte_array([9; 32]).unwrap());
    let (first, second) = (url(&one, "a.org"), url(&other, "b.org"));
    let mut zone = Zone::default();
    zone.list("a.org", &one, &[node(1)], &[&second], 1);
    zone.list("b.org", &other, &[node(2)], &[&first, &url(&one, "b.org")], 1);
    let (nodes, _, wrong) = zone.walk(&mut ListWalk::new([first]), 1);
    assert_eq!(nodes, texts(&[node(1), node(2)]));
    assert_eq!(wrong, [ListError::Signature], "b.org is not signed by the key of a.org");
    // Endless chains of lists are not followed endlessly.
    let mut zone = Zone::default();
    for index in 0..100 {
        let next = url(&one, &format!("l{}.org", index + 1));
        zone.list(&format!("l{index}.org"), &one, &[node(index)], &[&next], 1);
    }
    let (nodes, ..) = zone.walk(&mut ListWalk::new([url(&one, "l0.org")]), 1);
    assert_eq!(nodes.len(), 8);
}

#[test]
fn what_is_not_signed_is_not_believed() {
    let (secret, mut zone) = (secret(), Zone::default());
    zone.list("a.org", &secret, &[node(1), node(2)], &[], 1);
    let walk = |zone: &Zone| zone.walk(&mut ListWalk::new([url(&secret, "a.org")]), 1);
    assert_eq!(walk(&zone).0.len(), 2);
    // Another node replaces one.
    for (_, texts) in zone.0.iter_mut().filter(|(_, texts)| texts[0].starts_with("enr:")) {
        *texts = vec![node(3).to_string()];
    }
    let (nodes, _, wrong) = walk(&zone);
    assert_eq!((nodes.len(), wrong), (0, vec![ListError::Hash; 2]));
    // The root gets another sequence number.
    let root = &mut zone.0.get_mut("a.org").unwrap()[1];
    *root = root.replace("seq=1", "seq=2");
    assert_eq!(walk(&zone), (BTreeSet::new(), 1, vec![ListError::Signature]));
}

#[test]
fn wrong_texts_are_named() {
    for (text, error) in [
        ("http://x", ListError::Url),
        ("enrtree://nodes.example.org", ListError::Url),
        ("enrtree://AM5F@a..org", ListError::Url),
        ("enrtree://AM5F@", ListError::Url),
        ("enrtree://AM5F@a b", ListError::Url),
        ("enrtree://am5f@a.org", ListError::Key),
        (
            "enrtree://AP62DT7WOTEQZGQZOU474PP3KMEGVTTE7A7NPRXKX3DUD57@nodes.example.org",
            ListError::Key,
        ),
        ("enrtree://AP62DT7WONEQZGQZOU474PP3KMEGVTTE7A7NPRXKX3DUD57TQHGIA@n.org", ListError::Key),
    ] {
        assert_eq!(text.parse::<ListUrl>().unwrap_err(), error, "{text}");
    }
    assert_eq!(URL.parse::<ListUrl>().unwrap().to_string(), URL);
    let secret = secret();
    let mut zone = Zone::default();
    let names = ["enrtree-branch:1,2", "enrtree-branch:AAAA", "foo", "enr:-HW4"]
        .map(|text| zone.put("a.org", text));
    let top = zone.branch("a.org", &names);
    zone.root("a.org", &secret, &top, &top, 1);
    let (nodes, _, wrong) = zone.walk(&mut ListWalk::new([url(&secret, "a.org")]), 1);
    assert!(nodes.is_empty());
    assert_eq!(wrong.len(), 4, "{wrong:?}");
    assert!(wrong.contains(&ListError::Name) && wrong.contains(&ListError::Unknown));
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(texts in prop::collection::vec("[ -~]{0,80}", 0..4), at in 0usize..4) {
        let secret = secret();
        let mut zone = Zone::default();
        zone.list("a.org", &secret, &[node(1)], &[], 1);
        let domain = zone.0.keys().nth(at % zone.0.len()).cloned().unwrap();
        zone.0.insert(domain, texts);
        zone.walk(&mut ListWalk::new([url(&secret, "a.org")]), 1);
    }
}
