//! Blob transactions: `eth_sendRawTransaction` (EIP-4844, 7594), `engine_getBlobs` (cancun.md,
//! osaka.md), and the fate of blobs that are in blocks.

use alloy_primitives::{B256, Bytes, U256};
use serde_json::{Value, json};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    BlobTransaction, Builder, Built, Forks, Node, RpcError, TestBlob, blob_transaction,
};

async fn start(fork: Fork) -> (Builder, Node) {
    let builder = Builder::new(Forks::at_genesis(fork));
    let node = Node::start(builder.genesis_json()).await;
    (builder, node)
}

/// Sends a transaction and returns its hash, or the error that refuses it.
async fn send(node: &mut Node, raw: &Bytes) -> Result<B256, RpcError> {
    let hash = node.http.call("eth_sendRawTransaction", json!([raw])).await?;
    Ok(serde_json::from_value(hash).unwrap())
}

/// Returns the reason of a refusal, which is a server error with a machine-readable reason.
fn reason(answer: Result<B256, RpcError>) -> String {
    let error = answer.unwrap_err();
    assert_eq!(error.code, -32000, "{error:?}");
    error.data.unwrap()["reason"].as_str().unwrap().to_owned()
}

async fn get_blobs(node: &mut Node, version: u8, hashes: &[B256]) -> Result<Value, RpcError> {
    node.engine.call(&format!("engine_getBlobsV{version}"), json!([hashes])).await
}

/// Returns the blob as `BlobAndProofV1`.
fn v1(blob: &TestBlob) -> Value {
    json!({"blob": blob.blob, "proof": Bytes::copy_from_slice(&blob.proof)})
}

/// Returns the blob as `BlobAndProofV2`.
fn v2(blob: &TestBlob) -> Value {
    let proofs: Vec<_> =
        blob.cell_proofs.iter().map(|proof| Bytes::copy_from_slice(proof)).collect();
    json!({"blob": blob.blob, "proofs": proofs})
}

fn blobs<const N: usize>(values: [u8; N]) -> [&'static TestBlob; N] {
    values.map(TestBlob::constant)
}

const MISSING: B256 = B256::repeat_byte(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_osaka_blobs_come_with_a_proof_each() {
    let (_, mut node) = start(Fork::Prague).await;
    let blobs = [TestBlob::constant(1), TestBlob::varied()];
    let transaction = blob_transaction(0, &blobs, |_| {});
    let sent = transaction.with_blobs(&blobs).encode();
    assert_eq!(send(&mut node, &sent).await.unwrap(), transaction.hash());
    assert_eq!(node.blob_status().await.verified, 2);

    // Sent again, the transaction is known, and nothing is verified.
    let error = send(&mut node, &sent).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (-32000, "already known"));
    // On the consensus client's port as well.
    let again = node.engine.call("eth_sendRawTransaction", json!([sent])).await;
    assert_eq!(again.unwrap_err(), error);
    let status = node.blob_status().await;
    assert_eq!((status.verified, status.hits), (2, 0));

    let other = transaction.with_cells(&blobs).encode();
    assert_eq!(reason(send(&mut node, &other).await), "sidecar_version");
    assert_eq!(node.blob_status().await.verified, 2);

    let [a, b] = blobs.map(|blob| blob.versioned_hash);
    let answer = get_blobs(&mut node, 1, &[b, MISSING, a, b]).await.unwrap();
    assert_eq!(answer, json!([v1(blobs[1]), null, v1(blobs[0]), v1(blobs[1])]));
    assert_eq!(get_blobs(&mut node, 1, &[MISSING]).await.unwrap(), json!([null]));
    assert_eq!(get_blobs(&mut node, 1, &[]).await.unwrap(), json!([]));
    // No blob has cell proofs yet: unable to serve.
    for version in [2, 3] {
        assert_eq!(get_blobs(&mut node, version, &[a]).await.unwrap(), Value::Null);
    }
    let one = json!([[a], format!("0x{}", "01".repeat(16))]);
    assert_eq!(node.engine.call("engine_getBlobsV4", one).await.unwrap(), Value::Null);
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_osaka_on_blobs_come_with_proofs_of_cells() {
    let (_, mut node) = start(Fork::Osaka).await;
    let blobs = [TestBlob::constant(1), TestBlob::varied()];
    let transaction = blob_transaction(0, &blobs, |_| {});
    let sent = transaction.with_cells(&blobs).encode();
    assert_eq!(send(&mut node, &sent).await.unwrap(), transaction.hash());
    assert_eq!(send(&mut node, &sent).await.unwrap_err().message, "already known");
    let other = transaction.with_blobs(&blobs).encode();
    assert_eq!(reason(send(&mut node, &other).await), "sidecar_version");
    assert_eq!(node.blob_status().await.verified, 2);
    // Another transaction with the same blobs: their verdicts are known.
    let same = blob_transaction(1, &blobs, |_| {});
    assert_eq!(send(&mut node, &same.with_cells(&blobs).encode()).await.unwrap(), same.hash());
    let status = node.blob_status().await;
    assert_eq!((status.verified, status.hits, status.stored_blobs), (2, 2, 2));

    let [a, b] = blobs.map(|blob| blob.versioned_hash);
    let error = get_blobs(&mut node, 1, &[a]).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (-38005, "Unsupported fork"));
    for version in [2, 3] {
        let answer = get_blobs(&mut node, version, &[b, a, b]).await.unwrap();
        assert_eq!(answer, json!([v2(blobs[1]), v2(blobs[0]), v2(blobs[1])]), "V{version}");
        assert_eq!(get_blobs(&mut node, version, &[]).await.unwrap(), json!([]));
    }
    // One blob is missing: V2's whole answer is null, V3's only in that place.
    assert_eq!(get_blobs(&mut node, 2, &[a, MISSING]).await.unwrap(), Value::Null);
    let answer = get_blobs(&mut node, 3, &[a, MISSING, b]).await.unwrap();
    assert_eq!(answer, json!([v2(blobs[0]), null, v2(blobs[1])]));
    assert_eq!(get_blobs(&mut node, 2, &[MISSING]).await.unwrap(), Value::Null);
    assert_eq!(get_blobs(&mut node, 3, &[MISSING; 2]).await.unwrap(), json!([null, null]));

    // V4 has single cells of each blob: here the first two, of the blob itself, and the last one.
    let cells = tandem_kzg::Setup::load().cells(&blobs[1].blob).unwrap();
    let indices = format!("0x03{}80", "00".repeat(14));
    let answer = node.engine.call("engine_getBlobsV4", json!([[b, MISSING], indices])).await;
    let proofs = &blobs[1].cell_proofs;
    let want_cells = [0, 1, 127].map(|cell| Bytes::copy_from_slice(&cells[cell]));
    let want_proofs = [0, 1, 127].map(|cell| Bytes::copy_from_slice(&proofs[cell]));
    let want = json!({"blob_cells": want_cells, "proofs": want_proofs});
    assert_eq!(answer.unwrap(), json!([want, null]));
    for (wrong, code) in [
        (json!([[a]]), -32602),
        (json!([[a], "0x"]), -32602),
        (json!([[a], null]), -32602),
        (json!([vec![a; 129], indices]), -38004),
    ] {
        let error = node.engine.call("engine_getBlobsV4", wrong.clone()).await.unwrap_err();
        assert_eq!(error.code, code, "{wrong}");
    }

    // 128 are served, 36 MB of JSON; more are not.
    let answer = get_blobs(&mut node, 2, &[a; 128]).await.unwrap();
    assert_eq!(answer.as_array().unwrap().len(), 128);
    assert!(answer.as_array().unwrap().iter().all(|item| *item == v2(blobs[0])));
    for version in [2, 3] {
        let error = get_blobs(&mut node, version, &[a; 129]).await.unwrap_err();
        let found = (error.code, error.message.as_str(), error.data);
        assert_eq!(found, (-38004, "Too large request", None));
        let method = format!("engine_getBlobsV{version}");
        for wrong in [json!([]), json!([null]), json!([[null]]), json!([["0x12"]]), json!([a])] {
            let error = node.engine.call(&method, wrong.clone()).await.unwrap_err();
            assert_eq!(error.code, -32602, "{wrong}");
        }
    }
    // In a batch as well.
    let calls = [("engine_getBlobsV3", json!([[a, MISSING]])), ("eth_chainId", json!([]))];
    let answers = node.engine.batch(&calls).await;
    assert_eq!(answers[0], json!([v2(blobs[0]), null]));
    node.stop_and_verify().await;
}

/// Each fault alone, in a transaction that is otherwise valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_blobs_is_said() {
    let (_, mut node) = start(Fork::Osaka).await;
    let two = blobs([1, 2]);
    let good = blob_transaction(0, &two, |_| {}).with_cells(&two);
    let mut cases = Vec::new();
    let mut case = |want: &'static str, spoil: &dyn Fn(&mut tandem_cluster_tests::Network)| {
        let mut network = good.clone();
        spoil(&mut network);
        cases.push((want, network.encode()));
    };
    case("sidecar_version", &|form| form.version = Some(vec![2]));
    case("sidecar_version", &|form| form.version = Some(vec![]));
    case("malformed", &|form| form.raw = Bytes::from_static(&[3, 0xc1, 0x80]));
    case("sidecar_item_length", &|form| form.blobs[1].truncate(131_071));
    case("sidecar_item_length", &|form| form.blobs[0].push(0));
    case("sidecar_item_length", &|form| form.commitments[0].push(0));
    case("sidecar_item_length", &|form| form.proofs[255].clear());
    case("sidecar_count", &|form| drop(form.proofs.pop()));
    case("sidecar_count", &|form| drop(form.commitments.pop()));
    case("sidecar_count", &|form| drop(form.blobs.pop()));
    case("no_blobs", &|form| form.blobs.clear());
    case("versioned_hash", &|form| form.commitments.swap(0, 1));
    case("blob_not_canonical", &|form| form.blobs[1][..32].fill(0xff));
    // Points that belong to another value, and invalid points.
    case("proof_invalid", &|form| form.proofs[128] = form.commitments[1].clone());
    case("proof_point", &|form| form.proofs[200][0] = 0);
    // The attack on caches that leave out the blob: another blob under a known triple.
    case("proof_invalid", &|form| form.blobs[0] = TestBlob::constant(3).blob.to_vec());
    // An invalid point, under its correct hash.
    let bent = TestBlob { commitment: [0x11; 48], ..two[0].clone() };
    let hash = tandem_kzg::versioned_hash(&bent.commitment);
    let named = blob_transaction(0, &[&bent], |transaction| {
        transaction.blob_versioned_hashes = vec![hash];
    });
    cases.push(("commitment_point", named.with_cells(&[&bent]).encode()));
    for (number, (want, raw)) in cases.iter().enumerate() {
        assert_eq!(&reason(send(&mut node, raw).await), want, "case {number}");
    }
    let refused = node.blob_status().await;
    assert_eq!(refused.stored_blobs, 0, "what is refused is not kept");
    // The refused transactions do not block the correct one.
    send(&mut node, &good.encode()).await.unwrap();
    // Nor does a known transaction with other blobs cost a verification.
    let verified = node.blob_status().await.verified;
    let again = reason(send(&mut node, &cases[15].1).await);
    assert_eq!((again.as_str(), node.blob_status().await.verified), ("already_known", verified));
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_transaction_is_said_before_its_blobs_are_looked_at() {
    let (_, mut node) = start(Fork::Osaka).await;
    let one = blobs([1]);
    let many = blobs([1, 2, 3, 4, 5, 6, 7]);
    let ether = U256::from(10_u64.pow(18));
    let cases: [(&str, BlobTransaction); 17] = [
        ("chain_id", blob_transaction(0, &one, |tx| tx.chain_id += 1)),
        ("transaction_gas_limit", blob_transaction(0, &one, |tx| tx.gas_limit = (1 << 24) + 1)),
        ("block_gas_left", blob_transaction(0, &one, |tx| tx.gas_limit = 9_000_000)),
        ("intrinsic_gas", blob_transaction(0, &one, |tx| tx.gas_limit = 20_999)),
        // 4 per token for the calldata itself, 10 by EIP-7623.
        (
            "floor_gas",
            blob_transaction(0, &one, |tx| {
                tx.input = vec![1; 1_000].into();
                tx.gas_limit = 21_000 + 16_000;
            }),
        ),
        ("oversized", blob_transaction(0, &one, |tx| tx.input = vec![0; 128 << 10].into())),
        ("no_blobs", blob_transaction(0, &[], |_| {})),
        ("transaction_blobs", blob_transaction(0, &many, |_| {})),
        ("blob_version", blob_transaction(0, &one, |tx| tx.blob_versioned_hashes[0][0] = 2)),
        ("tip_above_fee_cap", blob_transaction(0, &one, |tx| tx.max_fee_per_gas = 1)),
        ("blob_fee_cap_too_low", blob_transaction(0, &one, |tx| tx.max_fee_per_blob_gas = 0)),
        ("nonce_too_high", blob_transaction(0, &one, |tx| tx.nonce = 16)),
        ("nonce_max", blob_transaction(0, &one, |tx| tx.nonce = u64::MAX)),
        ("insufficient_funds", blob_transaction(0, &one, |tx| tx.value = ether * U256::from(1000))),
        ("insufficient_funds", blob_transaction(0, &one, |tx| tx.value = U256::MAX)),
        ("signature", {
            // The valid signature, changed to a high `s` (EIP-2).
            let transaction = blob_transaction(0, &one, |_| {});
            let signature = transaction.signature();
            let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
            let high = alloy_primitives::Signature::new(
                signature.r(),
                order - signature.s(),
                !signature.v(),
            );
            transaction.signed_by(high)
        }),
        ("signature", {
            let zero = alloy_primitives::Signature::new(U256::ZERO, U256::from(1), false);
            blob_transaction(0, &one, |_| {}).signed_by(zero)
        }),
    ];
    for (want, transaction) in &cases {
        let raw = transaction.with_cells(&one).encode();
        assert_eq!(&reason(send(&mut node, &raw).await), want);
    }
    let transaction = blob_transaction(0, &one, |_| {});
    for (want, raw) in [
        ("no_sidecar", transaction.raw()),
        ("malformed", Bytes::new()),
        ("malformed", Bytes::from_static(&[3])),
        ("malformed", Bytes::from_static(&[5, 0xc0])),
        ("malformed", [&transaction.with_cells(&one).encode()[..], &[0]].concat().into()),
    ] {
        assert_eq!(reason(send(&mut node, &raw).await), want, "{raw:.40}");
    }
    for wrong in [json!([]), json!([null]), json!(["0x3"]), json!(["03"]), json!([3])] {
        let error = node.http.call("eth_sendRawTransaction", wrong.clone()).await.unwrap_err();
        assert_eq!(error.code, -32602, "{wrong}");
    }
    let status = node.blob_status().await;
    assert_eq!((status.verified, status.hits, status.stored_blobs), (0, 0, 0));
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_sender_and_nonce_there_is_one_and_a_better_one_replaces_it() {
    let (_, mut node) = start(Fork::Osaka).await;
    let (old, new) = (blobs([1]), blobs([2]));
    let first = blob_transaction(0, &old, |_| {});
    send(&mut node, &first.with_cells(&old).encode()).await.unwrap();
    let cheap = blob_transaction(0, &new, |tx| tx.max_fee_per_gas *= 2);
    let raw = cheap.with_cells(&new).encode();
    assert_eq!(reason(send(&mut node, &raw).await), "replacement_underpriced");
    let better = blob_transaction(0, &new, |tx| {
        tx.max_fee_per_gas *= 2;
        tx.max_priority_fee_per_gas *= 2;
        tx.max_fee_per_blob_gas *= 2;
    });
    send(&mut node, &better.with_cells(&new).encode()).await.unwrap();
    // The blob of the replaced transaction is gone with it.
    let hashes = [old[0].versioned_hash, new[0].versioned_hash];
    let answer = get_blobs(&mut node, 3, &hashes).await.unwrap();
    assert_eq!(answer, json!([null, v2(new[0])]));
    assert_eq!(node.blob_status().await.stored_blobs, 1);
    node.stop_and_verify().await;
}

async fn stored(node: &Node) -> u64 {
    node.blob_status().await.stored_blobs
}

async fn head(node: &mut Node, head: &Built, finalized: B256) {
    let status = node.forkchoice(head.hash, finalized, finalized).await.unwrap();
    assert_eq!(status.status, "VALID");
}

/// Blobs stay only as long as a reorg may bring their transaction back. A block's blobs are not
/// verified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_in_a_block_leave_when_it_is_final() {
    let (mut builder, mut node) = start(Fork::Osaka).await;
    let (mine, other) = (blobs([1, 2]), blobs([3]));
    let included = blob_transaction(0, &mine, |_| {});
    let waiting = blob_transaction(1, &other, |_| {});
    let unsent = blob_transaction(2, &blobs([4]), |_| {});
    send(&mut node, &included.with_cells(&mine).encode()).await.unwrap();
    send(&mut node, &waiting.with_cells(&other).encode()).await.unwrap();
    let verified = node.blob_status().await.verified;
    assert_eq!(verified, 3);
    let hashes = mine.map(|blob| blob.versioned_hash);

    // Two branches: one with the transaction, one with another of the same sender.
    let genesis = builder.genesis();
    let with = builder.build_of(genesis, 1, &[&included, &unsent]);
    let without = builder.build_of(genesis, 2, &[&unsent]);
    let above = builder.build_of(without.hash, 3, &[]);
    for built in [&with, &without, &above] {
        node.import(built).await;
    }
    head(&mut node, &with, B256::ZERO).await;
    assert_eq!(stored(&node).await, 3, "included, not final");
    let late = reason(
        send(
            &mut node,
            &blob_transaction(0, &mine, |tx| tx.value = U256::from(1)).with_cells(&mine).encode(),
        )
        .await,
    );
    assert_eq!(late, "nonce_too_low");
    // The branch without the transaction becomes final: its blobs can be had as before.
    head(&mut node, &above, without.hash).await;
    assert_eq!(stored(&node).await, 3);
    let answer = get_blobs(&mut node, 2, &hashes).await.unwrap();
    assert_eq!(answer, json!(mine.map(v2)));
    assert_eq!(
        send(&mut node, &included.with_cells(&mine).encode()).await.unwrap_err().message,
        "already known"
    );
    // Included again, and this block stays.
    let again = builder.build_of(above.hash, 4, &[&included]);
    let last = builder.build_of(again.hash, 5, &[]);
    node.import(&again).await;
    head(&mut node, &again, without.hash).await;
    assert_eq!(stored(&node).await, 3);
    node.import(&last).await;
    head(&mut node, &last, again.hash).await;
    // The pool hears of the head by an event.
    let begin = std::time::Instant::now();
    while stored(&node).await != 1 {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "one waits, two are final");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(get_blobs(&mut node, 3, &hashes).await.unwrap(), json!([null, null]));
    let status = node.blob_status().await;
    assert_eq!(
        (status.verified, status.hits, status.shared, status.batches > 0),
        (verified, 0, 0, true),
        "newPayload checks versioned hashes alone"
    );
    node.stop_and_verify().await;
}
