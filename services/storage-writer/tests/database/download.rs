//! Downloads of a state: parts in any order, wrong ones replaced, restarts, and the end.

use crate::{
    common::{Random, World, new_chain, new_chain_in_memory},
    targets::{LAST, Target},
};
use std::{path::Path, sync::Arc};
use tandem_primitives::{Account, B256, EMPTY_CODE_HASH, U256, keccak256};
use tandem_proto::{
    snap::{DownloadedAccount, StatePart},
    storage::{
        BaseReads, BlockReads, BlockRef, Error, ReadState, StateDownloads, StorageApi,
        TransactionPlace, WriteLease,
    },
};
use tandem_storage_writer::{Config, Deps, StorageWriter, verify};

/// Returns parts that look like a state, and have nothing to do with the wanted one.
fn foreign(world: &World, random: &mut Random) -> Vec<StatePart> {
    let owner = *world.0.keys().nth(random.below(world.0.len() as u64) as usize).unwrap();
    let account = Account { nonce: 9, balance: U256::from(9), code_hash: EMPTY_CODE_HASH };
    let strange = keccak256(random.next().to_be_bytes());
    let accounts = vec![DownloadedAccount { key: strange, account, has_storage: true }];
    let slots = vec![(strange, U256::from(1))];
    vec![
        StatePart::Accounts { first: strange, last: strange, accounts },
        StatePart::Slots { owner: strange, first: B256::ZERO, last: LAST, slots: slots.clone() },
        StatePart::Slots { owner, first: strange, last: strange, slots },
    ]
}

fn start(datadir: &Path) -> Arc<StorageWriter> {
    StorageWriter::start(Config::with_small_limits(datadir), Deps::default()).unwrap()
}

fn assert_state(writer: &StorageWriter, target: &Target) {
    let accounts: Vec<B256> = target.world.0.keys().copied().collect();
    let request = ReadState { accounts, ..ReadState::default() };
    let found = writer.read_state(&request).unwrap();
    let want: Vec<_> = target.world.0.values().map(|(account, _)| Some(*account)).collect();
    assert_eq!(found.accounts, want);
    let head = writer.checkpoint().unwrap();
    assert_eq!((head.base, head.forkchoice.head), (target.pivot(), target.pivot()));
    for block in &target.blocks {
        let (id, header) = writer.header(BlockRef::Number(block.id.number)).unwrap().unwrap();
        assert_eq!((id, header), (block.id, block.header.clone()));
        for (index, hash) in (0..).zip(block.transaction_hashes.iter()) {
            let place = writer.transaction(*hash).unwrap();
            assert_eq!(place, Some(TransactionPlace { block: block.id, index }));
        }
    }
}

#[test]
fn a_state_is_downloaded_in_any_order_over_restarts() {
    for seed in 1..30 {
        let random = &mut Random(seed);
        let directory = tempfile::tempdir().unwrap();
        let (genesis, world) = new_chain(directory.path());
        let target = Target::random(genesis, world.clone(), random);
        let mut writer = start(directory.path());
        assert_eq!(writer.download_progress().unwrap(), None);
        writer.begin_download().unwrap();
        writer.put_state(&foreign(&world, random), b"foreign").unwrap();
        writer.put_blocks(&target.downloaded()).unwrap();
        for (at, part) in target.parts(random).into_iter().enumerate() {
            let progress = at.to_be_bytes();
            writer.put_state(std::slice::from_ref(&part), &progress).unwrap();
            if random.one_in(12) {
                drop(writer);
                writer = start(directory.path());
                assert_eq!(writer.download_progress().unwrap().unwrap()[..], progress);
                writer.begin_download().unwrap();
            }
            if random.one_in(4) {
                writer.put_state(&[part], &progress).unwrap();
            }
        }
        writer.finish_download(target.pivot()).unwrap();
        assert_eq!(writer.download_progress().unwrap(), None);
        assert_state(&writer, &target);
        drop(writer);
        let report = verify(directory.path()).unwrap();
        assert_eq!((report.first_difference, report.base), (None, target.pivot()));
        assert_state(&start(directory.path()), &target);
    }
}

#[test]
fn what_is_not_the_state_of_the_block_is_refused_and_can_be_mended() {
    for seed in 1..20 {
        let random = &mut Random(seed);
        let (writer, world) = new_chain_in_memory(Deps::default());
        let genesis = writer.checkpoint().unwrap().genesis;
        let target = Target::random(genesis, world, random);
        writer.begin_download().unwrap();
        // The block is not there yet.
        assert!(writer.finish_download(target.pivot()).is_err());
        writer.put_blocks(&target.downloaded()).unwrap();
        let mut parts = target.parts(random);
        parts.retain(|part| !matches!(part, StatePart::Codes(_)));
        writer.put_state(&parts, b"all").unwrap();
        if target.world.0.values().any(|(account, _)| account.code_hash != EMPTY_CODE_HASH) {
            let error = writer.finish_download(target.pivot()).unwrap_err();
            assert!(error.to_string().contains("code"), "{error}");
        }
        writer.put_state(&[StatePart::Codes(target.codes.clone())], b"all").unwrap();
        // An account too many.
        let (first, account) = (keccak256(b"nobody"), Account::default());
        let accounts = vec![DownloadedAccount { key: first, account, has_storage: false }];
        let more = StatePart::Accounts { first, last: first, accounts };
        writer.put_state(&[more], b"more").unwrap();
        let error = writer.finish_download(target.pivot()).unwrap_err();
        assert!(error.to_string().contains("state root"), "{error}");
        assert_eq!(writer.download_progress().unwrap().unwrap()[..], *b"more");
        let none = StatePart::Accounts { first, last: first, accounts: Vec::new() };
        writer.put_state(&[none], b"all").unwrap();
        writer.finish_download(target.pivot()).unwrap();
        assert_state(&writer, &target);
        assert_eq!(writer.verify().unwrap().first_difference, None);
    }
}

#[test]
fn nothing_reads_half_a_state_and_a_chain_is_not_replaced() {
    let random = &mut Random(5);
    let (writer, world) = new_chain_in_memory(Deps::default());
    let genesis = writer.checkpoint().unwrap().genesis;
    let target = Target::random(genesis, world, random);
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Refused(_))));
    refused(writer.put_state(&[], b""));
    refused(writer.put_blocks(&[]));
    refused(writer.finish_download(genesis));
    writer.begin_download().unwrap();
    refused(writer.put_blocks(&target.downloaded()[1..]));
    assert!(matches!(writer.read_state(&ReadState::default()), Err(Error::Unavailable(_))));
    writer.put_blocks(&target.downloaded()).unwrap();
    writer.put_state(&target.parts(random), b"all").unwrap();
    writer.finish_download(target.pivot()).unwrap();
    writer.acquire_epoch("test").unwrap();
    refused(writer.begin_download());
}

/// A served state is the same after it was downloaded as where it was executed.
#[test]
fn a_downloaded_state_is_served_to_the_next() {
    let random = &mut Random(6);
    let (writer, world) = new_chain_in_memory(Deps::default());
    let genesis = writer.checkpoint().unwrap().genesis;
    let target = Target::random(genesis, world, random);
    writer.begin_download().unwrap();
    writer.put_blocks(&target.downloaded()).unwrap();
    writer.put_state(&target.parts(random), b"all").unwrap();
    writer.finish_download(target.pivot()).unwrap();
    let api: Arc<dyn StorageApi> = writer;
    crate::ranges::check(&*api, &target.world, random);
    crate::ranges::check_codes(&*api, &target.world);
}
