//! Real workers on both sides of the wire.

use crate::{
    scripted::{Host, wait_until},
    support::{Chain, Random, feed, prove, state_root},
};
use std::{sync::Arc, thread};
use tandem_multiproof_workers_client::ClientConfig;
use tandem_proto::multiproof::{Error, Prefetch, ProofApi, StateUpdate};

/// Random blocks on branches, some refused, some given up. The roots of the client equal those of
/// workers in the same process, and are right.
#[test]
fn a_client_gives_the_answers_of_the_workers_behind_it() {
    let mut chain = Chain::new();
    let local = chain.workers(2, chain.storage.clone());
    let remote = chain.workers(3, chain.storage.clone());
    let host = Host::start(remote.clone());
    let client = host.client(ClientConfig::default());
    let mut random = Random(7);
    let mut head = chain.genesis;
    let mut before = head;
    for number in 0..400 {
        let parent = if random.one_in(6) { before } else { head };
        let made = chain.make(parent, 1 + random.below(20) as usize, &mut random);
        if random.one_in(5) {
            // Given up in the middle.
            let mut session = client.begin(made.begin()).unwrap();
            feed(&mut *session, &made.updates[..made.updates.len() / 2]);
        }
        if random.one_in(3) {
            let keys = made.block.diff.accounts.iter().map(|account| {
                (account.address_hash, account.slots.iter().map(|slot| slot.key).collect())
            });
            let keys = Arc::new(Prefetch { accounts: keys.collect() });
            client.prefetch(made.block.id.hash, keys);
            client.foresee(made.block.id.hash, chain.foresight(&made, &mut random));
        }
        let got = prove(&*client, &made).unwrap();
        let want = prove(&*local, &made).unwrap();
        assert_eq!(got.roots, want.roots, "block {number}");
        let updates = got.stats.updates;
        assert!(updates > 0 && updates <= want.stats.updates, "{updates} after they were merged");
        assert_eq!(state_root(&got), made.root);
        if random.one_in(7) {
            client.discard(made.block.id.hash);
            local.discard(made.block.id.hash);
            continue;
        }
        chain.commit(&made);
        before = parent;
        head = made.block.id;
        if random.one_in(3) {
            chain.make_head(head);
        }
    }
    let status = client.status().unwrap();
    assert_eq!(status, remote.status().unwrap());
    assert_eq!((status.threads, status.shards.len()), (3, 16));
    assert!(status.trie_bytes > 0);
    drop(client);
    remote.stop();
    assert_eq!(remote.status(), Err(Error::Unavailable));
    local.stop();
}

/// Two executors at one set of workers, as after a failover. The executor that began last gets its
/// roots, and nothing of the other's block is in them.
#[test]
fn updates_of_two_callers_never_mix() {
    let chain = Arc::new(Chain::new());
    let workers = chain.workers(2, chain.storage.clone());
    let host = Host::start(workers.clone());
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            // Two over the wire, two in the process.
            let api: Arc<dyn ProofApi> = if caller % 2 == 0 {
                workers.clone()
            } else {
                host.client(ClientConfig::default())
            };
            let chain = chain.clone();
            thread::spawn(move || {
                let mut random = Random(caller + 1);
                let mut right = 0;
                for _ in 0..300 {
                    let made = chain.make(chain.genesis, 12, &mut random);
                    match prove(&*api, &made) {
                        Ok(answer) => {
                            assert_eq!(state_root(&answer), made.root);
                            right += 1;
                        }
                        Err(error) => assert_eq!(error, Error::Unavailable),
                    }
                }
                right
            })
        })
        .collect();
    let right: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert!(right > 0, "at times one is not disturbed");
    workers.stop();
}

/// Errors of workers that lost their place in the chain arrive over the wire, and a storage error
/// too.
#[test]
fn the_workers_own_errors_arrive() {
    let mut chain = Chain::new();
    let workers = chain.workers(2, chain.storage.clone());
    let host = Host::start(workers.clone());
    let client = host.client(ClientConfig::default());
    let made = chain.make(chain.genesis, 3, &mut Random(3));
    let mut unknown = made.clone();
    unknown.block.parent = alloy_primitives::B256::repeat_byte(9);
    let error = prove(&*client, &unknown).unwrap_err();
    let base = chain.genesis;
    assert_eq!(error, Error::ParentUnreachable { parent: unknown.block.parent, base });
    assert_eq!(error, prove(&*workers, &unknown).unwrap_err());
    assert_eq!(state_root(&prove(&*client, &made).unwrap()), made.root);
    chain.commit(&made);
    workers.stop();
    assert_eq!(prove(&*client, &made).unwrap_err(), Error::Unavailable);
}

/// A block's whole diff in one update, larger than a message may be, arrives in parts.
#[test]
fn a_diff_larger_than_a_message_gives_the_right_root() {
    let chain = Chain::new();
    let workers = chain.workers(2, chain.storage.clone());
    let host = Host::start(workers.clone());
    let client = host.client(ClientConfig::default());
    wait_until(|| client.is_connected());
    let mut made = chain.make(chain.genesis, 8, &mut Random(11));
    let mut large = made.block.diff.accounts.clone();
    let account = large.iter_mut().find(|update| update.account.is_some()).unwrap();
    account.wiped = true;
    account.slots = crate::scripted::update(1, 300_000).accounts[0].slots.clone();
    made.updates = vec![Arc::new(StateUpdate { accounts: large })];
    let got = prove(&*client, &made).unwrap();
    assert!(got.stats.updates > 50, "in parts");
    let want = prove(&*chain.workers(2, chain.storage.clone()), &made).unwrap();
    assert_eq!(got.roots, want.roots);
    workers.stop();
}
