//! Bounded reading of whole request bodies.

use crate::budget::Reservation;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::timeout;

/// Reason for a missing body.
pub(crate) enum BodyError {
    /// The body has more bytes than allowed; the rest is unread.
    TooLarge(Body),
    /// All bodies together have too many bytes; the rest of this one is unread.
    TooMany(Body),
    /// The connection broke, or the framing is invalid.
    Broken,
}

/// Returns the announced length of a body, if any.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a whole body into one piece of memory. Allocates the announced length at once, up to
/// `room_max`. Reserves only the bytes received.
pub(crate) async fn read_body(
    mut body: Body,
    announced: Option<u64>,
    bytes_max: usize,
    room_max: usize,
    reserved: &mut Reservation,
) -> Result<Bytes, BodyError> {
    let announced = announced.unwrap_or(0);
    if announced > bytes_max as u64 {
        return Err(BodyError::TooLarge(body));
    }
    let mut whole = BytesMut::with_capacity(room_max.min(announced as usize));
    while let Some(data) = next_data(&mut body).await.map_err(|_| BodyError::Broken)? {
        let bytes = whole.len() + data.len();
        if bytes > bytes_max {
            return Err(BodyError::TooLarge(body));
        }
        if !reserved.grow_to(bytes) {
            return Err(BodyError::TooMany(body));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Reads and drops the rest of a body, within bounds. An answer to a caller that is still sending
/// would reset the connection, and the caller would not see the answer.
pub(crate) async fn drain(headers: &HeaderMap, mut body: Body) {
    const BYTES_MAX: usize = 1 << 30;
    const TIME_MAX: Duration = Duration::from_secs(10);
    // A caller that asks first sends nothing if it is refused.
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let drain = async {
        let mut bytes = 0;
        while let Ok(Some(data)) = next_data(&mut body).await {
            bytes += data.len();
            if bytes > BYTES_MAX {
                break;
            }
        }
    };
    let _ = timeout(TIME_MAX, drain).await;
}

/// Returns the next piece of a body, or `None` at its end; trailers are skipped.
pub(crate) async fn next_data(body: &mut Body) -> Result<Option<Bytes>, axum::Error> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => return Ok(None),
            Some(Err(error)) => return Err(error),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}
