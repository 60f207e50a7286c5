//! The sending task.

use super::outbox::{Item, Outbox};
use crate::{Message, stats::Counts};
use async_nats::{Client, HeaderMap, Subject, connection::State};
use std::{borrow::Cow, time::Duration};
use tokio::time::timeout;
use tracing::warn;

/// Header of the publisher's span (W3C Trace Context).
pub const TRACEPARENT: &str = "traceparent";

/// Longest wait for a server that does not read. Meanwhile the outbox keeps the newest messages.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends the items of the outbox in order, for ever.
pub async fn run(client: &Client, outbox: &Outbox, counts: &Counts) {
    loop {
        let item = outbox.next().await;
        // Without this check the client would keep the message until there is a connection, and
        // send it far too late.
        let connected = client.connection_state() == State::Connected;
        match item {
            Item::Message(subject, message) if connected => {
                send(client, subject, message, counts).await;
            }
            Item::Message(..) => counts.dropped("no_connection", 1),
            // If the channel is dropped unanswered, the caller knows that nothing was sent.
            Item::Flush(done) if connected => {
                if let Ok(Ok(())) = timeout(PATIENCE, client.flush()).await {
                    let _ = done.send(());
                }
            }
            Item::Flush(_) => {}
        }
    }
}

async fn send(client: &Client, subject: Cow<'static, str>, message: Message, counts: &Counts) {
    let Message { payload, context, member: _ } = message;
    let bytes = payload.len();
    let to = match &subject {
        Cow::Borrowed(subject) => Subject::from_static(subject),
        Cow::Owned(subject) => Subject::from(subject.as_str()),
    };
    let sent = match context {
        Some(context) => {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, context.to_string());
            timeout(PATIENCE, client.publish_with_headers(to, headers, payload)).await
        }
        None => timeout(PATIENCE, client.publish(to, payload)).await,
    };
    match sent {
        Ok(Ok(())) => counts.sent(bytes),
        Ok(Err(error)) => {
            counts.dropped("refused", 1);
            warn!(%subject, %error, "event not sent");
        }
        Err(_) => counts.dropped("slow", 1),
    }
}
