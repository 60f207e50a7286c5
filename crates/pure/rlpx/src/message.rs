//! Messages in frames: a message id, then content, which is compressed from the second message on.

use crate::{
    Error, HEADER_BYTES,
    frame::{Direction, body_bytes},
    p2p::{DISCONNECT, HELLO_BYTES_MAX},
};
use alloy_rlp::Decodable;
use snap::raw;

/// Largest content of a message, decompressed. Peers refuse longer ones: go-ethereum's
/// `maxMessageSize` of eth and snap. The specification's own limit is 16 MiB.
pub const MESSAGE_BYTES_MAX: usize = 10 << 20;

/// Bytes of a message id, at most.
const ID_BYTES_MAX: usize = 9;

/// Bytes of the reason for a session's end: a list with one small number.
const REASON_BYTES_MAX: usize = 2;

/// Bytes that one byte of Snappy decompresses to, at most: a copy of 64 bytes takes 3.
const EXPANSION_MAX: usize = 22;

/// Largest sizes that are accepted at one time of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a frame.
    pub frame_bytes_max: usize,
    /// Bytes of a message's content, decompressed.
    pub message_bytes_max: usize,
}

impl Limits {
    /// Limits until both sides have sent their Hello.
    pub const HELLO: Self = Self {
        frame_bytes_max: HELLO_BYTES_MAX + ID_BYTES_MAX,
        message_bytes_max: HELLO_BYTES_MAX,
    };

    /// Returns the limits of a session whose messages have at most `message_bytes_max` bytes.
    pub fn of_messages(message_bytes_max: usize) -> Self {
        let frame_bytes_max = raw::max_compress_len(message_bytes_max) + ID_BYTES_MAX;
        Self { frame_bytes_max, message_bytes_max }
    }
}

/// Message as it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Number of the message, on this session.
    pub id: u64,
    /// Content, decompressed: RLP.
    pub content: Vec<u8>,
}

/// Sending side of a session.
pub struct Encoder {
    direction: Direction,
    compress: Option<raw::Encoder>,
}

impl Encoder {
    pub(crate) fn new(direction: Direction) -> Self {
        Self { direction, compress: None }
    }

    /// Compresses all messages from now on: both sides do after their Hello.
    pub fn compress(&mut self) {
        self.compress = Some(raw::Encoder::new());
    }

    /// Appends the frame of a message to `out`.
    ///
    /// # Errors
    /// [`Error::MessageSize`] if the content is longer than [`MESSAGE_BYTES_MAX`].
    pub fn encode(&mut self, id: u64, content: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let (bytes, max) = (content.len(), MESSAGE_BYTES_MAX);
        if bytes > max {
            return Err(Error::MessageSize { bytes, max });
        }
        let id = alloy_rlp::encode(id);
        match &mut self.compress {
            Some(encoder) => {
                let compressed = encoder.compress_vec(content).map_err(|_| Error::Decompress)?;
                self.direction.seal(&[&id, &compressed], out)
            }
            None => self.direction.seal(&[&id, content], out),
        }
    }
}

/// Receiving side of a session. Headers and bodies alternate.
pub struct Decoder {
    direction: Direction,
    limits: Limits,
    decompress: bool,
    frame_bytes: usize,
}

impl Decoder {
    pub(crate) fn new(direction: Direction) -> Self {
        Self { direction, limits: Limits::HELLO, decompress: false, frame_bytes: 0 }
    }

    /// Decompresses all messages from now on, within `limits`: after the other side's Hello.
    pub fn decompress(&mut self, limits: Limits) {
        self.decompress = true;
        self.limits = limits;
    }

    /// Checks a frame's header. Returns how many bytes the body has, with padding and MAC.
    ///
    /// # Errors
    /// [`Error::Mac`], [`Error::FrameSize`].
    pub fn header(&mut self, header: &[u8; HEADER_BYTES]) -> Result<usize, Error> {
        self.frame_bytes = self.direction.open_header(header, self.limits.frame_bytes_max)?;
        Ok(body_bytes(self.frame_bytes))
    }

    /// Checks the body that belongs to the last header, and returns its message.
    ///
    /// # Errors
    /// The body was damaged, has another length than the header states, or its message is too long
    /// or malformed.
    pub fn body(&mut self, mut body: Vec<u8>) -> Result<Message, Error> {
        self.direction.open_body(&mut body, self.frame_bytes)?;
        let mut content = body.as_slice();
        let id = u64::decode(&mut content).map_err(Error::MessageId)?;
        let max = self.limits.message_bytes_max;
        if self.decompress {
            return match decompress(content, max) {
                // A peer that ends the session before it has read the Hello does not compress yet.
                Err(Error::Decompress) if id == DISCONNECT && content.len() <= REASON_BYTES_MAX => {
                    Ok(Message { id, content: content.to_vec() })
                }
                decompressed => Ok(Message { id, content: decompressed? }),
            };
        }
        let bytes = content.len();
        if bytes > max {
            return Err(Error::MessageSize { bytes, max });
        }
        body.drain(..body.len() - bytes);
        Ok(Message { id, content: body })
    }
}

/// Decompresses a message. Its stated size is checked before memory is taken for it: against the
/// limit, and against what so few bytes can give at most.
fn decompress(compressed: &[u8], max: usize) -> Result<Vec<u8>, Error> {
    let bytes = raw::decompress_len(compressed).map_err(|_| Error::Decompress)?;
    if bytes > max {
        return Err(Error::MessageSize { bytes, max });
    }
    if bytes > compressed.len().saturating_mul(EXPANSION_MAX) {
        return Err(Error::Decompress);
    }
    raw::Decoder::new().decompress_vec(compressed).map_err(|_| Error::Decompress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_rlp::Encodable;

    #[test]
    fn an_id_has_the_bytes_of_its_limit() {
        assert!(u64::MAX.length() <= ID_BYTES_MAX);
    }

    /// The most that Snappy can compress: one byte repeated.
    #[test]
    fn the_best_compression_is_within_the_expansion_that_is_accepted() {
        for bytes in [1, 64, 1 << 10, 1 << 16, MESSAGE_BYTES_MAX] {
            let content = vec![7; bytes];
            let compressed = raw::Encoder::new().compress_vec(&content).unwrap();
            assert!(compressed.len() * EXPANSION_MAX >= bytes, "{bytes}");
            assert_eq!(decompress(&compressed, bytes).unwrap(), content);
            let error = Error::MessageSize { bytes, max: bytes - 1 };
            assert_eq!(decompress(&compressed, bytes - 1), Err(error));
        }
    }

    #[test]
    fn a_size_that_the_bytes_cannot_give_takes_no_memory() {
        // 10 MiB in 4 bytes, and nothing that could fill them.
        let bomb = [0x80, 0x80, 0x80, 0x05, 0, 0];
        assert_eq!(raw::decompress_len(&bomb).unwrap(), MESSAGE_BYTES_MAX);
        assert_eq!(decompress(&bomb, MESSAGE_BYTES_MAX), Err(Error::Decompress));
        assert_eq!(decompress(&[], MESSAGE_BYTES_MAX), Err(Error::Decompress));
    }
}
