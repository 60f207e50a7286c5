//! The node of the executor that has the right to write is cut off from the network.

use super::{
    Options,
    kube::wait,
    release::{READY_TIME_MAX, Release, hook},
};
use crate::figure::{Figure, Limit, Report};
use anyhow::Context as _;
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Time that the node stays cut off.
const AWAY: Duration = Duration::from_secs(60);
/// Longest gap of blocks. The cluster needs time to consider a node lost, and routes clients to it
/// until then.
const GAP_MAX: f64 = 60.0;

/// Measures the figures, with a standby.
pub fn measure(options: &Options, report: &mut Report) {
    report.measure("lost node: of the executor, with a standby", || cut(options));
}

fn cut(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let program =
        options.link.as_deref().context("no --node-link: it cuts the network of a node")?;
    let two = json!({"services": {"executor": {"replicas": 2}}});
    let release = Release::install(options, "link", &two)?;
    drop(release.load()?);
    let pods = release.kube.pods_of("storage-writer")?;
    let storage = pods.first().context("no pod of storage-writer")?.node.clone();
    let lost = {
        let _load = release.load()?;
        let active = release.active_executor()?;
        if active.node == storage {
            // The other executor takes over, on the other node.
            release.delete(&active)?;
            wait("the other executor", READY_TIME_MAX, || {
                let pods = release.kube.pods_of("executor")?;
                let is_there = pods.len() == 2 && !pods.iter().any(|pod| pod.name == active.name);
                Ok(is_there.then_some(()))
            })?;
        }
        release.active_executor()?.node
    };
    anyhow::ensure!(
        lost != storage,
        "the executor with the right to write is beside storage-writer"
    );
    let load = release.load_avoiding(Some(&lost))?;
    let from = Instant::now();
    hook(program, &[&lost, "cut"])?;
    let _mended = Mended { program, node: &lost };
    std::thread::sleep(AWAY);
    let seen = load.since(from);
    hook(program, &[&lost, "mend"])?;
    let calm = Duration::from_secs(3);
    wait("blocks", READY_TIME_MAX, || Ok(load.is_flowing(calm).then_some(())))?;
    release.wait_until_ready()?;
    let all = load.since(from);
    let name = "lost node: of the executor, with a standby";
    Ok(vec![
        Figure::new(format!("{name}: longest gap, s"), all.gap, Limit::AtMost(GAP_MAX))
            .note(format!("while it is away {:.1}; {}", seen.gap, all.note())),
        Figure::new(format!("{name}: blocks lost"), all.lost as f64, Limit::Exactly(0.0)),
    ])
}

/// Guard that reconnects a node at the end, whatever happens.
struct Mended<'a> {
    program: &'a Path,
    node: &'a str,
}

impl Drop for Mended<'_> {
    fn drop(&mut self) {
        // Mending a network that is not cut changes nothing.
        let _ = hook(self.program, &[self.node, "mend"]);
    }
}
