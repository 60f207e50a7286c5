//! Leader between a real one and a follower, whose messages a test changes.

use std::{sync::Arc, time::Duration};
use tandem_primitives::{B256, BlockId, Bytes, StateDiff, WalkTarget};
use tandem_proto::{
    feed::{FeedBlock, FeedMessage, FeedSource, FeedStream, FollowRequest},
    snap::{StateItems, StateRequest},
    storage::{
        BaseReads, BlockReads, BlockRecord, BlockRef, Checkpoint, KeptBlock, ReadState, Result,
        StateRanges, StateValues, TransactionPlace, TrieNodes,
    },
};
use tandem_storage_writer_client::Client;

/// Changes the messages of a feed in place of a block: returns what is sent instead.
pub type Lie = fn(FeedBlock) -> Vec<FeedBlock>;

/// Answers a question about the state in place of the leader.
pub type Answers = Box<dyn Fn(&Client, &StateRequest) -> Result<StateItems> + Send + Sync>;

/// Leader whose messages a test changes.
pub struct Tampered {
    client: Arc<Client>,
    /// Height of the changed block, and its change.
    lie: Option<(u64, Lie)>,
    answers: Option<Answers>,
}

impl Tampered {
    /// Returns a leader that lies at a block.
    pub fn feed(client: Arc<Client>, at: u64, lie: Lie) -> Self {
        Self { client, lie: Some((at, lie)), answers: None }
    }

    /// Returns a leader that answers questions about the state in another way.
    pub fn state(client: Arc<Client>, answers: Answers) -> Self {
        Self { client, lie: None, answers: Some(answers) }
    }
}

impl FeedSource for Tampered {
    fn follow(&self, request: FollowRequest) -> Result<Box<dyn FeedStream>> {
        let feed = self.client.follow(request)?;
        match self.lie {
            Some((at, lie)) => Ok(Box::new(LyingFeed { feed, at, lie, waiting: Vec::new() })),
            None => Ok(feed),
        }
    }
}

struct LyingFeed {
    feed: Box<dyn FeedStream>,
    at: u64,
    lie: Lie,
    waiting: Vec<FeedBlock>,
}

impl FeedStream for LyingFeed {
    fn next(&mut self, wait: Duration) -> Result<Option<FeedMessage>> {
        if !self.waiting.is_empty() {
            return Ok(Some(FeedMessage::Block(Box::new(self.waiting.remove(0)))));
        }
        match self.feed.next(wait)? {
            Some(FeedMessage::Block(block)) if block.id.number == self.at => {
                self.waiting = (self.lie)(*block);
                self.next(wait)
            }
            message => Ok(message),
        }
    }
}

impl BaseReads for Tampered {
    fn checkpoint(&self) -> Result<Checkpoint> {
        self.client.checkpoint()
    }
    fn read_state(&self, request: &ReadState) -> Result<StateValues> {
        self.client.read_state(request)
    }
    fn walk_trie(&self, targets: &[WalkTarget]) -> Result<TrieNodes> {
        self.client.walk_trie(targets)
    }
}

impl BlockReads for Tampered {
    fn block(&self, block: BlockRef) -> Result<Option<BlockRecord>> {
        self.client.block(block)
    }
    fn header(&self, block: BlockRef) -> Result<Option<(BlockId, Bytes)>> {
        self.client.header(block)
    }
    fn transaction(&self, hash: B256) -> Result<Option<TransactionPlace>> {
        self.client.transaction(hash)
    }
    fn access_list(&self, block: BlockRef) -> Result<Option<Bytes>> {
        self.client.access_list(block)
    }
    fn state_diffs(&self, blocks: &[B256]) -> Result<Vec<Option<Arc<StateDiff>>>> {
        self.client.state_diffs(blocks)
    }
    fn kept(&self, block: B256) -> Result<Option<KeptBlock>> {
        self.client.kept(block)
    }
}

impl StateRanges for Tampered {
    fn state_items(&self, request: &StateRequest) -> Result<StateItems> {
        match &self.answers {
            Some(answers) => answers(&self.client, request),
            None => self.client.state_items(request),
        }
    }
}
