//! Rate of one tx-executor, from its answers.

use super::placement::Rates;
use std::time::Instant;

/// Least number of answers from which a rate is measured.
const ANSWERS_MIN: usize = 16;

/// Gas that a tx-executor has answered for in a block: its rate is measured here, so it is that of
/// results that arrive.
#[derive(Default)]
pub struct Answers {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Gas since the first answer, and their number.
    gas: f64,
    count: usize,
}

impl Answers {
    /// Notes an answer for so much gas.
    pub fn note(&mut self, gas: f64, now: Instant) {
        self.last = Some(now);
        match self.first {
            None => self.first = Some(now),
            // It came with the first one, and was executed before.
            Some(first) if first == now => {}
            Some(_) => {
                self.gas += gas;
                self.count += 1;
            }
        }
    }

    /// Adds the rate to what is known, if there were enough answers.
    pub fn tell(&self, rates: &mut Rates) {
        if let (Some(first), Some(last), ANSWERS_MIN..) = (self.first, self.last, self.count) {
            rates.note_gas(self.gas, last - first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_rate_is_that_of_the_answers_after_the_first() {
        let (mut answers, mut rates) = (Answers::default(), Rates::default());
        let began = Instant::now();
        for number in 0..10 {
            answers.note(1_000.0, began + Duration::from_millis(number));
        }
        answers.tell(&mut rates);
        assert_eq!(rates.gas.get(), None, "too few");
        (0..100).for_each(|_| answers.note(1e6, began));
        for number in 10..=100 {
            answers.note(1_000.0, began + Duration::from_millis(number));
        }
        answers.tell(&mut rates);
        assert_eq!(rates.gas.get(), Some(1e6));
    }
}
