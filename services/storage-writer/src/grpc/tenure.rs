//! The right to write as the client has it that was granted it: it says that it is there.

use super::remote::Remote;
use std::time::Duration;
use tandem_proto::{
    convert::EpochRequest,
    storage::{Claim, Epoch, Error, Result},
    wire::storage_writer::v1,
};
use tokio::{sync::watch, time::sleep};
use tracing::debug;

/// Signs of life in the time of a lease.
const SIGNS: u32 = 4;

/// An epoch under a lease.
pub struct Tenure {
    lease: Duration,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was granted, or it was given back.
    None,
    /// This one is ours, as far as we know.
    Held(Epoch),
    /// Somebody else took over.
    Fenced,
}

impl Tenure {
    pub fn new(lease: Duration) -> Self {
        Self { lease, state: watch::Sender::new(State::None) }
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The question for an epoch. What is held already does not stand in its way.
    pub fn request(&self, executor: &str) -> v1::AcquireEpochRequest {
        let held = match *self.state.borrow() {
            State::Held(epoch) => Some(epoch),
            State::None | State::Fenced => None,
        };
        let claim = Claim { lease: self.lease, ..Claim::of(executor) };
        EpochRequest { claim, held }.into()
    }

    /// The epoch was granted.
    pub fn begin(&self, epoch: Epoch) {
        self.state.send_replace(State::Held(epoch));
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
            match self.say(remote, epoch, self.lease).await {
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
        if let State::Held(epoch) = self.state.send_replace(State::None)
            && !self.lease.is_zero()
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
