//! `tandem top`: shows a node or a cluster at a glance, in a terminal.
//!
//! ```text
//!  /metrics, /debug/traces of every process ──► look ──► Figures ──► view ──► terminal, or text
//! ```

mod figures;
mod screen;
mod subsystems;
mod view;

use crate::{http_client, output::print, scrape::Scrape, target::Target};
use anyhow::{Context, ensure};
use bytes::Bytes;
use figures::{Figures, Sample};
use ratatui_termion::termion::{event::Key, input::TermRead};
use std::{
    collections::VecDeque,
    io::IsTerminal,
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};
use subsystems::Subsystems;
use tandem_overlap::{Analyzer, Options, Preset, Selection};
use tokio::{task::JoinSet, time::sleep};

/// Longest wait for the answer of a process.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Window of rates and quantiles in seconds, once the samples span it.
const WINDOW_SECONDS: f64 = 30.0;
/// Longest time between two draws.
const REDRAW_EVERY: Duration = Duration::from_millis(500);
/// Width of the text of `--once`, in columns.
const TEXT_WIDTH: u16 = 100;

/// Options of `tandem top`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0; 1 when there is no terminal, or with --once no answer; 2 for \
    wrong usage."
)]
pub struct Args {
    /// Metrics port of a process, such as http://127.0.0.1:9100; several for a cluster, with commas
    /// between them. executor=http://… assigns all its processor time to that service
    #[arg(
        long,
        value_name = "[SERVICE=]URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:9100"
    )]
    metrics: Vec<Target>,
    /// Seconds between two looks, at least 0.2 [default: 2, with --once 6]. Processes count their
    /// processor time every five seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    interval: Option<Duration>,
    /// Maximum number of payloads shown
    #[arg(long, value_name = "N", default_value_t = 50)]
    blocks: usize,
    /// Also show processors by subsystem, from profiles of five seconds. Needs a build with the
    /// feature profiling
    #[arg(long)]
    profile: bool,
    /// Print the figures after two looks as text, and exit
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.2..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("expected seconds, from 0.2 to 3600")
}

/// Runs until `q`, or once with `--once`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.once { once(args) } else { watch(args) }
}

fn reactor() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the reactor")
}

fn once(args: &Args) -> anyhow::Result<ExitCode> {
    let interval = args.interval.unwrap_or(Duration::from_secs(6));
    let begun = Instant::now();
    let figures = reactor()?.block_on(async {
        let looks = async {
            let first = look(&args.metrics, begun).await;
            sleep(interval).await;
            (first, look(&args.metrics, begun).await)
        };
        let seconds = (interval.as_secs() as u32).max(1);
        let profile = async {
            match args.profile {
                true => Some(subsystems::take(&args.metrics, seconds).await),
                false => None,
            }
        };
        let ((first, second), subsystems) = tokio::join!(looks, profile);
        Figures { subsystems, ..Watch::new(args).figures_of(&first, &second) }
    });
    let answers = figures.processes.iter().any(|process| process.answers);
    let urls: Vec<_> = args.metrics.iter().map(|target| &*target.url).collect();
    ensure!(answers, "no answer from {}", urls.join(", "));
    print(&view::text(&figures, TEXT_WIDTH))?;
    Ok(ExitCode::SUCCESS)
}

/// Looks and listens on separate threads, so that a slow answer does not delay a key.
fn watch(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(std::io::stdout().is_terminal(), "there is no terminal; --once prints text");
    let interval = args.interval.unwrap_or(Duration::from_secs(2));
    let (events, happened) = sync_channel(16);
    let (reactor, targets, looks) = (reactor()?, args.metrics.clone(), events.clone());
    let start = |name: &str| thread::Builder::new().name(name.to_owned());
    let profiles = args.profile;
    start("looks")
        .spawn(move || {
            reactor.block_on(async {
                let (found, newest) = tokio::sync::watch::channel(None);
                if profiles {
                    tokio::spawn(subsystems::watch(targets.clone(), found));
                }
                look_again_and_again(&targets, interval, &newest, &looks).await;
            });
        })
        .context("start a thread")?;
    start("keys").spawn(move || listen(&events)).context("start a thread")?;
    let mut screen = screen::Screen::open().context("set up the terminal")?;
    show(&mut screen, &happened, &mut Watch::new(args)).map(|()| ExitCode::SUCCESS)
}

/// Event that changes the screen.
enum Happened {
    Looked(Look),
    Pressed(Key),
}

/// Looks at the processes at this interval, until the receiver is gone.
async fn look_again_and_again(
    targets: &[Target],
    interval: Duration,
    newest: &tokio::sync::watch::Receiver<Option<Subsystems>>,
    events: &SyncSender<Happened>,
) {
    let begun = Instant::now();
    loop {
        let next = Instant::now() + interval;
        let mut look = look(targets, begun).await;
        look.subsystems = newest.borrow().clone();
        if events.send(Happened::Looked(look)).is_err() {
            return;
        }
        sleep(next.saturating_duration_since(Instant::now())).await;
    }
}

/// Sends keys, until there are no more or the receiver is gone.
fn listen(events: &SyncSender<Happened>) {
    for key in std::io::stdin().keys().map_while(Result::ok) {
        if events.send(Happened::Pressed(key)).is_err() {
            return;
        }
    }
}

/// Draws whenever there is something new, until `q`.
fn show(
    screen: &mut screen::Screen,
    happened: &Receiver<Happened>,
    watch: &mut Watch,
) -> anyhow::Result<()> {
    let mut figures = Figures::default();
    loop {
        screen.draw(&figures).context("draw")?;
        match happened.recv_timeout(REDRAW_EVERY) {
            Ok(Happened::Looked(look)) => figures = watch.take(look),
            Ok(Happened::Pressed(key)) if quits(key) => return Ok(()),
            // The terminal may have been resized.
            Ok(Happened::Pressed(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("nobody looks any more"),
        }
    }
}

fn quits(key: Key) -> bool {
    matches!(key, Key::Char('q' | 'Q') | Key::Esc | Key::Ctrl('c'))
}

/// Answers of all processes at one moment.
struct Look {
    sample: Sample,
    /// Recent traces of the processes that answered.
    traces: Vec<Bytes>,
    /// Newest profile, if profiles are taken and there is one.
    subsystems: Option<Subsystems>,
}

/// Asks all processes at once.
async fn look(targets: &[Target], begun: Instant) -> Look {
    let mut asked = JoinSet::new();
    for (at, target) in targets.iter().enumerate() {
        let url = target.url.clone();
        asked.spawn(async move { (at, ask(&url).await) });
    }
    let at = begun.elapsed().as_secs_f64();
    let mut sample = Sample { at, scrapes: vec![None; targets.len()] };
    let mut traces = Vec::new();
    while let Some(answer) = asked.join_next().await {
        let Ok((at, (scrape, spans))) = answer else { continue };
        sample.scrapes[at] = scrape;
        traces.extend(spans);
    }
    Look { sample, traces, subsystems: None }
}

async fn ask(url: &str) -> (Option<Scrape>, Option<Bytes>) {
    let metrics = format!("{url}/metrics");
    let Ok(metrics) = http_client::get_within(&metrics, ANSWER_MAX).await else {
        return (None, None);
    };
    let scrape = Scrape::parse(&String::from_utf8_lossy(&metrics));
    // Requests the whole ring, because many traces are not payloads.
    let traces = format!("{url}/debug/traces?n=10000");
    (Some(scrape), http_client::get_within(&traces, ANSWER_MAX).await.ok())
}

/// Looks of the last half minute.
struct Watch {
    names: Vec<(String, bool)>,
    blocks_max: usize,
    samples: VecDeque<Sample>,
}

impl Watch {
    fn new(args: &Args) -> Self {
        let names = args.metrics.iter().map(Target::name).collect();
        Self { names, blocks_max: args.blocks, samples: VecDeque::new() }
    }

    /// Adds a look and returns the figures to show.
    fn take(&mut self, look: Look) -> Figures {
        let now = look.sample.at;
        self.samples.push_back(look.sample);
        // The last sample that is old enough stays: the window starts there.
        while self.samples.get(1).is_some_and(|second| now - second.at >= WINDOW_SECONDS) {
            self.samples.pop_front();
        }
        let last = self.samples.len() - 1;
        let figures = Figures::between(&self.samples[0], &self.samples[last], &self.names);
        let figures = Figures { subsystems: look.subsystems, ..figures };
        self.with_blocks(figures, &look.traces)
    }

    fn figures_of(&self, first: &Look, second: &Look) -> Figures {
        let figures = Figures::between(&first.sample, &second.sample, &self.names);
        self.with_blocks(figures, &second.traces)
    }

    fn with_blocks(&self, mut figures: Figures, traces: &[Bytes]) -> Figures {
        if traces.is_empty() {
            figures.no_blocks = Some("nobody answers with traces".to_owned());
            return figures;
        }
        let mut options = Options::new(Selection::from(Preset::Tandem), usize::MAX);
        options.timeline = false;
        // The spans of one payload are spread over several processes, so all are held until the
        // end.
        let mut analyzer = Analyzer::new(options, None);
        for bytes in traces {
            let mut add = |input| analyzer.add(input);
            tandem_overlap::read_from("traces", &bytes[..], &mut add);
        }
        figures.with_blocks(&analyzer.finish(), self.blocks_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_have_some_time_between_them() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "0.1", "-1", "NaN", "x", "1e9"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn q_escape_and_control_c_end_it() {
        for key in [Key::Char('q'), Key::Esc, Key::Ctrl('c')] {
            assert!(quits(key), "{key:?}");
        }
        for key in [Key::Char('c'), Key::Char('\n'), Key::Up] {
            assert!(!quits(key), "{key:?}");
        }
    }

    #[test]
    fn figures_are_over_the_last_half_minute() {
        let mut watch = Watch { names: Vec::new(), blocks_max: 1, samples: VecDeque::new() };
        let mut take = |at: f64| {
            let sample = Sample { at, scrapes: Vec::new() };
            watch.take(Look { sample, traces: Vec::new(), subsystems: None }).seconds
        };
        assert_eq!((take(0.0), take(2.0), take(20.0)), (0.0, 2.0, 20.0));
        assert_eq!((take(31.0), take(33.0), take(50.0), take(1_000.0)), (31.0, 31.0, 30.0, 950.0));
        assert_eq!(watch.samples.len(), 2);
    }

    #[tokio::test]
    async fn nobody_there_is_no_answer() {
        // Port 1 of the loopback interface answers with a reset.
        let targets = ["http://127.0.0.1:1".parse().unwrap()];
        let look = look(&targets, Instant::now()).await;
        assert!(look.sample.scrapes[0].is_none() && look.traces.is_empty());
    }
}
