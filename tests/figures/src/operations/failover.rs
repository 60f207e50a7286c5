//! Two storage-writers of which a lease decides who leads, and three servers of NATS that keep it: each is
//! killed while payloads flow.

use super::{
    Options,
    kube::{Pod, wait},
    load::Window,
    release::{READY_TIME_MAX, Release, Stage},
};
use crate::{
    Setting,
    figure::{Figure, Limit, Report},
};
use serde_json::json;

/// Longest gap of blocks after the death of the storage-writer that leads: its lease of three seconds has to
/// end, and the other one to take it.
const LEADER_GAP_MAX: f64 = 10.0;
/// Longest gap of blocks after the death of a server of NATS. The others elect a leader of the lease's stream in
/// its place, within nine seconds, and the lease may end meanwhile.
const SERVER_GAP_MAX: f64 = 10.0;

/// Measures the figures.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    let values = json!({"nats": {"replicas": 3}, "services": {"storage-writer": {"replicas": 2}}});
    let mut stage = Stage::new(options, "failover", values);
    let deaths = if setting.quick { 2 } else { 10 };
    report.measure("failover: storage-writer that leads", || leaders(&mut stage, deaths));
    report.measure("failover: servers of NATS", || servers(&mut stage));
}

fn leaders(stage: &mut Stage<'_>, deaths: usize) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let mut seen = Vec::new();
    let mut changes = 0;
    for _ in 0..deaths {
        let leader = leader(release)?;
        seen.push(release.fault(load, || release.kill(&leader))?);
        changes += usize::from(self::leader(release)?.name != leader.name);
    }
    let moved = format!("the lead moved {changes} times in {deaths}");
    Ok(figures("failover: storage-writer that leads", &seen, LEADER_GAP_MAX, &moved))
}

fn servers(stage: &mut Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let mut seen = Vec::new();
    for server in release.kube.pods_of("nats")? {
        seen.push(release.fault(load, || release.kill(&server))?);
    }
    let note = format!("{} servers, one after the other", seen.len());
    Ok(figures("failover: servers of NATS", &seen, SERVER_GAP_MAX, &note))
}

/// Returns the pod of the storage-writer that holds the lease.
fn leader(release: &Release<'_>) -> anyhow::Result<Pod> {
    wait("a storage-writer that leads", READY_TIME_MAX, || {
        let pods = release.kube.pods_of("storage-writer")?;
        let holds = |pod: &Pod| {
            let held = release.metric(pod, "tandem_storage_writer_lease_held");
            held.is_ok_and(|held| held == 1.0)
        };
        Ok(pods.into_iter().find(holds))
    })
}

fn figures(name: &str, seen: &[Window], gap_max: f64, note: &str) -> Vec<Figure> {
    let gap = seen.iter().map(|window| window.gap).fold(0.0, f64::max);
    let lost: usize = seen.iter().map(|window| window.lost).sum();
    let each: Vec<_> = seen.iter().map(|window| format!("{:.1}", window.gap)).collect();
    vec![
        Figure::new(format!("{name}: longest gap, s"), gap, Limit::AtMost(gap_max))
            .note(format!("each: {}; {note}", each.join(", "))),
        Figure::new(format!("{name}: blocks lost"), lost as f64, Limit::Exactly(0.0)),
    ]
}
