use crate::Shard;
use std::fmt;

/// Some of the sixteen shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ShardSet(u16);

impl ShardSet {
    /// None of them.
    pub const EMPTY: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(u16::MAX);

    /// The set as bits: bit n stands for first nibble n.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set with these bits.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Whether the shard is in it.
    #[inline]
    pub fn contains(self, shard: Shard) -> bool {
        self.0 >> shard.nibble() & 1 == 1
    }

    /// Whether all shards of the other set are in it.
    pub fn contains_all(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether there is none in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are in it.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Adds a shard.
    pub fn insert(&mut self, shard: Shard) {
        self.0 |= 1 << shard.nibble();
    }

    /// Those that are in one of the two.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are in this one alone.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The shards in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Shard> {
        Shard::all().filter(move |shard| self.contains(*shard))
    }
}

impl FromIterator<Shard> for ShardSet {
    fn from_iter<I: IntoIterator<Item = Shard>>(shards: I) -> Self {
        let mut set = Self::EMPTY;
        shards.into_iter().for_each(|shard| set.insert(shard));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardSet({self})")
    }
}

/// The nibbles one after the other: `03af`.
impl fmt::Display for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|shard| write!(f, "{shard}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let even: ShardSet = Shard::all().filter(|shard| shard.nibble() % 2 == 0).collect();
        assert_eq!((even.len(), even.bits()), (8, 0x5555));
        assert_eq!(even.to_string(), "02468ace");
        assert!(even.iter().eq(Shard::all().step_by(2)));
        let odd = ShardSet::ALL.difference(even);
        assert_eq!(odd.union(even), ShardSet::ALL);
        assert_eq!(odd.intersection(even), ShardSet::EMPTY);
        assert!(odd.intersection(even).is_empty() && !odd.is_empty());
        assert!(ShardSet::ALL.contains_all(odd) && !odd.contains_all(ShardSet::ALL));
        assert_eq!(ShardSet::from_bits(0x5555), even);
    }
}
