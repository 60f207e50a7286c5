//! Assignment of shards to workers.

use tandem_membership::{WorkerId, assign};
use tandem_primitives::{Shard, ShardSet};

/// Owner of each shard, by [`Shard::index`]; `None` while no worker answers for it.
pub type Owners = [Option<WorkerId>; Shard::COUNT];

/// Deals the shards out. Returns the set of each worker, in the given order. Each shard is in one
/// set, or in none when there is no worker.
pub fn assign_shards(workers: &[WorkerId]) -> Vec<ShardSet> {
    let mut sets = vec![ShardSet::EMPTY; workers.len()];
    for (shard, owner) in Shard::all().zip(assign(workers).into_iter().flatten()) {
        sets[owner].insert(shard);
    }
    sets
}

/// Returns the owners of the shards in these sets.
pub fn owners<'a>(sets: impl IntoIterator<Item = (&'a WorkerId, ShardSet)>) -> Owners {
    let mut owners = Owners::default();
    for (worker, shards) in sets {
        shards.iter().for_each(|shard| owners[shard.index()] = Some(worker.clone()));
    }
    owners
}

/// Returns the shards whose owner has changed.
pub fn moved_shards(before: &Owners, after: &Owners) -> ShardSet {
    Shard::all().filter(|shard| before[shard.index()] != after[shard.index()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(count: usize, salt: u64) -> Vec<WorkerId> {
        (0..count).map(|n| format!("worker-{salt}-{n}").parse().unwrap()).collect()
    }

    fn dealt(workers: &[WorkerId]) -> Owners {
        owners(workers.iter().zip(assign_shards(workers)))
    }

    proptest! {
        #[test]
        fn every_shard_has_exactly_one_owner(count in 1..=20usize, salt: u64) {
            let sets = assign_shards(&names(count, salt));
            prop_assert_eq!(sets.iter().map(|set| set.len()).sum::<usize>(), Shard::COUNT);
            let all = sets.iter().fold(ShardSet::EMPTY, |all, set| all.union(*set));
            prop_assert_eq!(all, ShardSet::ALL);
            prop_assert!(sets.iter().all(|set| set.len() <= Shard::COUNT.div_ceil(count)));
        }

        #[test]
        fn one_that_joins_takes_its_own_and_leaves_all_as_it_was(count in 1..16usize, salt: u64) {
            let workers = names(count + 1, salt);
            let (before, with) = (dealt(&workers[..count]), dealt(&workers));
            let own = assign_shards(&workers)[count];
            prop_assert!(moved_shards(&before, &with).contains_all(own), "they were others' before");
            prop_assert!(moved_shards(&with, &with).is_empty());
            prop_assert_eq!(dealt(&workers[..count]), before);
        }
    }

    #[test]
    fn without_workers_nobody_answers() {
        assert_eq!(assign_shards(&[]), []);
        assert_eq!(moved_shards(&Owners::default(), &dealt(&names(3, 0))), ShardSet::ALL);
    }
}
