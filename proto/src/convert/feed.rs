//! Messages of the feed.

use super::{
    error::{At, ConvertError, Reason},
    field::{at_most, nested, required},
};
use crate::{
    feed::{Changes, FeedBlock, FeedMessage, FeedStatus, FollowRequest},
    limits::{FEED_KNOWN_MAX, FEED_PART_BYTES, STORAGE_MESSAGE_BYTES_MAX},
    storage::Term,
    wire::storage_writer::v1::{self, feed_block, follow_response::Item},
};
use bytes::{Bytes, BytesMut};
use prost::Message;
use std::sync::Arc;
use tandem_primitives::BlockId;

impl From<FollowRequest> for v1::FollowRequest {
    fn from(request: FollowRequest) -> Self {
        let FollowRequest { known, without_changes_to } = request;
        Self { known: known.into_iter().map(Into::into).collect(), without_changes_to }
    }
}

impl TryFrom<v1::FollowRequest> for FollowRequest {
    type Error = ConvertError;

    fn try_from(wire: v1::FollowRequest) -> Result<Self, ConvertError> {
        at_most(FEED_KNOWN_MAX, wire.known.len()).at("follow.known")?;
        if wire.known.is_empty() {
            return Err(Reason::Missing).at("follow.known");
        }
        let known = wire.known.into_iter().enumerate();
        let known = known.map(|(index, id)| BlockId::try_from(id).at_index(index));
        let known = known.collect::<Result<_, _>>().at("follow.known")?;
        Ok(Self { known, without_changes_to: wire.without_changes_to })
    }
}

impl From<FeedStatus> for v1::FeedStatus {
    fn from(status: FeedStatus) -> Self {
        let FeedStatus { forkchoice, base, term } = status;
        Self { forkchoice: Some(forkchoice.into()), base: Some(base.into()), term: term.0 }
    }
}

impl TryFrom<v1::FeedStatus> for FeedStatus {
    type Error = ConvertError;

    fn try_from(wire: v1::FeedStatus) -> Result<Self, ConvertError> {
        Ok(Self {
            forkchoice: nested(wire.forkchoice).at("forkchoice")?,
            base: nested(wire.base).at("base")?,
            term: Term(wire.term),
        })
    }
}

impl From<FeedBlock> for v1::FeedBlock {
    fn from(block: FeedBlock) -> Self {
        let changes = match block.changes {
            Changes::Omitted => None,
            Changes::List(list) => Some(feed_block::Changes::AccessList(list.0)),
            Changes::Diff(diff) => Some(feed_block::Changes::Diff((&*diff).into())),
        };
        Self {
            id: Some(block.id.into()),
            header: block.header.0,
            body: block.body.0,
            receipts: block.receipts.0,
            changes,
        }
    }
}

impl TryFrom<v1::FeedBlock> for FeedBlock {
    type Error = ConvertError;

    fn try_from(wire: v1::FeedBlock) -> Result<Self, ConvertError> {
        let changes = match wire.changes {
            None => Changes::Omitted,
            Some(feed_block::Changes::AccessList(list)) => Changes::List(list.into()),
            Some(feed_block::Changes::Diff(diff)) => {
                Changes::Diff(Arc::new(diff.try_into().at("diff")?))
            }
        };
        Ok(Self {
            id: nested(wire.id).at("id")?,
            header: wire.header.into(),
            body: wire.body.into(),
            receipts: wire.receipts.into(),
            changes,
        })
    }
}

/// Messages of a block of the feed: its encoding in parts of [`FEED_PART_BYTES`] at most.
#[derive(Debug)]
pub struct FeedParts {
    rest: Option<Bytes>,
    part_bytes: usize,
}

impl FeedParts {
    /// Encodes a block.
    pub fn new(block: FeedBlock) -> Self {
        Self::of_bytes(block, FEED_PART_BYTES)
    }

    /// Encodes a block in parts of this size at most, for a carrier of smaller messages.
    pub fn of_bytes(block: FeedBlock, part_bytes: usize) -> Self {
        let part_bytes = part_bytes.clamp(1, FEED_PART_BYTES);
        Self { rest: Some(v1::FeedBlock::from(block).encode_to_vec().into()), part_bytes }
    }
}

impl Iterator for FeedParts {
    type Item = v1::FollowResponse;

    fn next(&mut self) -> Option<v1::FollowResponse> {
        let mut rest = self.rest.take()?;
        let data = rest.split_to(rest.len().min(self.part_bytes));
        let left = rest.len() as u64;
        if left > 0 {
            self.rest = Some(rest);
        }
        Some(v1::FollowResponse { item: Some(Item::Part(v1::FeedPart { data, left })) })
    }
}

/// Reader of the messages of a feed. Puts the parts of a block together, at most
/// [`STORAGE_MESSAGE_BYTES_MAX`] bytes.
#[derive(Debug, Default)]
pub struct FeedDecoder {
    /// Parts so far, and the number of bytes that are left, if a block has begun.
    begun: Option<(BytesMut, u64)>,
}

impl FeedDecoder {
    /// Takes the next message in its encoding, as [`Self::take`] does.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn take_encoded(&mut self, message: Bytes) -> Result<Option<FeedMessage>, ConvertError> {
        let wire = v1::FollowResponse::decode(message).map_err(|_| Reason::Malformed);
        self.take(wire.at("follow")?)
    }

    /// Takes the next message. Returns `None` when a block continues in the message after it.
    ///
    /// # Errors
    /// [`ConvertError`] when the message is malformed, or does not continue the block that has begun.
    /// The feed is of no use any more then.
    pub fn take(&mut self, wire: v1::FollowResponse) -> Result<Option<FeedMessage>, ConvertError> {
        let message = match required(wire.item).at("follow.item")? {
            Item::Part(part) => return self.take_part(part).at("follow.part"),
            Item::Status(status) => {
                FeedMessage::Status(FeedStatus::try_from(status).at("follow.status")?)
            }
            Item::Resume(block) => {
                FeedMessage::Resume(BlockId::try_from(block).at("follow.resume")?)
            }
        };
        match &self.begun {
            None => Ok(Some(message)),
            Some((_, left)) => Err(Reason::Length { expected: *left, got: 0 }).at("follow.part"),
        }
    }

    fn take_part(&mut self, part: v1::FeedPart) -> Result<Option<FeedMessage>, ConvertError> {
        at_most(FEED_PART_BYTES, part.data.len()).at("data")?;
        let announced = part.left.saturating_add(part.data.len() as u64);
        let block = match self.begun.take() {
            None => {
                let total = usize::try_from(announced).unwrap_or(usize::MAX);
                at_most(STORAGE_MESSAGE_BYTES_MAX, total).at("left")?;
                if part.left == 0 {
                    part.data
                } else {
                    // Grows with what comes, not with what is announced.
                    self.begun = Some((BytesMut::from(&part.data[..]), part.left));
                    return progress(&part);
                }
            }
            Some((mut begun, left)) => {
                if announced != left {
                    return Err(Reason::Length { expected: left, got: announced }).at("left");
                }
                begun.extend_from_slice(&part.data);
                if part.left > 0 {
                    self.begun = Some((begun, part.left));
                    return progress(&part);
                }
                begun.freeze()
            }
        };
        let wire = v1::FeedBlock::decode(block).map_err(|_| Reason::Malformed).at("block")?;
        Ok(Some(FeedMessage::Block(Box::new(FeedBlock::try_from(wire).at("block")?))))
    }
}

/// Refuses a part that brings nothing, so a block has as many parts as its bytes at most.
fn progress(part: &v1::FeedPart) -> Result<Option<FeedMessage>, ConvertError> {
    match part.data.is_empty() {
        true => Err(Reason::Missing).at("data"),
        false => Ok(None),
    }
}
