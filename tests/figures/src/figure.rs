//! Figures, their limits, and the lines that say whether they are kept.

use std::{process::ExitCode, time::Instant};
use tandem_overlap::stats::Estimate;

/// Limit of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// Exactly this, for counts.
    Exactly(f64),
    /// Between these two.
    Between(f64, f64),
    /// No limit: the figure is only stated.
    None,
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Exactly(want) => value == want,
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::None => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {}", number(limit)),
            Self::AtLeast(limit) => format!(">= {}", number(limit)),
            Self::Exactly(want) => format!("= {}", number(want)),
            Self::Between(low, high) => format!("{low:.2} to {high:.2}"),
            Self::None => "none".to_owned(),
        }
    }
}

/// One measured figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of the figure.
    pub name: String,
    /// Value that the limit applies to.
    pub value: f64,
    /// 95 % interval, if the value is an estimate.
    pub interval: Option<(f64, f64)>,
    /// Limit of the value.
    pub limit: Limit,
    /// Origin of the value, for the reader.
    pub note: String,
}

impl Figure {
    /// Returns a figure that is counted or read, with no interval.
    pub fn new(name: impl Into<String>, value: f64, limit: Limit) -> Self {
        Self { name: name.into(), value, interval: None, limit, note: String::new() }
    }

    /// Returns a figure that is estimated.
    pub fn estimate(name: impl Into<String>, estimate: Estimate, limit: Limit) -> Self {
        let interval = Some((estimate.low, estimate.high));
        Self { name: name.into(), value: estimate.median, interval, limit, note: String::new() }
    }

    /// Adds the origin of the value.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }
}

/// Report of the figures, printed line by line.
pub struct Report {
    only: Option<String>,
    started: Instant,
    figures: usize,
    short: usize,
    failed: usize,
}

impl Report {
    /// Returns an empty report of the figures whose name contains `only`.
    pub fn new(only: Option<String>) -> Self {
        Self { only, started: Instant::now(), figures: 0, short: 0, failed: 0 }
    }

    /// Prints the titles of the columns.
    #[expect(clippy::print_stdout, reason = "the report is what the program is for")]
    pub fn head(&self, seed: u64, quick: bool) {
        let length = if quick { "quick" } else { "full" };
        println!("seed {seed}, {length} run");
        println!("{:<58} {:>9}  {:>17}  {:>12}  verdict", "figure", "value", "interval", "limit");
    }

    /// Measures the figures of one name and prints them. An error is a line too.
    #[expect(clippy::print_stdout, reason = "the report is what the program is for")]
    pub fn measure(&mut self, name: &str, measure: impl FnOnce() -> anyhow::Result<Vec<Figure>>) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        match measure() {
            Ok(figures) => figures.into_iter().for_each(|figure| self.print(figure)),
            Err(error) => {
                self.failed += 1;
                println!("{name:<58} {:>9}  {:>17}  {:>12}  failed: {error:#}", "-", "", "");
            }
        }
    }

    /// Prints a line that is not a figure.
    #[expect(clippy::print_stdout, reason = "the report is what the program is for")]
    pub fn say(&self, line: &str) {
        println!("{line}");
    }

    #[expect(clippy::print_stdout, reason = "the report is what the program is for")]
    fn print(&mut self, figure: Figure) {
        let Figure { name, value, interval, limit, note } = figure;
        let interval =
            interval.map_or(String::new(), |(low, high)| format!("{low:.3} to {high:.3}"));
        let holds = limit.holds(value);
        self.figures += 1;
        self.short += usize::from(!holds);
        let verdict = if holds { "ok" } else { "short" };
        let note = if note.is_empty() { String::new() } else { format!("  ({note})") };
        println!(
            "{name:<58} {:>9}  {interval:>17}  {:>12}  {verdict}{note}",
            number(value),
            limit.text()
        );
    }

    /// Prints the last line and returns the exit status.
    pub fn end(self) -> ExitCode {
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        let Self { figures, short, failed, .. } = self;
        self.say(&format!(
            "{figures} figures, {short} short, {failed} not measured, {minutes:.1} min"
        ));
        match (short, failed) {
            (0, 0) if figures > 0 => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(2),
            _ => ExitCode::from(1),
        }
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_its_limit_is_kept_and_one_beyond_is_short() {
        for (limit, good, bad) in [
            (Limit::AtMost(1.5), 1.5, 1.501),
            (Limit::AtLeast(1.0), 1.0, 0.0),
            (Limit::Exactly(16.0), 16.0, 15.0),
            (Limit::Between(0.97, 1.03), 0.97, 1.04),
        ] {
            assert!(limit.holds(good) && !limit.holds(bad) && !limit.holds(f64::NAN), "{limit:?}");
        }
        assert!(Limit::None.holds(7.0));
    }

    #[test]
    fn a_short_figure_and_a_failed_one_show_in_the_exit_status() {
        let figure = |value| Ok(vec![Figure::new("n", value, Limit::AtMost(1.0))]);
        let end = |values: &[f64], fail: bool| {
            let mut report = Report::new(None);
            values.iter().for_each(|value| report.measure("n", || figure(*value)));
            if fail {
                report.measure("n", || anyhow::bail!("no node"));
            }
            report.end()
        };
        assert_eq!(end(&[1.0], false), ExitCode::SUCCESS);
        assert_eq!(end(&[1.0, 2.0], false), ExitCode::from(1));
        assert_eq!(end(&[1.0], true), ExitCode::from(2));
        assert_eq!(end(&[2.0], true), ExitCode::from(1));
        assert_eq!(end(&[], false), ExitCode::from(2));
    }

    #[test]
    fn only_what_was_asked_for_is_measured() {
        let mut report = Report::new(Some("stop".to_owned()));
        report.measure("calls", || panic!("not asked for"));
        report.measure("stop: seconds", || Ok(vec![]));
    }
}
