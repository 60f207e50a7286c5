//! A net of many nodes on loopback addresses, some of them geth's if that is installed. Measures
//! how soon every node knows fifty others, and the cost once there are enough. Compares the default
//! policy of lookups with the legacy one, which never stops.
//!
//! Settings are the defaults: no session is reported or simulated. The count begins a while after
//! all nodes know as many nodes as they want peers. It covers the packets sent and the processor
//! time of this process for a few minutes. Both hardly depend on the other load of the machine.
//! geth's nodes run beside and are not counted.
//!
//! `TANDEM_NET_NODES`, `TANDEM_NET_GETH` and `TANDEM_NET_SECONDS` set other numbers of nodes and
//! another length of the count.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{is_bench, say};
use std::{
    env, fs,
    net::Ipv4Addr,
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_bus::Bus;
use tandem_cluster_tests::Geth;
use tandem_discovery::{Config, Deps, Discovery};
use tandem_peer_table::PeerTable;
use tandem_policy::Lookups;
use tandem_proto::{
    discovery::DiscoveryApi,
    peer_table::{PeerTableApi, Stats},
};
use tokio_util::sync::CancellationToken;

const NODES: u64 = 200;
const GETH: u64 = 3;
const SECONDS: u64 = 180;
const PORT: u16 = 30303;
/// Contacts that each node must have: as many as it wants peers.
const WANTED: u64 = 50;
/// Time from the target to the count, in which earlier work ends.
const SETTLE: Duration = Duration::from_secs(45);
/// Longest wait for the target.
const REACH_MAX: Duration = Duration::from_secs(300);

/// Limits that must hold.
const CONTACTS_SECONDS_MAX: f64 = 20.0;
const PACKETS_PER_MINUTE_MAX: f64 = 30.0;
const CPU_PERCENT_MAX: f64 = 0.2;
const PACKETS_SAVED_MIN: f64 = 95.0;
const CPU_SAVED_MIN: f64 = 90.0;

struct Node {
    discovery: Arc<Discovery>,
    table: Arc<PeerTable>,
}

/// Results of a net.
struct Figures {
    /// Time until the last node had [`WANTED`] contacts.
    contacts_seconds: f64,
    packets_per_minute: f64,
    cpu_percent: f64,
}

fn main() -> ExitCode {
    if !is_bench() {
        return ExitCode::SUCCESS;
    }
    let nodes = number("TANDEM_NET_NODES").unwrap_or(NODES).clamp(2, 4000);
    let geth = number("TANDEM_NET_GETH").unwrap_or(GETH);
    let window = Duration::from_secs(number("TANDEM_NET_SECONDS").unwrap_or(SECONDS).max(1));
    let quiet = run(Lookups::default(), 10, nodes, geth, window);
    let legacy = run(Lookups::Legacy, 11, nodes, geth, window);
    let saved = |quiet: f64, legacy: f64| 100.0 * (1.0 - quiet / legacy);
    let packets = saved(quiet.packets_per_minute, legacy.packets_per_minute);
    let cpu = saved(quiet.cpu_percent, legacy.cpu_percent);
    say("");
    let held = [
        judge("contacts, seconds", quiet.contacts_seconds, "<=", CONTACTS_SECONDS_MAX),
        judge("packets per node and minute", quiet.packets_per_minute, "<", PACKETS_PER_MINUTE_MAX),
        judge("processor per node, % of a core", quiet.cpu_percent, "<", CPU_PERCENT_MAX),
        judge("fewer packets than legacy, %", packets, ">=", PACKETS_SAVED_MIN),
        judge("less processor than legacy, %", cpu, ">=", CPU_SAVED_MIN),
    ];
    if held.into_iter().all(|held| held) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number(name: &str) -> Option<u64> {
    env::var_os(name)?.to_str()?.parse().ok()
}

fn judge(what: &str, figure: f64, relation: &str, bound: f64) -> bool {
    let holds = match relation {
        "<=" => figure <= bound,
        "<" => figure < bound,
        _ => figure >= bound,
    };
    let verdict = if holds { "holds" } else { "FAILS" };
    say(&format!("{what:32} {figure:9.3}  wanted {relation} {bound:6}  {verdict}"));
    holds
}

fn run(lookups: Lookups, network: u8, count: u64, geth: u64, window: Duration) -> Figures {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path(), lookups, network, 0, &[]);
    let boot = [first.discovery.status().enode];
    let geths = start_geth(folder.path(), geth, &boot[0]);
    say(&format!("{lookups}: {count} nodes, {} of geth, count over {window:?}", geths.len()));
    let begin = Instant::now();
    let others = 1..count;
    let mut nodes = vec![first];
    nodes.extend(others.map(|n| start(folder.path(), lookups, network, n, &boot)));
    let wanted = WANTED.min(count - 1);
    let known = reached(&nodes, begin, |stats| stats.contacts >= wanted);
    let peers = reached(&nodes, begin, |stats| stats.proven >= wanted);
    say(&format!(
        "  {wanted} contacts: {}; {wanted} proven: {}",
        quantiles(&known),
        quantiles(&peers)
    ));
    sleep(SETTLE);
    let (sent, cpu, since) = (sent(&nodes), cpu_seconds(), Instant::now());
    sleep(window);
    let seconds = since.elapsed().as_secs_f64();
    let packets = (self::sent(&nodes) - sent) as f64;
    let cpu = cpu_seconds() - cpu;
    let figures = Figures {
        contacts_seconds: known.last().copied().unwrap_or(f64::INFINITY),
        packets_per_minute: packets / seconds * 60.0 / count as f64,
        cpu_percent: 100.0 * cpu / seconds / count as f64,
    };
    let [all, proven] = totals(&nodes);
    say(&format!(
        "  then per node: {:.1} packets a minute, {:.4} % of a core; contacts {all:.0}, proven {proven:.0}",
        figures.packets_per_minute, figures.cpu_percent,
    ));
    for node in &nodes {
        node.discovery.stop();
        node.table.stop();
    }
    figures
}

fn start(folder: &Path, lookups: Lookups, network: u8, n: u64, bootnodes: &[String]) -> Node {
    let (bus, fatal) = (Bus::default(), CancellationToken::new());
    let settings = tandem_peer_table::Config::default();
    let deps = tandem_peer_table::Deps { bus: bus.clone(), fatal: fatal.clone() };
    let table = PeerTable::start(settings, deps).unwrap();
    let config = Config {
        datadir: folder.join(n.to_string()),
        addr: Ipv4Addr::new(127, network, (n / 250) as u8, (n % 250 + 1) as u8).into(),
        port: PORT,
        bootnodes: bootnodes.to_vec(),
        lookups,
        ..Config::default()
    };
    let deps = Deps { table: table.clone(), bus, fork_id: None, fatal };
    Node { discovery: Discovery::start(config, deps).unwrap(), table }
}

fn start_geth(folder: &Path, count: u64, boot: &str) -> Vec<Geth> {
    let Some(binary) = Geth::binary().filter(|_| count > 0) else {
        say("no node of geth: not installed, or none wanted");
        return Vec::new();
    };
    (0..count)
        .map(|n| Geth::start(&binary, &folder.join(format!("geth{n}")), boot).unwrap())
        .collect()
}

/// Returns when each node reached the condition, in seconds, sorted; infinite for nodes that did
/// not.
fn reached(nodes: &[Node], begin: Instant, far: impl Fn(&Stats) -> bool) -> Vec<f64> {
    let mut times = vec![f64::INFINITY; nodes.len()];
    while begin.elapsed() < REACH_MAX && times.iter().any(|time| time.is_infinite()) {
        for (node, time) in nodes.iter().zip(&mut times) {
            if time.is_infinite() && node.table.stats().is_ok_and(|stats| far(&stats)) {
                *time = begin.elapsed().as_secs_f64();
            }
        }
        sleep(Duration::from_millis(100));
    }
    times.sort_by(f64::total_cmp);
    times
}

fn quantiles(times: &[f64]) -> String {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!("median {:.1} s, 95 % {:.1} s, last {:.1} s", at(0.5), at(0.95), at(1.0))
}

fn sent(nodes: &[Node]) -> u64 {
    nodes.iter().map(|node| node.discovery.status().packets_sent).sum()
}

/// Returns the contacts and the proven contacts of the average node.
fn totals(nodes: &[Node]) -> [f64; 2] {
    let stats: Vec<_> = nodes.iter().filter_map(|node| node.table.stats().ok()).collect();
    let mean =
        |of: fn(&Stats) -> u64| stats.iter().map(of).sum::<u64>() as f64 / stats.len() as f64;
    [mean(|stats| stats.contacts), mean(|stats| stats.proven)]
}

/// Returns the processor time of this process, in user and kernel mode: proc(5), fields 14 and 15
/// of stat, in hundredths of a second on every Linux.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    // The second field is the name, in parentheses, and may hold any character.
    let fields = text.rsplit_once(')').unwrap().1.split_whitespace();
    let hundredths: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    hundredths as f64 / 100.0
}
