//! Thread that takes sidecars from async code: hashing a sidecar takes most of a millisecond, which
//! is too long for a thread that serves sockets.

use crate::pool::{Reply, Shared};
use std::{sync::Arc, time::Duration, time::Instant};
use tandem_actor::{Inbox, Received};
use tandem_proto::blob_validator::Bundle;

/// Order to the thread.
pub enum Message {
    /// Validates a sidecar.
    Validate { bundle: Arc<Bundle>, deadline: Instant, reply: Reply },
    /// Ends the thread.
    Stop,
}

/// Bound on the wait; nothing happens while the mailbox is empty.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// Runs the loop of the thread.
pub fn run(shared: &Shared, inbox: &Inbox<Message>) {
    loop {
        match inbox.receive(IDLE_WAIT) {
            Received::Message(envelope) => match envelope.message {
                Message::Validate { bundle, deadline, reply } => {
                    shared.submit(bundle, deadline, envelope.span, reply);
                }
                Message::Stop => return,
            },
            Received::Idle => {}
            Received::Closed => return,
        }
    }
}
