//! Batching of reads: reads that arrive while a call is under way go into the next call together. A
//! read never waits for others to join.

use parking_lot::{Condvar, Mutex};
use std::{mem, sync::Arc};
use tandem_proto::storage::{Error, ReadState, Result, StateValues};

/// Maximum number of calls under way. With more, fewer reads share a call, and on busy processors
/// the number of calls is what counts.
const CALLS_MAX: usize = 1;

/// Maximum number of keys of a shared read. A larger read is a call of its own, beside the shared
/// ones. Sharing would gain it little, and a reader that needs one key would wait for all of its
/// keys.
const SHARED_KEYS_MAX: usize = 32;

/// Readers, and the reads for the next call.
#[derive(Default)]
pub struct ReadCoalescer {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<WaitingRead>,
    calls: usize,
    /// Whether a waiting reader has been told to make the next call, and has not begun yet.
    caller_chosen: bool,
}

/// Read that waits for its answer. Dropped without one, it tells its reader so.
struct WaitingRead {
    request: ReadState,
    /// `None` once it has its answer.
    reader: Option<Arc<Reader>>,
}

/// Place where a reader sleeps. Not a channel, because a channel spins before it sleeps, and a
/// reader cannot get an answer before a call under way has ended.
#[derive(Default)]
struct Reader {
    state: Mutex<ReaderState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReaderState {
    answer: Option<Result<StateValues>>,
    /// Whether this reader must make the next call, for all waiting readers.
    must_call: bool,
}

enum Next {
    Answer(Result<StateValues>),
    MakeCall,
}

impl Reader {
    fn update(&self, change: impl FnOnce(&mut ReaderState)) {
        change(&mut self.state.lock());
        self.changed.notify_one();
    }

    fn next(&self) -> Next {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return Next::Answer(answer);
            }
            if mem::take(&mut state.must_call) {
                return Next::MakeCall;
            }
            self.changed.wait(&mut state);
        }
    }
}

impl WaitingRead {
    fn answer(&mut self, answer: Result<StateValues>) {
        if let Some(reader) = self.reader.take() {
            reader.update(|state| state.answer = Some(answer));
        }
    }
}

impl Drop for WaitingRead {
    fn drop(&mut self) {
        self.answer(Err(Error::Unavailable("the read was given up".to_owned())));
    }
}

impl ReadCoalescer {
    /// Reads by `call`, which this thread makes, or another thread for both.
    ///
    /// # Errors
    /// The errors of `call`, the same for all reads that it was made for.
    pub fn read(
        &self,
        request: &ReadState,
        call: impl Fn(&ReadState) -> Result<StateValues>,
    ) -> Result<StateValues> {
        let ReadState { accounts, slots, codes } = request;
        if accounts.len() + slots.len() + codes.len() > SHARED_KEYS_MAX {
            return call(request);
        }
        let Some(reader) = self.join(request) else {
            let _guard = CallGuard(self);
            return call(request);
        };
        loop {
            match reader.next() {
                Next::Answer(answer) => return answer,
                Next::MakeCall => {
                    let _guard = CallGuard(self);
                    let waiting = {
                        let mut state = self.state.lock();
                        state.caller_chosen = false;
                        mem::take(&mut state.waiting)
                    };
                    answer_all(waiting, &call);
                }
            }
        }
    }

    /// Joins the waiting readers. Returns `None` where there are none and a call may be made at
    /// once.
    fn join(&self, request: &ReadState) -> Option<Arc<Reader>> {
        let mut state = self.state.lock();
        if state.calls < CALLS_MAX && state.waiting.is_empty() {
            state.calls += 1;
            return None;
        }
        let reader = Arc::<Reader>::default();
        state.waiting.push(WaitingRead { request: request.clone(), reader: Some(reader.clone()) });
        Some(reader)
    }
}

/// Guard that passes on the right to make a call when it ends.
struct CallGuard<'a>(&'a ReadCoalescer);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        match state.waiting.first() {
            Some(WaitingRead { reader: Some(reader), .. }) if !state.caller_chosen => {
                reader.update(|state| state.must_call = true);
                state.caller_chosen = true;
            }
            _ => state.calls -= 1,
        }
    }
}

/// Makes one call for all these reads.
fn answer_all(waiting: Vec<WaitingRead>, call: impl Fn(&ReadState) -> Result<StateValues>) {
    let mut all = ReadState::default();
    for WaitingRead { request, .. } in &waiting {
        all.accounts.extend(&request.accounts);
        all.slots.extend(&request.slots);
        all.codes.extend(&request.codes);
    }
    let mut answer = match call(&all) {
        Ok(answer) => answer,
        Err(error) => {
            waiting.into_iter().for_each(|mut one| one.answer(Err(error.clone())));
            return;
        }
    };
    // From the end, where a list is split without moving the rest.
    for mut one in waiting.into_iter().rev() {
        let ReadState { accounts, slots, codes } = &one.request;
        let part = StateValues {
            base: answer.base,
            accounts: answer.accounts.split_off(answer.accounts.len() - accounts.len()),
            slots: answer.slots.split_off(answer.slots.len() - slots.len()),
            codes: answer.codes.split_off(answer.codes.len() - codes.len()),
        };
        one.answer(Ok(part));
    }
}

#[cfg(test)]
mod tests;
