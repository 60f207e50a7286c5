//! Part of a block that this process executes itself, from how long tx-executors had nothing to do.
//!
//! All places should end together, so whoever is free takes work. But this process also decodes the block,
//! sends values, and takes results in. If its threads execute too much meanwhile, these come late, and the
//! tx-executors wait. How much is too much depends on its processors, and on what else has a claim to them.
//! So the part is not computed but tried: less if the tx-executors had nothing to do at the end, more if
//! they had.

use parking_lot::Mutex;

/// Part of a block's time for which tx-executors may have nothing to do at its end.
const IDLE_MAX: f64 = 0.1;
/// Factor by which the part falls.
const LESS: f64 = 0.7;
/// Factor by which it rises.
const MORE: f64 = 1.2;
/// Least part, from which it can rise.
const PART_MIN: f64 = 0.01;

/// Part of a block's work.
pub struct OwnShare(Mutex<f64>);

impl Default for OwnShare {
    fn default() -> Self {
        Self(Mutex::new(1.0))
    }
}

impl OwnShare {
    /// Returns the part of a block's work that threads of this process may take ahead of its turn.
    pub fn part(&self) -> f64 {
        *self.0.lock()
    }

    /// Notes a block of whose work this process executed the part `executed`, and at whose end the
    /// tx-executors had nothing to do for the part `idle` of its time.
    pub fn note(&self, executed: f64, idle: f64) {
        let mut part = self.0.lock();
        let next = if idle > IDLE_MAX { part.min(executed) * LESS } else { *part * MORE };
        *part = next.clamp(PART_MIN, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_falls_below_what_was_executed_while_others_waited_and_rises_again() {
        let own = OwnShare::default();
        own.note(0.4, 0.5);
        assert!((own.part() - 0.28).abs() < 1e-9);
        own.note(0.9, 0.5);
        assert!((own.part() - 0.196).abs() < 1e-9, "what it executed at its turn does not count");
        own.note(0.2, 0.05);
        assert!((own.part() - 0.2352).abs() < 1e-9);
        (0..100).for_each(|_| own.note(0.0, 1.0));
        assert!((own.part() - PART_MIN).abs() < 1e-9);
        (0..100).for_each(|_| own.note(0.0, 0.0));
        assert!((own.part() - 1.0).abs() < 1e-9, "no more than the whole block");
    }
}
