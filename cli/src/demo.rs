//! `tandem demo`: runs a node on a corpus and shows latencies, the verdict on overlap and a
//! timeline.

use crate::{
    init,
    node::{PolicyArgs, client_info},
    operations,
    replay::{self, Corpus, Finality, ReplayArgs},
    serve::reactor,
    telemetry::TelemetryArgs,
    verify,
};
use anyhow::Context;
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_cluster::{Cluster, Config, Ports};

/// Options of `tandem demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Corpus directory
    #[arg(long, value_name = "DIR", default_value = "corpora/demo")]
    corpus: PathBuf,
    /// File to write the timeline to
    #[arg(long, value_name = "FILE", default_value = "tandem-demo.html")]
    html: PathBuf,
    /// Keep the database here instead of removing it at the end; must not exist yet
    #[arg(long, value_name = "DIR")]
    datadir: Option<PathBuf>,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Runs the demo. Exit code 0 if every payload was VALID and the database verifies.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (datadir, kept) = match &args.datadir {
        Some(datadir) => (datadir.clone(), true),
        None => (std::env::temp_dir().join(format!("tandem-demo-{}", std::process::id())), false),
    };
    anyhow::ensure!(!datadir.exists(), "{} exists already", datadir.display());
    let mut config = operations::load(None)?.at(&datadir);
    args.policies.apply(&mut config.policies)?;
    args.telemetry.apply(&mut config.traces);
    let run = demo(&args.corpus, &args.html, &datadir, config, args.telemetry);
    let result = reactor()?.block_on(run);
    if !kept {
        let _ = fs::remove_dir_all(&datadir);
    }
    result
}

#[allow(clippy::print_stdout)] // the answer of the command
async fn demo(
    corpus: &Path,
    html: &Path,
    datadir: &Path,
    mut config: Config,
    telemetry: TelemetryArgs,
) -> anyhow::Result<ExitCode> {
    let genesis = Corpus::open(corpus)?.genesis()?;
    let telemetry = telemetry.start("warn", &config.traces)?;
    config.with_discovery = true;
    (config.discovery.addr, config.discovery.port) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let start = {
        let datadir = datadir.to_owned();
        move || {
            init::write(&genesis, &datadir)?;
            Cluster::start(config).context("start the services")
        }
    };
    let mut cluster = tokio::task::spawn_blocking(start).await??;
    let free = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let jwt_secret = datadir.join("jwt.hex");
    let ports = Ports { engine: free, http: free, metrics: None, jwt_secret: jwt_secret.clone() };
    cluster.serve(&ports, client_info(), &telemetry).await?;
    let engine = cluster.engine_address().context("the Engine API does not listen")?;
    let report = replay::run(ReplayArgs {
        engine: format!("http://{engine}"),
        jwtsecret: jwt_secret,
        corpus: corpus.to_owned(),
        warmup: 10,
        from: 0,
        to: u64::MAX,
        json: None,
        finality: Finality { safe: 32, finalized: 64 },
        no_forkchoice: false,
        gap_ms: 0,
        call_timeout: 120,
        jaeger_ui: None,
    })
    .await?;
    println!("{}", report.render());

    let traces = telemetry.traces_json(usize::MAX);
    let input = tandem_overlap::read("this node", traces.as_bytes());
    let selection = tandem_overlap::Selection::from(tandem_overlap::Preset::Tandem);
    let overlap = tandem_overlap::analyze(input, &selection, usize::MAX);
    println!("{}", tandem_overlap::text(&overlap));
    fs::write(html, tandem_overlap::html(&overlap))
        .with_context(|| format!("write {}", html.display()))?;
    println!("timeline: {}", html.display());

    cluster.stop().await;
    let datadir = datadir.to_owned();
    let verified =
        tokio::task::spawn_blocking(move || tandem_storage_writer::verify(&datadir)).await??;
    println!("{}", verify::render(&verified));
    tokio::task::spawn_blocking(move || telemetry.shutdown()).await?;
    let good = report.is_valid() && verified.is_clean();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
