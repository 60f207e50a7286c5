use tandem_primitives::{B256, U256};

/// Reader that takes an input apart into values, for targets whose input is a script. It never
/// fails: after its end, an input yields zeros.
#[derive(Clone, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Returns whether the whole input was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns at most `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns one byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Returns a little-endian number of at most eight bytes.
    pub fn number(&mut self) -> u64 {
        let len = usize::from(self.byte() % 9);
        self.take(len).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns bytes with a length before them.
    pub fn bytes(&mut self) -> &'a [u8] {
        let len = u16::from_le_bytes([self.byte(), self.byte()]);
        self.take(len.into())
    }

    /// Returns a word; its first byte gives the number of bytes that follow.
    pub fn word(&mut self) -> U256 {
        let len = usize::from(self.byte() % 33);
        U256::from_be_slice(self.take(len))
    }

    /// Returns one of few hashes, so that many share long prefixes. One byte gives the first
    /// nibble, the other the place of the one nibble that differs.
    pub fn near_hash(&mut self) -> B256 {
        let (first, at) = (self.byte(), usize::from(self.byte() % 64));
        let mut hash = B256::repeat_byte(0x11);
        hash[0] = first & 0xf0 | 0x01;
        hash[at / 2] ^= if at.is_multiple_of(2) { 0x20 } else { 0x02 } * (first & 1);
        hash
    }
}
