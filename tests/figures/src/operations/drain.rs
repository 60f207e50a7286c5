//! Each node is drained of the release's pods while payloads flow.

use super::{Options, release::Stage};
use crate::figure::{Figure, Limit, Report};
use anyhow::Context as _;
use serde_json::json;
use std::time::{Duration, Instant};

/// Label of the pods to evict: other pods of the cluster stay.
const LABEL: &str = "tandem-figures";
/// Longest time of a drain.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(90);
/// Longest gap of blocks: storage-writer and the executor move to another node.
const GAP_MAX: f64 = 30.0;

/// Measures the figures, with a standby.
pub fn measure(options: &Options, report: &mut Report) {
    let two = json!({"services": {"executor": {"replicas": 2}},
        "defaults": {"podLabels": {(LABEL): "drain"}}});
    let mut stage = Stage::new(options, "drain", two);
    for which in ["the executor without storage-writer", "storage-writer"] {
        let name = format!("drain of the node of {which}");
        report.measure(&name, || drain(&mut stage, &name, which == "storage-writer"));
    }
}

fn drain(stage: &mut Stage<'_>, name: &str, of_storage: bool) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let node_of = |role: &str| -> anyhow::Result<String> {
        let pods = release.kube.pods_of(role)?;
        Ok(pods.first().with_context(|| format!("no pod of {role}"))?.node.clone())
    };
    let storage = node_of("storage-writer")?;
    if !of_storage && release.active_executor()?.node == storage {
        // The other executor takes over, on the other node.
        let active = release.active_executor()?;
        release.fault(load, || release.delete(&active))?;
    }
    let node = if of_storage { storage } else { release.active_executor()?.node };
    let from = Instant::now();
    let seconds = format!("{}s", DRAIN_TIME_MAX.as_secs());
    let selector = format!("{LABEL}=drain");
    let arguments = ["drain", &node, "--pod-selector", &selector, "--delete-emptydir-data"];
    let more = ["--ignore-daemonsets", "--timeout", &seconds];
    let drained = release.kube.kubectl_for(&[&arguments[..], &more].concat(), DRAIN_TIME_MAX * 2);
    let took = from.elapsed().as_secs_f64();
    let seen = release.fault(load, || release.kube.kubectl(&["uncordon", &node]).map(drop));
    let note = drained.as_ref().err().map_or_else(String::new, |error| format!("{error:.120}"));
    seen?;
    let seen = load.since(from);
    let ended = if drained.is_ok() { took } else { f64::INFINITY };
    Ok(vec![
        Figure::new(format!("{name}: seconds"), ended, Limit::AtMost(DRAIN_TIME_MAX.as_secs_f64()))
            .note(note),
        Figure::new(format!("{name}: longest gap"), seen.gap, Limit::AtMost(GAP_MAX))
            .note(seen.note()),
        Figure::new(format!("{name}: longest call"), seen.hang, Limit::None),
    ])
}
