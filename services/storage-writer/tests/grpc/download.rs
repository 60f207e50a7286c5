//! Downloads of a state into a storage-writer in another process.

use crate::{
    common::{Random, new_chain},
    host::Host,
    targets::Target,
};
use tandem_primitives::{B256, EMPTY_TRIE_ROOT};
use tandem_proto::storage::{BaseReads, Error, ReadState, StateDownloads, WriteLease};
use tandem_storage_writer::{Config, Deps, StorageWriter, verify};

#[test]
fn an_executor_downloads_a_state_into_a_storage_writer_elsewhere() {
    for seed in 1..6 {
        let random = &mut Random(seed);
        let directory = tempfile::tempdir().unwrap();
        let (genesis, world) = new_chain(directory.path());
        let target = Target::random(genesis, world, random);
        let config = Config::with_small_limits(directory.path());
        let writer = StorageWriter::start(config, Deps::default()).unwrap();
        let mut host = Host::start_downloading(writer.clone());
        let client = host.client();
        let no_right = Err(Error::Unavailable("no right to write".to_owned()));
        assert_eq!(client.begin_download(), no_right);
        client.acquire_epoch("first").unwrap();
        assert_eq!(client.download_progress(), Ok(None));
        assert!(matches!(client.put_state(&[], b""), Err(Error::Refused(_))), "nothing is begun");
        client.begin_download().unwrap();
        client.put_blocks(&target.downloaded()).unwrap();
        for (at, part) in target.parts(random).into_iter().enumerate() {
            client.put_state(&[part], &at.to_be_bytes()).unwrap();
            assert_eq!(client.download_progress().unwrap().unwrap()[..], at.to_be_bytes());
        }
        let (held, lacking) = (target.codes.first().map(|(hash, _)| *hash), B256::repeat_byte(7));
        let asked: Vec<_> = held.into_iter().chain([lacking]).collect();
        assert_eq!(client.lacking_codes(&asked), Ok(vec![lacking]));

        let root = client.build_tries().unwrap();
        assert_eq!(root, writer.build_tries().unwrap());
        let owners: Vec<_> = target.world.0.keys().copied().chain([lacking]).collect();
        let roots = client.built_roots(&owners).unwrap();
        assert_eq!(roots, writer.built_roots(&owners).unwrap());
        assert_eq!(roots.last(), Some(&EMPTY_TRIE_ROOT));
        for (owner, path) in [(None, &[][..]), (None, &[15, 15, 15]), (Some(owners[0]), &[])] {
            assert_eq!(client.built_node(owner, path), writer.built_node(owner, path));
        }
        // One that takes over ends the writes of the one before.
        let second = host.client();
        second.acquire_epoch("second").unwrap();
        let fenced = client.finish_download(target.pivot());
        assert!(matches!(fenced, Err(Error::Fenced { .. })), "{fenced:?}");
        second.finish_download(target.pivot()).unwrap();
        assert_eq!(second.download_progress(), Ok(None));

        let accounts: Vec<B256> = target.world.0.keys().copied().collect();
        let found = second.read_state(&ReadState { accounts, ..ReadState::default() }).unwrap();
        let want: Vec<_> = target.world.0.values().map(|(account, _)| Some(*account)).collect();
        assert_eq!(found.accounts, want);
        assert_eq!(second.checkpoint().unwrap().base, target.pivot());
        drop((client, second));
        host.stop();
        drop(writer);
        let report = verify(directory.path()).unwrap();
        assert_eq!((report.first_difference, report.base), (None, target.pivot()));
    }
}

#[test]
fn a_server_without_downloads_says_so() {
    let directory = tempfile::tempdir().unwrap();
    new_chain(directory.path());
    let config = Config::with_small_limits(directory.path());
    let writer = StorageWriter::start(config, Deps::default()).unwrap();
    let host = Host::start(writer);
    let client = host.client();
    client.acquire_epoch("first").unwrap();
    assert!(matches!(client.download_progress(), Err(Error::Refused(_))));
}
