use crate::Shard;
use std::fmt;

/// Set of shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ShardSet(u16);

impl ShardSet {
    /// Set without shards.
    pub const EMPTY: Self = Self(0);
    /// Set of all sixteen shards.
    pub const ALL: Self = Self(u16::MAX);

    /// Returns the set as bits: bit n stands for first nibble n.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set with these bits.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns whether the set contains the shard.
    #[inline]
    pub fn contains(self, shard: Shard) -> bool {
        self.0 >> shard.nibble() & 1 == 1
    }

    /// Returns whether the set contains every shard of `other`.
    pub fn contains_all(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns whether the set contains no shard.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of shards in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Adds a shard.
    pub fn insert(&mut self, shard: Shard) {
        self.0 |= 1 << shard.nibble();
    }

    /// Returns the shards that are in at least one of the two sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the shards that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the shards that are in this set and not in `other`.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the shards in ascending order.
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

/// Writes the nibbles one after another: `03af`.
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
