//! Storage-writer that must not be called.

use tandem_primitives::WalkTarget;
use tandem_proto::storage::*;

/// Storage without data. The benches read only from memory, so every call fails.
pub struct Nothing;

fn asked<T>() -> Result<T> {
    Err(Error::Unavailable("a bench went to the database".into()))
}

impl BaseReads for Nothing {
    fn checkpoint(&self) -> Result<Checkpoint> {
        asked()
    }

    fn read_state(&self, _: &ReadState) -> Result<StateValues> {
        asked()
    }

    fn walk_trie(&self, _: &[WalkTarget]) -> Result<TrieNodes> {
        asked()
    }
}
