//! The task that listens on one subject.

use super::publish::TRACEPARENT;
use crate::{ANY_MEMBER, Message, PAYLOAD_BYTES_MAX, fanout::Topic, stats::Counts};
use async_nats::Client;
use futures_util::StreamExt;
use std::{sync::Arc, time::Duration};
use tandem_telemetry::SpanContext;
use tokio::{sync::watch, time::sleep};
use tracing::warn;

/// Wait before a retry to subscribe. Subscribing fails only if the client's own task is gone.
const RETRY: Duration = Duration::from_secs(1);

/// Sends arriving messages to the topic's subscribers, for ever. The server learns of the subject
/// only while it has subscribers.
pub async fn run(client: watch::Receiver<Option<Client>>, topic: Arc<Topic>, counts: Arc<Counts>) {
    let client = super::client(client).await;
    loop {
        topic.until_wanted(true).await;
        let mut arriving = match client.subscribe(topic.subject).await {
            Ok(arriving) => arriving,
            Err(error) => {
                warn!(subject = topic.subject, %error, "not subscribed");
                sleep(RETRY).await;
                continue;
            }
        };
        loop {
            let message = tokio::select! {
                () = topic.until_wanted(false) => break,
                message = arriving.next() => message,
            };
            match message {
                Some(message) => deliver(message, &topic, &counts),
                None => {
                    sleep(RETRY).await;
                    break;
                }
            }
        }
    }
}

fn deliver(message: async_nats::Message, topic: &Topic, counts: &Counts) {
    counts.received(message.payload.len());
    if message.payload.len() > PAYLOAD_BYTES_MAX {
        counts.dropped("payload", 1);
        return;
    }
    let header = message.headers.as_ref().and_then(|headers| headers.get(TRACEPARENT));
    let context = header.and_then(|header| SpanContext::parse(header.as_str()));
    let is_family = topic.subject.ends_with(ANY_MEMBER);
    let member = message.subject.rsplit('.').next().filter(|_| is_family);
    topic.give(Message { payload: message.payload, context, member: member.map(Into::into) });
}
