//! Random transactions for pools: of every type and effect, before it is known which block they get
//! into.

use crate::{
    blobs::{TestBlob, blob_transaction},
    builder::Builder,
    transactions::{Action, Author, signers},
    world::World,
};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, Bytes};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::ops::Range;
use tandem_chain::Fork;

/// First of the keys that send blobs. A pool holds no other transactions of a sender with blobs.
const BLOB_KEYS: usize = 34;

/// Part of the transactions that carry blobs.
const BLOB_PART: f64 = 0.06;

/// Tips of all transactions, in wei: from a thousandth of a gwei on, as go-ethereum's builder takes
/// none below.
const TIPS: Range<u128> = 1_000_000..3_000_000_000;

/// Source of random transactions. It knows the senders' next nonces, and of the state only the
/// genesis.
pub struct Mixed {
    rng: StdRng,
    world: World,
    actions: Vec<Action>,
    /// Part of the transactions that carry blobs.
    blob_part: f64,
}

impl Mixed {
    /// Creates a source of transactions on the chain of this builder.
    pub fn new(seed: u64, builder: &Builder, fork: Fork) -> Self {
        let world = builder.get(builder.genesis()).world.as_ref().clone();
        let mut actions = Action::of(fork.min(Fork::Osaka));
        actions.retain(|action| *action != Action::Blob);
        Self { rng: StdRng::seed_from_u64(seed), world, actions, blob_part: BLOB_PART }
    }

    /// Returns the source without transactions that carry blobs.
    #[must_use]
    pub fn without_blobs(self) -> Self {
        Self { blob_part: 0.0, ..self }
    }

    /// Returns the senders.
    pub fn senders() -> impl Iterator<Item = Address> {
        signers().iter().map(|signer| signer.address)
    }

    /// Sets a sender's next nonce.
    pub fn set_nonce(&mut self, sender: Address, nonce: u64) {
        self.world.0.entry(sender).or_default().nonce = nonce;
    }

    /// Returns a transaction that pays this base fee, in its network form, and its sender. The
    /// sender's next nonce stays until [`Mixed::set_nonce`].
    pub fn write(&mut self, number: u64, base_fee: u64) -> (Bytes, Address) {
        if self.rng.random_bool(self.blob_part) {
            return self.write_blobs();
        }
        loop {
            let action = *self.actions.choose(&mut self.rng).expect("there are actions");
            let (blobs, blob_price, gas) = (None, 0, u64::MAX);
            let (rng, tips) = (&mut self.rng, Some(TIPS));
            let mut author = Author { rng, number, base_fee, blobs, blob_price, gas, tips };
            let Some((transaction, sender)) = author.write(action, &self.world) else { continue };
            if signers()[..BLOB_KEYS].iter().any(|signer| signer.address == sender) {
                return (transaction.encoded_2718().into(), sender);
            }
        }
    }

    fn write_blobs(&mut self) -> (Bytes, Address) {
        let key = self.rng.random_range(BLOB_KEYS..signers().len());
        let sender = signers()[key].address;
        let count = self.rng.random_range(1..=4);
        let blobs: Vec<_> =
            (0..count).map(|_| TestBlob::constant(self.rng.random_range(1..60))).collect();
        let nonce = self.world.get(sender).nonce;
        let tip = self.rng.random_range(TIPS);
        let edit = |tx: &mut alloy_consensus::TxEip4844| {
            (tx.nonce, tx.max_priority_fee_per_gas) = (nonce, tip);
        };
        (blob_transaction(key, &blobs, edit).with_cells(&blobs).encode(), sender)
    }
}
