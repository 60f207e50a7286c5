//! Streams of answers in parts.

use super::call_scheduler::{CallScheduler, Lane, failed};
use crate::metrics as names;
use futures_util::stream::unfold;
use metrics::gauge;
use std::{pin::Pin, sync::Arc};
use tandem_proto::storage::Error;
use tandem_rpc::Caller;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
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

enum Part<T> {
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
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        gauge!(names::STREAMS).increment(1);
        make(items, &asked, sender).await;
        gauge!(names::STREAMS).decrement(1);
    });
    let next = move |receiver: Option<Receiver<Part<I::Item>>>| async move {
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

/// Makes the parts until there are no more or the client is gone.
async fn make<I>(mut items: I, asked: &Asked, sender: Sender<Part<I::Item>>)
where
    I: Iterator<Item: Send + 'static> + Send + 'static,
{
    let Asked { lanes, lane, caller, call } = asked;
    loop {
        let taken = caller.taken();
        let room = match timeout(lanes.unread_max, sender.reserve()).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return,
            // A large part on a slow line. The connection itself sees whether the client reads
            // *this* answer, and ends otherwise.
            Err(_) if caller.taken() > taken => continue,
            Err(_) => return lanes.unread(call, caller),
        };
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
