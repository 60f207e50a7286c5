//! Blocks that other machines cannot make faster: chains of them, which Tandem itself builds.

use crate::{
    Setting,
    corpus::Corpus,
    driven::{Driven, Genesis, with_limit},
    node::Node,
    sides::WARMUP,
};
use alloy_primitives::{Bytes, U256};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::{thread::sleep, time::Duration};
use tandem_chain::Fork;
use tandem_cluster_tests::{
    GENESIS_TIME,
    contracts::{BURNER, FACTORY, TOKEN, mortal_initcode, words},
    driver::attributes,
    signed_call,
};

/// Gas limit of the blocks.
const GAS_LIMIT: u64 = 400_000_000;
/// Largest gas limit of a transaction (EIP-7825).
const TRANSACTION_GAS_MAX: u64 = 1 << 24;
/// Blocks of a chain beyond the first ones, which do not count.
const BLOCKS: u64 = 20;
/// Senders of the transactions.
const SENDERS: u64 = 40;
/// Transactions of one request.
const BATCH: usize = 100;
/// Time for a build.
const BUILD_TIME: Duration = Duration::from_millis(600);

/// Kind of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Transfers of a token to one holder: each reads and writes the slot that the one before wrote.
    HotSlot,
    /// One transaction with as much gas as a transaction may have.
    Single,
    /// Creations of contracts.
    Creations,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::HotSlot, Self::Single, Self::Creations];

    /// Returns what the figures call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HotSlot => "1,200 writers of one slot",
            Self::Single => "one transaction of 16.8 Mgas",
            Self::Creations => "1,000 creations",
        }
    }

    /// Returns the number of transactions of a block.
    fn count(self) -> u64 {
        match self {
            Self::HotSlot => 1_200,
            Self::Single => 1,
            Self::Creations => 1_000,
        }
    }

    /// Returns the transaction of this number in the chain.
    fn write(self, number: u64) -> Bytes {
        let (key, nonce) = ((number % SENDERS) as usize, number / SENDERS);
        let (to, input, gas) = match self {
            Self::HotSlot => (TOKEN, words([U256::from(0x70), U256::ONE]), 200_000),
            Self::Single => (BURNER, Bytes::new(), TRANSACTION_GAS_MAX),
            Self::Creations => {
                let salt = words([U256::from(number + 1)]);
                let input = [salt, mortal_initcode(0)].concat();
                (FACTORY, input.into(), 1_000_000)
            }
        };
        signed_call(key, nonce, 1_000_000_000, to, input, gas).0
    }
}

/// Builds a chain of such blocks. The genesis must live as long as the corpus is used.
///
/// # Errors
/// If the node does not build them.
pub fn chain(setting: &Setting, kind: Kind, genesis: &Genesis) -> anyhow::Result<Corpus> {
    let fork = Fork::Amsterdam;
    let config = format!("[executor]\ngas_limit_target = {GAS_LIMIT}\n");
    let node = Node::start(&setting.tandem, &genesis.file, &config)?;
    let mut client = Driven::new(node.engine()?, fork);
    let mut head = client.genesis()?;
    let mut built = Vec::new();
    for number in 1..=BLOCKS + WARMUP as u64 {
        let range = (number - 1) * kind.count()..number * kind.count();
        let all: Vec<_> = range.map(|number| kind.write(number)).collect();
        for batch in all.chunks(BATCH) {
            client.add_all(batch).context("send transactions")?;
        }
        let asked = attributes(fork, GENESIS_TIME + 12 * number, number as u8);
        let asked = with_limit(asked, &format!("{GAS_LIMIT:#x}"));
        let id = client.choose(head, &asked)?.context("no payload id")?;
        sleep(BUILD_TIME);
        let block = client.take(&id)?;
        let count = block.payload.transactions.len() as u64;
        ensure!(
            count == kind.count(),
            "block {number} has {count} of {} transactions",
            kind.count()
        );
        ensure!(client.send(&block)?, "Tandem refuses its own block {number}");
        head = block.payload.block_hash;
        client.choose(head, &Value::Null)?;
        built.push(block);
    }
    let payloads = built.iter().map(|block| (&block.payload, &block.sidecar));
    Ok(Corpus::of(kind.name(), genesis.file.clone(), fork, payloads))
}

/// Returns the genesis of the chains.
///
/// # Errors
/// If it cannot be written.
pub fn genesis() -> anyhow::Result<Genesis> {
    Genesis::new(Fork::Amsterdam, &format!("{GAS_LIMIT:#x}"))
}
