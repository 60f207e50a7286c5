//! A genesis by URL whose server is gone when storage-writer restarts.

use super::{
    Options,
    release::{READY_TIME_MAX, Release},
    server::Server,
};
use crate::figure::{Figure, Limit, Report};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::{fs, time::Instant};

/// Longest time until a restarted storage-writer is ready.
const RESTART_SECONDS_MAX: f64 = 60.0;

/// Measures the figure.
pub fn measure(options: &Options, report: &mut Report) {
    report.measure("genesis by URL: restart without its server", || restart(options));
}

fn restart(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let release = Release::prepare(options, "genesis", &json!({}))?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("genesis.json");
    crate::blocks::write_genesis(&file)?;
    let server = Server::start(&release.node_address(None)?, fs::read(&file)?)?;
    let mut url = server.url();
    let schema: Value =
        serde_json::from_slice(&fs::read(options.chart.join("values.schema.json"))?)?;
    let knows = |key: &str| {
        schema.pointer(&format!("/properties/genesis/properties/url/properties/{key}")).is_some()
    };
    // A chart downloads with an image of its own, or through the service itself, from a named
    // address.
    if let Some(image) = options.download_image.as_ref().filter(|_| knows("image")) {
        url["image"] = json!(image);
    }
    if knows("to") {
        url["to"] = server.place();
    }
    let source = json!({"genesis": {"source": "url", "url": url}});
    release.helm("install", &source, READY_TIME_MAX)?;
    release.expose()?;
    release.wait_until_ready()?;
    let requests = server.requests();
    drop(server);
    let pods = release.kube.pods_of("storage-writer")?;
    let pod = pods.first().context("no pod of storage-writer")?;
    let begun = Instant::now();
    release.kube.kubectl_for(&["delete", "pod", &pod.name, "--wait=true"], READY_TIME_MAX)?;
    let ready = release.wait_until_ready().map(|()| begun.elapsed().as_secs_f64());
    let note = ready.as_ref().err().map_or_else(String::new, |error| format!("; {error:#}"));
    let name = "genesis by URL: restart with its server gone, seconds";
    let seconds = ready.unwrap_or(f64::INFINITY);
    let note = format!("{requests} requests at the first start{note}");
    Ok(vec![Figure::new(name, seconds, Limit::AtMost(RESTART_SECONDS_MAX)).note(note)])
}
