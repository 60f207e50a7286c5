//! Volumes that stay when the release goes, and one that is full.

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
/// Longest time until readiness says that the volume is full, and until the chain goes on when it is not.
const TURN_SECONDS_MAX: f64 = 30.0;

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
    // The chain goes on from there.
    drop(release.load()?);
    Ok(vec![
        Figure::new("uninstall: claims deleted", gone.len() as f64, Limit::Exactly(0.0))
            .note(format!("of {}: {}", before.len(), gone.join(", "))),
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
    let storage = || -> anyhow::Result<(u16, String)> {
        let pods = release.kube.pods_of("storage-writer")?;
        release.readiness(pods.first().context("no pod of storage-writer")?)
    };
    let begun = Instant::now();
    hook(program, &["fill", namespace, CLAIM])?;
    let full = wait("readiness to turn false", READY_TIME_MAX, || {
        let (status, text) = storage()?;
        Ok((status == 503).then_some(text))
    });
    let turned = begun.elapsed().as_secs_f64();
    let executor = release.kube.pods_of("executor")?;
    let executor = executor.first().context("no pod of executor")?;
    let of_executor = release.readiness(executor).map(|(status, text)| format!("{status} {text}"));
    let begun = Instant::now();
    hook(program, &["free", namespace, CLAIM])?;
    let calm = Duration::from_secs(2);
    wait("blocks", READY_TIME_MAX, || Ok(load.is_flowing(calm).then_some(())))?;
    let recovered = begun.elapsed().as_secs_f64() - calm.as_secs_f64();
    release.wait_until_ready()?;
    let (value, note) = match full {
        Ok(text) => (turned, format!("{}; executor: {of_executor:?}", text.trim())),
        Err(error) => (f64::INFINITY, format!("{error:#}; executor: {of_executor:?}")),
    };
    let lost = load.all().lost as f64;
    Ok(vec![
        Figure::new(
            "full volume: not ready after, seconds",
            value,
            Limit::AtMost(TURN_SECONDS_MAX),
        )
        .note(note),
        Figure::new(
            "full volume: blocks flow again after, seconds",
            recovered,
            Limit::AtMost(TURN_SECONDS_MAX),
        ),
        Figure::new("full volume: blocks lost", lost, Limit::Exactly(0.0)),
    ])
}

/// A volume that is given back at the end.
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
