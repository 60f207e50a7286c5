//! Tx-executors that are added while payloads with access lists flow.

use super::{
    Options,
    load::CALL_TIME_MAX,
    release::{READY_TIME_MAX, Release},
    server::Server,
};
use crate::{
    Setting,
    client::Client,
    corpus::Corpus,
    figure::{Figure, Limit, Report},
};
use anyhow::Context as _;
use flate2::read::GzDecoder;
use serde_json::json;
use std::{fs::File, io::Read as _, thread, time::Duration};
use tandem_overlap::stats::median;

/// Numbers of tx-executors before the upgrade and after it.
const MEMBERS: [usize; 2] = [1, 4];
/// Number of blocks before the upgrade begins.
const BLOCKS_BEFORE: usize = 8;
/// Pause between two blocks.
const GAP: Duration = Duration::from_secs(2);
/// Processor of the executor and of each tx-executor, so that a block is worth sharing.
const CPU: &str = "300m";
/// Transactions that a tx-executor in use has executed at least. A trial takes eight.
const USED_MIN: f64 = 30.0;

/// Measures the figures.
pub fn measure(setting: &Setting, options: &Options, report: &mut Report) {
    let [before, after] = MEMBERS;
    let name = format!("tx-executors, {before} to {after}");
    report.measure(&name, || scale(setting, options, &name));
}

fn scale(setting: &Setting, options: &Options, name: &str) -> anyhow::Result<Vec<Figure>> {
    let corpus = Corpus::load(&setting.demo.with_file_name("amsterdam"), usize::MAX)?;
    let mut genesis = Vec::new();
    GzDecoder::new(File::open(&corpus.genesis)?).read_to_end(&mut genesis)?;
    let limited = json!({"resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": CPU}}});
    let values = json!({"services": {"executor": limited, "tx-executor": limited}});
    let release = Release::prepare(options, "machines", &values)?;
    let server = Server::start(&release.node_address(None)?, genesis)?;
    let mut url = server.url();
    url["to"] = server.place();
    let with = |members: usize| {
        json!({"genesis": {"source": "url", "url": url},
            "services": {"tx-executor": {"enabled": true, "replicas": members}}})
    };
    release.helm("install", &with(MEMBERS[0]), READY_TIME_MAX)?;
    release.expose()?;
    release.wait_until_ready()?;
    let mut engine = Client::engine(release.engine(None)?, &release.secret(), CALL_TIME_MAX)?;
    let (mut sent, mut upgraded_at) = (0, None);
    let (replayed, upgrade) = thread::scope(|scope| {
        let mut upgrade = None;
        let replayed = corpus.replay_to(
            &mut engine,
            GAP,
            |engine, body| engine.post(body),
            |block| {
                sent = block.index + 1;
                if sent == BLOCKS_BEFORE {
                    let to = with(MEMBERS[1]);
                    let release = &release;
                    upgrade =
                        Some(scope.spawn(move || release.helm("upgrade", &to, READY_TIME_MAX)));
                } else if upgraded_at.is_none()
                    && upgrade.as_ref().is_some_and(thread::ScopedJoinHandle::is_finished)
                {
                    upgraded_at = Some(sent);
                }
                Ok(())
            },
        );
        (replayed, upgrade.map(|thread| thread.join()))
    });
    let upgrade = upgrade.context("the replay ended before the upgrade began")?;
    let took = upgrade.ok().context("the upgrade panicked")??;
    let executed = executed(&release)?;
    let failed = f64::from(u8::from(replayed.is_err()));
    let seen = match &replayed {
        Ok(times) => {
            let halves = [&times[..BLOCKS_BEFORE], &times[upgraded_at.unwrap_or(sent)..]];
            let [before, after] = halves.map(|times| median(times.to_vec()).unwrap_or(f64::NAN));
            format!("newPayload p50 {before:.0} ms before the upgrade, {after:.0} after it")
        }
        Err(error) => format!("after {sent} blocks: {error:.160}"),
    };
    let used = executed.iter().filter(|&&count| count >= USED_MIN).count();
    Ok(vec![
        Figure::new(format!("{name}: failed calls"), failed, Limit::Exactly(0.0)).note(seen),
        Figure::new(format!("{name}: in use"), used as f64, Limit::Exactly(MEMBERS[1] as f64))
            .note(format!("executed {executed:?}, helm took {:.1} s", took.as_secs_f64())),
    ])
}

/// Returns the number of transactions that each tx-executor has executed.
fn executed(release: &Release<'_>) -> anyhow::Result<Vec<f64>> {
    let pods = release.kube.pods_of("tx-executor")?;
    let count = |pod| release.metric(pod, "tandem_tx_executor_transactions_total");
    pods.iter().map(count).collect()
}
