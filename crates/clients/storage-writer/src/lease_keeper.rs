//! Client side of the write lease: it renews the granted epoch until it is released or fenced.

use super::remote_storage::RemoteStorage;
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

/// Renewals in the time of a lease.
const RENEWALS: u32 = 4;

/// Epoch under a lease.
pub struct LeaseKeeper {
    lease: Duration,
    address: Option<ExecutorAddress>,
    state: watch::Sender<State>,
    /// Held while a renewal is under way, so that none comes after the end of the lease.
    renewing: Mutex<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No epoch was granted, or it was released.
    None,
    /// This client holds the epoch, as far as it knows.
    Held(Epoch),
    /// Another executor took over.
    Fenced,
    /// The epoch was released, and no further one is requested.
    Left,
}

impl LeaseKeeper {
    pub fn new(lease: Duration, address: Option<ExecutorAddress>) -> Self {
        let state = watch::Sender::new(State::None);
        Self { lease, address, state, renewing: Mutex::default() }
    }

    pub fn duration(&self) -> Duration {
        self.lease
    }

    /// Returns the request for an epoch. It names the epoch already held, which does not block the
    /// new one.
    pub fn request(&self, executor: &str) -> v1::AcquireEpochRequest {
        let held = self.held();
        let (lease, address) = (self.lease, self.address.clone());
        let claim = Claim { lease, address, ..Claim::of(executor) };
        EpochRequest { claim, held }.into()
    }

    /// Returns whether no further epoch is to be requested.
    pub fn has_left(&self) -> bool {
        *self.state.borrow() == State::Left
    }

    /// Records that the epoch was granted. Returns false when this came too late.
    pub fn set_granted(&self, epoch: Epoch) -> bool {
        self.state.send_if_modified(|state| {
            let in_time = *state != State::Left;
            if in_time {
                *state = State::Held(epoch);
            }
            in_time
        })
    }

    /// Returns the epoch that this client holds, as far as it knows.
    pub fn held(&self) -> Option<Epoch> {
        match *self.state.borrow() {
            State::Held(epoch) => Some(epoch),
            State::None | State::Fenced | State::Left => None,
        }
    }

    /// Waits until an epoch is granted.
    pub async fn granted(&self) {
        let is_held = |state: &State| matches!(state, State::Held(_));
        // Never fails: the sender lives in `self`.
        let _ = self.state.subscribe().wait_for(is_held).await;
    }

    pub async fn fenced(&self) {
        // Never fails: the sender lives in `self`.
        let _ = self.state.subscribe().wait_for(|state| *state == State::Fenced).await;
    }

    /// Renews the lease periodically. Never ends.
    pub async fn keep_renewing(&self, remote: &RemoteStorage) {
        let mut state = self.state.subscribe();
        loop {
            let held = state.wait_for(|state| matches!(state, State::Held(_))).await;
            let Ok(State::Held(epoch)) = held.map(|state| *state) else { return };
            if self.lease.is_zero() {
                std::future::pending::<()>().await;
            }
            let renewed = {
                let _renewing = self.renewing.lock().await;
                if *self.state.borrow() != State::Held(epoch) {
                    continue;
                }
                self.renew(remote, epoch, self.lease).await
            };
            match renewed {
                // A storage-writer of an earlier term knows only older epochs. It is not the one that
                // granted this epoch, and nothing is written there.
                Err(Error::Fenced { held, granted }) if granted < held => {
                    debug!(held, granted, "lease not renewed: an earlier term");
                }
                Err(Error::Fenced { .. } | Error::Unproven { .. }) => {
                    // Not when a newer epoch was granted to this client meanwhile.
                    self.state.send_if_modified(|state| {
                        let lost = *state == State::Held(epoch);
                        if lost {
                            *state = State::Fenced;
                        }
                        lost
                    });
                }
                Err(error) => debug!(%error, "lease not renewed"),
                Ok(()) => {}
            }
            sleep(self.lease / RENEWALS).await;
        }
    }

    /// Releases the epoch, if there is one. After an error, the epoch stays held until the lease
    /// ends.
    pub async fn release(&self, remote: &RemoteStorage) {
        self.end(remote, State::None).await;
    }

    /// Releases the epoch, and requests no further one.
    pub async fn leave(&self, remote: &RemoteStorage) {
        self.end(remote, State::Left).await;
    }

    async fn end(&self, remote: &RemoteStorage, state: State) {
        let before = self.state.send_replace(state);
        let _renewing = self.renewing.lock().await;
        if let State::Held(epoch) = before {
            self.release_epoch(remote, epoch).await;
        }
    }

    /// Releases this epoch.
    pub async fn release_epoch(&self, remote: &RemoteStorage, epoch: Epoch) {
        if !self.lease.is_zero()
            && let Err(error) = self.renew(remote, epoch, Duration::ZERO).await
        {
            debug!(%error, "epoch not released");
        }
    }

    /// Renews the epoch for this time; none ends it.
    async fn renew(&self, remote: &RemoteStorage, epoch: Epoch, lease: Duration) -> Result<()> {
        let request = v1::KeepEpochRequest::from((epoch, lease));
        let options = remote.config.renewal("keep_epoch", self.lease);
        let renewed = remote.call(options, request, |mut calls, request| async move {
            calls.keep_epoch(request).await
        });
        renewed.await.map(|_| ())
    }
}
