//! Blob transactions with real blobs, and their network form, written independently of the code
//! that reads it.

use crate::{
    forks::CHAIN_ID,
    transactions::{Signer, signers},
};
use alloy_consensus::{SignableTransaction, Signed, TxEip4844, TxEip4844Variant, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, U256};
use alloy_rlp::Encodable;
use std::sync::OnceLock;
use tandem_kzg::{BLOB_BYTES, CELLS, Setup, versioned_hash};

/// A compressed point.
type Point = [u8; 48];

/// The point at infinity: the proof of every claim about a constant polynomial.
const INFINITY: Point = {
    let mut point = [0; 48];
    point[0] = 0xc0;
    point
};

/// A blob with its commitment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestBlob {
    /// The blob's bytes.
    pub blob: Bytes,
    /// The blob's commitment.
    pub commitment: Point,
    /// Versioned hash (EIP-4844).
    pub versioned_hash: B256,
    /// Proof of the whole blob (EIP-4844).
    pub proof: Point,
    /// Proof of each cell (EIP-7594).
    pub cell_proofs: Vec<Point>,
}

impl TestBlob {
    /// Returns the blob whose field elements all equal `value`: a constant polynomial, whose proofs
    /// cost nothing. Each blob is made once.
    pub fn constant(value: u8) -> &'static Self {
        static MADE: [OnceLock<TestBlob>; 256] = [const { OnceLock::new() }; 256];
        MADE[usize::from(value)].get_or_init(|| {
            let mut element = [0; 32];
            element[31] = value;
            let blob = element.repeat(BLOB_BYTES / 32);
            let commitment = Setup::load().commit(&blob).expect("the blob is canonical");
            Self::new(blob, commitment, INFINITY, vec![INFINITY; CELLS])
        })
    }

    /// Returns a blob without that special structure. Takes most of a second.
    pub fn varied() -> &'static Self {
        static MADE: OnceLock<TestBlob> = OnceLock::new();
        MADE.get_or_init(|| Self::seeded(7))
    }

    /// Returns a blob like [`TestBlob::varied`], another one for each seed.
    pub fn seeded(seed: u64) -> Self {
        let setup = Setup::load();
        let element = |index: u64| B256::from(U256::from(index * index * index + seed)).0;
        let blob: Vec<u8> = (0..BLOB_BYTES as u64 / 32).flat_map(element).collect();
        let commitment = setup.commit(&blob).expect("the blob is canonical");
        let proof = setup.prove_blob(&blob, &commitment).expect("the blob is canonical");
        let (_, cell_proofs) = setup.prove_cells(&blob).expect("the blob is canonical");
        Self::new(blob, commitment, proof, cell_proofs)
    }

    fn new(blob: Vec<u8>, commitment: Point, proof: Point, cell_proofs: Vec<Point>) -> Self {
        let versioned_hash = versioned_hash(&commitment);
        Self { blob: blob.into(), commitment, versioned_hash, proof, cell_proofs }
    }
}

/// A signed blob transaction.
#[derive(Clone, Debug)]
pub struct BlobTransaction {
    signed: Signed<TxEip4844>,
    sender: Address,
}

/// Creates a blob transaction of a funded account with these blobs, which pays a high fee. `edit`
/// may change the transaction before it is signed.
pub fn blob_transaction(
    sender: usize,
    blobs: &[&TestBlob],
    edit: impl FnOnce(&mut TxEip4844),
) -> BlobTransaction {
    let signer: &Signer = &signers()[sender];
    let mut transaction = TxEip4844 {
        chain_id: CHAIN_ID,
        gas_limit: 30_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        max_fee_per_blob_gas: 1_000_000_000,
        to: Address::repeat_byte(0x70),
        blob_versioned_hashes: blobs.iter().map(|blob| blob.versioned_hash).collect(),
        ..TxEip4844::default()
    };
    edit(&mut transaction);
    let signature = signer.sign(transaction.signature_hash());
    BlobTransaction { signed: transaction.into_signed(signature), sender: signer.address }
}

impl BlobTransaction {
    /// Returns the transaction's hash.
    pub fn hash(&self) -> B256 {
        *self.signed.hash()
    }

    /// Returns the address of the signer.
    pub fn sender(&self) -> Address {
        self.sender
    }

    /// Returns the transaction as a block holds it.
    pub fn envelope(&self) -> TxEnvelope {
        let signed = self.signed.clone();
        let (transaction, signature, hash) = signed.into_parts();
        let transaction: TxEip4844Variant = transaction.into();
        Signed::new_unchecked(transaction, signature, hash).into()
    }

    /// Returns the transaction's bytes in a block (EIP-2718).
    pub fn raw(&self) -> Bytes {
        self.envelope().encoded_2718().into()
    }

    /// Returns the transaction with another signature.
    #[must_use]
    pub fn signed_by(&self, signature: Signature) -> Self {
        let signed = self.signed.tx().clone().into_signed(signature);
        Self { signed, sender: self.sender }
    }

    /// Returns the transaction's signature.
    pub fn signature(&self) -> Signature {
        *self.signed.signature()
    }

    /// Returns the network form with these blobs, as EIP-4844 defines it.
    pub fn with_blobs(&self, blobs: &[&TestBlob]) -> Network {
        let proofs = blobs.iter().map(|blob| blob.proof.to_vec()).collect();
        self.network(None, blobs, proofs)
    }

    /// Returns the network form with these blobs, as EIP-7594 defines it.
    pub fn with_cells(&self, blobs: &[&TestBlob]) -> Network {
        let proofs = blobs.iter().flat_map(|blob| &blob.cell_proofs);
        self.network(Some(vec![1]), blobs, proofs.map(|proof| proof.to_vec()).collect())
    }

    fn network(
        &self,
        version: Option<Vec<u8>>,
        blobs: &[&TestBlob],
        proofs: Vec<Vec<u8>>,
    ) -> Network {
        Network {
            raw: self.raw(),
            version,
            blobs: blobs.iter().map(|blob| blob.blob.to_vec()).collect(),
            commitments: blobs.iter().map(|blob| blob.commitment.to_vec()).collect(),
            proofs,
        }
    }
}

/// Parts of a network form, for tests to corrupt.
#[derive(Clone, Debug)]
pub struct Network {
    /// The transaction as in a block.
    pub raw: Bytes,
    /// The bytes of the version, if there is one.
    pub version: Option<Vec<u8>>,
    /// The blobs.
    pub blobs: Vec<Vec<u8>>,
    /// The commitments of the blobs.
    pub commitments: Vec<Vec<u8>>,
    /// The proofs of the blobs.
    pub proofs: Vec<Vec<u8>>,
}

impl Network {
    /// Encodes the bytes that are sent.
    pub fn encode(&self) -> Bytes {
        let list = |payload: Vec<u8>| {
            let mut out = Vec::new();
            alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut out);
            out.extend(payload);
            out
        };
        let strings = |items: &[Vec<u8>]| {
            let mut payload = Vec::new();
            items.iter().for_each(|item| item.as_slice().encode(&mut payload));
            list(payload)
        };
        let mut payload = self.raw[1..].to_vec();
        self.version.iter().for_each(|version| version.as_slice().encode(&mut payload));
        for items in [&self.blobs, &self.commitments, &self.proofs] {
            payload.extend(strings(items));
        }
        let mut out = vec![0x03];
        out.extend(list(payload));
        out.into()
    }
}
