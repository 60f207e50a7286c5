use alloy_consensus::{Transaction as _, Typed2718};
use tandem_admission::{Fees, Submitted, authorities, cost};
use tandem_chain::{BLOB_BYTES, Wrapper};
use tandem_primitives::{Address, B256, Bytes, U256};

/// Bytes of a transaction that count as one slot.
const SLOT_BYTES: usize = 32 << 10;

/// Bytes that the pool needs, at most, for an account whose code a transaction sets: its place in
/// the transaction's list, and in the count over all transactions.
const AUTHORITY_BYTES: usize = 96;

/// Approximate bytes of a transaction with blobs besides its content.
const ENTRY_BYTES: usize = 512;

/// Valid transaction, as the pool holds it. Its blobs are in blob-validator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pooled {
    /// Hash.
    pub hash: B256,
    /// Sender.
    pub sender: Address,
    /// Nonce.
    pub nonce: u64,
    /// Type (EIP-2718).
    pub kind: u8,
    /// Gas limit.
    pub gas: u64,
    /// Maximum fees.
    pub fees: Fees,
    /// Maximum cost for the sender in wei, value included.
    pub cost: U256,
    /// EIP-2718 bytes, as blocks hold them.
    pub raw: Bytes,
    /// Bytes of the network form, with blobs.
    pub network_bytes: usize,
    /// Blobs by reference, for blob transactions.
    pub sidecar: Option<SidecarRef>,
    /// Accounts whose code it sets (EIP-7702).
    pub authorities: Vec<Address>,
}

/// Sidecar whose content blob-validator holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidecarRef {
    /// Form in which it came.
    pub wrapper: Wrapper,
    /// Hashes of the blobs.
    pub versioned_hashes: Vec<B256>,
    /// Bytes of blobs, commitments and proofs.
    pub bytes: usize,
}

impl Pooled {
    /// Returns what the pool keeps of a transaction with this sender. Recovers the signatures of its
    /// authorizations.
    pub fn new(submitted: &Submitted, sender: Address) -> Self {
        let transaction = &submitted.transaction;
        let sidecar = submitted.sidecar.as_ref().map(|sidecar| SidecarRef {
            wrapper: sidecar.wrapper,
            versioned_hashes: transaction.blob_versioned_hashes().unwrap_or_default().to_vec(),
            bytes: sidecar.blobs.len() * BLOB_BYTES
                + (sidecar.commitments.len() + sidecar.proofs.len()) * 48,
        });
        Self {
            hash: submitted.hash(),
            sender,
            nonce: transaction.nonce(),
            kind: transaction.ty(),
            gas: transaction.gas_limit(),
            fees: Fees::of(transaction),
            cost: cost(transaction),
            // A copy, because the message that it came in may be large.
            raw: Bytes::copy_from_slice(&submitted.raw),
            network_bytes: submitted.network_bytes,
            sidecar,
            authorities: authorities(transaction),
        }
    }

    /// Returns its share of the pool's room: bytes with blobs, slots without.
    pub fn units(&self) -> usize {
        match &self.sidecar {
            Some(sidecar) => {
                let hashes = sidecar.versioned_hashes.len() * size_of::<B256>();
                ENTRY_BYTES + self.raw.len() + hashes + sidecar.bytes
            }
            None => {
                let authorities = self.authorities.len() * AUTHORITY_BYTES;
                (self.raw.len() + authorities).div_ceil(SLOT_BYTES).max(1)
            }
        }
    }
}
