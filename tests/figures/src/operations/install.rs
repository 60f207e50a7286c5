//! Time from the chart's installation until it serves, and the result of its own test.

use super::{
    Options,
    release::{READY_TIME_MAX, Release},
};
use crate::figure::{Figure, Limit, Report};
use serde_json::json;
use std::time::{Duration, Instant};

/// Longest time of an installation with images on the nodes.
const INSTALL_SECONDS_MAX: f64 = 60.0;

/// Measures the figures.
pub fn measure(options: &Options, report: &mut Report) {
    report.measure("install and helm test", || {
        let values = json!({"genesis": {"source": "dev"}});
        let release = Release::prepare(options, "install", &values)?;
        let begun = Instant::now();
        release.helm("install", &json!({}), READY_TIME_MAX)?;
        let helm = begun.elapsed().as_secs_f64();
        release.expose()?;
        release.wait_until_ready()?;
        let ready = begun.elapsed().as_secs_f64();
        let note = format!("helm install --wait returned after {helm:.1} s");
        let begun = Instant::now();
        release.kube.helm(&["test", super::release::RELEASE], Duration::from_secs(300))?;
        let test = begun.elapsed().as_secs_f64();
        Ok(vec![
            Figure::new(
                "install: until all pods are ready, seconds",
                ready,
                Limit::AtMost(INSTALL_SECONDS_MAX),
            )
            .note(note),
            Figure::new(
                "install: helm test succeeds, seconds",
                test,
                Limit::AtMost(INSTALL_SECONDS_MAX),
            ),
        ])
    });
}
