//! Wiring: the thread of the table, and the thread that listens to the bus for it.

use crate::{
    actor::{Actor, Message},
    config::Config,
    metrics,
};
use ::metrics::counter;
use rand::{SeedableRng, rngs::StdRng};
use std::{io, sync::Arc};
use tandem_actor::{Mailbox, Running, mailbox};
use tandem_bus::{Bus, Subscription};
use tandem_primitives::B256;
use tandem_proto::{
    event::{Contact, PEERS_DISCOVERED},
    limits::CLOSEST_CONTACTS_MAX,
    peer_table::{Error, PeerTableApi, Result, Stats},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Dependencies of the table on the rest of the cluster.
pub struct Deps {
    /// Bus that carries `peers.discovered` to the table and `peers.target` from it.
    pub bus: Bus,
    /// Token cancelled when a thread of the table panics.
    pub fatal: CancellationToken,
}

/// Running service.
pub struct PeerTable {
    mailbox: Mailbox<Message>,
    running: Running,
}

impl PeerTable {
    /// Loads the snapshot, if there is one, and starts the threads.
    ///
    /// # Errors
    /// Error of the operating system if it cannot create a thread.
    pub fn start(config: Config, deps: Deps) -> io::Result<Arc<Self>> {
        metrics::describe();
        // Events are collected from now on, though applied only after the snapshot.
        let discovered = deps.bus.subscribe(PEERS_DISCOVERED);
        let (sender, inbox) = mailbox("peer-table", config.mailbox_capacity);
        let actor = Actor::new(&config, deps.bus, StdRng::from_os_rng());
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let running = Running::new(deps.fatal);
        running.spawn("peer-table", move || actor.run(&inbox))?;
        let (forward, stopping) = (sender.clone(), running.stopping().clone());
        running.spawn("peer-table-bus", move || {
            runtime.block_on(hear(discovered, &forward, &stopping));
        })?;
        Ok(Arc::new(Self { mailbox: sender, running }))
    }

    /// Stops the threads and waits for them; as their last action they write the snapshot. Without
    /// a stop, the snapshot is written when the table is dropped.
    pub fn stop(&self) {
        self.running.stop(|| {
            let _ = self.mailbox.send(Message::Stop);
        });
    }

    fn tell(&self, message: Message) -> Result<()> {
        self.mailbox.try_send(message).map_err(refusal)
    }

    fn ask<R>(&self, message: impl FnOnce(oneshot::Sender<R>) -> Message) -> Result<R> {
        let (reply, answer) = oneshot::channel();
        self.tell(message(reply))?;
        let stopped = || Error::Unavailable("peer-table has stopped".to_owned());
        answer.blocking_recv().map_err(|_| stopped())
    }

    /// Asks the table like the calls of [`PeerTableApi`], but from the reactor, which must not
    /// block.
    pub(crate) async fn ask_async<R>(
        &self,
        message: impl FnOnce(oneshot::Sender<R>) -> Message,
    ) -> Result<R> {
        self.mailbox.ask(message).await.map_err(refusal)
    }
}

fn refusal(error: tandem_actor::Error) -> Error {
    match error {
        tandem_actor::Error::Overloaded(_) => Error::Overloaded,
        tandem_actor::Error::Stopped(_) => Error::Unavailable(error.to_string()),
    }
}

/// Passes events on to the table. An event that finds the mailbox full is dropped: discovery will
/// see the nodes again.
async fn hear(mut bus: Subscription, table: &Mailbox<Message>, stop: &CancellationToken) {
    loop {
        let payload = tokio::select! {
            () = stop.cancelled() => return,
            payload = bus.next() => payload,
        };
        let Some(payload) = payload else { return };
        match table.try_send(Message::Discovered(payload)) {
            Ok(()) => {}
            Err(tandem_actor::Error::Overloaded(_)) => {
                counter!(metrics::DROPPED_BATCHES).increment(1);
            }
            Err(tandem_actor::Error::Stopped(_)) => return,
        }
    }
}

impl PeerTableApi for PeerTable {
    fn apply_batch(&self, contacts: Vec<Contact>) -> Result<()> {
        self.tell(Message::Apply(contacts))
    }

    fn sample_for_lookup(&self) -> Result<Option<Contact>> {
        self.ask(Message::SampleForLookup)
    }

    fn sample_for_enr(&self) -> Result<Option<Contact>> {
        self.ask(Message::SampleForEnr)
    }

    fn closest(&self, target: B256, count: usize) -> Result<Vec<Contact>> {
        self.ask(|reply| Message::Closest(target, count.min(CLOSEST_CONTACTS_MAX), reply))
    }

    fn stats(&self) -> Result<Stats> {
        self.ask(Message::Stats)
    }

    fn set_connected(&self, count: u32) -> Result<()> {
        self.tell(Message::SetConnected(count))
    }
}
