//! Execution for keys: values that are not in memory are guessed.

use super::{AheadEvm, Job};
use crate::{
    ahead::speculate::{
        outcome::Speculation,
        reader::{Miss, Missed},
    },
    state::parent::StateKey,
};

/// Execution that takes guesses for what is not in memory.
#[derive(Default)]
pub struct Guesser {
    evm: Option<AheadEvm<'static>>,
    missed: Missed,
}

impl Guesser {
    /// Executes a transaction. Returns its result, which is worthless unless the list of missed keys
    /// is empty.
    pub fn execute(
        &mut self,
        job: &Job,
        index: usize,
        execute: impl FnOnce(&Job, &mut AheadEvm<'_>, usize) -> Option<Speculation>,
    ) -> (Option<Speculation>, Vec<StateKey>) {
        let missed = self.missed.clone();
        let done = job.catch(&mut self.evm, || job.evm(Miss::Guess(missed)), index, execute);
        let missed = self.missed.take();
        if !missed.is_empty()
            && let Some(evm) = &mut self.evm
        {
            evm.database().forget();
        }
        (done, missed)
    }
}
