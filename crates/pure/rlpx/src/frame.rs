//! Frames: a header with the size, a body, and a MAC of each. One state for each direction.

use crate::Error;
use aes::{
    Aes256,
    cipher::{BlockCipherEncrypt, KeyInit},
};
use alloy_primitives::{B256, Keccak256};
use ctr::{
    Ctr128BE,
    cipher::{KeyIvInit, StreamCipher},
};

/// Number of bytes of a MAC.
pub const MAC_BYTES: usize = 16;
/// Number of bytes of a frame's header with its MAC.
pub const HEADER_BYTES: usize = BLOCK_BYTES + MAC_BYTES;

const BLOCK_BYTES: usize = 16;

/// Bytes of a header after the size: the RLP of `[0, 0]`, both numbers always zero.
const HEADER_DATA: [u8; 3] = [0xc2, 0x80, 0x80];

/// Largest size that fits into a header.
const FRAME_BYTES_MAX: usize = (1 << 24) - 1;

/// State of one direction: a stream cipher, and a MAC over all of the direction's bytes.
pub(crate) struct Direction {
    cipher: Ctr128BE<Aes256>,
    mac: RunningMac,
}

impl Direction {
    /// Makes the state of a direction. `hash` already holds what the handshake puts into it.
    pub(crate) fn new(aes_secret: &B256, mac_secret: &B256, hash: Keccak256) -> Self {
        // The key is of this session alone, so the initial vector is zero.
        let cipher = Ctr128BE::<Aes256>::new(&aes_secret.0.into(), &[0; BLOCK_BYTES].into());
        Self { cipher, mac: RunningMac { hash, cipher: Aes256::new(&mac_secret.0.into()) } }
    }

    /// Appends the frame of `parts`, one after the other, to `out`.
    ///
    /// # Errors
    /// [`Error::FrameSize`] if the parts are empty or longer than 24 bits can state.
    pub(crate) fn seal(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Error> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        check_size(bytes, FRAME_BYTES_MAX)?;
        let mut header = [0; BLOCK_BYTES];
        header[..3].copy_from_slice(&(bytes as u32).to_be_bytes()[1..]);
        header[3..6].copy_from_slice(&HEADER_DATA);
        self.cipher.apply_keystream(&mut header);
        out.reserve(HEADER_BYTES + body_bytes(bytes));
        out.extend_from_slice(&header);
        out.extend_from_slice(&self.mac.header(&header));
        let begin = out.len();
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out.resize(begin + bytes.next_multiple_of(BLOCK_BYTES), 0);
        let body = &mut out[begin..];
        self.cipher.apply_keystream(body);
        let mac = self.mac.body(body);
        out.extend_from_slice(&mac);
        Ok(())
    }

    /// Checks a frame's header and returns the size that it states.
    pub(crate) fn open_header(
        &mut self,
        header: &[u8; HEADER_BYTES],
        frame_bytes_max: usize,
    ) -> Result<usize, Error> {
        let (block, mac) = header.split_at(BLOCK_BYTES);
        let mut block: [u8; BLOCK_BYTES] = block.try_into().map_err(|_| Error::Mac("header"))?;
        // A wrong MAC ends the session, so the time of the comparison tells a sender nothing that
        // it could use again.
        if self.mac.header(&block) != mac {
            return Err(Error::Mac("header"));
        }
        self.cipher.apply_keystream(&mut block);
        let bytes = u32::from_be_bytes([0, block[0], block[1], block[2]]) as usize;
        check_size(bytes, frame_bytes_max)?;
        Ok(bytes)
    }

    /// Checks a frame's body, with padding and MAC, and leaves the `bytes` of its content.
    pub(crate) fn open_body(&mut self, body: &mut Vec<u8>, bytes: usize) -> Result<(), Error> {
        let expected = body_bytes(bytes);
        if body.len() != expected {
            return Err(Error::BodySize { bytes: body.len(), expected });
        }
        let (content, mac) = body.split_at(expected - MAC_BYTES);
        if self.mac.body(content) != mac {
            return Err(Error::Mac("body"));
        }
        // The padding is discarded, but it has its place in the stream of the cipher.
        body.truncate(expected - MAC_BYTES);
        self.cipher.apply_keystream(body);
        body.truncate(bytes);
        Ok(())
    }
}

/// Returns the size of a frame's body with padding and MAC.
pub(crate) fn body_bytes(frame_bytes: usize) -> usize {
    frame_bytes.next_multiple_of(BLOCK_BYTES) + MAC_BYTES
}

fn check_size(bytes: usize, max: usize) -> Result<(), Error> {
    if bytes == 0 || bytes > max { Err(Error::FrameSize { bytes, max }) } else { Ok(()) }
}

/// MAC over all bytes of a direction.
struct RunningMac {
    hash: Keccak256,
    cipher: Aes256,
}

impl RunningMac {
    fn header(&mut self, header: &[u8; BLOCK_BYTES]) -> [u8; MAC_BYTES] {
        let seed = self.digest();
        self.mix(seed, header)
    }

    fn body(&mut self, body: &[u8]) -> [u8; MAC_BYTES] {
        self.hash.update(body);
        let seed = self.digest();
        self.mix(seed, &seed)
    }

    /// Puts the encrypted `seed`, combined with `other`, into the hash, and returns the hash.
    fn mix(&mut self, seed: [u8; MAC_BYTES], other: &[u8; BLOCK_BYTES]) -> [u8; MAC_BYTES] {
        let mut block = seed.into();
        self.cipher.encrypt_block(&mut block);
        block.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
        self.hash.update(block);
        self.digest()
    }

    fn digest(&self) -> [u8; MAC_BYTES] {
        let mut digest = [0; MAC_BYTES];
        digest.copy_from_slice(&self.hash.clone().finalize()[..MAC_BYTES]);
        digest
    }
}
