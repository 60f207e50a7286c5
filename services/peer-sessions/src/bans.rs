//! Nodes that get no session for a while. No I/O and no clock.

use std::{collections::HashMap, time::Duration};
use tandem_discv4::PublicKey;

/// Number of banned nodes that are remembered. A longer list would not help, because a node can make
/// itself a new key.
const BANS_MAX: usize = 4096;

/// Banned nodes, each until a time.
#[derive(Debug)]
pub(crate) struct Bans {
    until: HashMap<PublicKey, Duration>,
    time: Duration,
}

impl Bans {
    /// Makes an empty list of bans that last `time`.
    pub(crate) fn new(time: Duration) -> Self {
        Self { until: HashMap::new(), time }
    }

    /// Bans a node from now on. If there is no room, the ban that ends first makes room.
    pub(crate) fn add(&mut self, now: Duration, id: PublicKey) {
        if self.time.is_zero() {
            return;
        }
        if self.until.len() >= BANS_MAX {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() >= BANS_MAX
            && let Some(first) = self.until.iter().min_by_key(|(_, until)| **until)
        {
            let first = *first.0;
            self.until.remove(&first);
        }
        self.until.insert(id, now + self.time);
    }

    /// Returns whether a node is banned now.
    pub(crate) fn has(&self, now: Duration, id: &PublicKey) -> bool {
        self.until.get(id).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(number: u64) -> PublicKey {
        PublicKey::left_padding_from(&number.to_be_bytes())
    }

    #[test]
    fn a_ban_ends_and_a_new_one_lengthens_it() {
        let mut bans = Bans::new(SECOND * 10);
        bans.add(SECOND, key(1));
        assert!(bans.has(SECOND * 10, &key(1)) && !bans.has(SECOND * 10, &key(2)));
        assert!(!bans.has(SECOND * 11, &key(1)));
        bans.add(SECOND * 5, key(1));
        assert!(bans.has(SECOND * 14, &key(1)));
    }

    #[test]
    fn a_full_list_forgets_the_ban_that_ends_first() {
        let mut bans = Bans::new(SECOND * 100_000);
        for number in 0..=BANS_MAX as u64 {
            bans.add(SECOND * number as u32, key(number));
        }
        let now = SECOND * BANS_MAX as u32;
        assert_eq!(bans.until.len(), BANS_MAX);
        assert!(!bans.has(now, &key(0)) && bans.has(now, &key(1)));
        assert!(bans.has(now, &key(BANS_MAX as u64)));
    }

    #[test]
    fn without_a_time_nobody_is_banned() {
        let mut bans = Bans::new(Duration::ZERO);
        bans.add(SECOND, key(1));
        assert!(!bans.has(Duration::ZERO, &key(1)));
    }
}
