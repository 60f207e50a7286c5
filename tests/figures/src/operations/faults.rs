//! A pod of each role is killed and deleted while payloads flow.

use super::{
    Options,
    load::{Load, Window},
    release::{ROLES, Release, Stage},
};
use crate::{
    Setting,
    figure::{Figure, Limit, Report},
};
use anyhow::Context as _;
use serde_json::json;
use std::time::Duration;
use tandem_overlap::stats::SplitMix;

/// Longest gap of blocks after the loss of a role that newPayload does not need.
const ASIDE_GAP_MAX: f64 = 2.0;
/// Longest gap of blocks after the loss of storage-writer or the only executor.
const CHAIN_GAP_MAX: f64 = 15.0;
/// Longest call after a graceful delete of the executor, with and without a standby.
const HANG_MAX: [f64; 2] = [2.0, 5.0];

/// Measures the figures.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    let mut random = SplitMix(setting.seed);
    let rounds = if setting.quick { 1 } else { 5 };
    let mut stage = Stage::new(options, "faults", json!({}));
    let mut roles = ROLES.to_vec();
    // Each seed has its own order.
    for place in (1..roles.len()).rev() {
        roles.swap(place, random.below(place + 1));
    }
    for role in roles.iter().filter(|role| **role != "executor") {
        for how in [How::Delete, How::Kill] {
            report.measure(&format!("{how} {role}"), || other(&mut stage, role, how, &mut random));
        }
    }
    for how in [How::Delete, How::Kill] {
        let name = format!("{how} executor without a standby");
        report.measure(&name, || executor(&mut stage, &name, how, false, rounds, &mut random));
    }
    report.measure("faults: blocks lost without a standby", || lost(&mut stage));
    drop(stage);
    let two = json!({"services": {"executor": {"replicas": 2}}});
    let mut stage = Stage::new(options, "standby", two);
    for how in [How::Delete, How::Kill] {
        let name = format!("{how} executor with a standby");
        report.measure(&name, || executor(&mut stage, &name, how, true, rounds, &mut random));
    }
    report.measure("restart of storage-writer with a standby", || holder(&mut stage, rounds));
    report.measure("faults: blocks lost with a standby", || lost(&mut stage));
}

/// Way to remove a pod.
#[derive(Clone, Copy)]
enum How {
    Delete,
    Kill,
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Delete => "delete",
            Self::Kill => "kill",
        })
    }
}

impl How {
    fn apply(
        self,
        release: &Release<'_>,
        load: &Load,
        pod: &super::kube::Pod,
    ) -> anyhow::Result<Window> {
        release.fault(load, || match self {
            Self::Delete => release.delete(pod),
            Self::Kill => release.kill(pod),
        })
    }
}

/// Waits for a random moment between two blocks.
fn random_moment(random: &mut SplitMix) {
    std::thread::sleep(Duration::from_millis(random.below(1000) as u64));
}

fn other(
    stage: &mut Stage<'_>,
    role: &str,
    how: How,
    random: &mut SplitMix,
) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let pods = release.kube.pods_of(role)?;
    anyhow::ensure!(!pods.is_empty(), "no pod of {role}");
    let pod = &pods[random.below(pods.len())];
    random_moment(random);
    let seen = how.apply(release, load, pod)?;
    let limit = if role == "storage-writer" { CHAIN_GAP_MAX } else { ASIDE_GAP_MAX };
    let name = format!("{how} {role}");
    Ok(vec![
        Figure::new(format!("{name}: longest gap, seconds"), seen.gap, Limit::AtMost(limit))
            .note(seen.note()),
        Figure::new(format!("{name}: longest call, seconds"), seen.hang, Limit::None),
    ])
}

fn executor(
    stage: &mut Stage<'_>,
    name: &str,
    how: How,
    has_standby: bool,
    rounds: usize,
    random: &mut SplitMix,
) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let mut seen = Vec::new();
    for _ in 0..rounds {
        let pod = release.active_executor()?;
        random_moment(random);
        seen.push(how.apply(release, load, &pod)?);
        if matches!(how, How::Kill) {
            // The node waits longer each time before it restarts a container of the same pod, so
            // the next round gets another pod.
            release.fault(load, || release.delete(&pod))?;
        }
    }
    let worst = |of: fn(&Window) -> f64| seen.iter().map(of).fold(0.0, f64::max);
    let all = |of: fn(&Window) -> f64| {
        let each: Vec<_> = seen.iter().map(|window| format!("{:.1}", of(window))).collect();
        format!("each: {}", each.join(", "))
    };
    let limit = match how {
        How::Delete => Limit::AtMost(HANG_MAX[usize::from(!has_standby)]),
        How::Kill => Limit::None,
    };
    let failed = seen.iter().map(Window::note).collect::<Vec<_>>().join("; ");
    Ok(vec![
        Figure::new(format!("{name}: longest call, seconds"), worst(|seen| seen.hang), limit)
            .note(all(|seen| seen.hang)),
        Figure::new(
            format!("{name}: longest gap, seconds"),
            worst(|seen| seen.gap),
            Limit::AtMost(CHAIN_GAP_MAX),
        )
        .note(format!("{}; {failed}", all(|seen| seen.gap))),
    ])
}

/// Counts restarts of storage-writer after which another executor has the right to write.
fn holder(stage: &mut Stage<'_>, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let mut changes = 0;
    for _ in 0..rounds {
        let before = release.active_executor()?;
        let pods = release.kube.pods_of("storage-writer")?;
        let pod = pods.first().context("no pod of storage-writer")?;
        release.fault(load, || release.delete(pod))?;
        changes += usize::from(release.active_executor()?.name != before.name);
    }
    let name = "restart of storage-writer: the right to write moves, times";
    let note = format!("of {rounds} restarts");
    Ok(vec![Figure::new(name, changes as f64, Limit::Exactly(0.0)).note(note)])
}

fn lost(stage: &mut Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let (_, load) = stage.get()?;
    let seen = load.all();
    let name = "faults: answers SYNCING or INVALID, of blocks found VALID before";
    let note = format!("{} blocks", seen.blocks);
    Ok(vec![Figure::new(name, seen.lost as f64, Limit::Exactly(0.0)).note(note)])
}
