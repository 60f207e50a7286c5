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
            downloaded_state::{AccountRanges, Codes, SlotRanges},
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

/// Parts in the order of their kinds, and codes at most once.
fn parts() -> impl Strategy<Value = Vec<StatePart>> {
    let kind = |part: &StatePart| match part {
        StatePart::Accounts { .. } => 0,
        StatePart::Slots { .. } => 1,
        StatePart::Codes(_) => 2,
    };
    vec(part(), 0..6).prop_map(move |mut parts| {
        parts.sort_by_key(kind);
        parts.dedup_by(|a, b| kind(a) == 2 && kind(b) == 2);
        parts
    })
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
        (parts(), bytes(50)).prop_map(|(parts, at)| DownloadStep::PutState(parts, at)),
        (bytes(80), bytes(50)).prop_map(|(list, at)| DownloadStep::PutListed(list, at)),
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

fn of_state(state: v1::DownloadedState) -> String {
    error(Some(Step::PutState(state)))
}

fn state(parts: Vec<StatePart>) -> v1::DownloadedState {
    let step = DownloadStep::PutState(parts, Bytes::new());
    match v1::DownloadRequest::from((Epoch::numbered(1), step)).step {
        Some(Step::PutState(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn hashes(count: usize) -> bytes::Bytes {
    vec![7; 32 * count].into()
}

#[test]
fn malformed_steps_name_the_field() {
    let accounts = |spoil: fn(&mut AccountRanges)| {
        let account = Account { nonce: 1, balance: U256::from(5), code_hash: B256::repeat_byte(9) };
        let account =
            |byte| DownloadedAccount { key: B256::repeat_byte(byte), account, has_storage: true };
        let part = |byte| StatePart::Accounts {
            first: B256::ZERO,
            last: B256::repeat_byte(byte),
            accounts: vec![account(byte - 1), account(byte)],
        };
        let mut state = state(vec![part(8), part(4)]);
        spoil(state.accounts.as_mut().unwrap());
        of_state(state)
    };
    let slots = |spoil: fn(&mut SlotRanges)| {
        let slots = vec![(B256::ZERO, U256::from(300)), (B256::repeat_byte(1), U256::from(1))];
        let (first, last) = (B256::ZERO, B256::repeat_byte(1));
        let mut state = state(vec![StatePart::Slots { owner: B256::ZERO, first, last, slots }]);
        spoil(state.slots.as_mut().unwrap());
        of_state(state)
    };
    let codes = |spoil: fn(&mut Codes)| {
        let code = (B256::ZERO, Bytes::from_static(&[1, 2]));
        let mut state = state(vec![StatePart::Codes(vec![code])]);
        spoil(state.codes.as_mut().unwrap());
        of_state(state)
    };
    let progress = |bytes: usize| {
        of_state(v1::DownloadedState { progress: vec![0; bytes].into(), ..<_>::default() })
    };
    let blocks = |spoil: fn(&mut v1::DownloadedBlocks)| {
        let block = DownloadedBlock {
            id: Default::default(),
            header: Bytes::from_static(&[1]),
            body: Bytes::from_static(&[2, 3]),
            receipts: Bytes::new(),
        };
        let request = v1::DownloadRequest::from((
            Epoch::numbered(1),
            DownloadStep::PutBlocks(vec![block.clone(), block]),
        ));
        let Some(Step::PutBlocks(mut wire)) = request.step else { panic!() };
        spoil(&mut wire);
        error(Some(Step::PutBlocks(wire)))
    };
    let node = |owner: usize, path: Vec<u8>| {
        let owner = vec![0; owner].into();
        error(Some(Step::GetBuiltNode(BuiltNode { owner, path: path.into() })))
    };
    for (got, want) in [
        (error(None), "download.step: is missing"),
        (
            progress(DOWNLOAD_PROGRESS_BYTES_MAX + 1),
            "download.put_state.progress: 65537 are more than 65536",
        ),
        (
            accounts(|it| it.firsts = vec![0; 32 * (DOWNLOADED_PARTS_MAX + 1)].into()),
            "download.put_state.accounts.firsts: 32769 are more than 32768",
        ),
        (
            accounts(|it| it.lasts = vec![0; 32].into()),
            "download.put_state.accounts.lasts: expected 2 items, got 1",
        ),
        (
            accounts(|it| it.counts[0] = 3),
            "download.put_state.accounts.keys: expected 5 items, got 4",
        ),
        (
            accounts(|it| it.keys = vec![0; 33].into()),
            "download.put_state.accounts.keys: 33 bytes are not a multiple of 32",
        ),
        (
            accounts(|it| (it.counts[0], it.counts[1]) = (1, 3)),
            "download.put_state.accounts.keys[2]: is not in ascending order",
        ),
        (
            accounts(|it| it.have_storage = vec![1, 1, 2, 1].into()),
            "download.put_state.accounts.have_storage[2]: 2 is not in 0..=1",
        ),
        (
            accounts(|it| it.have_storage = vec![].into()),
            "download.put_state.accounts.have_storage: expected 4 items, got 0",
        ),
        (
            slots(|it| it.owners = <_>::default()),
            "download.put_state.slots.owners: expected 1 items, got 0",
        ),
        (
            slots(|it| it.keys = vec![0; 64].into()),
            "download.put_state.slots.keys[1]: is not in ascending order",
        ),
        (
            slots(|it| it.values.as_mut().unwrap().lengths = vec![].into()),
            "download.put_state.slots.values.lengths: expected 2 items, got 0",
        ),
        (
            slots(|it| it.values = Some(zeros())),
            "download.put_state.slots.values.lengths[0]: 0 is not in 1..=32",
        ),
        (codes(|it| it.sizes[0] = 3), "download.put_state.codes.codes: expected 3 bytes, got 2"),
        (codes(|it| it.sizes.clear()), "download.put_state.codes.sizes: expected 1 items, got 0"),
        (blocks(|it| *it = <_>::default()), "download.put_blocks.numbers: 0 is not in 1..=1024"),
        (blocks(|it| it.hashes = hashes(1)), "download.put_blocks.hashes: expected 2 items, got 1"),
        (blocks(|it| it.sizes.truncate(5)), "download.put_blocks.sizes: expected 6 items, got 5"),
        (blocks(|it| it.sizes[2] = 1), "download.put_blocks.contents: expected 7 bytes, got 6"),
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
        (accounts(|_| {}) + &slots(|_| {}) + &codes(|_| {}) + &blocks(|_| {}), ""),
    ] {
        assert_eq!(got, want);
    }
}

fn zeros() -> Uint256List {
    Uint256List { lengths: vec![0; 2].into(), digits: <_>::default() }
}
