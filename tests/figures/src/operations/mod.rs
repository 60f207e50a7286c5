//! Operation on a Kubernetes, beside other users of a machine, and in a network of a few nodes.

mod alerts;
mod drain;
mod failover;
mod faults;
mod genesis;
mod install;
mod kube;
mod link;
mod load;
mod machines;
pub mod neighbour;
mod probe;
pub mod quiet;
mod release;
mod server;
mod strangers;
mod upgrade;
mod volumes;

use crate::{Setting, figure::Report};
use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// The Kubernetes of the topic `operations`, and programs that act on its nodes
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of operations")]
pub struct Options {
    /// Kubeconfig of a running Kubernetes; without one its figures are not measured
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Image of the services, present on the nodes
    #[arg(
        long,
        value_name = "NAME:TAG",
        env = "TANDEM_FIGURES_IMAGE",
        default_value = "tandem:offline"
    )]
    image: String,
    /// Image of nats-server
    #[arg(
        long,
        value_name = "NAME:TAG",
        env = "TANDEM_FIGURES_NATS_IMAGE",
        default_value = "tandem-nats:offline"
    )]
    nats_image: String,
    /// Image that downloads a genesis, for charts that need one [default: the chart's]
    #[arg(long, value_name = "NAME:TAG", env = "TANDEM_FIGURES_DOWNLOAD_IMAGE")]
    download_image: Option<String>,
    /// The chart
    #[arg(long, value_name = "DIR", default_value = "helm/tandem")]
    chart: PathBuf,
    /// Values that override those of the trials, such as a storage class
    #[arg(long, value_name = "FILE", env = "TANDEM_FIGURES_VALUES")]
    values: Option<PathBuf>,
    /// Alert rules
    #[arg(long, value_name = "FILE", default_value = "deploy/rules.yml")]
    rules: PathBuf,
    /// Prometheus, for the figures of alerts
    #[arg(
        long,
        value_name = "FILE",
        env = "TANDEM_FIGURES_PROMETHEUS",
        default_value = "prometheus"
    )]
    prometheus: PathBuf,
    /// Program that sends a signal to a container: FILE NODE CONTAINER-ID SIGNAL
    #[arg(long = "node-signal", value_name = "FILE", env = "TANDEM_FIGURES_NODE_SIGNAL")]
    signal: Option<PathBuf>,
    /// Program that cuts and mends a node's network: FILE NODE cut|mend
    #[arg(long = "node-link", value_name = "FILE", env = "TANDEM_FIGURES_NODE_LINK")]
    link: Option<PathBuf>,
    /// Program that makes a claim with a small volume, fills it and frees it: FILE prepare|fill|free
    /// NAMESPACE CLAIM
    #[arg(long = "volume-command", value_name = "FILE", env = "TANDEM_FIGURES_VOLUME")]
    volume: Option<PathBuf>,
}

impl Options {
    /// Returns the kubeconfig file, which names the cluster.
    ///
    /// # Errors
    /// If there is none.
    fn kubeconfig(&self) -> anyhow::Result<&Path> {
        let file = self.kubeconfig.as_deref().filter(|file| !file.as_os_str().is_empty());
        file.context("not measured: no Kubernetes, KUBECONFIG names none")
    }
}

/// Measures all figures of the topic.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    say_what_is_missing(options, report);
    neighbour::measure(setting, report);
    install::measure(options, report);
    upgrade::measure(setting, options, report);
    faults::measure(setting, options, report);
    drain::measure(options, report);
    volumes::measure(options, report);
    genesis::measure(options, report);
    machines::measure(setting, options, report);
    failover::measure(setting, options, report);
    strangers::measure(options, report);
    alerts::measure(options, report);
    link::measure(options, report);
    quiet::measure(setting, report);
}

/// Prints the programs that were not given, and the figures that cannot be measured without them.
fn say_what_is_missing(options: &Options, report: &Report) {
    for (program, flag, what) in [
        (&options.kubeconfig, "KUBECONFIG", "no figure of Kubernetes"),
        (&options.signal, "--node-signal", "kills are deletes without a grace period"),
        (&options.link, "--node-link", "no figure of a lost node"),
        (&options.volume, "--volume-command", "no figure of a full volume"),
    ] {
        if program.is_none() {
            report.say(&format!("without {flag}: {what}"));
        }
    }
}
