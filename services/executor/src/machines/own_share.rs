//! Part of a block that this process executes itself, from how long tx-executors had nothing to do.
//!
//! All machines should finish a block at the same time, so each takes work while it is free. This process also
//! decodes the block, sends values, and takes results in. If its threads have too few processors for both, that
//! work is late when it executes much, and the tx-executors wait. How much is too much is not computed but tried: less if the
//! tx-executors had nothing to do at the end and the engine waited for a processor, otherwise more.

use parking_lot::Mutex;

/// Part of a block's time for which tx-executors may have nothing to do at its end.
const IDLE_MAX: f64 = 0.1;
/// Part of the time in which the engine wants a processor that it must get: with less, its process has too
/// few.
const PROCESSOR_MIN: f64 = 0.7;
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

    /// Notes a block.
    pub fn note(&self, block: &OwnBlock) {
        let OwnBlock { executed, idle, processor } = *block;
        let mut part = self.0.lock();
        let is_late = idle > IDLE_MAX && processor < PROCESSOR_MIN;
        let next = if is_late { part.min(executed) * LESS } else { *part * MORE };
        *part = next.clamp(PART_MIN, 1.0);
    }
}

/// Block as this process had it. All are parts from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct OwnBlock {
    /// Part of its work that this process executed.
    pub executed: f64,
    /// Part of its time for which the tx-executors had nothing to do at the end.
    pub idle: f64,
    /// Part of the time in which the engine wanted a processor that it had one.
    pub processor: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_falls_below_what_was_executed_while_others_waited_and_rises_again() {
        let own = OwnShare::default();
        let note = |executed, idle| own.note(&OwnBlock { executed, idle, processor: 0.2 });
        note(0.4, 0.5);
        assert!((own.part() - 0.28).abs() < 1e-9);
        note(0.9, 0.5);
        assert!((own.part() - 0.196).abs() < 1e-9, "what it executed at its turn does not count");
        note(0.2, 0.05);
        assert!((own.part() - 0.2352).abs() < 1e-9);
        (0..100).for_each(|_| note(0.0, 1.0));
        assert!((own.part() - PART_MIN).abs() < 1e-9);
        (0..100).for_each(|_| note(0.0, 0.0));
        assert!((own.part() - 1.0).abs() < 1e-9, "no more than the whole block");
    }

    #[test]
    fn who_has_processors_enough_takes_what_is_free() {
        let own = OwnShare::default();
        (0..9).for_each(|_| own.note(&OwnBlock { executed: 0.3, idle: 0.5, processor: 0.95 }));
        assert!((own.part() - 1.0).abs() < 1e-9);
    }
}
