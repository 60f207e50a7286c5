//! Forkchoice whose head is not known yet, and how far sync is with the blocks up to it.

use crate::status::ForkchoiceState;
use parking_lot::Mutex;
use tandem_primitives::B256;
use tandem_proto::sync::SyncProgress;
use tokio::sync::watch;

/// Newest forkchoice that waits for its head.
#[derive(Default)]
pub(crate) struct Wanted {
    held: Mutex<Option<Held>>,
    head: watch::Sender<Option<B256>>,
}

struct Held {
    state: ForkchoiceState,
    progress: Option<SyncProgress>,
}

impl Wanted {
    /// Sets the forkchoice that waits, `None` if the newest one has been decided. Every call with a
    /// forkchoice wakes the listeners, because it may follow an answer that they gave up on.
    pub fn set(&self, state: Option<ForkchoiceState>) {
        let head = state.as_ref().map(|state| state.head);
        let mut held = self.held.lock();
        let progress = held.as_ref().and_then(|held| held.progress);
        *held = state.map(|state| Held { state, progress });
        self.head.send_if_modified(|before| {
            let news = head.is_some() || before.is_some();
            *before = head;
            news
        });
    }

    /// Returns the forkchoice that waits for this head.
    pub fn state(&self, head: B256) -> Option<ForkchoiceState> {
        self.held.lock().as_ref().map(|held| held.state).filter(|state| state.head == head)
    }

    /// Notes that the forkchoice with this head has been decided, unless another one waits.
    pub fn reached(&self, head: B256) {
        let mut held = self.held.lock();
        if held.as_ref().is_some_and(|held| held.state.head == head) {
            *held = None;
            self.head.send_replace(None);
        }
    }

    /// Returns the wanted head, to be watched.
    pub fn subscribe(&self) -> watch::Receiver<Option<B256>> {
        self.head.subscribe()
    }

    /// Sets the progress. Without a forkchoice that waits, it is late, and there is none.
    pub fn show(&self, progress: Option<SyncProgress>) {
        if let Some(held) = &mut *self.held.lock() {
            held.progress = progress;
        }
    }

    /// Returns the progress, or `None` if there is none.
    pub fn progress(&self) -> Option<SyncProgress> {
        self.held.lock().as_ref().and_then(|held| held.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(head: u8) -> ForkchoiceState {
        let head = B256::with_last_byte(head);
        ForkchoiceState { head, safe: B256::ZERO, finalized: B256::ZERO }
    }

    #[test]
    fn the_newest_forkchoice_waits_until_it_or_a_later_one_is_decided() {
        let wanted = Wanted::default();
        let mut seen = wanted.subscribe();
        wanted.set(None);
        assert!(!seen.has_changed().unwrap());
        wanted.set(Some(state(1)));
        wanted.set(Some(state(2)));
        assert_eq!(*seen.borrow_and_update(), Some(state(2).head));
        wanted.set(Some(state(2)));
        assert!(seen.has_changed().unwrap(), "the consensus client still wants it");
        wanted.reached(state(1).head);
        assert_eq!(*seen.borrow_and_update(), Some(state(2).head));
        assert_eq!(wanted.state(state(1).head), None);
        wanted.reached(state(2).head);
        assert_eq!((*seen.borrow_and_update(), wanted.state(state(2).head)), (None, None));
        wanted.set(Some(state(3)));
        wanted.set(None);
        assert_eq!(*seen.borrow_and_update(), None);
    }

    #[test]
    fn progress_ends_with_the_forkchoice_that_waits() {
        let progress = SyncProgress {
            stage: "blocks",
            starting: 0,
            current: 1,
            highest: 2,
            lowest_header: None,
            peers: 3,
            seconds_left: None,
            state: None,
        };
        let wanted = Wanted::default();
        wanted.show(Some(progress));
        assert_eq!(wanted.progress(), None, "nothing waits");
        let decisions: [fn(&Wanted); 2] =
            [|wanted| wanted.set(None), |wanted| wanted.reached(state(2).head)];
        for decide in decisions {
            wanted.set(Some(state(1)));
            assert_eq!(wanted.progress(), None);
            wanted.show(Some(progress));
            wanted.set(Some(state(2)));
            assert_eq!(wanted.progress(), Some(progress), "it goes on for a newer head");
            decide(&wanted);
            wanted.show(Some(progress));
            assert_eq!(wanted.progress(), None, "sync has not noticed yet");
        }
    }
}
