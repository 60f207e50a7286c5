//! Wiring: the verifiers, the intake, and the contract.

use crate::{
    admission::Gate,
    config::Config,
    intake::{self, Message},
    metrics,
    pool::{self, Reply, Shared},
};
use std::{
    future::ready,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_actor::{Mailbox, Running, mailbox};
use tandem_blob_validator_client::bundle;
use tandem_bus::Bus;
use tandem_kzg::Setup;
use tandem_primitives::B256;
use tandem_proto::blob_validator::{
    BlobApi, Bundle, Content, Error, Pending, Result, Status, StoredBlob, Verdict,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Dependencies of the service on the rest of the cluster.
pub struct Deps {
    /// Bus on which `blobs.validated` is published.
    pub bus: Bus,
    /// Token cancelled when a thread panics.
    pub fatal: CancellationToken,
}

/// Running service. Requests may be made as soon as it exists; they wait until the trusted setup is
/// loaded, about a second.
pub struct BlobValidator {
    shared: Arc<Shared>,
    gate: Gate,
    intake: Mailbox<Message>,
    running: Running,
}

impl BlobValidator {
    /// Starts the threads. They load the trusted setup; this function does not wait for it.
    ///
    /// # Errors
    /// Error of the operating system if it cannot create a thread.
    pub fn start(config: Config, deps: Deps) -> io::Result<Arc<Self>> {
        metrics::describe();
        let config = config.clamped();
        let (gate, count) = (Gate::new(config.waiting_bytes_max), config.threads);
        let (intake, inbox) = mailbox("blob-validator", config.requests_max);
        let shared = Arc::new(Shared::new(config, deps.bus));
        let running = Running::new(deps.fatal);
        let service = Self { shared: shared.clone(), gate, intake, running };
        for index in 0..count {
            let shared = shared.clone();
            let name = format!("blob-verifier-{index}");
            service.running.spawn(&name, move || pool::run(&shared))?;
        }
        service.running.spawn("blob-intake", move || intake::run(&shared, &inbox))?;
        Ok(Arc::new(service))
    }

    /// Returns whether the trusted setup is loaded.
    pub fn ready(&self) -> bool {
        Setup::loaded().is_some()
    }

    /// Stops: waiting requests are answered with [`Error::Unavailable`], and the threads finish
    /// their current verification and return. Blocks until they have, so never call it in async
    /// code. Later calls change nothing.
    ///
    /// Threads that still load the trusted setup cannot be told to end, and verify nothing yet.
    /// This function does not wait for them; they end once they have loaded it.
    pub fn stop(&self) {
        self.shared.stop();
        let loading = !self.ready();
        let threads = self.running.end(|| {
            let _ = self.intake.send(Message::Stop);
        });
        for thread in threads.into_iter().filter(|_| !loading) {
            let _ = thread.join();
        }
    }
}

impl Drop for BlobValidator {
    fn drop(&mut self) {
        self.stop();
    }
}

fn stopped() -> Error {
    Error::Unavailable("stopped".to_owned())
}

/// Outcome of passing a sidecar to the intake.
enum Sent {
    /// The answer comes through this channel.
    Waiting(oneshot::Receiver<Result<Verdict>>),
    /// The sidecar is answered without being verified.
    Answered(Result<Verdict>),
}

impl BlobValidator {
    /// Checks a sidecar without KZG and passes it to the intake. Takes microseconds.
    fn send(&self, bundle: Arc<Bundle>, deadline: Instant) -> Sent {
        if let Err(refusal) = bundle::check(&bundle) {
            return Sent::Answered(Ok(Verdict::Invalid(refusal)));
        }
        let Some(admission) = self.gate.admit(&bundle) else {
            return Sent::Answered(Err(self.shared.refuse_for_overload()));
        };
        let (sender, answer) = oneshot::channel();
        let reply = Reply { sender, admission };
        match self.intake.try_send(Message::Validate { bundle, deadline, reply }) {
            Ok(()) => Sent::Waiting(answer),
            Err(tandem_actor::Error::Overloaded(_)) => {
                Sent::Answered(Err(self.shared.refuse_for_overload()))
            }
            Err(tandem_actor::Error::Stopped(_)) => Sent::Answered(Err(stopped())),
        }
    }
}

impl BlobApi for BlobValidator {
    fn validate(&self, bundle: Arc<Bundle>, timeout: Duration) -> Pending<Verdict> {
        let deadline = Instant::now() + timeout.min(tandem_blob_validator_client::TIMEOUT_MAX);
        let sent = self.send(bundle, deadline);
        Box::pin(async move {
            let answer = match sent {
                Sent::Waiting(answer) => answer,
                Sent::Answered(result) => return result,
            };
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(stopped()),
                Err(_) => Err(Error::DeadlineExceeded),
            }
        })
    }

    fn refuse(&self, blobs: usize) -> Option<Error> {
        self.shared.is_full_for(blobs).then(|| self.shared.refuse_for_overload())
    }

    fn recall(&self, content: Content) -> Pending<bool> {
        Box::pin(ready(Ok(self.shared.recall(&content))))
    }

    fn get_blobs(&self, versioned_hashes: &[B256]) -> Pending<Vec<Option<Arc<StoredBlob>>>> {
        let blobs = self.shared.store.lock().get(Instant::now(), versioned_hashes);
        Box::pin(ready(Ok(blobs)))
    }

    fn forget(&self, versioned_hashes: &[B256]) {
        self.shared.store.lock().forget(versioned_hashes);
    }

    fn status(&self) -> Pending<Status> {
        let counts = self.shared.state.lock().status();
        let store = self.shared.store.lock();
        let status = Status {
            ready: self.ready(),
            stored_blobs: store.len() as u64,
            stored_bytes: store.bytes() as u64,
            ..counts
        };
        Box::pin(ready(Ok(status)))
    }
}
