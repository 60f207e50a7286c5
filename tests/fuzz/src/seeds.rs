//! Valid blocks as seeds, made by the tests' own block builder.

use std::sync::LazyLock;
use tandem_chain::Fork;
use tandem_cluster_tests::{Builder, Built, Contents, Forks};

/// A chain of a few small blocks.
pub struct Chain {
    /// Genesis file in geth's format.
    pub genesis: String,
    /// First blocks; the first one holds every kind of transaction.
    pub blocks: Vec<Built>,
}

/// Returns a chain on which this fork is active from genesis on.
fn chain(fork: Fork) -> Chain {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let first = builder.build(builder.genesis(), 7, Contents::Everything);
    let mut blocks = vec![first];
    for (seed, len) in [(8, 2), (9, 1), (10, 0)] {
        let parent = blocks.last().map_or(builder.genesis(), |block| block.hash);
        blocks.push(builder.build(parent, seed, Contents::Random(len)));
    }
    Chain { genesis: builder.genesis_json().to_owned(), blocks }
}

/// Chain of the targets that need a node.
pub static OSAKA: LazyLock<Chain> = LazyLock::new(|| chain(Fork::Osaka));

/// One chain for each fork.
pub static FORKS: LazyLock<Vec<Chain>> =
    LazyLock::new(|| tandem_cluster_tests::FORKS.into_iter().map(chain).collect());

/// Returns the transactions of the first block, as EIP-2718 bytes.
pub fn transactions() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        OSAKA.blocks[0].payload.transactions.iter().map(|raw| raw.to_vec()).collect();
    all.sort_by_key(|raw| (raw.first().copied(), raw.len()));
    all.dedup();
    all.retain(|raw| raw.len() < 2048);
    all
}
