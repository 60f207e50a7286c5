//! Fibers: executions with a stack of their own, which park at a read that memory does not answer.
//!
//! A fiber owns an EVM and executes one transaction after another. It never leaves its thread.

use super::{job::Job, outcome::Speculation, reader::Miss};
use crate::state::parent::{StateKey, StateValue};
use corosensei::{Coroutine, CoroutineResult, stack::DefaultStack};
use std::{io, sync::Arc};

/// Bytes of a fiber's stack. Only the pages that it touches take memory. Calls of contracts are
/// frames on the heap, so their depth does not matter; precompiles need the most.
const STACK_BYTES: usize = 1 << 20;

/// Maximum number of executions of a transaction whose reads no longer hold when it ends.
const ATTEMPTS_MAX: usize = 3;

/// Reason to resume a fiber.
pub enum Input {
    /// It is to execute this transaction.
    Run(usize),
    /// Its read has this value. `None`: the reader must call storage-writer itself.
    Answer(Option<StateValue>),
    /// Its transaction is no longer wanted.
    Cancel,
}

/// Reason why a fiber stops.
pub enum Output {
    /// It waits for the value of this key.
    Parked(StateKey),
    /// Its transaction is executed, with a result unless that failed.
    Done(Option<Box<Speculation>>),
}

/// The fiber's side of a switch.
pub type Yielder = corosensei::Yielder<Input, Output>;

/// Stack of a fiber, for later ones as well.
pub type Stack = DefaultStack;

/// Fiber of one block.
pub struct Fiber {
    coroutine: Coroutine<Input, Output, (), Stack>,
    index: usize,
}

impl Fiber {
    /// Creates a fiber on this stack, or on a new one.
    ///
    /// # Errors
    /// Returns the operating system's error if there is no memory for a stack.
    pub fn new(job: Arc<Job>, stack: Option<Stack>) -> io::Result<Self> {
        let stack = stack.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)?;
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder, mut input| {
            let mut evm = None;
            while let Input::Run(index) = input {
                let mut done = None;
                for _ in 0..ATTEMPTS_MAX {
                    let fresh = || job.evm(Miss::Park(yielder));
                    done = job.try_execute(&mut evm, fresh, index);
                    // While it was parked, earlier transactions may have written what it had read.
                    if done.as_ref().is_none_or(|done| job.is_current(index, &done.reads)) {
                        break;
                    }
                }
                input = yielder.suspend(Output::Done(done.map(Box::new)));
            }
        });
        Ok(Self { coroutine, index: 0 })
    }

    /// Returns the transaction that the fiber executes, or executed last.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Executes a transaction until it is done or parks. The fiber must not be parked.
    pub fn run(&mut self, index: usize) -> Output {
        self.index = index;
        self.resume(Input::Run(index))
    }

    /// Continues a parked transaction with the value of its read.
    pub fn answer(&mut self, value: Option<StateValue>) -> Output {
        self.resume(Input::Answer(value))
    }

    fn resume(&mut self, input: Input) -> Output {
        match self.coroutine.resume(input) {
            CoroutineResult::Yield(output) => output,
            // Not before it was cancelled, and then it is not resumed.
            CoroutineResult::Return(()) => Output::Done(None),
        }
    }

    /// Ends the fiber, which may be parked, and returns its stack.
    pub fn end(mut self) -> Option<Stack> {
        // The first time ends a parked transaction with an error, the second time the fiber.
        for _ in 0..2 {
            if self.coroutine.done()
                || matches!(self.coroutine.resume(Input::Cancel), CoroutineResult::Return(()))
            {
                return Some(self.coroutine.into_stack());
            }
        }
        None
    }
}
