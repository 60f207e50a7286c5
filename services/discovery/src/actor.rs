//! The main loop: it waits for socket, timers, peer-table and bus, lets the state decide, and
//! carries out the effects.

use crate::{
    events::Publisher,
    metrics::{RECEIVE_CALLS, SEND_FAILED},
    report::Reporter,
    service::node_of,
    state::{Effect, Input, Now, Question, State},
    table::Answer,
    udp::{Datagram, Incoming, Outgoing},
};
use ::metrics::counter;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_actor::Mailbox;
use tandem_bus::Subscription;
use tandem_discv4::{Enr, ForkId};
use tandem_proto::event::PeersTarget;
use tokio::{
    net::UdpSocket,
    sync::{
        mpsc::{Receiver, Sender},
        watch,
    },
    time::sleep_until,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Batches of packets taken before timers and other sources get their turn.
const BATCHES_PER_TURN: usize = 2;
/// Packets from another reader that are taken before timers and other sources get their turn.
const FRAMES_PER_TURN: usize = 64;

/// Channels that request nodes, and bring them.
pub type Source = (Sender<()>, Receiver<Vec<Enr>>);

/// Everything that the loop owns.
pub struct Actor {
    pub state: State,
    pub socket: Arc<UdpSocket>,
    /// Source of packets if another task reads the socket.
    pub frames: Option<Receiver<Datagram>>,
    pub outgoing: Vec<Datagram>,
    pub bound: SocketAddr,
    pub questions: Mailbox<Question>,
    pub answers: Receiver<Answer>,
    /// Channels to the node lists, `None` if there are none.
    pub lists: Option<Source>,
    pub target: Subscription,
    pub fork_id: watch::Receiver<Option<ForkId>>,
    pub publisher: Publisher,
    pub reporter: Reporter,
    pub stop: CancellationToken,
    pub started: Instant,
}

impl Actor {
    /// Runs until it is stopped.
    pub async fn run(mut self) {
        let (mut incoming, mut outgoing) = (Incoming::default(), Outgoing::default());
        let mut effects = Vec::new();
        // Nothing can be sent before the reactor has seen the socket.
        let _ = self.socket.writable().await;
        let mut bus_is_there = true;
        let mut fork_ids_come = true;
        loop {
            self.flush(&mut outgoing);
            let due = self.due(self.now());
            let due = tokio::time::Instant::from_std(self.started + due);
            tokio::select! {
                () = self.stop.cancelled() => break,
                _ = self.socket.readable(), if self.frames.is_none() => {
                    self.on_packets(&mut incoming, &mut effects);
                }
                frame = next_frame(&mut self.frames) => self.on_frames(frame, &mut effects),
                Some((question, answer)) = self.answers.recv() => {
                    let now = self.now();
                    let input = match answer {
                        Ok(contacts) => Input::Answer { question, contacts },
                        Err(_) => Input::Refused(question),
                    };
                    self.step(now, input, &mut effects);
                }
                listed = next_listed(&mut self.lists) => {
                    let nodes = listed.iter().filter_map(|enr| node_of(enr, self.bound.ip())).collect();
                    let now = self.now();
                    self.step(now, Input::Listed(nodes), &mut effects);
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
        self.flush(&mut outgoing);
        self.publisher.flush();
        self.reporter.report(&self.state);
    }

    /// Ends a turn. Returns until when the loop may sleep if no event comes before.
    fn due(&mut self, now: Now) -> Duration {
        self.publisher.publish_due(now.elapsed);
        self.reporter.report(&self.state);
        self.state.deadline().min(self.publisher.due())
    }

    fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Now { elapsed: self.started.elapsed(), unix }
    }

    /// Takes the waiting packets.
    fn on_packets(&mut self, incoming: &mut Incoming, effects: &mut Vec<Effect>) {
        let now = self.now();
        for _ in 0..BATCHES_PER_TURN {
            if !incoming.receive(&self.socket) {
                return;
            }
            counter!(RECEIVE_CALLS).increment(1);
            for (from, bytes) in incoming.packets() {
                self.step(now, Input::Packet { from, bytes }, effects);
            }
        }
    }

    /// Takes a packet that another task read, and those that wait behind it.
    fn on_frames(&mut self, frame: Datagram, effects: &mut Vec<Effect>) {
        let now = self.now();
        let mut next = Some(frame);
        for _ in 0..FRAMES_PER_TURN {
            let waiting = || self.frames.as_mut()?.try_recv().ok();
            let Some((from, bytes)) = next.take().or_else(waiting) else { return };
            self.step(now, Input::Packet { from, bytes: &bytes }, effects);
        }
    }

    fn step(&mut self, now: Now, input: Input<'_>, effects: &mut Vec<Effect>) {
        self.state.step(now, input, effects);
        // Refusals have effects of their own, so this ends when a round brings none.
        let mut refused = Vec::new();
        loop {
            for effect in effects.drain(..) {
                match effect {
                    Effect::Send { to, bytes } => self.send(to, bytes),
                    Effect::AskLists => {
                        // One waiting request is enough.
                        let _ = self.lists.as_ref().map(|(requests, _)| requests.try_send(()));
                    }
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

    /// Queues a datagram, which is sent with the others of this turn.
    fn send(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        let to = match (self.bound.ip(), to.ip()) {
            (IpAddr::V6(_), IpAddr::V4(ip)) => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), to.port())
            }
            _ => to,
        };
        self.outgoing.push((to, bytes));
    }

    fn flush(&mut self, outgoing: &mut Outgoing) {
        let lost = outgoing.send(&self.socket, &mut self.outgoing);
        if lost > 0 {
            counter!(SEND_FAILED).increment(lost as u64);
        }
    }
}

/// Returns the next packet from another reader; never returns if the loop reads the socket itself.
async fn next_frame(frames: &mut Option<Receiver<Datagram>>) -> Datagram {
    if let Some(frames) = frames
        && let Some(frame) = frames.recv().await
    {
        return frame;
    }
    // The reader has ended.
    *frames = None;
    std::future::pending().await
}

/// Returns the next nodes from the lists; never returns if there are no lists.
async fn next_listed(lists: &mut Option<Source>) -> Vec<Enr> {
    if let Some((_, answers)) = lists
        && let Some(nodes) = answers.recv().await
    {
        return nodes;
    }
    // The lists have ended, or there never were any.
    *lists = None;
    std::future::pending().await
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            warn!("discovery ended before it was stopped");
        }
    }
}

#[cfg(test)]
mod tests;
