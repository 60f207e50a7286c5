//! Writer that hashes what is written.

use sha2::{Digest, Sha256};
use std::io::{self, Write};
use tandem_primitives::B256;

/// Writer that hashes what is written.
pub struct Hashed<W> {
    out: W,
    hasher: Sha256,
}

impl<W: Write> Hashed<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, hasher: Sha256::new() }
    }

    /// Returns what is written to, and the SHA-256 of the bytes.
    pub fn finish(self) -> (W, B256) {
        (self.out, B256::from_slice(&self.hasher.finalize()))
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
