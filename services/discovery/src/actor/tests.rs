use super::*;
use crate::Config;
use tandem_actor::{Inbox, mailbox};
use tandem_bus::Bus;
use tandem_discv4::{NodeKey, Ping, encode};
use tandem_proto::discovery::Status;

const HOUR: Duration = Duration::from_secs(3600);

/// Loop whose clock the test moves; the socket has no peers.
struct Slept {
    actor: Actor,
    inbox: Inbox<Question>,
    effects: Vec<Effect>,
    elapsed: Duration,
    wakes: u32,
}

impl Slept {
    async fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let bound = socket.local_addr().unwrap();
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let state = State::new(&Config::default(), key, bound, vec![], None, 1, 1).unwrap();
        let (questions, inbox) = mailbox("test", 64);
        let (_, answers) = tokio::sync::mpsc::channel(1);
        let (bus, (_, fork_id)) = (Bus::default(), watch::channel(None));
        let actor = Actor {
            reporter: Reporter::new(&state, bound),
            state,
            socket: Arc::new(socket),
            frames: None,
            outgoing: Vec::new(),
            bound,
            questions,
            answers,
            lists: None,
            target: bus.subscribe(tandem_proto::event::PEERS_TARGET),
            fork_id,
            publisher: Publisher::new(bus),
            stop: CancellationToken::new(),
            started: Instant::now(),
        };
        let (effects, elapsed) = (Vec::new(), Duration::ZERO);
        Self { actor, inbox, effects, elapsed, wakes: 0 }
    }

    fn step(&mut self, input: Input<'_>) {
        self.wakes += 1;
        let unix = 1_700_000_000 + self.elapsed.as_secs();
        self.actor.step(Now { elapsed: self.elapsed, unix }, input, &mut self.effects);
    }

    /// Sleeps as the loop does until the time has passed. Returns how often the sleep was
    /// interrupted.
    fn sleep(&mut self, time: Duration) -> u32 {
        let (end, before) = (self.elapsed + time, self.wakes);
        loop {
            let now = Now { elapsed: self.elapsed, unix: 0 };
            let due = self.actor.due(now).max(self.elapsed);
            if due > end {
                self.elapsed = end;
                return self.wakes - before;
            }
            self.elapsed = due;
            self.step(Input::Timer);
            // peer-table has no contacts, and answers so.
            while let Some(envelope) = self.inbox.try_receive() {
                self.step(Input::Answer { question: envelope.message, contacts: vec![] });
            }
        }
    }

    fn status(&self) -> Status {
        self.actor.reporter.status().lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_node_at_rest_sleeps_until_a_lookup_is_due() {
    let mut slept = Slept::new().await;
    let wakes = slept.sleep(Duration::from_secs(10));
    assert!(wakes >= 10, "{wakes}: the first turns follow each other closely");
    let wakes = slept.sleep(HOUR);
    // No node is known, so one turn in five seconds is enough; each has an answer of peer-table.
    assert!((1_400..=1_450).contains(&wakes), "{wakes} in an hour without a node");
    slept.step(Input::Target(1.0));
    let wakes = slept.sleep(HOUR);
    // There is a turn every thirty seconds, and peer-table's answer.
    assert!((238..=242).contains(&wakes), "{wakes} in an hour");
    // A packet wakes it, and leaves nothing behind that would do so later.
    let key = NodeKey::from_bytes([2; 32]).unwrap();
    let nobody = "127.0.0.1:9".parse().unwrap();
    let to = tandem_discv4::Endpoint::new(nobody, 0);
    let ping = encode(&key, &Ping { from: to, to, expiration: 0, enr_seq: None }.into());
    for _ in 0..10 {
        slept.step(Input::Packet { from: nobody, bytes: &ping.bytes });
    }
    assert!(slept.sleep(HOUR) <= 242);
    let status = slept.status();
    assert_eq!((status.packets_received, status.packets_dropped), (10, 10), "expired ones");
    assert_eq!(status.completion_permille, 1000);
    // Peers are lost, so it wakes at once.
    slept.step(Input::Target(0.4));
    assert!(slept.sleep(Duration::from_secs(10)) >= 10);
    slept.actor.stop.cancel();
}
