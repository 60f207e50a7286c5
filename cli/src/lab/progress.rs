//! Progress of a run on standard error: a bar on a terminal, otherwise a line now and then.

use super::experiment::Experiment;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Count of the blocks that all nodes have had.
pub struct Progress {
    bar: ProgressBar,
    name: String,
    /// Blocks of this run, if the corpus says how many it has.
    len: Option<u64>,
    done: u64,
    began: Instant,
    last_line: Instant,
}

impl Progress {
    /// Starts the count after this many complete rounds.
    pub fn new(experiment: &Experiment, corpus_len: Option<u64>, complete: u32) -> Self {
        let asked = experiment.blocks.map(|blocks| blocks.saturating_add(experiment.warmup));
        let each = [corpus_len, asked].into_iter().flatten().min();
        let len = each.map(|blocks| blocks * u64::from(experiment.rounds - complete));
        let template = match len {
            Some(_) => "{msg} {bar:32} {pos}/{len} blocks  {elapsed} elapsed, {eta} left",
            None => "{msg} {spinner} {pos} blocks  {elapsed} elapsed",
        };
        let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(2))
            .with_message(experiment.name.clone());
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        let (name, now) = (experiment.name.clone(), Instant::now());
        Self { bar, name, len, done: 0, began: now, last_line: now }
    }

    /// Counts a block.
    pub fn block(&mut self) {
        self.done += 1;
        self.bar.inc(1);
        if self.bar.is_hidden() && self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            eprintln!("{}: {}", self.name, line(self.done, self.len, self.began.elapsed()));
        }
    }

    /// Ends the count.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns how far a run is, and how long the rest takes at the same pace.
fn line(done: u64, len: Option<u64>, elapsed: Duration) -> String {
    let minutes = |seconds: f64| format!("{:.0}:{:02.0}", (seconds / 60.0).floor(), seconds % 60.0);
    let elapsed = elapsed.as_secs_f64().floor();
    let Some(len) = len else {
        return format!("{done} blocks, {} elapsed", minutes(elapsed));
    };
    let left = elapsed / done.max(1) as f64 * len.saturating_sub(done) as f64;
    format!("{done} of {len} blocks, {} elapsed, {} left", minutes(elapsed), minutes(left.floor()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_rest() {
        let elapsed = Duration::from_millis(61_500);
        assert_eq!(line(10, Some(40), elapsed), "10 of 40 blocks, 1:01 elapsed, 3:03 left");
        assert_eq!(line(10, None, elapsed), "10 blocks, 1:01 elapsed");
        assert_eq!(line(40, Some(10), elapsed), "40 of 10 blocks, 1:01 elapsed, 0:00 left");
    }
}
