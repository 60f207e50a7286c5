//! Node records and node URLs.
#![allow(clippy::unwrap_used, missing_docs)]

use alloy_primitives::{B512, b256, hex};
use proptest::{collection::vec, prelude::*, sample::Index};
use tandem_discv4::{
    Endpoint, Enr, EnrBuilder, EnrError, ForkId, Node, NodeKey, NodeUrl, UrlError, fork_id,
};

/// Example of EIP-778.
const EXAMPLE: &str = "enr:-IS4QHCYrYZbAKWCBRlAy5zzaDZXJBGkcnh4MHcBFZntXNFrdvJjX04jRzjzCBOonrkTfj499SZuOh8R33Ls8RRcy5wBgmlkgnY0gmlwhH8AAAGJc2VjcDI1NmsxoQPKY0yuDUmstAHYpMa2_oxVtw0RW_QAdpzBQA8yWM0xOIN1ZHCCdl8";

fn example_key() -> NodeKey {
    let secret = hex!("b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291");
    NodeKey::from_bytes(secret).unwrap()
}

#[test]
fn the_example_of_eip_778_is_read() {
    let enr: Enr = EXAMPLE.parse().unwrap();
    assert_eq!(enr.seq(), 1);
    assert_eq!(enr.ip4(), Some([127, 0, 0, 1].into()));
    assert_eq!(enr.udp4(), Some(30303));
    assert_eq!((enr.tcp4(), enr.ip6(), enr.eth()), (None, None, None));
    assert_eq!(
        enr.id(),
        b256!("0xa448f24c6d18e575453db13171562b71999873db5b286df957af199ec94617f7")
    );
    assert_eq!(enr.key(), example_key().public());
    assert_eq!(enr.to_string(), EXAMPLE);
    let keys: Vec<_> = enr.pairs().map(|(key, _)| key.to_vec()).collect();
    assert_eq!(keys, [&b"id"[..], b"ip", b"secp256k1", b"udp"]);
}

/// Signatures are deterministic (RFC 6979), so the record is reproduced byte for byte.
#[test]
fn the_example_of_eip_778_is_made() {
    let enr = EnrBuilder::new(1).endpoint([127, 0, 0, 1].into(), 30303, 0).sign(&example_key());
    assert_eq!(enr.unwrap().to_string(), EXAMPLE);
}

#[test]
fn a_fork_id_survives_and_later_versions_may_add_to_it() {
    let id = fork_id(
        (b256!("0x00000000000000000000000000000000000000000000000000000000000000aa"), 0),
        &[5],
        &[],
        (1, 0),
    );
    let enr = EnrBuilder::new(1).eth(id).sign(&example_key()).unwrap();
    assert_eq!(Enr::decode(enr.rlp()).unwrap().eth(), Some(id));
    let entry = vec![vec![alloy_primitives::Bytes::from(id.hash.to_vec()), vec![5].into()]];
    let enr = EnrBuilder::new(1).set("eth", &entry).sign(&example_key()).unwrap();
    assert_eq!(enr.eth(), Some(ForkId { next: 5, ..id }));
    let enr = EnrBuilder::new(1).set("eth", &7u8).sign(&example_key()).unwrap();
    assert_eq!(enr.eth(), None);
}

#[test]
fn a_record_above_300_bytes_is_refused_on_both_sides() {
    let builder = |length| EnrBuilder::new(1).set("x", &&vec![1u8; length][..]);
    let largest =
        (0..300).rev().find_map(|length| builder(length).sign(&example_key()).ok()).unwrap();
    assert_eq!(largest.rlp().len(), 300);
    assert_eq!(Enr::decode(largest.rlp()).unwrap(), largest);
    assert_eq!(builder(300).sign(&example_key()), Err(EnrError::TooLarge));
    assert_eq!(format!("enr:{}", "A".repeat(500)).parse::<Enr>(), Err(EnrError::TooLarge));
}

#[test]
fn only_well_formed_text_is_read() {
    let refused = |text: &str| text.parse::<Enr>().unwrap_err();
    assert_eq!(refused(""), EnrError::Text);
    assert_eq!(refused(&EXAMPLE[4..]), EnrError::Text);
    assert_eq!(refused(&format!("{EXAMPLE}=")), EnrError::Text);
    assert_eq!(refused("enr:!!"), EnrError::Text);
    assert!(matches!(refused(&EXAMPLE[..4 + 120]), EnrError::Rlp(_)));
    assert!(matches!(refused(&format!("{EXAMPLE}AAAA")), EnrError::Rlp(_)));
}

proptest! {
    #[test]
    fn a_changed_record_is_refused(place: Index, bit in 0..8u8, cut: Index) {
        let enr: Enr = EXAMPLE.parse().unwrap();
        let mut changed = enr.rlp().to_vec();
        let place = place.index(changed.len());
        changed[place] ^= 1 << bit;
        prop_assert!(Enr::decode(&changed).is_err());
        prop_assert!(Enr::decode(&enr.rlp()[..cut.index(enr.rlp().len())]).is_err());
    }

    #[test]
    fn records_survive_text(seq: u64, ip: [u8; 4], udp: u16, tcp: u16, secret in vec(1..255u8, 32)) {
        let key = NodeKey::from_bytes(secret.try_into().unwrap()).unwrap();
        let enr = EnrBuilder::new(seq).endpoint(ip.into(), udp, tcp).sign(&key).unwrap();
        let read: Enr = enr.to_string().parse().unwrap();
        prop_assert_eq!(read.ip4(), Some(ip.into()));
        prop_assert_eq!(read.udp4().unwrap_or(0), udp);
        prop_assert_eq!(read.tcp6().unwrap_or(0), tcp);
        prop_assert_eq!(read.key(), key.public());
        prop_assert_eq!(read, enr);
    }

    #[test]
    fn random_bytes_are_no_record(bytes in vec(any::<u8>(), 0..400)) {
        prop_assert!(Enr::decode(&bytes).is_err());
    }

    #[test]
    fn urls_survive_text(secret in vec(1..255u8, 32), v6: bool, ip: [u8; 16], udp_port: u16, tcp_port: u16) {
        let key = NodeKey::from_bytes(secret.try_into().unwrap()).unwrap();
        let ip = if v6 { std::net::Ipv6Addr::from(ip).to_canonical() } else { [ip[0], ip[1], ip[2], ip[3]].into() };
        let url = NodeUrl(Node { key: *key.public(), endpoint: Endpoint { ip, udp_port, tcp_port } });
        prop_assert_eq!(url.to_string().parse::<NodeUrl>(), Ok(url));
    }

    #[test]
    fn random_text_is_no_url(text in ".*") {
        prop_assert!(text.parse::<NodeUrl>().is_err());
        prop_assert!(["enode://", &text].concat().parse::<NodeUrl>().is_err());
    }
}

#[test]
fn urls_are_read_as_geth_writes_them() {
    let key = example_key();
    let hex_key = hex::encode(key.public());
    let read = |rest: &str| format!("enode://{hex_key}{rest}").parse::<NodeUrl>();
    let NodeUrl(node) = read("@10.3.58.6:30303?discport=30301").unwrap();
    assert_eq!(node.key, *key.public());
    assert_eq!(node.endpoint.udp().to_string(), "10.3.58.6:30301");
    assert_eq!(node.endpoint.tcp_port, 30303);
    let NodeUrl(node) = read("@[2001:db8::1]:1?x=y").unwrap();
    assert_eq!(node.endpoint.udp().to_string(), "[2001:db8::1]:1");
    assert_eq!(read(""), Err(UrlError::Key));
    assert_eq!(read("@example.org:1"), Err(UrlError::Address));
    assert_eq!(read("@1.2.3.4"), Err(UrlError::Address));
    assert_eq!(read("@1.2.3.4:1?discport=x"), Err(UrlError::Address));
    let off_curve = format!("enode://{}@1.2.3.4:1", hex::encode(B512::repeat_byte(1)));
    assert_eq!(off_curve.parse::<NodeUrl>(), Err(UrlError::Key));
    assert_eq!("enr:".parse::<NodeUrl>(), Err(UrlError::Scheme));
}
