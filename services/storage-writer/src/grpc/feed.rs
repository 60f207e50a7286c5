//! Streams of the feed. Each reader has a task that asks for the next block when the reader has taken
//! the previous one, and waits for the forkchoice to change at the head. It holds one block at most.

use super::streams::{Asked, Part, Parts, room, stream_of};
use crate::metrics as names;
use metrics::{counter, gauge};
use std::{sync::Weak, time::Duration};
use tandem_primitives::BlockId;
use tandem_proto::{
    convert::FeedParts,
    feed::{FeedReads, FeedStatus, FeedStep, FollowRequest},
    storage::{Error, Result},
    wire::storage_writer::v1::{self, follow_response::Item},
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc::Sender},
    task::spawn_blocking,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Time after which a reader without news hears where the leader stands.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Feed that a server offers.
#[derive(Clone)]
pub struct ServedFeed {
    /// Gone once the server has ended, though connections may linger.
    pub feed: Weak<dyn FeedReads>,
    /// Cancelled when the server is to end.
    pub stop: CancellationToken,
}

/// Returns the stream of a reader. `place` is held until it ends.
pub fn follow(
    served: ServedFeed,
    request: FollowRequest,
    place: OwnedSemaphorePermit,
    asked: Asked,
) -> Parts<v1::FollowResponse> {
    stream_of(asked.lanes.unread_max, |sender| async move {
        let _place = place;
        gauge!(names::FEED_READERS).increment(1);
        let mut reader = Reader { served, request, at: None, told: None };
        reader.run(&asked, &sender).await;
        gauge!(names::FEED_READERS).decrement(1);
    })
}

/// One reader of the feed.
struct Reader {
    served: ServedFeed,
    request: FollowRequest,
    /// Block up to which the reader has everything, `None` before it is known.
    at: Option<BlockId>,
    /// Position that the reader was told last.
    told: Option<FeedStatus>,
}

impl Reader {
    /// Sends what the reader gets until it goes, the server ends or a read fails.
    async fn run(&mut self, asked: &Asked, sender: &Sender<Part<v1::FollowResponse>>) {
        let stop = self.served.stop.clone();
        let failed = tokio::select! {
            () = stop.cancelled() => Error::Unavailable("stopping".to_owned()),
            () = sender.closed() => return,
            ended = self.send_all(asked, sender) => match ended {
                Ok(()) => return,
                Err(error) => error,
            },
        };
        if let Some(room) = room(asked, sender).await {
            room.send(Part::Item(Err(failed.into())));
        }
    }

    /// Ends when the reader is gone.
    async fn send_all(
        &mut self,
        asked: &Asked,
        sender: &Sender<Part<v1::FollowResponse>>,
    ) -> Result<()> {
        let mut changes = self.read(|feed| Ok(feed.feed_changes())).await?;
        let mut is_late = false;
        loop {
            changes.borrow_and_update();
            let mut messages = Vec::new();
            let status = self.read(|feed| feed.feed_status()).await?;
            if is_late || self.told.is_none_or(|told| told.forkchoice != status.forkchoice) {
                self.told = Some(status);
                messages.push(Item::Status(status.into()));
            }
            let step = match self.at {
                None => {
                    let known = self.request.known.clone();
                    Step::Resume(self.read(move |feed| feed.feed_start(&known)).await?)
                }
                Some(at) => {
                    let without = self.request.without_changes_to;
                    self.read(move |feed| Ok(feed.feed_next(at, without)?.into())).await?
                }
            };
            if let Step::Resume(block) = step {
                self.at = Some(block);
                messages.push(Item::Resume(block.into()));
            }
            for item in messages {
                let Some(room) = room(asked, sender).await else { return Ok(()) };
                room.send(Part::Item(Ok(v1::FollowResponse { item: Some(item) })));
            }
            is_late = false;
            match step {
                Step::Resume(_) => {}
                Step::Block(block, parts) => {
                    for part in parts {
                        let Some(room) = room(asked, sender).await else { return Ok(()) };
                        room.send(Part::Item(Ok(part)));
                    }
                    self.at = Some(block);
                    counter!(names::FEED_BLOCKS).increment(1);
                }
                Step::End => is_late = timeout(STATUS_EVERY, changes.changed()).await.is_err(),
            }
        }
    }

    /// Makes a call on a thread that may wait.
    async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn FeedReads) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let stopping = || Error::Unavailable("stopping".to_owned());
        let feed = self.served.feed.upgrade().ok_or_else(stopping)?;
        let called = spawn_blocking(move || call(&*feed)).await;
        called.unwrap_or_else(|_| Err(Error::Store("the feed failed".to_owned())))
    }
}

/// Next thing for a reader, encoded.
enum Step {
    Block(BlockId, FeedParts),
    Resume(BlockId),
    End,
}

impl From<FeedStep> for Step {
    fn from(step: FeedStep) -> Self {
        match step {
            FeedStep::Block(block) => Self::Block(block.id, FeedParts::new(*block)),
            FeedStep::Resume(block) => Self::Resume(block),
            FeedStep::End => Self::End,
        }
    }
}
