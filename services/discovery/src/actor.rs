//! The loop: waits for socket, timers, peer-table and bus, lets the state decide, does what it says.

use crate::{
    events::Publisher,
    metrics::{BONDED, SEND_FAILED, record},
    state::{Effect, Input, Now, Question, State},
    table::Answer,
};
use ::metrics::{counter, gauge};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_actor::Mailbox;
use tandem_bus::Subscription;
use tandem_discv4::{ForkId, PACKET_BYTES_MAX};
use tandem_proto::{discovery::Status, event::PeersTarget};
use tokio::{
    net::UdpSocket,
    sync::{mpsc::Receiver, watch},
    time::sleep_until,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Packets taken before timers and others get their turn.
const PACKETS_PER_TURN: usize = 64;
/// How old the status may be.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// All that the loop owns.
pub struct Actor {
    pub state: State,
    pub socket: UdpSocket,
    pub bound: SocketAddr,
    pub questions: Mailbox<Question>,
    pub answers: Receiver<Answer>,
    pub target: Subscription,
    pub fork_id: watch::Receiver<Option<ForkId>>,
    pub publisher: Publisher,
    pub status: Arc<Mutex<Status>>,
    pub stop: CancellationToken,
    pub started: Instant,
}

impl Actor {
    /// Runs until it is stopped.
    pub async fn run(mut self) {
        // One byte more than a packet may have, to tell what is too long.
        let mut buffer = [0; PACKET_BYTES_MAX + 1];
        let mut effects = Vec::new();
        let mut status_due = Duration::ZERO;
        let mut bus_is_there = true;
        let mut fork_ids_come = true;
        loop {
            let now = self.now();
            if status_due <= now.elapsed {
                self.report();
                status_due = now.elapsed + STATUS_EVERY;
            }
            self.publisher.publish_due(now.elapsed);
            let due = self.state.deadline().min(self.publisher.due()).min(status_due);
            let due = tokio::time::Instant::from_std(self.started + due);
            tokio::select! {
                () = self.stop.cancelled() => break,
                received = self.socket.recv_from(&mut buffer) => {
                    self.on_packets(received, &mut buffer, &mut effects);
                }
                Some((question, answer)) = self.answers.recv() => {
                    let now = self.now();
                    let input = match answer {
                        Ok(contacts) => Input::Answer { question, contacts },
                        Err(_) => Input::Refused(question),
                    };
                    self.step(now, input, &mut effects);
                }
                payload = self.target.next(), if bus_is_there => {
                    let target = payload.as_deref().and_then(PeersTarget::decode);
                    bus_is_there = payload.is_some();
                    if let Some(target) = target {
                        let now = self.now();
                        self.step(now, Input::Target(target.completion), &mut effects);
                    }
                }
                changed = self.fork_id.changed(), if fork_ids_come => {
                    fork_ids_come = changed.is_ok();
                    let fork_id = *self.fork_id.borrow_and_update();
                    if let Some(fork_id) = fork_id {
                        let now = self.now();
                        self.step(now, Input::ForkId(fork_id), &mut effects);
                    }
                }
                () = sleep_until(due) => {
                    let now = self.now();
                    self.step(now, Input::Timer, &mut effects);
                }
            }
        }
        self.publisher.flush();
        self.report();
    }

    fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Now { elapsed: self.started.elapsed(), unix }
    }

    /// Takes the packet that came and those waiting behind it.
    fn on_packets(
        &mut self,
        first: io::Result<(usize, SocketAddr)>,
        buffer: &mut [u8],
        effects: &mut Vec<Effect>,
    ) {
        let now = self.now();
        let mut received = first;
        for _ in 0..PACKETS_PER_TURN {
            match received {
                Ok((length, from)) => {
                    self.step(now, Input::Packet { from, bytes: &buffer[..length] }, effects);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // An unreachable receiver of an earlier packet shows up here, and means nothing.
                Err(_) => {}
            }
            received = self.socket.try_recv_from(buffer);
        }
    }

    fn step(&mut self, now: Now, input: Input<'_>, effects: &mut Vec<Effect>) {
        self.state.step(now, input, effects);
        // Refusals give effects of their own, so this ends when a round brings none.
        let mut refused = Vec::new();
        loop {
            for effect in effects.drain(..) {
                match effect {
                    Effect::Send { to, bytes } => self.send(to, &bytes),
                    Effect::Publish(contact) => self.publisher.push(now.elapsed, contact),
                    Effect::Ask(question) => {
                        if self.questions.try_send(question.clone()).is_err() {
                            refused.push(question);
                        }
                    }
                }
            }
            let Some(question) = refused.pop() else { return };
            self.state.step(now, Input::Refused(question), effects);
        }
    }

    /// Sends, or loses the packet when the socket is full, as any network would.
    fn send(&self, to: SocketAddr, bytes: &[u8]) {
        let to = match (self.bound.ip(), to.ip()) {
            (IpAddr::V6(_), IpAddr::V4(ip)) => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), to.port())
            }
            _ => to,
        };
        if self.socket.try_send_to(bytes, to).is_err() {
            counter!(SEND_FAILED).increment(1);
        }
    }

    fn report(&self) {
        let counters = self.state.counters();
        record(counters);
        let bonded = u32::try_from(self.state.bonded()).unwrap_or(u32::MAX);
        gauge!(BONDED).set(f64::from(bonded));
        let status = Status {
            id: *self.state.enr().key(),
            bound: self.bound,
            external: self.state.external(),
            enode: self.state.url(),
            enr: self.state.enr().to_string(),
            bonded,
            completion_permille: (self.state.completion() * 1000.0) as u16,
            packets_received: counters.received,
            packets_sent: counters.sent,
            packets_dropped: counters.dropped.iter().sum(),
        };
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            warn!("discovery ended before it was stopped");
        }
    }
}
