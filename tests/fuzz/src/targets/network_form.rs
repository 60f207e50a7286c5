//! Blob transactions with their blobs, against alloy's decoder.

use crate::{Target, heap, structures};
use alloy_consensus::{EthereumTxEnvelope, TxEip4844WithSidecar};
use alloy_eips::{eip2718::Decodable2718, eip7594::BlobTransactionSidecarVariant};
use alloy_primitives::Bytes;
use tandem_chain::{NetworkForm, Sidecar, Wrapper, decode_network_form};
use tandem_cluster_tests::{Network, TestBlob, blob_transaction};

/// A transaction in both forms; alloy's own name for it covers only the newer one.
type Pooled = EthereumTxEnvelope<TxEip4844WithSidecar>;

/// Target for network forms, with a blob or without: the latter are small but have the same
/// structure.
pub const TARGET: Target = Target {
    name: "network_form",
    bytes_per_byte: 4,
    structures: structures::sent,
    constant: 2 << 10,
    input_len_max: 300 << 10,
    mutations: 10_000,
    seeds,
    dictionary: &[
        b"\x03\xc0",
        b"\x01",
        b"\x80",
        b"\x81\x01",
        b"\xc0",
        b"\xc1\xc0",
        b"\xb0",
        b"\xba\x02\x00\x00",
        b"\xfa\x02\x00\x04",
        b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    run: decode,
};

fn seeds() -> Vec<Vec<u8>> {
    let blob = [TestBlob::constant(1)];
    let transaction = blob_transaction(0, &blob, |_| {});
    let mut empty = transaction.with_blobs(&[]);
    empty.commitments = vec![vec![1; 48]; 2];
    let mut cells = transaction.with_cells(&[]);
    cells.proofs = vec![vec![2; 48]; 3];
    let forms = [empty, cells.clone(), transaction.with_blobs(&blob)];
    let mut seeds: Vec<_> = forms.iter().map(|form| form.encode().to_vec()).collect();
    seeds.push(transaction.raw().to_vec());
    // Mostly small forms, which mutations are likely to change usefully.
    for version in [vec![], vec![2], vec![1, 0]] {
        cells.version = Some(version);
        seeds.push(cells.encode().to_vec());
    }
    seeds
}

fn decode(input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    let ours = heap::measured(|| decode_network_form(&input));
    let theirs = Pooled::decode_2718_exact(&input);
    let Ok(NetworkForm { transaction, raw, sidecar }) = ours else {
        let blobs = matches!(theirs, Ok(Pooled::Eip4844(_)));
        assert!(!blobs, "alloy takes it, we say {ours:?}");
        return;
    };
    let Ok(Pooled::Eip4844(theirs)) = theirs else {
        panic!("alloy says {theirs:?}: {transaction:?}");
    };
    assert_eq!(transaction.hash(), theirs.hash());
    assert_eq!(tandem_chain::decode_transaction(&raw).as_ref(), Ok(&transaction));
    let Sidecar { wrapper, blobs, commitments, proofs } = sidecar;
    match theirs.tx().sidecar() {
        BlobTransactionSidecarVariant::Eip4844(sidecar) => {
            assert_eq!(wrapper, Wrapper::BlobProofs);
            assert_eq!((blobs.len(), proofs.len()), (sidecar.blobs.len(), sidecar.proofs.len()));
        }
        BlobTransactionSidecarVariant::Eip7594(sidecar) => {
            assert_eq!(wrapper, Wrapper::CellProofs);
            assert_eq!(
                (blobs.len(), proofs.len()),
                (sidecar.blobs.len(), sidecar.cell_proofs.len())
            );
        }
    }
    let again = Network {
        raw,
        version: (wrapper == Wrapper::CellProofs).then(|| vec![1]),
        blobs: blobs.iter().map(|blob| blob.to_vec()).collect(),
        commitments: commitments.iter().map(|point| point.to_vec()).collect(),
        proofs: proofs.iter().map(|point| point.to_vec()).collect(),
    };
    assert_eq!(again.encode(), input, "one form, two encodings");
}
