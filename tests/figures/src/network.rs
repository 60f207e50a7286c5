//! Nodes that find each other: the packets of discovery when sessions are held, when no node accepts
//! one, and under the legacy policy.

use crate::{
    Setting,
    client::sum_of,
    figure::{Figure, Limit, Report},
    node::Node,
};
use anyhow::{Context as _, ensure};
use std::time::{Duration, Instant};

/// Number of nodes that know each other.
const NODES: usize = 12;
/// Minutes in which packets are counted.
const COUNTED: f64 = 2.0;
/// Most packets of a node in a minute once the nodes are connected.
const CONNECTED_MAX: f64 = 30.0;
/// Most packets of a node in a minute while no node accepts a session.
const REFUSED_MAX: f64 = 60.0;
/// Longest wait for all sessions.
const SESSIONS_TIME_MAX: Duration = Duration::from_secs(120);

const SENT: &str = "tandem_discovery_packets_sent_total";
const PROVEN: &str = "tandem_discovery_endpoints_proven";
const CONNECTED: &str = "tandem_peer_table_connected_peers";
const SESSIONS: &str = "tandem_peer_sessions_sessions";

/// Settings of nodes that accept no session.
const REFUSING: &str = "[peer_sessions]\ninbound_max = 0\n";

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    report.measure("connected: packets", || connected(setting));
    report.measure("no sessions: packets", || refused(setting));
}

/// Nodes that know the first one, and through it each other.
struct Group {
    nodes: Vec<Node>,
    started: Instant,
}

/// Values of a metric, one for each node.
struct Values(Vec<f64>);

impl Values {
    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    fn range(&self) -> (f64, f64) {
        let fold = |start, pick: fn(f64, f64) -> f64| self.0.iter().copied().fold(start, pick);
        (fold(f64::MAX, f64::min), fold(f64::MIN, f64::max))
    }

    /// Returns the growth a minute since `before`.
    fn per_minute(&self, before: &Self, minutes: f64) -> Self {
        let growth = self.0.iter().zip(&before.0).map(|(now, before)| (now - before) / minutes);
        Self(growth.collect())
    }
}

impl Group {
    fn start(setting: &Setting, config: &str, flags: &[&str]) -> anyhow::Result<Self> {
        let genesis = setting.demo.join("genesis.json.gz");
        let mut nodes: Vec<Node> = Vec::new();
        for _ in 0..NODES {
            let boot = nodes.first().map(Node::enode).transpose()?;
            let mut flags: Vec<_> = flags.iter().map(ToString::to_string).collect();
            flags.extend(boot.into_iter().flat_map(|enode| ["--bootnodes".to_owned(), enode]));
            nodes.push(Node::start_among(&setting.tandem, &genesis, config, flags)?);
        }
        Ok(Self { nodes, started: Instant::now() })
    }

    fn values(&self, metric: &str) -> anyhow::Result<Values> {
        let values = self.nodes.iter().map(|node| {
            // A gauge is not there before its first value.
            Ok(sum_of(&node.metrics()?, metric).unwrap_or(0.0))
        });
        values.collect::<anyhow::Result<_>>().map(Values)
    }

    /// Waits until so many minutes have passed since the last start.
    fn wait_until(&self, minutes: f64) {
        let end = self.started + Duration::from_secs_f64(60.0 * minutes);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }

    /// Returns the packets that each node sends in a minute, from this minute on.
    fn packets(&self, from: f64, minutes: f64) -> anyhow::Result<Values> {
        self.wait_until(from);
        let (before, begun) = (self.values(SENT)?, Instant::now());
        self.wait_until(from + minutes);
        let passed = begun.elapsed().as_secs_f64() / 60.0;
        Ok(self.values(SENT)?.per_minute(&before, passed))
    }
}

fn packets(name: String, packets: &Values, max: f64) -> Figure {
    let (low, high) = packets.range();
    let note = format!("of single nodes {low:.1} to {high:.1}");
    Figure::new(name, packets.mean(), Limit::AtMost(max)).note(note)
}

/// Measures nodes that hold sessions with each other.
fn connected(setting: &Setting) -> anyhow::Result<Vec<Figure>> {
    let group = Group::start(setting, "", &[])?;
    let all = (NODES - 1) as f64;
    let connected = |metric| Ok::<_, anyhow::Error>(group.values(metric)?.range().0);
    while connected(SESSIONS)? < all && group.started.elapsed() < SESSIONS_TIME_MAX {
        std::thread::sleep(Duration::from_millis(200));
    }
    let seconds = group.started.elapsed().as_secs_f64();
    let (from, minutes) = if setting.quick { (2.0, 1.0) } else { (2.0, COUNTED) };
    let sent = group.packets(from, minutes)?;
    let (reported, held) = (group.values(CONNECTED)?, group.values(SESSIONS)?);
    let differ = reported.0.iter().zip(&held.0).filter(|(reported, held)| reported != held).count();
    Ok(vec![
        packets(
            format!("connected: packets a node and minute after {from} min"),
            &sent,
            CONNECTED_MAX,
        ),
        Figure::new("connected: sessions of a node, fewest", held.range().0, Limit::AtLeast(all))
            .note(format!("{seconds:.1} s after the last start")),
        Figure::new(
            "connected: nodes whose peer-table counts otherwise",
            differ as f64,
            Limit::Exactly(0.0),
        ),
    ])
}

/// Measures nodes of which none accepts a session, beside nodes with the legacy policy.
fn refused(setting: &Setting) -> anyhow::Result<Vec<Figure>> {
    // A short run says so in the names of its figures.
    let (from, minutes) = if setting.quick { (3.0, 1.0) } else { (10.0, COUNTED) };
    let group = Group::start(setting, REFUSING, &[])?;
    let legacy = Group::start(setting, REFUSING, &["--discovery.lookups", "legacy"])?;
    let passed = |group: &Group| group.started.elapsed().as_secs_f64() / 60.0;
    let mut rows = Vec::new();
    for minute in 1..=from as u32 {
        group.wait_until(minute.into());
        let rate =
            |group: &Group| Ok::<_, anyhow::Error>(group.values(SENT)?.mean() / passed(group));
        rows.push((rate(&group)?, rate(&legacy)?));
    }
    let sent = group.packets(from, minutes)?;
    let sessions = group.values(CONNECTED)?.range().1;
    ensure!(sessions == 0.0, "a node of those that accept none has {sessions} sessions");
    let known = group.values(PROVEN)?.range().0;
    let share = |(own, legacy): &(f64, f64)| own / legacy.max(1.0);
    let worst = rows.iter().map(share).fold(0.0, f64::max);
    let (_, last) = rows.last().context("no minute was counted")?;
    Ok(vec![
        packets(
            format!("no sessions: packets a node and minute after {from} min"),
            &sent,
            REFUSED_MAX,
        ),
        Figure::new("no sessions: packets since the start / legacy", worst, Limit::AtMost(1.0))
            .note(format!("worst of each minute; legacy {last:.0} a minute")),
        Figure::new(
            "no sessions: other nodes that each has proven, fewest",
            known,
            Limit::AtLeast((NODES - 1) as f64),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_each_node() {
        let (before, now) = (Values(vec![10.0, 20.0]), Values(vec![50.0, 40.0]));
        let rates = now.per_minute(&before, 2.0);
        assert_eq!((rates.mean(), rates.range()), (15.0, (10.0, 20.0)));
        let figure = packets("n".to_owned(), &rates, 15.0);
        assert_eq!((figure.value, figure.note.as_str()), (15.0, "of single nodes 10.0 to 20.0"));
    }
}
