//! Copy of the feed in a stream of NATS. The messages are those of the feed between processes
//! (`FollowResponse`), so a reader checks them in the same way. Each has a [`FeedNote`] beside it.

use crate::{
    feed::FeedStatus,
    wire::storage_writer::v1::{self, follow_response::Item},
};
use bytes::Bytes;
use prost::Message;
use std::{fmt, str::FromStr};
use tandem_primitives::{B256, BlockId};

/// Name of the stream. There is one chain to a NATS account, as for the events.
pub const FEED_STREAM: &str = "tandem_feed";

/// Subject on which the publisher says every second where the leader stands, also while there is
/// nothing to store. It is not part of the stream. The payload is that of [`encode_status`].
pub const FEED_ALIVE: &str = "feed.alive";

/// Subjects of all streams of blocks.
pub const FEED_BLOCKS: &str = "feed.blocks.*";

/// Name with which a follower takes the stream as one of its leaders.
pub const JETSTREAM: &str = "jetstream";

/// Returns the subject of the blocks of the chain with this genesis block.
pub fn feed_subject(genesis: B256) -> String {
    format!("{}{genesis:x}", FEED_BLOCKS.trim_end_matches('*'))
}

/// Note about a message in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedNote {
    /// Number of the publisher's turn, with the term of its leader in the upper half. Each turn begins
    /// with a position of the leader; an unfinished block of the turn before is void then.
    pub turn: u64,
    /// Block at which a reader stands after the message, if it has everything before.
    pub at: BlockId,
}

impl fmt::Display for FeedNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:x}", self.turn, self.at.number, self.at.hash)
    }
}

/// Text that is not a [`FeedNote`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid note `{0}` in the stream; expected a turn, a block number and a block hash")]
pub struct BadNote(String);

impl FromStr for FeedNote {
    type Err = BadNote;

    fn from_str(text: &str) -> Result<Self, BadNote> {
        let parse = || {
            let mut parts = text.split(' ');
            let turn = parts.next()?.parse().ok()?;
            let number = parts.next()?.parse().ok()?;
            let hash = parts.next()?.parse().ok()?;
            let note = Self { turn, at: BlockId::new(number, hash) };
            parts.next().is_none().then_some(note)
        };
        parse().ok_or_else(|| BadNote(text.chars().take(100).collect()))
    }
}

/// Encodes the position of a leader as a message of the feed.
pub fn encode_status(status: FeedStatus) -> Bytes {
    encode(Item::Status(status.into()))
}

/// Encodes the block at which the feed resumes as a message of the feed.
pub fn encode_resume(block: BlockId) -> Bytes {
    encode(Item::Resume(block.into()))
}

fn encode(item: Item) -> Bytes {
    v1::FollowResponse { item: Some(item) }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        convert::FeedDecoder,
        feed::FeedMessage,
        storage::{Forkchoice, Term},
    };

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = FeedNote { turn: 7, at: BlockId::new(12, B256::repeat_byte(0xab)) };
        assert_eq!(note.to_string().parse(), Ok(note));
        for wrong in ["", "1", "1 2", "1 2 3", "x 2 0xab", &format!("{note} 1"), &"9".repeat(500)] {
            let error = wrong.parse::<FeedNote>().unwrap_err().to_string();
            assert!(error.len() < 250 && error.starts_with("invalid note"), "{error}");
        }
    }

    #[test]
    fn a_subject_is_one_token_under_the_prefix() {
        let subject = feed_subject(B256::repeat_byte(0xcd));
        assert_eq!(subject.split('.').count(), 3);
        assert!(subject.starts_with("feed.blocks.") && subject.ends_with("cdcd"), "{subject}");
    }

    #[test]
    fn positions_travel_as_messages_of_the_feed() {
        let block = BlockId::new(3, B256::repeat_byte(3));
        let forkchoice = Forkchoice { head: block, safe: Some(block), finalized: None };
        let base = BlockId::new(1, B256::repeat_byte(1));
        let status = FeedStatus { forkchoice, base, term: Term(2) };
        let mut decoder = FeedDecoder::default();
        let got = decoder.take_encoded(encode_status(status)).unwrap();
        assert_eq!(got, Some(FeedMessage::Status(status)));
        let got = decoder.take_encoded(encode_resume(block)).unwrap();
        assert_eq!(got, Some(FeedMessage::Resume(block)));
        assert!(decoder.take_encoded(Bytes::from_static(b"\xff\xff")).is_err());
    }
}
