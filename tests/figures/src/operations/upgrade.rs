//! Upgrades to a missing image and to a setting that the binary refuses, and the rollback.

use super::{
    Options,
    load::Load,
    release::{READY_TIME_MAX, RELEASE, Release, Stage},
};
use crate::{
    Setting,
    figure::{Figure, Limit, Report},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time after which helm gives up an upgrade.
const UPGRADE_TIME_MAX: Duration = Duration::from_secs(45);
/// Longest gap of blocks while an upgrade fails.
const GAP_MAX: f64 = 2.0;
/// Longest time from the rollback to payloads.
const ROLLBACK_SECONDS_MAX: f64 = 60.0;
/// Longest gap of blocks in an upgrade of all pods.
const GOOD_GAP_MAX: f64 = 20.0;

/// Measures the figures, with a standby and without.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    let bad = [
        (
            "an image that is missing, executor",
            json!({"services": {"executor": {"image": {"tag": "is-missing"}}}}),
        ),
        (
            "a setting that the binary refuses",
            json!({"config": {"executor": {"call_gas_max": "much"}}}),
        ),
        ("an image that is missing, all", json!({"image": {"tag": "is-missing"}})),
        (
            "an image that is missing, storage-writer",
            json!({"services": {"storage-writer": {"image": {"tag": "is-missing"}}}}),
        ),
    ];
    for replicas in if setting.quick { 2..=2 } else { 1..=2 } {
        let stage = ["upgrade-alone", "upgrade"][replicas - 1];
        let values = json!({"services": {"executor": {"replicas": replicas}}});
        let mut stage = Stage::new(options, stage, values);
        for (what, change) in &bad {
            let name = format!("upgrade to {what}, {replicas} executors");
            report.measure(&name, || fails(&mut stage, &name, change));
        }
        let name = format!("upgrade of all pods, {replicas} executors");
        report.measure(&name, || succeeds(&mut stage, &name));
    }
}

fn fails(stage: &mut Stage<'_>, name: &str, change: &Value) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let good = release.last_deployed()?;
    let from = Instant::now();
    let said = release.helm("upgrade", change, UPGRADE_TIME_MAX);
    // Failing pods may be restarted for some time after helm reported success.
    std::thread::sleep(Duration::from_secs(10));
    let seen = load.since(from);
    let note = match &said {
        Ok(took) => format!("deployed after {:.1} s", took.as_secs_f64()),
        Err(error) => format!("{error:.160}"),
    };
    let back = roll_back(release, load, &good);
    let failed = f64::from(u8::from(said.is_err()));
    let (seconds, how) = match back {
        Ok(took) => (took.as_secs_f64(), String::new()),
        Err(error) => (f64::INFINITY, format!("{error:.160}")),
    };
    if seconds.is_infinite() {
        // Manual repair, so that the next figures have a release.
        release.kube.kubectl(&["delete", "pods", "--all", "--wait=false"])?;
        release.wait_until_ready()?;
    }
    Ok(vec![
        Figure::new(format!("{name}: helm says that it failed"), failed, Limit::Exactly(1.0))
            .note(note),
        Figure::new(format!("{name}: longest gap, s"), seen.gap, Limit::AtMost(GAP_MAX))
            .note(seen.note()),
        Figure::new(format!("{name}: rollback, s"), seconds, Limit::AtMost(ROLLBACK_SECONDS_MAX))
            .note(how),
    ])
}

/// Rolls back without manual steps. Returns the time until payloads flowed and all pods were ready.
fn roll_back(release: &Release<'_>, load: &Load, revision: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let time_max = Duration::from_secs_f64(ROLLBACK_SECONDS_MAX * 2.0);
    let seconds = format!("{}s", time_max.as_secs());
    let arguments = ["rollback", RELEASE, revision, "--wait", "--timeout", &seconds];
    release.kube.helm(&arguments, time_max * 2)?;
    release.wait_until_ready()?;
    let calm = Duration::from_secs(1);
    super::kube::wait("payloads", READY_TIME_MAX, || Ok(load.is_flowing(calm).then_some(())))?;
    Ok(begun.elapsed())
}

/// Replaces all pods by pods with another annotation.
fn succeeds(stage: &mut Stage<'_>, name: &str) -> anyhow::Result<Vec<Figure>> {
    let (release, load) = stage.get()?;
    let change = json!({"defaults": {"podAnnotations": {"figures/round": "2"}}});
    let from = Instant::now();
    let took = release.helm("upgrade", &change, READY_TIME_MAX)?;
    release.wait_until_ready()?;
    let seen = release.fault(load, || Ok(()))?;
    let all = load.since(from);
    Ok(vec![
        Figure::new(format!("{name}: longest gap, s"), all.gap, Limit::AtMost(GOOD_GAP_MAX))
            .note(all.note()),
        Figure::new(format!("{name}: longest call, s"), all.hang, Limit::None)
            .note(format!("helm took {:.1} s", took.as_secs_f64())),
        Figure::new(
            format!("{name}: blocks lost"),
            (all.lost + seen.lost) as f64,
            Limit::Exactly(0.0),
        ),
    ])
}
