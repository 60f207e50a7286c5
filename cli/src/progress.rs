//! Progress of long work on standard error.

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// Pause between two lines where standard error is no terminal.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Unit of the work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Records of a database.
    Records,
    /// Bytes.
    Bytes,
}

/// Progress of work whose amount is known: a bar on a terminal, otherwise a line from time to time.
pub struct Report {
    unit: Unit,
    bar: ProgressBar,
    begin: Instant,
    lines: parking_lot::Mutex<Lines>,
}

struct Lines {
    /// Work that was done before this run.
    first: Option<u64>,
    last: Instant,
}

impl Report {
    /// Begins a report.
    pub fn new(unit: Unit) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
        let template = match unit {
            Unit::Records => "{bar:32} {percent}%  {per_sec} records  {elapsed}, {eta} left",
            Unit::Bytes => {
                "{bar:32} {percent}%  {binary_bytes} of {binary_total_bytes}  \
                 {binary_bytes_per_sec}  {elapsed}, {eta} left"
            }
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let begin = Instant::now();
        let lines = Lines { first: None, last: begin };
        Self { unit, bar, begin, lines: parking_lot::Mutex::new(lines) }
    }

    /// Shows how much is done of the total.
    pub fn show(&self, done: u64, total: u64) {
        let mut lines = self.lines.lock();
        let first = *lines.first.get_or_insert_with(|| {
            self.bar.set_length(total);
            // The work of an earlier run must not count for the rate.
            self.bar.set_position(done);
            self.bar.reset_eta();
            done
        });
        // Calls of several threads may arrive out of order.
        if done > self.bar.position() {
            self.bar.set_position(done);
        }
        if !self.bar.is_hidden() || lines.last.elapsed() < REPORT_EVERY {
            return;
        }
        lines.last = Instant::now();
        let rate = done.saturating_sub(first) as f64 / self.begin.elapsed().as_secs_f64();
        let left = total.saturating_sub(done) as f64 / rate.max(1.0);
        let percent = 100.0 * done as f64 / total.max(1) as f64;
        let rate = match self.unit {
            Unit::Records => format!("{rate:.0} records"),
            Unit::Bytes => BinaryBytes(rate as u64).to_string(),
        };
        eprintln!("{percent:.0} %, {rate} a second, {left:.0} s left");
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
