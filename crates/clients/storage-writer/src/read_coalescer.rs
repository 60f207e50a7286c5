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
    waiting: Vec<Waiting>,
    calls: usize,
    /// Whether a waiting reader has been told to make the next call, and has not begun yet.
    told: bool,
}

/// Read that waits for its answer. Dropped without one, it tells its reader so.
struct Waiting {
    request: ReadState,
    /// `None` once it has its answer.
    reader: Option<Arc<Reader>>,
}

/// Place where a reader sleeps. Not a channel, because a channel spins before it sleeps, and a
/// reader cannot get an answer before a call under way has ended.
#[derive(Default)]
struct Reader {
    news: Mutex<News>,
    told: Condvar,
}

#[derive(Default)]
struct News {
    answer: Option<Result<StateValues>>,
    /// Whether this reader must make the next call, for all waiting readers.
    turn: bool,
}

enum Next {
    Answer(Result<StateValues>),
    Turn,
}

impl Reader {
    fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock());
        self.told.notify_one();
    }

    fn next(&self) -> Next {
        let mut news = self.news.lock();
        loop {
            if let Some(answer) = news.answer.take() {
                return Next::Answer(answer);
            }
            if mem::take(&mut news.turn) {
                return Next::Turn;
            }
            self.told.wait(&mut news);
        }
    }
}

impl Waiting {
    fn answer(&mut self, answer: Result<StateValues>) {
        if let Some(reader) = self.reader.take() {
            reader.tell(|news| news.answer = Some(answer));
        }
    }
}

impl Drop for Waiting {
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
        let Some(reader) = self.wait(request) else {
            let _ends = Ends(self);
            return call(request);
        };
        loop {
            match reader.next() {
                Next::Answer(answer) => return answer,
                Next::Turn => {
                    let _ends = Ends(self);
                    let waiting = {
                        let mut state = self.state.lock();
                        state.told = false;
                        mem::take(&mut state.waiting)
                    };
                    answer_all(waiting, &call);
                }
            }
        }
    }

    /// Joins the waiting readers. Returns `None` where there are none and a call may be made at
    /// once.
    fn wait(&self, request: &ReadState) -> Option<Arc<Reader>> {
        let mut state = self.state.lock();
        if state.calls < CALLS_MAX && state.waiting.is_empty() {
            state.calls += 1;
            return None;
        }
        let reader = Arc::<Reader>::default();
        state.waiting.push(Waiting { request: request.clone(), reader: Some(reader.clone()) });
        Some(reader)
    }
}

/// Guard that passes on the right to make a call when it ends.
struct Ends<'a>(&'a ReadCoalescer);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        match state.waiting.first() {
            Some(Waiting { reader: Some(reader), .. }) if !state.told => {
                reader.tell(|news| news.turn = true);
                state.told = true;
            }
            _ => state.calls -= 1,
        }
    }
}

/// Makes one call for all these reads.
fn answer_all(waiting: Vec<Waiting>, call: impl Fn(&ReadState) -> Result<StateValues>) {
    let mut all = ReadState::default();
    for Waiting { request, .. } in &waiting {
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
