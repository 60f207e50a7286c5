//! Runs the cases of many files on all cores.
//!
//! Each thread takes the next loaded case; if there is none, it loads the next file. So at most as
//! many files are in memory as there are threads.

mod files;
mod pick;
mod report;
#[cfg(test)]
mod tests;

pub use pick::{Filter, Sample};
pub use report::{Done, Report};

use crate::{
    Case, Outcome, SUITES, Setting, Suite, case::take_payload_times, suites::ExecutionApis,
};
use files::{Claimed, Found};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Condvar, Mutex};
use std::{
    any::Any,
    collections::VecDeque,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fixture files, and folders that contain them.
    pub paths: Vec<PathBuf>,
    /// Filter of the cases to run.
    pub filter: Option<Filter>,
    /// Sample of the cases to run.
    pub sample: Option<Sample>,
    /// Whether to list the cases instead of running them.
    pub list: bool,
    /// Number of cases that run at once.
    pub threads: usize,
    /// JSON-RPC port of a running node that has the chain of the exchanges. They are then sent there, and the
    /// other suites are left out.
    pub rpc: Option<SocketAddr>,
}

/// A loaded case.
struct Loaded {
    case: Case,
    id: String,
    path: Arc<Path>,
    uses_node: bool,
}

/// Runs the cases that the options choose.
///
/// # Errors
/// If a path does not exist or cannot be read. A fault in a file's content is a failed case.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    match options.rpc {
        Some(_) => run_with(&[&ExecutionApis], options),
        None => run_with(SUITES, options),
    }
}

fn run_with(suites: &[&'static dyn Suite], options: &Options) -> anyhow::Result<Report> {
    let Found { claimed, unclaimed } = Found::under(&options.paths, suites)?;
    let started = Instant::now();
    let files = claimed.len();
    let runner = Runner {
        options,
        progress: progress_bar(claimed.iter().map(|file| file.len).sum()),
        work: Mutex::new(Work { files: claimed.into(), cases: VecDeque::new(), loading: 0 }),
        changed: Condvar::new(),
        done: Mutex::new(Vec::new()),
    };
    thread::scope(|scope| {
        for index in 0..options.threads.max(1) {
            let runner = &runner;
            let builder = thread::Builder::new().name(format!("case-{index}"));
            builder.spawn_scoped(scope, move || runner.work())?;
        }
        Ok::<_, std::io::Error>(())
    })?;
    runner.progress.finish_and_clear();
    let mut cases = runner.done.into_inner();
    cases.sort_by(|a, b| (&a.suite, &a.file, &a.name).cmp(&(&b.suite, &b.file, &b.name)));
    let (sample, elapsed) = (options.sample, started.elapsed());
    Ok(Report { cases, unclaimed, files, sample, listed: options.list, elapsed })
}

/// Remaining work.
struct Work {
    files: VecDeque<Claimed>,
    cases: VecDeque<(Loaded, u64)>,
    /// Number of files being loaded, whose cases will follow.
    loading: usize,
}

enum Next {
    Load(Claimed),
    Run(Box<Loaded>, u64),
}

struct Runner<'a> {
    options: &'a Options,
    progress: ProgressBar,
    work: Mutex<Work>,
    changed: Condvar,
    done: Mutex<Vec<Done>>,
}

impl Runner<'_> {
    fn work(&self) {
        while let Some(next) = self.next() {
            match next {
                Next::Load(file) => {
                    let cases = self.load(&file);
                    let mut work = self.work.lock();
                    work.cases.extend(cases);
                    work.loading -= 1;
                    self.changed.notify_all();
                }
                Next::Run(loaded, bytes) => {
                    let done = self.run(*loaded);
                    if let Outcome::Failed(reason) = &done.outcome {
                        let line = reason.lines().next().unwrap_or_default();
                        self.progress.println(format!("failed: {}: {line}", done.name));
                    }
                    self.done.lock().push(done);
                    self.progress.inc(bytes);
                }
            }
        }
    }

    /// Returns the next thing to do, `None` at the end.
    fn next(&self) -> Option<Next> {
        let mut work = self.work.lock();
        loop {
            if let Some((case, bytes)) = work.cases.pop_front() {
                return Some(Next::Run(Box::new(case), bytes));
            }
            if let Some(file) = work.files.pop_front() {
                work.loading += 1;
                return Some(Next::Load(file));
            }
            if work.loading == 0 {
                return None;
            }
            self.changed.wait(&mut work);
        }
    }

    /// Returns the chosen cases of a file, each with its share of the progress.
    fn load(&self, file: &Claimed) -> Vec<(Loaded, u64)> {
        let path: Arc<Path> = file.path.clone().into();
        let suite = file.suite;
        let loading = catch_unwind(AssertUnwindSafe(|| suite.load(&path)));
        let cases = loading.unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", panic_text(&*panic))));
        let cases = cases.unwrap_or_else(|error| vec![unreadable(suite, &error)]);
        let chosen = cases.into_iter().filter_map(|case| {
            let id = pick::id(&case, &path);
            let filtered = self.options.filter.as_ref().is_none_or(|f| f.has(&path, &case.name));
            let sampled = self.options.sample.is_none_or(|sample| sample.has(&id));
            let uses_node = suite.uses_node();
            (filtered && sampled).then(|| Loaded { case, id, path: path.clone(), uses_node })
        });
        let chosen: Vec<_> = chosen.collect();
        let count = chosen.len() as u64;
        if count == 0 {
            self.progress.inc(file.len);
        }
        chosen.into_iter().map(|case| (case, file.len / count)).collect()
    }

    fn run(&self, loaded: Loaded) -> Done {
        let Loaded { case: Case { suite, fork, name, run }, id, path, uses_node } = loaded;
        let rpc = self.options.rpc;
        let setting = match uses_node && rpc.is_none() {
            true => pick::setting(&id),
            false => Setting { rpc, ..Setting::default() },
        };
        let started = Instant::now();
        let outcome = if self.options.list {
            Outcome::Skipped("listed".to_owned())
        } else {
            catch_unwind(AssertUnwindSafe(|| run(&setting)))
                .unwrap_or_else(|panic| Outcome::Failed(format!("panic: {}", panic_text(&*panic))))
        };
        let (elapsed, payloads) = (started.elapsed(), take_payload_times());
        Done { suite, fork, name, file: path, setting, outcome, elapsed, payloads }
    }
}

/// Returns the single case of a file that cannot be read.
fn unreadable(suite: &'static dyn Suite, error: &anyhow::Error) -> Case {
    let reason = format!("cannot be read: {error:#}");
    let run = Box::new(move |_: &Setting| Outcome::Failed(reason));
    Case { suite: suite.name(), fork: "-".to_owned(), name: "(file)".to_owned(), run }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

/// Returns a progress bar on the terminal; hidden if there is no terminal.
fn progress_bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let template = "{elapsed_precise} [{wide_bar}] {percent:>3} % of the fixtures, {eta} to go";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
