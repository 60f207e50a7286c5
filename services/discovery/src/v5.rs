//! Node Discovery v5 beside v4: one socket, one node key, one record, one table. The crate `discv5`
//! implements the protocol; this module starts its lookups and handles its events.
//!
//! ```text
//!   network ──► socket ──► discv5 ── packets it does not understand ──► v4
//!                             └───── nodes ──► peers.discovered
//! ```
//!
//! discv5 reads the socket, as only it can tell its packets from noise. v4 gets the rest, and sends
//! by itself. Nodes that discv5 finds are published as seen; v4 asks them like any other node.
//!
//! **Overload.** Packets for v4 wait in bounded queues, and are lost when these are full.

use crate::{
    Config, Error,
    events::Publisher,
    metrics::V5_FOUND,
    service::node_of,
    state::{reach::may_tell, schedule::backed_off},
    udp::Datagram,
};
use discv5::{ConfigBuilder, Discv5, Event, ListenConfig};
use enr::{CombinedKey, NodeId};
use metrics::counter;
use std::{
    collections::HashSet,
    future::Future,
    io, mem,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_bus::{Bus, Subscription};
use tandem_discv4::{Enr, NodeKey, PublicKey};
use tandem_policy::LookupPauses;
use tandem_proto::event::{Contact, ContactEvent, PEERS_TARGET, PeersTarget};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
    time::sleep_until,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

/// Number of packets that may wait for v4.
const FRAMES: usize = 256;
/// Shortest pause between lookups, whatever is configured.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Number of nodes remembered as found; above it, all are forgotten.
const KNOWN_MAX: usize = 1 << 16;
/// Time between two pings to a node of discv5's own table.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Running discv5. It lives on the runtime that it was started on.
pub struct V5 {
    discv5: Discv5,
    events: mpsc::Receiver<Event>,
    frames: mpsc::Sender<Datagram>,
    records: watch::Receiver<Enr>,
    target: Subscription,
    publisher: Publisher,
    bound: IpAddr,
    completion: f64,
    known: HashSet<PublicKey>,
    /// Whether an unknown node was found since the last lookup ended.
    found: bool,
    /// Number of lookups in a row that found no such node.
    barren: u32,
    config: Config,
    started: Instant,
}

type Lookup = Pin<Box<dyn Future<Output = bool> + Send>>;

impl V5 {
    /// Starts on this socket, with the record and its later versions. From now on the returned
    /// receiver brings v4's packets.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub async fn start(
        config: &Config,
        key: &NodeKey,
        socket: Arc<UdpSocket>,
        records: watch::Receiver<Enr>,
        bootnodes: &[&str],
        bus: &Bus,
    ) -> Result<(Self, mpsc::Receiver<Datagram>), Error> {
        let refused = |error: String| Error::io("start discv5")(io::Error::other(error));
        let local = records.borrow().to_string().parse().map_err(refused)?;
        let secret = CombinedKey::secp256k1_from_bytes(&mut key.secret_bytes())
            .map_err(|error| refused(error.to_string()))?;
        let bound = socket.local_addr().map_err(Error::io("start discv5"))?.ip();
        let listen = match bound {
            IpAddr::V4(_) => ListenConfig::FromSockets { ipv4: Some(socket), ipv6: None },
            IpAddr::V6(_) => ListenConfig::FromSockets { ipv4: None, ipv6: Some(socket) },
        };
        let mut settings = ConfigBuilder::new(listen);
        // v4 learns the own address, and announces it in the record that both share.
        settings.disable_enr_update().ping_interval(PING_EVERY);
        let mut discv5 = Discv5::new(local, secret, settings.build())
            .map_err(|error| refused(error.to_owned()))?;
        discv5.start().await.map_err(|error| refused(error.to_string()))?;
        let events = discv5.event_stream().await.map_err(|error| refused(error.to_string()))?;
        // discv5 knows nodes only by their records.
        for enr in bootnodes.iter().filter_map(|text| text.trim().parse().ok()) {
            let added = discv5.add_enr(enr);
            debug!(?added, "bootnode of discv5");
        }
        info!("discv5 started");
        let (frames, received) = mpsc::channel(FRAMES);
        let v5 = Self {
            discv5,
            events,
            frames,
            records,
            target: bus.subscribe(PEERS_TARGET),
            publisher: Publisher::new(bus.clone()),
            bound,
            completion: 0.0,
            known: HashSet::new(),
            found: false,
            barren: 0,
            config: config.clone(),
            started: Instant::now(),
        };
        Ok((v5, received))
    }

    /// Looks for nodes until it is stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut lookup: Option<Lookup> = None;
        let mut lookup_due = Duration::ZERO;
        let (mut bus_is_there, mut records_come) = (true, true);
        loop {
            let now = self.started.elapsed();
            self.publisher.publish_due(now);
            if lookup.is_none() && lookup_due <= now {
                let found = self.discv5.find_node(NodeId::random());
                lookup = Some(Box::pin(async move { found.await.is_ok() }));
            }
            let next = if lookup.is_some() { Duration::MAX } else { lookup_due };
            let due = next.min(self.publisher.due()).min(now + Duration::from_secs(3600));
            let due = tokio::time::Instant::from_std(self.started + due);
            tokio::select! {
                () = stop.cancelled() => break,
                event = self.events.recv() => match event {
                    Some(event) => self.hear(event),
                    None => break,
                },
                ok = ended(&mut lookup) => {
                    debug!(ok, "lookup over discv5");
                    lookup = None;
                    self.barren =
                        if mem::take(&mut self.found) { 0 } else { self.barren.saturating_add(1) };
                    lookup_due = self.started.elapsed() + self.pause();
                }
                payload = self.target.next(), if bus_is_there => {
                    bus_is_there = payload.is_some();
                    if let Some(heard) = payload.as_deref().and_then(PeersTarget::decode) {
                        let fell = heard.completion < self.completion;
                        self.completion = heard.completion;
                        if fell {
                            self.barren = 0;
                        }
                        let next = self.started.elapsed() + self.pause();
                        lookup_due = if fell { Duration::ZERO } else { next };
                    }
                }
                changed = self.records.changed(), if records_come => {
                    records_come = changed.is_ok();
                    self.take_record();
                }
                () = sleep_until(due) => {}
            }
        }
        self.publisher.flush();
        self.discv5.shutdown();
    }

    fn pause(&self) -> Duration {
        let pauses = LookupPauses {
            fast: Duration::from_millis(self.config.lookup_fast_ms),
            base: Duration::from_millis(self.config.lookup_base_ms),
            maintenance: Duration::from_millis(self.config.lookup_maintenance_ms),
            starving_below: self.config.starving_below,
        };
        let shortest = self.config.lookups.pause(self.completion, &pauses).max(PAUSE_MIN);
        if self.config.lookups.has_two_timers() {
            return shortest;
        }
        backed_off(shortest, pauses.maintenance, self.barren)
    }

    /// Takes over the record of the own node from v4.
    fn take_record(&mut self) {
        let text = self.records.borrow_and_update().to_string();
        if let Ok(record) = text.parse() {
            *self.discv5.external_enr().write() = record;
        }
    }

    /// Handles an event. A talk request is dropped, which answers it: no talk protocol is
    /// supported.
    fn hear(&mut self, event: Event) {
        match event {
            Event::UnrecognizedFrame(frame) => {
                let _ = self.frames.try_send((frame.src_address, frame.packet));
            }
            // Another node told of it, and the event does not say which one.
            Event::Discovered(enr) => self.publish(&enr, |bound, ip| may_tell(bound, ip)),
            Event::SessionEstablished(enr, _) => self.publish(&enr, |_, _| true),
            _ => {}
        }
    }

    /// Publishes a node if `is_allowed` accepts its address, given the own socket's address.
    fn publish(&mut self, enr: &enr::Enr<CombinedKey>, is_allowed: fn(IpAddr, IpAddr) -> bool) {
        // The record comes from another library, so it is checked here again.
        let Ok(record) = enr.to_base64().parse::<Enr>() else { return };
        // A node on the consensus layer alone cannot be a peer of this one.
        let foreign = record.get("eth2").is_some() && record.get("eth").is_none();
        let Some(node) = node_of(&record, self.bound).filter(|_| !foreign) else { return };
        if !is_allowed(self.bound, node.endpoint.ip) {
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.found |= self.known.insert(node.key);
        counter!(V5_FOUND).increment(1);
        let address: SocketAddr = node.endpoint.udp();
        let contact = Contact {
            id: node.key,
            ip: address.ip(),
            udp_port: address.port(),
            tcp_port: node.endpoint.tcp_port,
            enr_seq: None,
            enr: None,
            event: ContactEvent::Seen,
        };
        self.publisher.push(self.started.elapsed(), contact);
    }
}

/// Returns whether the lookup succeeded, once it ends; never returns if there is none.
async fn ended(lookup: &mut Option<Lookup>) -> bool {
    match lookup {
        Some(lookup) => lookup.await,
        None => std::future::pending().await,
    }
}
