//! Direct calls: calls between two processes of one machine without HTTP/2, each made by the thread that
//! wants the answer.
//!
//! ```text
//! a thread that may wait ── request ──► a thread of the server, which answers and waits for the next
//!                        ◄── answer ───
//! ```
//!
//! A call over HTTP/2 passes four threads: the caller's, the reactors of both processes, and one of the
//! server that may wait. A direct call passes two, and neither side decodes headers.
//!
//! A direct connection is one to the server's Unix socket, with the same certificates on both sides. The
//! protocol that the client offers within TLS (ALPN, RFC 7301) is what tells it from HTTP/2. A client opens
//! a few of them with its connection, and closes them with it. **It never depends on them:** a call that
//! finds no free one, or fails in any way, is made over HTTP/2, which has deadlines, retries and errors.
//! So only calls that may be made twice can be direct.
//!
//! A request is its length (four bytes, the highest first), the lengths of the method's name and of the
//! trace context (a byte each), and then the name, the context and the message. An answer is a byte, 1 for
//! an answer and 0 for none, the length of the message, and the message.

mod client;
mod server;

pub use client::DirectConnections;
pub(crate) use client::{CountedSocket, DirectStream};
pub(crate) use server::DirectServer;
pub use server::{DirectCall, DirectCalls};

use std::time::Duration;

/// Protocol within TLS (ALPN).
pub(crate) const PROTOCOL: &[u8] = b"tandem-direct";
/// Largest message. Longer ones are for HTTP/2.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes before a request.
const REQUEST_HEAD: usize = 6;
/// Bytes before an answer.
const ANSWER_HEAD: usize = 5;
/// Bytes of a buffer that a connection keeps between calls.
const BUFFER_MAX: usize = 256 << 10;
/// Longest time in which the other side may take nothing of a message.
const UNREAD_MAX: Duration = Duration::from_secs(20);

/// Empties a buffer, and gives back what a long message took.
fn recycle(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(BUFFER_MAX);
}

/// Returns a length as the head of a message has it, `None` if the message is too long.
fn length(bytes: usize) -> Option<[u8; 4]> {
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MESSAGE_BYTES_MAX)?;
    Some(length.to_be_bytes())
}
