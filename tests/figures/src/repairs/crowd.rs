//! newPayload while many connections are idle or almost idle.

use crate::{
    Setting,
    corpus::{Corpus, ratio},
    figure::{Figure, Limit, Report},
    node::Node,
};
use anyhow::{Context as _, ensure};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Connections of each kind to each port.
const CONNECTIONS: usize = 512;
/// Pause between two bytes on a slow connection.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest time to open a connection; a slower one is retried later.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(200);
/// Head of an endless request: its bytes are sent one at a time, repeatedly.
const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: localhost\r\nx-slow: ";
/// Highest share of honest calls without an answer. They come from the crowd's own address, so a
/// burst of its connections can push one out before its request arrives.
const UNANSWERED_MAX: f64 = 0.005;

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    report.measure("crowd: newPayload beside idle and slow connections", || figures(setting));
}

fn figures(setting: &Setting) -> anyhow::Result<Vec<Figure>> {
    let time = Duration::from_secs(if setting.quick { 30 } else { 600 });
    let blocks = if setting.quick { 16 } else { 64 };
    let corpus = Corpus::load(&setting.demo, blocks)?;
    let gap = time / u32::try_from(blocks)?;
    // The pause before each block is the same on both sides: after a pause, caches are colder.
    let pause = gap.min(Duration::from_secs(1));
    let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
    let without = corpus.replay(&node, pause)?;
    let node = Node::start(&setting.tandem, &corpus.genesis, "")?;
    let crowd = Crowd::default();
    let probes = Probes::default();
    let times = std::thread::scope(|scope| {
        for port in node.ports() {
            let crowd = &crowd;
            scope.spawn(move || crowd.hold(port));
        }
        scope.spawn(|| probes.repeat(&node, &crowd.stop));
        std::thread::sleep(PAUSE);
        let times = corpus.replay(&node, gap);
        crowd.stop.store(true, Relaxed);
        times
    });
    let estimate = ratio(&[times?], &[without], setting.seed)?;
    let note = format!("{} connections opened", crowd.opened.into_inner());
    let minutes = time.as_secs_f64() / 60.0;
    let name = format!("crowd: newPayload beside 3 x 1,024 connections, {minutes} min, ratio");
    let calls = probes.calls.into_inner();
    let errors = probes.errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    let share = errors.len() as f64 / calls.max(1) as f64;
    let unanswered = format!("{} of {calls}, within 5 s each", errors.len());
    let unanswered = errors
        .first()
        .map_or(unanswered.clone(), |error| format!("{unanswered}; the first: {error}"));
    Ok(vec![
        Figure::estimate(name, estimate, Limit::AtMost(1.2)).note(note),
        Figure::new("crowd: public calls unanswered, share", share, Limit::AtMost(UNANSWERED_MAX))
            .note(unanswered),
    ])
}

/// Honest callers of the other ports.
#[derive(Default)]
struct Probes {
    calls: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl Probes {
    /// Calls the public port and the liveness probe twice a second, each time as a new caller.
    fn repeat(&self, node: &Node, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let mut client = node.public(Duration::from_secs(5));
            self.count(client.call("eth_blockNumber", &serde_json::json!([])).map(drop));
            self.count(ask_alive(node.ports()[2]).context("/livez"));
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn count(&self, answer: anyhow::Result<()>) {
        self.calls.fetch_add(1, Relaxed);
        if let (Err(error), Ok(mut errors)) = (answer, self.errors.lock()) {
            errors.push(format!("{error:#}"));
        }
    }
}

/// Calls the liveness probe, which has to answer within five seconds.
fn ask_alive(port: SocketAddr) -> anyhow::Result<()> {
    let time_max = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&port, time_max).context("connect")?;
    stream.set_read_timeout(Some(time_max))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).context("read the status")?;
    ensure!(&status == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&status));
    Ok(())
}

#[derive(Default)]
struct Crowd {
    stop: AtomicBool,
    opened: AtomicU64,
}

struct Held {
    stream: TcpStream,
    /// Number of bytes sent, `None` for a silent connection.
    sent: Option<usize>,
}

impl Crowd {
    /// Holds idle and slow connections to a port, and reopens those that the node closes.
    fn hold(&self, port: SocketAddr) {
        let mut held: Vec<Option<Held>> = (0..2 * CONNECTIONS).map(|_| None).collect();
        while !self.stop.load(Relaxed) {
            let round = Instant::now();
            for (place, connection) in held.iter_mut().enumerate() {
                if self.stop.load(Relaxed) {
                    return;
                }
                if !connection.as_mut().is_some_and(Held::go_on) {
                    *connection = self.open(port, place % 2 == 0);
                }
            }
            while round.elapsed() < PAUSE && !self.stop.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn open(&self, port: SocketAddr, is_slow: bool) -> Option<Held> {
        let stream = TcpStream::connect_timeout(&port, CONNECT_TIME_MAX).ok()?;
        stream.set_nonblocking(true).ok()?;
        self.opened.fetch_add(1, Relaxed);
        Some(Held { stream, sent: is_slow.then_some(0) })
    }
}

impl Held {
    /// Sends the next byte if one is due. Returns false if the node has closed the connection.
    fn go_on(&mut self) -> bool {
        let closed = match self.stream.read(&mut [0; 256]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        if closed {
            return false;
        }
        let Some(sent) = &mut self.sent else { return true };
        let byte = HEAD.get(*sent).copied().unwrap_or(b'x');
        *sent += 1;
        self.stream.write(&[byte]).is_ok()
    }
}
