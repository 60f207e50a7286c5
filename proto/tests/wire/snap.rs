//! Parts of states through the wire.

use super::{refused, through};
use proptest::{collection::vec, option, prelude::*};
use tandem_primitives::{B256, Bytes};
use tandem_proto::{
    snap::{Leaf, NodePaths, StateItems, StateRequest},
    wire::{storage_writer::v1 as storage, types::v1},
};

fn hash() -> impl Strategy<Value = B256> {
    any::<[u8; 32]>().prop_map(B256::from)
}

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

pub fn request() -> impl Strategy<Value = StateRequest> {
    let accounts =
        (hash(), hash(), hash(), any::<u64>()).prop_map(|(root, start, limit, bytes)| {
            StateRequest::Accounts { root, start, limit, bytes }
        });
    let slots = (hash(), vec(hash(), 1..9), hash(), hash(), any::<u64>()).prop_map(
        |(root, accounts, start, limit, bytes)| StateRequest::Slots {
            root,
            accounts,
            start,
            limit,
            bytes,
        },
    );
    let codes = (vec(hash(), 1..9), any::<u64>())
        .prop_map(|(hashes, bytes)| StateRequest::Codes { hashes, bytes });
    let path = vec(0..16u8, 0..70).prop_map(Bytes::from);
    let set =
        (option::of(hash()), vec(path, 1..4)).prop_map(|(owner, paths)| NodePaths { owner, paths });
    let nodes = (hash(), vec(set, 1..4), any::<u64>())
        .prop_map(|(root, paths, bytes)| StateRequest::Nodes { root, paths, bytes });
    prop_oneof![accounts, slots, codes, nodes]
}

pub fn items() -> impl Strategy<Value = StateItems> {
    let leaves = || vec((hash(), bytes(80)).prop_map(|(key, value)| Leaf { key, value }), 0..5);
    let proof = || vec(bytes(80), 0..4);
    prop_oneof![
        (leaves(), proof()).prop_map(|(leaves, proof)| StateItems::Accounts { leaves, proof }),
        (vec(leaves(), 0..4), proof())
            .prop_map(|(tries, proof)| StateItems::Slots { tries, proof }),
        vec(bytes(80), 0..5).prop_map(StateItems::Codes),
        vec(bytes(80), 0..5).prop_map(StateItems::Nodes),
    ]
}

proptest! {
    #[test]
    fn parts_of_states_survive(request in request(), items in items()) {
        let sent = through::<storage::GetStateItemsRequest, _>(request.clone());
        prop_assert_eq!(sent, request);
        prop_assert_eq!(through::<storage::GetStateItemsResponse, _>(items.clone()), items);
    }
}

#[test]
fn malformed_parts_name_the_field() {
    use v1::state_request::{Nodes, Slots, What};
    let hash = || vec![1; 32].into();
    let request = |what| refused::<_, StateRequest>(v1::StateRequest { bytes: 1, what });
    assert_eq!(request(None), "what: is missing");
    let slots = |accounts: usize| {
        let accounts = vec![1; 32 * accounts].into();
        What::Slots(Slots { root: hash(), accounts, start: hash(), limit: hash() })
    };
    assert_eq!(request(Some(slots(0))), "slots.accounts: 0 is not in 1..=1024");
    assert_eq!(request(Some(slots(1025))), "slots.accounts: 1025 is not in 1..=1024");
    let codes = What::Codes(vec![1; 33].into());
    assert_eq!(request(Some(codes)), "codes: 33 bytes are not a multiple of 32");
    let nodes = |change: fn(&mut Nodes)| {
        let mut nodes = Nodes {
            root: vec![1; 32].into(),
            kinds: vec![0].into(),
            owners: vec![1; 32].into(),
            counts: vec![1],
            path_sizes: vec![2],
            paths: vec![3, 4].into(),
        };
        change(&mut nodes);
        request(Some(What::Nodes(nodes)))
    };
    assert_eq!(nodes(|it| it.kinds = vec![2].into()), "nodes.kinds[0]: 2 is not in 0..=1");
    assert_eq!(nodes(|it| it.paths = vec![3, 16].into()), "nodes.paths: 16 is not in 0..=15");
    assert_eq!(nodes(|it| it.counts = vec![2]), "nodes.path_sizes: expected 2 items, got 1");
    assert_eq!(nodes(|it| it.counts = vec![0]), "nodes.counts: 0 is not in 1..=1024");
    assert_eq!(nodes(|it| it.path_sizes = vec![3]), "nodes.paths: expected 3 bytes, got 2");

    let items = |change: fn(&mut v1::StateItems)| {
        let mut items = v1::StateItems {
            kind: 1,
            leaves: vec![1],
            keys: vec![1; 32].into(),
            sizes: vec![2],
            items: vec![1, 2].into(),
            proof_sizes: vec![1],
            proof: vec![1].into(),
        };
        change(&mut items);
        refused::<_, StateItems>(items)
    };
    assert_eq!(items(|it| it.kind = 5), "kind: 5 is not in 1..=4");
    assert_eq!(items(|it| it.leaves = vec![1, 0]), "leaves: expected 1 items, got 2");
    assert_eq!(items(|it| it.leaves = vec![2]), "keys: expected 2 items, got 1");
    assert_eq!(items(|it| it.sizes = vec![1, 1]), "sizes: expected 1 items, got 2");
    assert_eq!(items(|it| it.items = vec![1].into()), "items: expected 2 bytes, got 1");
    assert_eq!(items(|it| it.proof = vec![].into()), "proof: expected 1 bytes, got 0");
}
