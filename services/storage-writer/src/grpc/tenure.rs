//! The right to write as the client has it that was granted it: it says that it is there.

use super::remote::Remote;
use std::time::Duration;
use tandem_proto::{
    convert::EpochRequest,
    storage::{Claim, Epoch, Error, ExecutorAddress, Result},
    wire::storage_writer::v1,
};
use tokio::{
    sync::{Mutex, watch},
    time::sleep,
};
use tracing::debug;

/// Signs of life in the time of a lease.
const SIGNS: u32 = 4;

/// An epoch under a lease.
pub struct Tenure {
    lease: Duration,
    address: Option<ExecutorAddress>,
    state: watch::Sender<State>,
    /// Held while a sign of life is on its way, so that none comes after the end of the lease.
    saying: Mutex<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was granted, or it was given back.
    None,
    /// This one is ours, as far as we know.
    Held(Epoch),
    /// Somebody else took over.
    Fenced,
    /// It was given back, and none is asked for any more.
    Left,
}

impl Tenure {
    pub fn new(lease: Duration, address: Option<ExecutorAddress>) -> Self {
        let state = watch::Sender::new(State::None);
        Self { lease, address, state, saying: Mutex::default() }
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The question for an epoch. What is held already does not stand in its way.
    pub fn request(&self, executor: &str) -> v1::AcquireEpochRequest {
        let held = match *self.state.borrow() {
            State::Held(epoch) => Some(epoch),
            State::None | State::Fenced | State::Left => None,
        };
        let (lease, address) = (self.lease, self.address.clone());
        let claim = Claim { lease, address, ..Claim::of(executor) };
        EpochRequest { claim, held }.into()
    }

    /// Whether no epoch is to be asked for any more.
    pub fn has_left(&self) -> bool {
        *self.state.borrow() == State::Left
    }

    /// Notes that the epoch was granted; false where that came too late.
    pub fn begin(&self, epoch: Epoch) -> bool {
        self.state.send_if_modified(|state| {
            let in_time = *state != State::Left;
            if in_time {
                *state = State::Held(epoch);
            }
            in_time
        })
    }

    /// Waits until an epoch was granted.
    pub async fn granted(&self) {
        let is_held = |state: &State| matches!(state, State::Held(_));
        // An error cannot be: the sender is here.
        let _ = self.state.subscribe().wait_for(is_held).await;
    }

    pub async fn fenced(&self) {
        // An error cannot be: the sender is here.
        let _ = self.state.subscribe().wait_for(|state| *state == State::Fenced).await;
    }

    /// Says again and again that the executor is there; never ends.
    pub async fn keep(&self, remote: &Remote) {
        let mut state = self.state.subscribe();
        loop {
            let held = state.wait_for(|state| matches!(state, State::Held(_))).await;
            let Ok(State::Held(epoch)) = held.map(|state| *state) else { return };
            if self.lease.is_zero() {
                std::future::pending::<()>().await;
            }
            let said = {
                let _saying = self.saying.lock().await;
                if *self.state.borrow() != State::Held(epoch) {
                    continue;
                }
                self.say(remote, epoch, self.lease).await
            };
            match said {
                Err(Error::Fenced { .. } | Error::Unproven { .. }) => {
                    // Unless a newer one was granted to this client meanwhile.
                    self.state.send_if_modified(|state| {
                        let lost = *state == State::Held(epoch);
                        if lost {
                            *state = State::Fenced;
                        }
                        lost
                    });
                }
                Err(error) => debug!(%error, "no sign of life given"),
                Ok(()) => {}
            }
            sleep(self.lease / SIGNS).await;
        }
    }

    /// Gives the epoch back, if there is one. An error leaves it to the lease's end.
    pub async fn release(&self, remote: &Remote) {
        self.end(remote, State::None).await;
    }

    /// The same, and no epoch is asked for any more.
    pub async fn leave(&self, remote: &Remote) {
        self.end(remote, State::Left).await;
    }

    async fn end(&self, remote: &Remote, state: State) {
        let before = self.state.send_replace(state);
        let _saying = self.saying.lock().await;
        if let State::Held(epoch) = before {
            self.give_back(remote, epoch).await;
        }
    }

    /// Gives this epoch back.
    pub async fn give_back(&self, remote: &Remote, epoch: Epoch) {
        if !self.lease.is_zero()
            && let Err(error) = self.say(remote, epoch, Duration::ZERO).await
        {
            debug!(%error, "epoch not given back");
        }
    }

    async fn say(&self, remote: &Remote, epoch: Epoch, lease: Duration) -> Result<()> {
        let request = v1::KeepEpochRequest::from((epoch, lease));
        let manner = remote.config.sign("keep_epoch", self.lease);
        let said = remote.ask(manner, request, |mut calls, request| async move {
            calls.keep_epoch(request).await
        });
        said.await.map(|_| ())
    }
}
