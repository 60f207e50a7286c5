//! Streams of answers in parts.

use super::call_scheduler::{CallScheduler, Lane, failed};
use crate::metrics as names;
use futures_util::stream::unfold;
use metrics::gauge;
use std::{pin::Pin, sync::Arc, time::Duration};
use tandem_proto::storage::Error;
use tandem_rpc::Caller;
use tokio::{
    sync::mpsc::{Permit, Receiver, Sender, channel},
    task::spawn_blocking,
    time::timeout,
};
use tokio_stream::Stream;
use tonic::Status;

/// Stream of parts.
pub type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Request for a stream, and the lane in which its parts are made.
pub struct Asked {
    pub lanes: Arc<CallScheduler>,
    pub lane: Lane,
    pub caller: Caller,
    pub call: &'static str,
}

/// Message from the task that makes a stream.
pub enum Part<T> {
    /// The next part, or the error that ends the stream.
    Item(Result<T, Status>),
    /// End of the stream.
    End,
}

/// Returns a stream of the items. Each item is made on a thread in its lane once the client has
/// taken the previous one. When the client takes none for [`CallScheduler::unread_max`], the items are
/// dropped and the stream ends with an error.
pub fn parts<I>(items: I, asked: Asked) -> Parts<I::Item>
where
    I: Iterator<Item: Send + 'static> + Send + 'static,
{
    let unread_max = asked.lanes.unread_max;
    stream_of(unread_max, |sender| async move { make(items, &asked, sender).await })
}

/// Returns the stream of the parts that a task sends. If the task lets go of the sender without an
/// end, the client took nothing for `unread_max`.
pub fn stream_of<T, F>(unread_max: Duration, make: impl FnOnce(Sender<Part<T>>) -> F) -> Parts<T>
where
    T: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = channel(1);
    let made = make(sender);
    tokio::spawn(async move {
        gauge!(names::STREAMS).increment(1);
        made.await;
        gauge!(names::STREAMS).decrement(1);
    });
    let next = move |receiver: Option<Receiver<Part<T>>>| async move {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Part::Item(Ok(item))) => Some((Ok(item), Some(receiver))),
            Some(Part::Item(Err(status))) => Some((Err(status), None)),
            Some(Part::End) => None,
            None => {
                let text = format!("ended: the client took nothing of it for {unread_max:?}");
                Some((Err(Error::Unavailable(text).into()), None))
            }
        }
    };
    Box::pin(unfold(Some(receiver), next))
}

/// Waits until the client has taken the previous part. Returns `None` when the client is gone, or
/// took nothing for [`CallScheduler::unread_max`].
pub async fn room<'s, T>(
    asked: &Asked,
    sender: &'s Sender<Part<T>>,
) -> Option<Permit<'s, Part<T>>> {
    let Asked { lanes, caller, call, .. } = asked;
    loop {
        let taken = caller.taken();
        match timeout(lanes.unread_max, sender.reserve()).await {
            Ok(Ok(room)) => return Some(room),
            Ok(Err(_)) => return None,
            // A large part on a slow line. The connection itself sees whether the client reads
            // *this* answer, and ends otherwise.
            Err(_) if caller.taken() > taken => {}
            Err(_) => {
                lanes.unread(call, caller);
                return None;
            }
        }
    }
}

/// Makes the parts until there are no more or the client is gone.
async fn make<I>(mut items: I, asked: &Asked, sender: Sender<Part<I::Item>>)
where
    I: Iterator<Item: Send + 'static> + Send + 'static,
{
    let Asked { lanes, lane, caller, .. } = asked;
    loop {
        let Some(room) = room(asked, &sender).await else { return };
        let place = tokio::select! {
            place = lanes.place(*lane, caller) => place,
            () = sender.closed() => return,
        };
        let place = match place {
            Ok(place) => place,
            Err(status) => return room.send(Part::Item(Err(status))),
        };
        let made = spawn_blocking(move || {
            let _place = place;
            (items.next(), items)
        });
        match made.await {
            Ok((Some(item), rest)) => {
                room.send(Part::Item(Ok(item)));
                items = rest;
            }
            Ok((None, _)) => return room.send(Part::End),
            Err(_) => return room.send(Part::Item(Err(failed()))),
        }
    }
}
