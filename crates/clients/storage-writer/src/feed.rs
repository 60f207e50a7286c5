//! Reader of the feed. A task takes the messages from the connection and puts blocks together. A few
//! of them wait for the reader's thread, then the stream itself waits.

use crate::{client::Client, remote_storage::Calls};
use std::time::Duration;
use tandem_proto::{
    convert::FeedDecoder,
    feed::{FeedMessage, FeedSource, FeedStream, FollowRequest},
    storage::{Error, Result},
    wire::storage_writer::v1,
};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Streaming};

/// Messages that wait for the reader.
pub(crate) const MESSAGES_MAX: usize = 2;

impl FeedSource for Client {
    fn follow(&self, request: FollowRequest) -> Result<Box<dyn FeedStream>> {
        let send = |mut calls: Calls, request: Request<v1::FollowRequest>| async move {
            Ok(calls.follow(request).await?.into_inner())
        };
        let stream = self.call(self.read("follow"), request, send)?;
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        Ok(Box::new(RemoteFeed::run(messages, self.runtime(), read(stream, sender))))
    }
}

/// Takes messages until the stream ends or the reader is gone.
async fn read(
    mut stream: Streaming<v1::FollowResponse>,
    sender: mpsc::Sender<Result<FeedMessage>>,
) {
    let mut decoder = FeedDecoder::default();
    loop {
        let taken = match stream.message().await {
            Ok(Some(wire)) => {
                let taken = decoder.take(wire);
                taken
                    .map_err(|error| Error::Refused(format!("malformed feed: {error}")))
                    .transpose()
            }
            Ok(None) => Some(Err(Error::Unavailable("the feed ended".to_owned()))),
            Err(status) => Some(Err(status.into())),
        };
        let Some(message) = taken else { continue };
        let is_end = message.is_err();
        if sender.send(message).await.is_err() || is_end {
            return;
        }
    }
}

/// Feed whose messages a task takes.
pub(crate) struct RemoteFeed {
    messages: mpsc::Receiver<Result<FeedMessage>>,
    runtime: Handle,
    _task: AbortOnDropHandle<()>,
}

impl RemoteFeed {
    /// Runs a task on a runtime, which sends messages to the other end of `messages`. It is aborted
    /// with the feed.
    pub fn run(
        messages: mpsc::Receiver<Result<FeedMessage>>,
        runtime: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let task = AbortOnDropHandle::new(runtime.spawn(task));
        Self { messages, runtime: runtime.clone(), _task: task }
    }
}

impl FeedStream for RemoteFeed {
    fn next(&mut self, wait: Duration) -> Result<Option<FeedMessage>> {
        let next = self.runtime.block_on(async { timeout(wait, self.messages.recv()).await });
        match next {
            Err(_) => Ok(None),
            Ok(Some(message)) => message.map(Some),
            Ok(None) => Err(Error::Unavailable("the feed ended".to_owned())),
        }
    }
}
