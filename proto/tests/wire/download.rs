//! Steps of the download of a state through the wire.

use super::{refused, through};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};
use tandem_primitives::{Account, B256, Bytes, U256};
use tandem_proto::{
    limits::{DOWNLOAD_HASHES_MAX, DOWNLOAD_PROGRESS_BYTES_MAX, DOWNLOADED_PARTS_MAX},
    snap::{DownloadAnswer, DownloadStep, DownloadedAccount, DownloadedBlock, StatePart},
    storage::Epoch,
    wire::{
        storage_writer::v1::{
            self,
            download_request::{BuiltNode, Nothing, Step},
            downloaded_part::{Accounts, Codes, Part, Slots},
        },
        types::v1::Uint256List,
    },
};
use tandem_testkit::messages::values::{account, block_id, bytes, epoch, hash, number};

fn part() -> impl Strategy<Value = StatePart> {
    let accounts = (hash(), hash(), btree_map(hash(), (account(), any::<bool>()), 0..6)).prop_map(
        |(first, last, accounts)| {
            let account =
                |(key, (account, has_storage))| DownloadedAccount { key, account, has_storage };
            let accounts = accounts.into_iter().map(account).collect();
            StatePart::Accounts { first, last, accounts }
        },
    );
    let value = number().prop_map(|value| value.saturating_add(U256::from(1)));
    let slots = (hash(), hash(), hash(), btree_map(hash(), value, 0..6)).prop_map(
        |(owner, first, last, slots)| {
            let slots = slots.into_iter().collect();
            StatePart::Slots { owner, first, last, slots }
        },
    );
    prop_oneof![accounts, slots, vec((hash(), bytes(50)), 0..4).prop_map(StatePart::Codes)]
}

fn block() -> impl Strategy<Value = DownloadedBlock> {
    (block_id(), bytes(50), bytes(50), bytes(50))
        .prop_map(|(id, header, body, receipts)| DownloadedBlock { id, header, body, receipts })
}

fn step() -> impl Strategy<Value = DownloadStep> {
    let path = vec(0..16u8, 0..=64).prop_map(Bytes::from);
    prop_oneof![
        Just(DownloadStep::Progress),
        Just(DownloadStep::Begin),
        (vec(part(), 0..4), bytes(50)).prop_map(|(parts, at)| DownloadStep::PutState(parts, at)),
        vec(block(), 1..4).prop_map(DownloadStep::PutBlocks),
        vec(hash(), 0..5).prop_map(DownloadStep::LackingCodes),
        Just(DownloadStep::BuildTries),
        (option::of(hash()), path).prop_map(|(owner, path)| DownloadStep::BuiltNode(owner, path)),
        vec(hash(), 0..5).prop_map(DownloadStep::BuiltRoots),
        block_id().prop_map(DownloadStep::Finish),
    ]
}

proptest! {
    #[test]
    fn steps_and_answers_survive(
        epoch in epoch(), step in step(), progress in option::of(bytes(50)),
        hashes in vec(hash(), 0..5), node in option::of(bytes(50)),
    ) {
        let call = (epoch, step);
        prop_assert_eq!(through::<v1::DownloadRequest, _>(call.clone()), call);
        let answer = DownloadAnswer { progress, hashes, node };
        prop_assert_eq!(through::<v1::DownloadResponse, _>(answer.clone()), answer);
    }
}

fn error(step: Option<Step>) -> String {
    refused::<_, (Epoch, DownloadStep)>(v1::DownloadRequest {
        epoch: 1,
        token: <_>::default(),
        step,
    })
}

fn of_part(part: Part) -> String {
    let parts = vec![v1::DownloadedPart { part: Some(part) }];
    error(Some(Step::PutState(v1::DownloadedState { parts, progress: <_>::default() })))
}

#[test]
fn malformed_steps_name_the_field() {
    let hashes = |count: usize| bytes::Bytes::from(vec![7; 32 * count]);
    let accounts = |spoil: fn(&mut Accounts)| {
        let account = Account { nonce: 1, balance: U256::from(5), code_hash: B256::repeat_byte(9) };
        let key = B256::repeat_byte(3);
        let part = StatePart::Accounts {
            first: B256::ZERO,
            last: key,
            accounts: vec![DownloadedAccount { key, account, has_storage: true }],
        };
        let Some(Part::Accounts(mut wire)) = v1::DownloadedPart::from(part).part else { panic!() };
        spoil(&mut wire);
        of_part(Part::Accounts(wire))
    };
    let slots = |spoil: fn(&mut Slots)| {
        let part = StatePart::Slots {
            owner: B256::ZERO,
            first: B256::ZERO,
            last: B256::ZERO,
            slots: vec![(B256::ZERO, U256::from(300))],
        };
        let Some(Part::Slots(mut wire)) = v1::DownloadedPart::from(part).part else { panic!() };
        spoil(&mut wire);
        of_part(Part::Slots(wire))
    };
    let state = |count: usize, progress: usize| {
        let parts = vec![v1::DownloadedPart { part: None }; count];
        let progress = vec![0; progress].into();
        error(Some(Step::PutState(v1::DownloadedState { parts, progress })))
    };
    let node = |owner: usize, path: Vec<u8>| {
        let owner = vec![0; owner].into();
        error(Some(Step::GetBuiltNode(BuiltNode { owner, path: path.into() })))
    };
    let codes = Codes { hashes: hashes(1), sizes: vec![2], codes: vec![0].into() };
    let blocks = v1::DownloadedBlocks { blocks: vec![v1::DownloadedBlock::default()] };
    for (got, want) in [
        (error(None), "download.step: is missing"),
        (state(DOWNLOADED_PARTS_MAX + 1, 0), "download.put_state.parts: 4097 are more than 4096"),
        (
            state(0, DOWNLOAD_PROGRESS_BYTES_MAX + 1),
            "download.put_state.progress: 65537 are more than 65536",
        ),
        (state(1, 0), "download.put_state.parts[0]: is missing"),
        (
            accounts(|it| it.keys = vec![0; 33].into()),
            "download.put_state.parts[0].accounts.keys: 33 bytes are not a multiple of 32",
        ),
        (
            accounts(|it| it.have_storage = vec![2].into()),
            "download.put_state.parts[0].accounts.have_storage[0]: 2 is not in 0..=1",
        ),
        (
            accounts(|it| it.have_storage = vec![].into()),
            "download.put_state.parts[0].accounts.have_storage: expected 1 items, got 0",
        ),
        (
            accounts(|it| it.accounts.as_mut().unwrap().flags = vec![0].into()),
            "download.put_state.parts[0].accounts.accounts.nonces: expected 0 items, got 1",
        ),
        (
            slots(|it| it.keys = vec![0; 64].into()),
            "download.put_state.parts[0].slots.keys[1]: is not in ascending order",
        ),
        (
            slots(|it| it.values.as_mut().unwrap().lengths = vec![].into()),
            "download.put_state.parts[0].slots.values.lengths: expected 1 items, got 0",
        ),
        (
            slots(|it| *it.values.as_mut().unwrap() = zero()),
            "download.put_state.parts[0].slots.values.lengths[0]: 0 is not in 1..=32",
        ),
        (
            of_part(Part::Codes(codes)),
            "download.put_state.parts[0].codes.codes: expected 2 bytes, got 1",
        ),
        (
            error(Some(Step::PutBlocks(v1::DownloadedBlocks::default()))),
            "download.put_blocks: 0 is not in 1..=1024",
        ),
        (error(Some(Step::PutBlocks(blocks))), "download.put_blocks[0].id: is missing"),
        (
            error(Some(Step::ListLackingCodes(hashes(DOWNLOAD_HASHES_MAX + 1)))),
            "download.list_lacking_codes: 65537 are more than 65536",
        ),
        (
            error(Some(Step::ListBuiltRoots(vec![0; 31].into()))),
            "download.list_built_roots: 31 bytes are not a multiple of 32",
        ),
        (node(31, vec![]), "download.get_built_node.owner: expected 32 bytes, got 31"),
        (node(32, vec![0; 65]), "download.get_built_node.path: 65 are more than 64"),
        (node(0, vec![16]), "download.get_built_node.path: 16 is not in 0..=15"),
        (
            error(Some(Step::Finish(<_>::default()))),
            "download.finish.hash: expected 32 bytes, got 0",
        ),
        (error(Some(Step::Begin(Nothing {}))), ""),
        (slots(|it| (it.keys, it.values) = (<_>::default(), Some(<_>::default()))), ""),
    ] {
        assert_eq!(got, want);
    }
}

fn zero() -> Uint256List {
    Uint256List { lengths: vec![0].into(), digits: <_>::default() }
}
