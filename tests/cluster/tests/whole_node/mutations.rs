//! Payloads with one fault each. Each is sent with the hash of the valid block and then with its
//! own, so that the block hash alone does not betray it. Afterwards the valid block must still be
//! accepted.

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::Decodable2718;
use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tandem_chain::{Fork, Payload, PayloadSidecar, Withdrawal};
use tandem_cluster_tests::{
    Builder, Built, Contents, Forks, Node, PayloadStatus, decode_status, new_payload, reseal,
};

const GAS_PER_BLOB: u64 = 131_072;

/// A payload to change.
struct Case {
    payload: Payload,
    sidecar: PayloadSidecar,
    parent: Built,
}

/// Expected answer to a changed payload that claims its own hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    /// INVALID; the parent is the latest valid block.
    Invalid,
    /// INVALID without a latest valid block: the payload contradicts itself.
    Contradiction,
    /// INVALID; the parent's parent is the latest valid block.
    InvalidOnGrandparent,
    /// SYNCING.
    Syncing,
    /// This error.
    Error(i64),
}

type Change = fn(&mut Case);

struct Mutation {
    name: &'static str,
    /// The first fork with the field that changes.
    since: Fork,
    expect: Expect,
    change: Change,
}

fn mutation(name: &'static str, since: Fork, change: Change) -> Mutation {
    Mutation { name, since, expect: Expect::Invalid, change }
}

impl Mutation {
    fn expecting(self, expect: Expect) -> Self {
        Self { expect, ..self }
    }
}

fn header_mutations() -> Vec<Mutation> {
    use Fork::Paris;
    vec![
        mutation("state root", Paris, |case| case.payload.state_root.0[31] ^= 1),
        mutation("receipts root", Paris, |case| case.payload.receipts_root.0[0] ^= 1),
        mutation("logs bloom", Paris, |case| case.payload.logs_bloom.0[200] ^= 0x10),
        mutation("logs bloom full", Paris, |case| {
            case.payload.logs_bloom = Bloom::repeat_byte(0xff)
        }),
        mutation("gas used one more", Paris, |case| case.payload.gas_used += 1),
        mutation("gas used one less", Paris, |case| case.payload.gas_used -= 1),
        mutation("gas used over the limit", Paris, |case| {
            case.payload.gas_used = case.payload.gas_limit + 1;
        }),
        mutation("gas limit one more", Paris, |case| case.payload.gas_limit += 1),
        mutation("gas limit too far up", Paris, |case| {
            let parent = case.parent.header.gas_limit;
            case.payload.gas_limit = parent + parent / 1024;
        }),
        mutation("gas limit too far down", Paris, |case| {
            let parent = case.parent.header.gas_limit;
            case.payload.gas_limit = parent - parent / 1024;
        }),
        mutation("gas limit under the minimum", Paris, |case| case.payload.gas_limit = 4_999),
        mutation("base fee up", Paris, |case| case.payload.base_fee_per_gas += U256::from(1)),
        mutation("base fee down", Paris, |case| case.payload.base_fee_per_gas -= U256::from(1)),
        mutation("timestamp up", Paris, |case| case.payload.timestamp += 1),
        mutation("timestamp of the parent", Paris, |case| {
            case.payload.timestamp = case.parent.header.timestamp;
        }),
        mutation("timestamp before the parent", Paris, |case| {
            case.payload.timestamp = case.parent.header.timestamp - 1;
        }),
        mutation("extra data too long", Paris, |case| {
            case.payload.extra_data = Bytes::from(vec![7; 33]);
        }),
        mutation("fee recipient", Paris, |case| {
            case.payload.fee_recipient = Address::repeat_byte(0x77);
        }),
        mutation("prev randao", Paris, |case| case.payload.prev_randao.0[5] ^= 1),
        mutation("block number up", Paris, |case| case.payload.block_number += 1),
        mutation("block number down", Paris, |case| case.payload.block_number -= 1),
        mutation("parent hash of nobody", Paris, |case| {
            case.payload.parent_hash = B256::repeat_byte(0x99);
        })
        .expecting(Expect::Syncing),
        mutation("parent hash of the grandparent", Paris, |case| {
            case.payload.parent_hash = case.parent.header.parent_hash;
        })
        .expecting(Expect::InvalidOnGrandparent),
    ]
}

fn blob_mutations() -> Vec<Mutation> {
    use Fork::Cancun;
    fn hashes(case: &mut Case) -> &mut Vec<B256> {
        case.sidecar.versioned_hashes.as_mut().unwrap()
    }
    let contradictions: [(&str, Change); 4] = [
        ("versioned hash missing", |case| {
            hashes(case).pop().unwrap();
        }),
        ("versioned hash too many", |case| hashes(case).push(B256::repeat_byte(1))),
        ("versioned hash changed", |case| hashes(case)[0].0[9] ^= 1),
        ("versioned hash twice", |case| {
            let first = hashes(case)[0];
            hashes(case).insert(0, first);
        }),
    ];
    let contradictions = contradictions
        .into_iter()
        .map(|(name, change)| mutation(name, Cancun, change).expecting(Expect::Contradiction));
    let mut mutations = vec![
        mutation("blob gas used up", Cancun, |case| {
            *case.payload.blob_gas_used.as_mut().unwrap() += GAS_PER_BLOB;
        }),
        mutation("blob gas used down", Cancun, |case| {
            *case.payload.blob_gas_used.as_mut().unwrap() -= GAS_PER_BLOB;
        }),
        mutation("blob gas used uneven", Cancun, |case| {
            *case.payload.blob_gas_used.as_mut().unwrap() += 1;
        }),
        mutation("blob gas used over the limit", Cancun, |case| {
            case.payload.blob_gas_used = Some(16 * GAS_PER_BLOB);
        }),
        mutation("excess blob gas up", Cancun, |case| {
            *case.payload.excess_blob_gas.as_mut().unwrap() += GAS_PER_BLOB;
        }),
        mutation("excess blob gas down", Cancun, |case| {
            *case.payload.excess_blob_gas.as_mut().unwrap() -= 1;
        }),
        mutation("parent beacon block root", Cancun, |case| {
            case.sidecar.parent_beacon_block_root.as_mut().unwrap().0[0] ^= 1;
        }),
    ];
    mutations.extend(contradictions);
    mutations
}

fn request_mutations() -> Vec<Mutation> {
    use Fork::Prague;
    fn requests(case: &mut Case) -> &mut Vec<Bytes> {
        case.sidecar.execution_requests.as_mut().unwrap()
    }
    vec![
        mutation("request changed", Prague, |case| {
            let mut request = requests(case)[1].to_vec();
            request[30] ^= 1;
            requests(case)[1] = request.into();
        }),
        mutation("request missing", Prague, |case| {
            requests(case).remove(0);
        }),
        mutation("all requests missing", Prague, |case| requests(case).clear()),
        mutation("request too many", Prague, |case| {
            requests(case).push(Bytes::from(vec![0x33; 9]));
        }),
        mutation("requests swapped", Prague, |case| requests(case).swap(0, 1))
            .expecting(Expect::Error(-32602)),
        mutation("request of the same type twice", Prague, |case| {
            let first = requests(case)[0].clone();
            requests(case).insert(0, first);
        })
        .expecting(Expect::Error(-32602)),
        mutation("request without data", Prague, |case| {
            requests(case).push(Bytes::from(vec![0x33]));
        })
        .expecting(Expect::Error(-32602)),
    ]
}

fn body_mutations() -> Vec<Mutation> {
    use Fork::{Paris, Shanghai};
    fn withdrawals(case: &mut Case) -> &mut Vec<Withdrawal> {
        case.payload.withdrawals.as_mut().unwrap()
    }
    vec![
        mutation("transaction missing", Paris, |case| {
            case.payload.transactions.remove(0);
        }),
        mutation("transaction doubled", Paris, |case| {
            let first = case.payload.transactions[0].clone();
            case.payload.transactions.insert(0, first);
        }),
        mutation("transactions swapped", Paris, |case| case.payload.transactions.swap(0, 1)),
        mutation("transaction of nothing", Paris, |case| {
            case.payload.transactions.push(Bytes::new());
        })
        .expecting(Expect::Contradiction),
        mutation("transaction with a byte too many", Paris, |case| {
            let first = case.payload.transactions[0].to_vec();
            case.payload.transactions[0] = [first, vec![0]].concat().into();
        })
        .expecting(Expect::Contradiction),
        mutation("withdrawal of another amount", Shanghai, |case| withdrawals(case)[0].amount += 1),
        mutation("withdrawal to another address", Shanghai, |case| {
            withdrawals(case)[0].address.0[0] ^= 1;
        }),
        mutation("withdrawal missing", Shanghai, |case| {
            withdrawals(case).remove(0);
        }),
        mutation("withdrawal too many", Shanghai, |case| {
            let first = withdrawals(case)[0];
            withdrawals(case).push(first);
        }),
        mutation("all withdrawals missing", Shanghai, |case| withdrawals(case).clear()),
    ]
}

/// A chain with all actions in every block, and a node that follows it.
struct Run {
    builder: Builder,
    node: Node,
    fork: Fork,
    parent: Built,
    seed: u64,
    /// Refused payloads, with their answers.
    refused: Vec<(Payload, PayloadSidecar, PayloadStatus)>,
}

impl Run {
    async fn new(fork: Fork) -> Self {
        let mut builder = Builder::new(Forks::at_genesis(fork));
        let mut node = Node::start(builder.genesis_json()).await;
        let seed = 7_000 + fork as u64 * 1_000;
        let parent = builder.build(builder.genesis(), seed, Contents::Everything);
        node.extend(&parent).await;
        Self { builder, node, fork, parent, seed: seed + 1, refused: Vec::new() }
    }

    fn next(&mut self) -> Built {
        self.seed += 1;
        self.builder.build(self.parent.hash, self.seed, Contents::Everything)
    }

    /// Accepts the valid block, after all the invalid ones.
    async fn accept(&mut self, valid: Built) {
        self.node.extend(&valid).await;
        self.parent = valid;
    }

    async fn send(
        &mut self,
        payload: &Payload,
        sidecar: &PayloadSidecar,
    ) -> Result<PayloadStatus, i64> {
        let (method, params) = new_payload(self.fork, payload, sidecar);
        let answer = self.node.engine.call(method, params).await;
        answer.map(decode_status).map_err(|error| error.code)
    }

    fn wanted(&self, expect: Expect) -> Result<(&'static str, Option<B256>), i64> {
        match expect {
            Expect::Invalid => Ok(("INVALID", Some(self.parent.hash))),
            Expect::Contradiction => Ok(("INVALID", None)),
            Expect::InvalidOnGrandparent => Ok(("INVALID", Some(self.parent.header.parent_hash))),
            Expect::Syncing => Ok(("SYNCING", None)),
            Expect::Error(code) => Err(code),
        }
    }

    async fn check(&mut self, mutation: &Mutation) {
        let label = format!("{} in {}, seed {}", mutation.name, self.fork, self.seed + 1);
        let valid = self.next();
        let (payload, sidecar) = (valid.payload.clone(), valid.sidecar.clone());
        let mut case = Case { payload, sidecar, parent: self.parent.clone() };
        (mutation.change)(&mut case);
        let changed = (&case.payload, &case.sidecar) != (&valid.payload, &valid.sidecar);
        assert!(changed, "{label}: nothing changed");

        // Still with the hash of the valid block.
        let status = self.send(&case.payload, &case.sidecar).await;
        match (mutation.expect, &status) {
            (Expect::Error(want), got) => assert_eq!(got.as_ref().unwrap_err(), &want, "{label}"),
            (_, got) => {
                let verdict = got.as_ref().map(PayloadStatus::verdict);
                // Only the first version of the method has a separate name for it.
                let named = match (self.fork, mutation.expect) {
                    (Fork::Paris, Expect::Contradiction) => "INVALID",
                    (Fork::Paris, _) => "INVALID_BLOCK_HASH",
                    _ => "INVALID",
                };
                assert_eq!(verdict, Ok((named, None)), "{label}, old hash: {got:?}");
            }
        }
        // With its own hash.
        reseal(&mut case.payload, &case.sidecar);
        let status = self.send(&case.payload, &case.sidecar).await;
        let verdict = status.as_ref().map(PayloadStatus::verdict).map_err(|code| *code);
        let want = self.wanted(mutation.expect);
        assert_eq!(verdict, want, "{label}: {status:?}");
        if matches!(mutation.expect, Expect::Invalid | Expect::InvalidOnGrandparent) {
            self.check_descendants(&label, &case, &valid, want.unwrap()).await;
            self.refused.push((case.payload, case.sidecar, status.unwrap()));
            self.resend(1).await;
        }
        self.accept(valid).await;
    }

    /// Checks that the payloads refused last are refused again.
    async fn resend(&mut self, count: usize) {
        let newest = self.refused.len().saturating_sub(count);
        for index in newest..self.refused.len() {
            let (payload, sidecar, before) = self.refused[index].clone();
            let status = self.send(&payload, &sidecar).await.unwrap();
            let (fork, hash) = (self.fork, payload.block_hash);
            assert_eq!(status.verdict(), before.verdict(), "{hash} in {fork} again: {status:?}");
        }
    }

    /// Checks that children and grandchildren of an invalid block are invalid too, and that neither
    /// can become the head.
    async fn check_descendants(
        &mut self,
        label: &str,
        case: &Case,
        valid: &Built,
        want: (&str, Option<B256>),
    ) {
        let mut parent = case.payload.block_hash;
        let real = self.builder.build(valid.hash, self.seed, Contents::Random(1));
        for generation in 1..=2 {
            let mut child = real.payload.clone();
            child.parent_hash = parent;
            child.block_number += generation - 1;
            reseal(&mut child, &real.sidecar);
            let status = self.send(&child, &real.sidecar).await;
            let verdict = status.as_ref().map(PayloadStatus::verdict);
            assert_eq!(verdict, Ok(want), "{label}, descendant {generation}: {status:?}");
            parent = child.block_hash;
        }
        for head in [case.payload.block_hash, parent] {
            let status = self.node.forkchoice(head, B256::ZERO, B256::ZERO).await.unwrap();
            assert_eq!(status.verdict(), want, "{label}, as head: {status:?}");
        }
    }

    /// Changes one byte of one transaction.
    async fn check_bytes(&mut self, count: u64) {
        for _ in 0..count {
            let valid = self.next();
            let mut rng = StdRng::seed_from_u64(self.seed);
            let mut payload = valid.payload.clone();
            let index = rng.random_range(0..payload.transactions.len());
            let mut bytes = payload.transactions[index].to_vec();
            let place = rng.random_range(0..bytes.len());
            let flip = rng.random_range(1..=255_u8);
            bytes[place] ^= flip;
            let label = format!(
                "byte {place} of transaction {index} ^ {flip:#x} in {}, seed {}",
                self.fork, self.seed
            );
            payload.transactions[index] = bytes.into();
            let under_old_hash = self.send(&payload, &valid.sidecar).await.unwrap();
            reseal(&mut payload, &valid.sidecar);
            let status = self.send(&payload, &valid.sidecar).await.unwrap();
            let consistent = is_consistent(&payload, &valid.sidecar);
            let named = match self.fork {
                Fork::Paris if consistent => "INVALID_BLOCK_HASH",
                _ => "INVALID",
            };
            assert_eq!(under_old_hash.verdict(), (named, None), "{label}: {under_old_hash:?}");
            let latest_valid = consistent.then_some(self.parent.hash);
            assert_eq!(status.verdict(), ("INVALID", latest_valid), "{label}: {status:?}");
            self.accept(valid).await;
        }
    }
}

/// Returns whether the transactions decode and carry the blobs that the consensus layer expects.
/// Otherwise there is no block whose ancestors could be named.
fn is_consistent(payload: &Payload, sidecar: &PayloadSidecar) -> bool {
    let mut hashes = Vec::new();
    for raw in &payload.transactions {
        let Ok(transaction) = TxEnvelope::decode_2718_exact(raw) else { return false };
        hashes.extend(transaction.blob_versioned_hashes().into_iter().flatten().copied());
    }
    sidecar.versioned_hashes.as_ref().is_none_or(|expected| *expected == hashes)
}

async fn check_fork(fork: Fork) {
    let mut run = Run::new(fork).await;
    let all = [header_mutations(), blob_mutations(), request_mutations(), body_mutations()];
    for mutation in all.iter().flatten().filter(|mutation| mutation.since <= fork) {
        run.check(mutation).await;
    }
    run.node = run.node.restart().await;
    // As far down as a restart has to look.
    run.resend(12).await;
    run.check_bytes(24).await;
    let Run { mut node, parent, .. } = run;
    node.assert_head(&parent).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_payloads_of_paris_are_caught() {
    check_fork(Fork::Paris).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_payloads_of_shanghai_are_caught() {
    check_fork(Fork::Shanghai).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_payloads_of_cancun_are_caught() {
    check_fork(Fork::Cancun).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_payloads_of_prague_are_caught() {
    check_fork(Fork::Prague).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_payloads_of_osaka_are_caught() {
    check_fork(Fork::Osaka).await;
}
