use std::time::Duration;

/// Time after which a worker is late with the roots of a block.
///
/// Times are from the block's last update on. The time of half of the workers shows what is usual
/// for this block and this machine. A block that took long to execute may have left much to hash in
/// one shard, so half of that time is always given. Before half of the workers have answered, only
/// the longest time counts.
#[derive(Clone, Copy, Debug)]
pub struct LatenessPolicy {
    /// Time before which no worker is late.
    pub min: Duration,
    /// Multiple of the time of half of the workers that a worker may take.
    pub factor: u32,
    /// Time after which every worker is late.
    pub max: Duration,
}

impl LatenessPolicy {
    /// Returns the time that a worker may take. `answered` has the times after which others have
    /// answered, in any order, and `asked` is the number of workers that were asked. `executed` is
    /// the time from the block's beginning to its last update.
    pub fn time_limit(&self, executed: Duration, answered: &[Duration], asked: usize) -> Duration {
        let half = asked.div_ceil(2);
        let Some(last) = half.checked_sub(1).filter(|_| answered.len() >= half) else {
            return self.max;
        };
        let mut answered = answered.to_vec();
        let (_, taken, _) = answered.select_nth_unstable(last);
        let others = taken.saturating_mul(self.factor);
        others.max(executed / 2).max(self.min).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn nobody_is_late_before_half_have_answered() {
        let lateness = LatenessPolicy { min: ms(50), factor: 3, max: ms(2_000) };
        let wait = |answered: &[u64], asked| {
            let answered: Vec<_> = answered.iter().map(|&took| ms(took)).collect();
            lateness.time_limit(ms(10), &answered, asked)
        };
        assert_eq!(wait(&[], 1), ms(2_000));
        assert_eq!(wait(&[5], 3), ms(2_000));
        assert_eq!(wait(&[5], 2), ms(50));
        assert_eq!(wait(&[40, 30], 3), ms(120), "the second of three");
        assert_eq!(wait(&[100, 30, 20], 5), ms(300), "the third of five");
        assert_eq!(wait(&[1_000], 2), ms(2_000), "the limit holds");
        assert_eq!(wait(&[], 0), ms(2_000));
    }

    #[test]
    fn a_block_that_took_long_to_execute_may_leave_much_to_do() {
        let lateness = LatenessPolicy { min: ms(50), factor: 3, max: ms(2_000) };
        assert_eq!(lateness.time_limit(ms(400), &[ms(1), ms(1)], 3), ms(200));
        assert_eq!(lateness.time_limit(ms(9_000), &[ms(1), ms(1)], 3), ms(2_000));
    }
}
