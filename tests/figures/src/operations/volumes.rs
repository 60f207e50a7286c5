//! Volumes that stay after the release is uninstalled, and a volume that is full.

use super::{
    Options,
    kube::{Kube, wait},
    release::{READY_TIME_MAX, RELEASE, Release, hook},
};
use crate::figure::{Figure, Limit, Report};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Claim of storage-writer.
const CLAIM: &str = "data-tandem-storage-writer-0";
/// Longest time from the first failed call until readiness reports it, and from freed space until
/// blocks flow.
const TURN_TIME_MAX: Duration = Duration::from_secs(30);

/// Measures the figures.
pub fn measure(options: &Options, report: &mut Report) {
    report.measure("uninstall: volumes and head stay", || reinstall(options));
    report.measure("full volume: readiness", || full(options));
}

fn claims(kube: &Kube) -> anyhow::Result<BTreeSet<String>> {
    let list = kube.get(&["persistentvolumeclaims"])?;
    let items = list["items"].as_array().context("no list of claims")?;
    let name = |claim: &Value| claim["metadata"]["name"].as_str().map(str::to_owned);
    let stays = |claim: &&Value| claim["metadata"]["deletionTimestamp"].is_null();
    Ok(items.iter().filter(stays).filter_map(name).collect())
}

fn reinstall(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let kept = json!({"persistence": {"enabled": true, "size": "64Mi"}});
    let values = json!({"services": {"discovery": kept, "peer-table": kept}});
    let release = Release::install(options, "volumes", &values)?;
    let load = release.load()?;
    wait("a hundred blocks", READY_TIME_MAX, || Ok((load.all().blocks >= 100).then_some(())))?;
    drop(load);
    let (head, before) = (release.head()?, claims(&release.kube)?);
    release.kube.helm(&["uninstall", RELEASE, "--wait"], READY_TIME_MAX)?;
    let after = claims(&release.kube)?;
    let gone: Vec<_> = before.difference(&after).cloned().collect();
    let begun = Instant::now();
    release.helm("install", &json!({}), READY_TIME_MAX)?;
    release.wait_until_ready()?;
    let took = begun.elapsed();
    let same = f64::from(u8::from(release.head()? == head));
    // The chain continues from there.
    drop(release.load()?);
    Ok(vec![
        Figure::new("uninstall: claims deleted", gone.len() as f64, Limit::Exactly(0.0))
            .note(format!("of {} {}", before.len(), gone.join(", "))),
        Figure::new("reinstall on kept volumes: the head is the same", same, Limit::Exactly(1.0))
            .note(format!("{head}, ready after {:.1} s", took.as_secs_f64())),
    ])
}

fn full(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let program = options.volume.as_deref().context("no --volume-command: it fills the volume")?;
    let values = json!({"config": {"storage_writer": {"store": {"memtable_bytes_max": 16 << 20}}}});
    let release = Release::prepare(options, "full", &values)?;
    let namespace = release.kube.namespace();
    hook(program, &["prepare", namespace, CLAIM])?;
    let _removed = Prepared { program, namespace };
    release.helm("install", &json!({}), READY_TIME_MAX)?;
    release.expose()?;
    release.wait_until_ready()?;
    let load = release.load()?;
    let of = |role: &str| -> anyhow::Result<Option<String>> {
        let pods = release.kube.pods_of(role)?;
        let pod = pods.first().with_context(|| format!("no pod of {role}"))?;
        let (status, text) = release.readiness(pod)?;
        Ok((status == 503).then(|| text.trim().to_owned()))
    };
    let begun = Instant::now();
    hook(program, &["fill", namespace, CLAIM])?;
    let calls_fail = || Ok((!load.since(begun).failed.is_empty()).then_some(()));
    wait("calls to fail", READY_TIME_MAX, calls_fail)?;
    let failing = Instant::now();
    let turns = ["storage-writer", "executor"].map(|role| {
        let said = wait("readiness to turn false", TURN_TIME_MAX * 2, || of(role));
        (role, failing.elapsed().as_secs_f64(), said)
    });
    hook(program, &["free", namespace, CLAIM])?;
    let freed = Instant::now();
    let calm = Duration::from_secs(2);
    wait("blocks", READY_TIME_MAX, || Ok(load.is_flowing(calm).then_some(())))?;
    let recovered = (freed.elapsed() - calm).as_secs_f64();
    release.wait_until_ready()?;
    let limit = Limit::AtMost(TURN_TIME_MAX.as_secs_f64());
    let mut figures: Vec<_> = turns
        .into_iter()
        .map(|(role, seconds, said)| {
            let name = format!("full volume: {role} not ready after, seconds");
            match said {
                Ok(text) => Figure::new(name, seconds, limit).note(text),
                Err(error) => Figure::new(name, f64::INFINITY, limit).note(format!("{error:#}")),
            }
        })
        .collect();
    let lost = load.all().lost as f64;
    figures.push(Figure::new("full volume: blocks flow again after, seconds", recovered, limit));
    figures.push(Figure::new("full volume: blocks lost", lost, Limit::Exactly(0.0)));
    Ok(figures)
}

/// A volume that is freed at the end.
struct Prepared<'a> {
    program: &'a std::path::Path,
    namespace: &'a str,
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // A volume that is still full would stay so for the next run.
        let _ = hook(self.program, &["free", self.namespace, CLAIM]);
    }
}
