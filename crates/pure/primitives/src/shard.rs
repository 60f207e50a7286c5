use alloy_primitives::B256;
use std::fmt;

/// One sixteenth of the state key space: the accounts whose hashed address starts with this nibble,
/// and all their storage tries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u8);

impl Shard {
    /// Number of shards: one for each first nibble.
    pub const COUNT: usize = 16;

    /// Returns the shard that owns the account with this hashed address.
    #[inline]
    pub fn of(address_hash: &B256) -> Self {
        Self(address_hash[0] >> 4)
    }

    /// Returns the shard with this nibble, `None` from 16 on.
    pub fn from_nibble(nibble: u8) -> Option<Self> {
        (nibble < 16).then_some(Self(nibble))
    }

    /// Returns all shards in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator {
        (0..16).map(Self)
    }

    /// Returns the nibble, 0 to 15.
    #[inline]
    pub fn nibble(self) -> u8 {
        self.0
    }

    /// Returns the nibble as an index into arrays of [`Shard::COUNT`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({:x})", self.0)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
