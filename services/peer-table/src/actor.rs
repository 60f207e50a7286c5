//! The only thread that owns the table.

use crate::{
    config::Config,
    metrics,
    snapshot::{self, CONTACTS_MAX},
    table::{Counts, Table},
    target::Target,
};
use ::metrics::{counter, gauge, histogram};
use bytes::Bytes;
use rand::rngs::StdRng;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use tandem_actor::{Inbox, Received};
use tandem_bus::Bus;
use tandem_primitives::B256;
use tandem_proto::{
    event::{Contact, PEERS_TARGET, PeersDiscovered, PeersTarget},
    peer_table::Stats,
};
use tokio::sync::oneshot::Sender;
use tracing::{info, warn};

/// Request to the table. An asker that does not wait for the answer gets none.
pub(crate) enum Message {
    Apply(Vec<Contact>),
    /// A `peers.discovered` event as it arrived. It is decoded here and not on the thread that
    /// listens.
    Discovered(Bytes),
    SampleForLookup(Sender<Option<Contact>>),
    SampleForEnr(Sender<Option<Contact>>),
    Closest(B256, usize, Sender<Vec<Contact>>),
    Stats(Sender<Stats>),
    Target(Sender<PeersTarget>),
    SetConnected(u32),
    Stop,
}

/// Time for which the thread sleeps when it has nothing to write.
const IDLE: Duration = Duration::from_secs(3600);

pub(crate) struct Actor {
    table: Table,
    rng: StdRng,
    bus: Bus,
    /// Zero of the table's clock.
    start: Instant,
    target: Target,
    snapshot: Option<PathBuf>,
    snapshot_contacts_max: usize,
    snapshot_interval: Duration,
    /// Time at which the table first changed since the last snapshot.
    changed: Option<Instant>,
}

impl Actor {
    /// Makes the actor with the content of the last snapshot. An unusable snapshot does not prevent
    /// the start.
    pub(crate) fn new(config: &Config, bus: Bus, rng: StdRng) -> Self {
        let mut table = Table::new(config);
        let enabled = !config.datadir.as_os_str().is_empty();
        let snapshot = enabled.then(|| config.datadir.join(snapshot::FILE));
        if let Some(path) = &snapshot {
            match snapshot::load(path) {
                Ok(contacts) => {
                    table.restore(&contacts, 0);
                    info!(contacts = contacts.len(), "peers restored");
                }
                Err(error) => {
                    warn!(%error, path = %path.display(), "snapshot of peers refused, starting empty");
                }
            }
        }
        Self {
            table,
            rng,
            bus,
            start: Instant::now(),
            target: Target::new(config),
            snapshot,
            snapshot_contacts_max: config.snapshot_contacts_max.min(CONTACTS_MAX),
            snapshot_interval: Duration::from_secs(config.snapshot_interval_secs.into()),
            changed: None,
        }
    }

    /// Works until it is told to stop.
    pub(crate) fn run(mut self, inbox: &Inbox<Message>) {
        loop {
            // Candidates return with time, but this shows only when they are requested, so no timer
            // is needed.
            let wait = self
                .changed
                .map_or(IDLE, |changed| self.snapshot_interval.saturating_sub(changed.elapsed()));
            match inbox.receive(wait) {
                Received::Message(envelope) => {
                    let _span = envelope.span.entered();
                    if let Message::Stop = envelope.message {
                        break;
                    }
                    self.handle(envelope.message);
                }
                Received::Idle => {}
                Received::Closed => break,
            }
            if self.changed.is_some_and(|changed| changed.elapsed() >= self.snapshot_interval) {
                self.save();
            }
        }
        self.save();
    }

    fn handle(&mut self, message: Message) {
        let now = self.start.elapsed().as_millis() as u64;
        self.table.advance(now);
        // An answer is dropped if its asker is gone.
        match message {
            Message::Apply(contacts) => self.apply(&contacts, now),
            Message::Discovered(payload) => match PeersDiscovered::decode(&payload) {
                Some(event) => self.apply(&event.contacts, now),
                None => {
                    counter!(metrics::DROPPED_BATCHES).increment(1);
                    warn!(bytes = payload.len(), "malformed event of discovered peers");
                }
            },
            Message::SampleForLookup(reply) => {
                let _ = reply.send(self.table.sample_for_lookup(&mut self.rng));
            }
            Message::SampleForEnr(reply) => {
                let _ = reply.send(self.table.sample_for_enr(&mut self.rng));
            }
            Message::Closest(target, count, reply) => {
                let _ = reply.send(self.table.closest(target, count));
            }
            Message::Stats(reply) => {
                let _ = reply.send(self.stats());
            }
            Message::Target(reply) => {
                let completion = self.target.completion(&self.table.counts());
                let _ = reply.send(PeersTarget { completion });
            }
            Message::SetConnected(count) => {
                self.target.report(count);
                self.publish_target(&self.table.counts());
            }
            Message::Stop => {}
        }
    }

    fn apply(&mut self, contacts: &[Contact], now: u64) {
        let begin = Instant::now();
        self.table.apply(contacts, now);
        if !contacts.is_empty() {
            self.changed.get_or_insert(begin);
        }
        histogram!(metrics::BATCH_SECONDS).record(begin.elapsed());
        counter!(metrics::UPDATES).increment(contacts.len() as u64);
        let counts = self.table.counts();
        counter!(metrics::EVICTED).absolute(counts.evicted);
        counter!(metrics::REFUSED).absolute(counts.refused);
        gauge!(metrics::CONTACTS, "class" => "proven").set(counts.proven as f64);
        gauge!(metrics::CONTACTS, "class" => "unproven").set(counts.unproven as f64);
        gauge!(metrics::CONTACTS, "class" => "disposed").set(counts.disposed as f64);
        gauge!(metrics::CANDIDATES, "purpose" => "lookup").set(counts.lookup_candidates as f64);
        gauge!(metrics::CANDIDATES, "purpose" => "enr").set(counts.enr_candidates as f64);
        self.publish_target(&counts);
    }

    /// Publishes the completion of the target if it has changed.
    fn publish_target(&mut self, counts: &Counts) {
        gauge!(metrics::CONNECTED).set(f64::from(self.target.connected()));
        if let Some(completion) = self.target.changed(counts) {
            self.bus.publish(PEERS_TARGET, PeersTarget { completion }.encode());
        }
    }

    fn stats(&self) -> Stats {
        let counts = self.table.counts();
        let connected = self.target.connected();
        let Counts {
            unproven,
            proven,
            alive: _,
            disposed,
            lookup_candidates,
            enr_candidates,
            evicted,
            refused,
        } = counts;
        Stats {
            contacts: (unproven + proven) as u64,
            proven: proven as u64,
            disposed: disposed as u64,
            lookup_candidates: lookup_candidates as u64,
            enr_candidates: enr_candidates as u64,
            evicted,
            refused,
            connected,
            target: self.target.wanted(),
        }
    }

    fn save(&mut self) {
        let (Some(path), Some(_)) = (&self.snapshot, self.changed.take()) else { return };
        let begin = Instant::now();
        let contacts = self.table.best(self.snapshot_contacts_max);
        match snapshot::save(path, &contacts) {
            Ok(()) => histogram!(metrics::SNAPSHOT_SECONDS).record(begin.elapsed()),
            Err(error) => warn!(%error, path = %path.display(), "snapshot of peers not written"),
        }
    }
}
