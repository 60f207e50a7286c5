//! The cost of packets that must not be answered.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::MemoryTable;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    alloc::System,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{sleep, spawn},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_bus::Bus;
use tandem_discovery::{
    Config, Deps, Discovery,
    state::{Dropped, Effect, Input, Now, State},
};
use tandem_discv4::{Endpoint, EnrRequest, FindNode, Message, NodeKey, Ping, Pong, decode, encode};
use tandem_heap::{Counting, thread};
use tandem_primitives::{B256, B512, keccak256};
use tandem_proto::discovery::DiscoveryApi;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

const START: u64 = 1_700_000_000;
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)), 30303);

struct Bench {
    state: State,
    effects: Vec<Effect>,
    elapsed: Duration,
}

impl Bench {
    fn new(config: &Config) -> Self {
        let config = Config { lookup_fast_ms: 1 << 40, ..config.clone() };
        let key = NodeKey::from_bytes([1; 32]).unwrap();
        let state = State::new(&config, key, HERE, vec![], None, 1, 1).unwrap();
        Self { state, effects: Vec::with_capacity(64), elapsed: Duration::ZERO }
    }

    /// Handles a packet and returns the number of bytes sent for it.
    fn receive(&mut self, from: SocketAddr, bytes: &[u8]) -> usize {
        let now = Now { elapsed: self.elapsed, unix: START + self.elapsed.as_secs() };
        self.state.step(now, Input::Packet { from, bytes }, &mut self.effects);
        let sent = |effect| match effect {
            Effect::Send { bytes, .. } => bytes.len(),
            _ => 0,
        };
        self.effects.drain(..).map(sent).sum()
    }
}

fn unlimited() -> Config {
    Config {
        ip_packets_per_second: u32::MAX,
        ip_packets_burst: u32::MAX,
        strangers_packets_per_second: u32::MAX,
        ..Config::default()
    }
}

fn key(index: u64) -> NodeKey {
    NodeKey::random(&mut StdRng::seed_from_u64(index))
}

fn ping(expiration: u64) -> Message {
    let from = Endpoint::new(SocketAddr::from(([5, 5, 5, 5], 30303)), 30303);
    Ping { from, to: Endpoint::new(HERE, 0), expiration, enr_seq: Some(1) }.into()
}

/// Returns each kind of packet that must be dropped, with the reason.
fn refused(unix: u64) -> Vec<(&'static str, Vec<u8>, Dropped)> {
    let valid = |message: Message| encode(&key(1), &message).bytes;
    let mut rng = StdRng::seed_from_u64(3);
    let mut random = vec![0; 300];
    rng.fill(&mut random[..]);
    let mut hash = valid(ping(unix + 20));
    hash[0] ^= 1;
    // The signature is invalid, but the hash is right.
    let mut signature = valid(ping(unix + 20));
    signature[32..96].fill(0xff);
    let right = keccak256(&signature[32..]);
    signature[..32].copy_from_slice(right.as_slice());
    let mut oversized = valid(ping(unix + 20));
    oversized.resize(1281, 0);
    let pong = Pong {
        to: Endpoint::new(HERE, 0),
        ping_hash: B256::ZERO,
        expiration: unix + 20,
        enr_seq: None,
    };
    let find = FindNode { target: B512::ZERO, expiration: unix + 20 };
    let request = EnrRequest { expiration: unix + 20 };
    vec![
        ("empty", Vec::new(), Dropped::Malformed),
        ("random", random, Dropped::Malformed),
        ("wrong hash", hash, Dropped::Malformed),
        ("wrong signature", signature, Dropped::Malformed),
        ("oversized", oversized, Dropped::Malformed),
        ("expired", valid(ping(unix - 1)), Dropped::Expired),
        ("never expires", valid(ping(u64::MAX)), Dropped::Expired),
        ("unsolicited pong", valid(pong.into()), Dropped::Unsolicited),
        ("find node without proof", valid(find.into()), Dropped::Unproven),
        ("request without proof", valid(request.into()), Dropped::Unproven),
    ]
}

#[test]
fn a_dropped_packet_takes_nothing_from_the_heap() {
    let mut bench = Bench::new(&unlimited());
    let from = SocketAddr::from(([5, 5, 5, 5], 30303));
    for (name, packet, reason) in refused(START) {
        // The first packet makes the entry of its source.
        bench.receive(from, &packet);
        let before = bench.state.counters().dropped[reason as usize];
        let (allocations, sent) =
            thread::allocations(|| (0..100).map(|_| bench.receive(from, &packet)).sum::<usize>());
        assert_eq!((allocations, sent), (0, 0), "{name}");
        let dropped = bench.state.counters().dropped[reason as usize] - before;
        assert_eq!(dropped, 100, "{name} as {reason:?}");
    }
    // Valid packets beyond the rate of their address are dropped too.
    let mut bench = Bench::new(&Config::default());
    let valid = encode(&key(1), &ping(START + 20)).bytes;
    (0..300).for_each(|_| {
        bench.receive(from, &valid);
    });
    let (allocations, sent) =
        thread::allocations(|| (0..1000).map(|_| bench.receive(from, &valid)).sum::<usize>());
    assert_eq!((allocations, sent), (0, 0));
    assert!(bench.state.counters().dropped[Dropped::RateLimited as usize] >= 1000);
}

/// Sends packets of two hundred thousand invented addresses, with and without a valid packet each.
#[test]
fn invented_sources_take_bounded_memory_and_leave_room_for_others() {
    let source = |n: u32| SocketAddr::from(((0x1400_0000 + n).to_be_bytes(), 30303));
    let pings: Vec<_> =
        (0..500).map(|index| encode(&key(index), &ping(START + 60)).bytes).collect();
    let (peak, mut bench) = thread::peak(|| {
        let mut bench = Bench::new(&Config::default());
        for n in 0..200_000u32 {
            bench.elapsed += Duration::from_micros(20);
            bench.receive(source(n), &pings[n as usize % pings.len()]);
            bench.receive(source(n), &[7; 200]);
        }
        bench
    });
    assert!(peak < 48 << 20, "{} KiB", peak >> 10);
    // A second flood takes no more memory: full maps forget.
    let (more, ()) = thread::peak(|| {
        for n in 200_000..400_000u32 {
            bench.elapsed += Duration::from_micros(20);
            bench.receive(source(n), &pings[n as usize % pings.len()]);
        }
    });
    assert!(more < 16 << 20, "{} KiB more", more >> 10);
    // For 10 s, 2,000 strangers a second were processed, and no more.
    let limited = bench.state.counters().dropped[Dropped::RateLimited as usize];
    assert!(limited > 500_000, "{limited} of 600,000 never reached a signature");
    eprintln!("peak {} KiB, then {} KiB more", peak >> 10, more >> 10);
}

/// Checks that an unproven address is sent less than it sends, for any kind of packet and from the
/// first packet on.
#[test]
fn no_kind_of_packet_is_amplified_before_the_proof() {
    let config = unlimited();
    let floods: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("one ping replayed", vec![encode(&key(1), &ping(START + 60)).bytes]),
        (
            "a ping of a new key each",
            (0..400).map(|n| encode(&key(n), &ping(START + 60)).bytes).collect(),
        ),
        ("what is refused", refused(START).into_iter().map(|(_, bytes, _)| bytes).collect()),
    ];
    for (name, packets) in floods {
        let mut bench = Bench::new(&config);
        let victim = SocketAddr::from(([7, 7, 7, 7], 30303));
        let (mut received, mut sent) = (0, 0);
        for index in 0..2_000 {
            let packet = &packets[index % packets.len()];
            received += packet.len();
            sent += bench.receive(victim, packet);
            bench.elapsed += Duration::from_millis(1);
            assert!(sent == 0 || sent < received, "{name}: {sent} bytes for {received}");
        }
        eprintln!("{name}: {sent} bytes for {received}");
    }
}

/// Sends one ping from each of a thousand addresses: none of them gets more than that ping.
#[test]
fn a_single_ping_is_not_amplified_either() {
    let mut bench = Bench::new(&unlimited());
    let packet = encode(&key(1), &ping(START + 60)).bytes;
    for n in 0..1_000u32 {
        let victim = SocketAddr::from(((0x1400_0000 + n).to_be_bytes(), 30303));
        let sent = bench.receive(victim, &packet);
        assert!(0 < sent && sent < packet.len(), "{sent} bytes for {}", packet.len());
    }
}

fn percentile(waits: &mut [Duration], percent: usize) -> Duration {
    waits.sort();
    waits[(waits.len() * percent).div_ceil(100).max(1) - 1]
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Runs the whole service under 50,000 packets a second from a thousand loopback addresses, for ten
/// seconds. It measures times, so it needs an idle machine.
///
///     cargo test --release -p tandem-discovery --test hostile -- --ignored --nocapture
#[test]
#[ignore = "measures times: for an idle machine"]
fn fifty_thousand_hostile_packets_a_second() {
    const RATE: u64 = 50_000;
    const SECONDS: u64 = 10;
    let datadir = tempfile::tempdir().unwrap();
    let config = Config {
        datadir: datadir.path().to_owned(),
        addr: [127, 0, 0, 1].into(),
        port: 0,
        ..Config::default()
    };
    let bus = Bus::default();
    let table = Arc::new(MemoryTable::on(&bus));
    let deps = Deps { table, bus, fork_id: None, fatal: CancellationToken::new() };
    let discovery = Discovery::start(config, deps).unwrap();
    let to = discovery.status().bound;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut packets: Vec<_> = refused(unix).into_iter().map(|(_, bytes, _)| bytes).collect();
    packets.extend((0..200).map(|index| encode(&key(index), &ping(unix + 3600)).bytes));
    let before = resident_bytes();
    let (flooded, returned) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let flood = spawn({
        let (flooded, returned) = (flooded.clone(), returned.clone());
        move || {
            let socket = |n: u32| {
                let [.., high, low] = n.to_be_bytes();
                let socket = UdpSocket::bind(SocketAddr::from(([127, 9, high, low], 0))).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket
            };
            let sockets: Vec<_> = (1..=1000).map(socket).collect();
            let (started, mut sent) = (Instant::now(), 0u64);
            let mut buffer = [0; 1500];
            while sent < RATE * SECONDS {
                let due = (started.elapsed().as_secs_f64() * RATE as f64) as u64;
                while sent < due.min(RATE * SECONDS) {
                    let socket = &sockets[sent as usize % sockets.len()];
                    let packet = &packets[sent as usize % packets.len()];
                    let _ = socket.send_to(packet, to);
                    flooded.fetch_add(packet.len() as u64, Ordering::Relaxed);
                    while let Ok(length) = socket.recv(&mut buffer) {
                        returned.fetch_add(length as u64, Ordering::Relaxed);
                    }
                    sent += 1;
                }
                sleep(Duration::from_micros(500));
            }
            started.elapsed()
        }
    });
    let quiet = UdpSocket::bind("127.0.0.3:0").unwrap();
    quiet.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let own = key(9_999);
    let (mut waits, mut lost, mut buffer) = (Vec::new(), 0, [0; 1500]);
    while !flood.is_finished() {
        let ping = encode(&own, &ping(unix + 3600));
        let asked = Instant::now();
        quiet.send_to(&ping.bytes, to).unwrap();
        loop {
            let Ok(length) = quiet.recv(&mut buffer) else {
                lost += 1;
                break;
            };
            let packet = decode(&buffer[..length]).unwrap();
            match packet.message {
                Message::Pong(pong) if pong.ping_hash == ping.hash => {
                    waits.push(asked.elapsed());
                    break;
                }
                Message::Ping(_) => {
                    let to = Endpoint::new(to, 0);
                    let pong =
                        Pong { to, ping_hash: packet.hash, expiration: unix + 60, enr_seq: None };
                    quiet
                        .send_to(&encode(&own, &pong.into()).bytes, discovery.status().bound)
                        .unwrap();
                }
                _ => {}
            }
        }
        sleep(Duration::from_millis(20));
    }
    let took = flood.join().unwrap();
    let (flooded, returned) = (flooded.load(Ordering::Relaxed), returned.load(Ordering::Relaxed));
    let status = discovery.status();
    discovery.stop();
    eprintln!(
        "{} packets in {took:?}, {} received, {} dropped; {} pings answered, {lost} not; \
         p50 {:?}, p99 {:?}; {returned} bytes back for {flooded}; {} KiB more resident",
        RATE * SECONDS,
        status.packets_received,
        status.packets_dropped,
        waits.len(),
        percentile(&mut waits, 50),
        percentile(&mut waits, 99),
        resident_bytes().saturating_sub(before) >> 10,
    );
    assert!(percentile(&mut waits, 99) < Duration::from_millis(50));
    assert!(lost * 100 <= waits.len(), "{lost} of {} pings lost", waits.len());
    assert!(returned < flooded);
}
