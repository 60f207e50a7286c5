//! Twelve nodes with default settings on loopback: the packets that each sends once all know each
//! other.

use super::kube::{run, wait};
use crate::{
    Setting, client,
    figure::{Figure, Limit, Report},
    node::enode_in,
};
use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Number of nodes.
const NODES: u16 = 12;
/// UDP port of the first node, and its metrics port.
const PORTS: [u16; 2] = [30_303, 39_100];
/// Highest number of packets that a node may send in a minute.
const PACKETS_MAX: f64 = 60.0;
/// Longest wait for a node to answer.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Counts after the nodes have settled.
#[derive(Serialize, Deserialize, Debug)]
struct Counted {
    minutes: f64,
    /// Packets that each node sent, by its own metrics.
    sent: Vec<f64>,
    /// Packets that the kernel sent for all nodes.
    kernel: f64,
    /// Endpoints that each node has proven.
    proven: Vec<f64>,
}

/// Returns the minutes before the count, and of the count.
fn minutes(is_quick: bool) -> [u64; 2] {
    if is_quick { [3, 1] } else { [10, 3] }
}

/// Measures the figures, in a network namespace in which no other process sends.
pub fn measure(setting: &Setting, report: &mut Report) {
    report.measure("quiet: 12 nodes on loopback", || {
        let [before, of_count] = minutes(setting.quick);
        let mut command = Command::new("unshare");
        if fs::metadata("/proc/self")?.uid() != 0 {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "--"]).arg(env::current_exe()?).arg("quiet-nodes");
        command.arg("--tandem").arg(&setting.tandem);
        if setting.quick {
            command.arg("--quick");
        }
        let time_max = Duration::from_secs(60 * (before + of_count)) + START_TIME_MAX * 2;
        let out = run(&mut command, None, time_max)?;
        let counted: Counted = serde_json::from_str(&out).context("parse what was counted")?;
        figures(&counted, before)
    });
}

fn figures(counted: &Counted, before: u64) -> anyhow::Result<Vec<Figure>> {
    let Counted { minutes, sent, kernel, proven } = counted;
    ensure!(!sent.is_empty(), "no node was counted");
    let rate = |packets: f64| packets / minutes;
    let total: f64 = sent.iter().sum();
    let mean = rate(total) / sent.len() as f64;
    let (low, high) = sent.iter().fold((f64::MAX, 0.0_f64), |(low, high), sent| {
        (low.min(rate(*sent)), high.max(rate(*sent)))
    });
    let known = proven.iter().copied().fold(f64::MAX, f64::min);
    let name = format!("quiet: packets a node and minute after {before} min");
    let note = format!("of single nodes {low:.1} to {high:.1}, over {minutes:.1} min");
    Ok(vec![
        Figure::new(name, mean, Limit::AtMost(PACKETS_MAX)).note(note),
        Figure::new(
            "quiet: packets by the kernel's count / by the metrics",
            kernel / total.max(1.0),
            Limit::Between(0.95, 1.05),
        )
        .note(format!("{kernel:.0} and {total:.0}")),
        Figure::new(
            "quiet: other nodes that each has proven, fewest",
            known,
            Limit::AtLeast(f64::from(NODES - 1)),
        ),
    ])
}

/// Runs the nodes and prints the counts. The network namespace is new and has only loopback.
///
/// # Errors
/// If a node does not start.
#[expect(clippy::print_stdout, reason = "the answer to the program that started this one")]
pub fn nodes(tandem: &Path, is_quick: bool) -> anyhow::Result<()> {
    run(Command::new("ip").args(["link", "set", "lo", "up"]), None, ANSWER_TIME_MAX)?;
    let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
    let mut nodes = Vec::new();
    let first = Node::start(tandem, folder.path(), 0, None)?;
    let enode = first.enode()?;
    nodes.push(first);
    for number in 1..NODES {
        nodes.push(Node::start(tandem, folder.path(), number, Some(&enode))?);
    }
    let [before, of_count] = minutes(is_quick).map(|minutes| Duration::from_secs(60 * minutes));
    std::thread::sleep(before);
    let count = |nodes: &[Node]| -> anyhow::Result<(Vec<f64>, f64)> {
        let sent = "tandem_discovery_packets_sent_total";
        Ok((nodes.iter().map(|node| node.metric(sent)).collect::<Result<_, _>>()?, kernel_count()?))
    };
    let begun = Instant::now();
    let (sent, kernel) = count(&nodes)?;
    std::thread::sleep(of_count);
    let (sent_then, kernel_then) = count(&nodes)?;
    let proven = "tandem_discovery_endpoints_proven";
    let counted = Counted {
        minutes: begun.elapsed().as_secs_f64() / 60.0,
        sent: sent_then.iter().zip(sent).map(|(then, before)| then - before).collect(),
        kernel: kernel_then - kernel,
        proven: nodes.iter().map(|node| node.metric(proven)).collect::<Result<_, _>>()?,
    };
    println!("{}", serde_json::to_string(&counted)?);
    Ok(())
}

/// Returns the number of UDP packets that this network namespace has sent.
fn kernel_count() -> anyhow::Result<f64> {
    out_datagrams(&fs::read_to_string("/proc/self/net/snmp")?)
}

fn out_datagrams(snmp: &str) -> anyhow::Result<f64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Udp: "));
    let (names, values) = (lines.next().context("no Udp")?, lines.next().context("no Udp")?);
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == "OutDatagrams").context("no OutDatagrams")?;
    Ok(value.parse()?)
}

/// A `tandem discovery` with its table of peers.
struct Node {
    child: Child,
    metrics: SocketAddr,
    log: PathBuf,
}

impl Node {
    fn start(
        tandem: &Path,
        folder: &Path,
        number: u16,
        boot: Option<&str>,
    ) -> anyhow::Result<Self> {
        let [udp, metrics] = PORTS.map(|port| port + number);
        let log = folder.join(format!("{number}.log"));
        let file = File::create(&log)?;
        let mut command = Command::new(tandem);
        command.arg("discovery").arg("--datadir").arg(folder.join(number.to_string()));
        command.args(["--discovery.addr", "127.0.0.1", "--discovery.port", &udp.to_string()]);
        command.args(["--metrics.port", &metrics.to_string()]);
        if let Some(boot) = boot {
            command.args(["--bootnodes", boot]);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().context("start a node")?;
        let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, metrics));
        let mut node = Self { child, metrics, log };
        wait("a node to answer", START_TIME_MAX, || {
            if let Some(status) = node.child.try_wait()? {
                bail!("the node ended with {status}: {}", node.text());
            }
            Ok((client::get(metrics, "/readyz", ANSWER_TIME_MAX)?.0 == 200).then_some(()))
        })?;
        Ok(node)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns its node URL, which its log has soon.
    fn enode(&self) -> anyhow::Result<String> {
        wait("the node's address in its log", START_TIME_MAX, || Ok(enode_in(&self.text())))
    }

    fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let (status, text) = client::get(self.metrics, "/metrics", ANSWER_TIME_MAX)?;
        ensure!(status == 200, "metrics answer {status}");
        Ok(client::sum_of(&text, name).unwrap_or(0.0))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A process that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_found_by_its_name() {
        let snmp =
            "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts OutDatagrams\nUdp: 7 8 9\nUdpLite: X\n";
        assert_eq!(out_datagrams(snmp).unwrap(), 9.0);
        assert!(out_datagrams("Tcp: A\n").is_err());
    }

    #[test]
    fn a_nodes_address_is_found_in_its_log() {
        let log = "INFO discovery started enode=\"enode://ab@127.0.0.1:0?discport=1\" enr=x\n";
        assert_eq!(enode_in(log).unwrap(), "enode://ab@127.0.0.1:0?discport=1");
        assert!(enode_in("INFO discovery started").is_none());
    }

    #[test]
    fn the_rate_is_that_of_a_node_and_minute() {
        let sent = vec![100.0; 12];
        let counted = Counted { minutes: 2.0, sent, kernel: 1200.0, proven: vec![11.0; 12] };
        let figures = figures(&counted, 10).unwrap();
        assert_eq!((figures[0].value, figures[1].value, figures[2].value), (50.0, 1.0, 11.0));
    }
}
