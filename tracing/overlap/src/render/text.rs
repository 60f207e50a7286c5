//! Plain-text form of the report, for a terminal.

use std::fmt::{self, Write};

use crate::analyze::PayloadReport;
use crate::intervals::Intervals;
use crate::model::TraceId;
use crate::report::{Distribution, Report};
use crate::stats::Estimate;
use crate::what_if::StageGain;

/// Number of columns of the small timelines.
const COLUMNS: u64 = 72;
/// Number of entries of the critical path that are shown.
const STEPS: usize = 6;

/// Returns the report as a compact text: verdict, distributions, time per step, the worst payloads.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut out, report);
    out
}

fn write_report(out: &mut String, report: &Report) -> fmt::Result {
    let analysed = report.summary.overlap.map_or(0, |overlap| overlap.n);
    writeln!(out, "{} payloads, {analysed} with work on both sides", report.payloads.len())?;
    writeln!(out, "  A  {}", report.selection.a.label())?;
    writeln!(out, "  B  {}", report.selection.b.label())?;
    if !report.payloads.is_empty() {
        write_distributions(out, report)?;
    }
    write_totals(out, report)?;
    match report.payloads.as_slice() {
        [] => {}
        [only] => {
            write_payload(out, report, 0, only)?;
            if let [Some(url)] = report.slowest_urls.as_slice() {
                writeln!(out, "  {url}")?;
            }
        }
        payloads => {
            write_worst(out, report)?;
            let worst = report.worst.first();
            let at = payloads.iter().position(|one| Some(&one.trace_id) == worst);
            if let Some(at) = at {
                write_payload(out, report, at, &payloads[at])?;
            }
        }
    }
    write_queue_gaps(out, report)?;
    write_what_if(out, report)?;
    write_verdict(out, report)?;
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for line in report.problems.lines() {
        writeln!(out, "input: {line}")?;
    }
    if report.partial {
        writeln!(out, "PARTIAL ANSWER: something is missing from the input, see above")?;
    }
    Ok(())
}

fn write_distributions(out: &mut String, report: &Report) -> fmt::Result {
    let summary = &report.summary;
    writeln!(out)?;
    writeln!(out, "{:<28}{:>12}{:>12}{:>12}{:>12}{:>12}", "", "min", "p5", "p50", "p95", "max")?;
    let mut line = |name: &str, values: Option<Distribution>, show: fn(f64) -> String| {
        let Some(d) = values else { return writeln!(out, "{name:<28}{:>12}", "-") };
        let [min, p5, p50, p95, max] = [d.min, d.p5, d.p50, d.p95, d.max].map(show);
        writeln!(out, "{name:<28}{min:>12}{p5:>12}{p50:>12}{p95:>12}{max:>12}")
    };
    line("overlap  |A∩B| / min", summary.overlap, two_digits)?;
    line("container overlap", summary.container_overlap, two_digits)?;
    line("overlap by chance", summary.chance, two_digits)?;
    line("gain  (A + B) / wall", summary.gain, two_digits)?;
    line("reached of possible gain", summary.reached, percent)?;
    line("serialization", summary.serialization, two_digits)?;
    line("payload", summary.payload_ns, millis)?;
    line("A  busy", summary.a_ns, millis)?;
    line("B  busy", summary.b_ns, millis)?;
    line("  wasted beside it", summary.wasted_ns, millis)?;
    line("B / A", summary.b_per_a, two_digits)?;
    line("workers  largest / mean", summary.imbalance, two_digits)?;
    line("weight  min / payload", summary.weight, percent)?;
    line("processor / busy time", summary.cpu_share, percent)?;
    line("overlap proved by it", summary.proved, percent)?;
    line("saved by overlapping", summary.saved_ns, millis)?;
    line("could still be saved", summary.could_save_ns, millis)?;
    line("B begins after A by", summary.b_lag_ns, millis)?;
    line("tail after last transaction", summary.tail_ns, millis)?;
    line("  B busy in it", summary.tail_busy_ns, millis)?;
    line("  waiting in it", summary.tail_waiting_ns, millis)?;
    line("tail / payload", summary.tail_share, percent)
}

fn write_totals(out: &mut String, report: &Report) -> fmt::Result {
    let total = &report.summary.total;
    if total.wall_ns == 0 {
        return Ok(());
    }
    let share = |ns: u64| percent(ns as f64 / total.wall_ns as f64);
    writeln!(out)?;
    writeln!(
        out,
        "of {} wall time: both {}, only A {}, only B {}, neither {}; overlap weighted by work {}",
        millis(total.wall_ns as f64),
        share(total.both_ns),
        share(total.a_ns.saturating_sub(total.both_ns)),
        share(total.b_ns.saturating_sub(total.both_ns)),
        share(total.neither_ns),
        total.overlap.map_or_else(|| "-".to_owned(), two_digits),
    )
}

fn write_what_if(out: &mut String, report: &Report) -> fmt::Result {
    /// Gains below this part of the payload are left out.
    const LEAST: f64 = 0.000_5;
    let shown = |gain: &&StageGain| gain.on_path.median.max(gain.gain_50.median) >= LEAST;
    let mut gains = report.what_if.iter().filter(shown).peekable();
    if gains.peek().is_none() {
        return Ok(());
    }
    writeln!(out, "\nwhat if: part of the payload that a faster stage would gain, median [95 %]")?;
    writeln!(out, "{:>9}{:>22}{:>22}  stage", "on path", "10 % faster", "50 % faster")?;
    for gain in gains {
        let interval = |part: &Estimate| {
            let one = |part: f64| format!("{:.1}", 100.0 * part);
            format!("{} [{}, {}] %", one(part.median), one(part.low), one(part.high))
        };
        writeln!(
            out,
            "{:>9}{:>22}{:>22}  {}",
            percent(gain.on_path.median),
            interval(&gain.gain_10),
            interval(&gain.gain_50),
            gain.stage,
        )?;
    }
    Ok(())
}

fn write_worst(out: &mut String, report: &Report) -> fmt::Result {
    write_named(out, report, "least overlap", &report.worst, &report.worst_urls)?;
    write_named(out, report, "slowest", &report.slowest, &report.slowest_urls)
}

/// Writes payloads by their traces, with their pages in Jaeger if known.
fn write_named(
    out: &mut String,
    report: &Report,
    title: &str,
    traces: &[TraceId],
    urls: &[Option<String>],
) -> fmt::Result {
    if traces.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    writeln!(
        out,
        "{:>12}{:>9}{:>9}{:>12}{:>12}{:>12}{:>12}  trace",
        "block", "overlap", "serial.", "payload", "A", "B", "tail"
    )?;
    for (trace_id, url) in traces.iter().zip(urls) {
        let Some(one) = report.payloads.iter().find(|one| one.trace_id == *trace_id) else {
            continue;
        };
        writeln!(
            out,
            "{:>12}{:>9}{:>9}{:>12}{:>12}{:>12}{:>12}  {}",
            one.block_number.map_or_else(|| "-".to_owned(), |number| number.to_string()),
            one.overlap.map_or_else(|| "-".to_owned(), two_digits),
            one.serialization.map_or_else(|| "-".to_owned(), two_digits),
            millis(one.payload_ns as f64),
            millis(one.a_ns as f64),
            millis(one.b_ns as f64),
            one.tail_ns.map_or_else(|| "-".to_owned(), |ns| millis(ns as f64)),
            url.clone().unwrap_or_else(|| trace_id.to_string()),
        )?;
    }
    Ok(())
}

fn write_payload(out: &mut String, report: &Report, at: usize, one: &PayloadReport) -> fmt::Result {
    let block = one.block_number.map_or_else(String::new, |number| format!("block {number}, "));
    let verdict = one.verdict.map_or_else(String::new, |verdict| format!(", {verdict}"));
    writeln!(out, "\n{block}trace {}, {}{verdict}", one.trace_id, millis(one.payload_ns as f64))?;
    if let Some(detail) = report.details.get(at).and_then(Option::as_ref) {
        writeln!(out, "  A |{}|", timeline(&detail.a, detail.window))?;
        writeln!(out, "  B |{}|", timeline(&detail.b, detail.window))?;
    }
    let mut steps: Vec<String> = one
        .critical_path
        .iter()
        .take(STEPS)
        .map(|step| {
            let queued = if step.queued { " in its queue" } else { "" };
            format!("{}{queued} {}", step.name, millis(step.ns as f64))
        })
        .collect();
    if one.critical_path.len() > STEPS {
        steps.push("…".to_owned());
    }
    writeln!(out, "  critical path: {}", steps.join(", "))
}

fn write_queue_gaps(out: &mut String, report: &Report) -> fmt::Result {
    if report.queue_gaps.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<28}{:>12}{:>12}{:>12}{:>12}",
        "ready → consumed", "n", "p50", "p95", "max"
    )?;
    for gap in &report.queue_gaps {
        let [p50, p95, max] = [gap.gap_ns.p50, gap.gap_ns.p95, gap.gap_ns.max].map(millis);
        writeln!(out, "{:<28}{:>12}{p50:>12}{p95:>12}{max:>12}", gap.name, gap.gap_ns.n)?;
    }
    Ok(())
}

fn write_verdict(out: &mut String, report: &Report) -> fmt::Result {
    let bounds = &report.thresholds;
    let scale = format!(
        "of the possible gain: PARALLEL ≥ {:.2} > PARTIAL ≥ {:.2} > SEQUENTIAL; PARALLEL has a tail \
         of {} at most, and on one processor is CONCURRENT if processor time proves less than {} of the overlap; below a weight of {} there is NOTHING TO GAIN",
        bounds.parallel,
        bounds.sequential,
        percent(bounds.tail),
        percent(bounds.proved),
        percent(bounds.weight),
    );
    match report.verdict.zip(report.median_overlap()) {
        Some((verdict, median)) => {
            writeln!(out, "\nverdict: {verdict}, median overlap {median:.2}{}", worth(report))?;
        }
        None if report.summary.overlap.is_some() => {
            writeln!(
                out,
                "\nverdict: withheld, the figures are in doubt for half of the payloads or more"
            )?;
        }
        None => writeln!(out, "\nverdict: none, no payload has work on both sides")?,
    }
    writeln!(out, "  {scale}")
}

/// Returns what the overlap is worth, in words, for a typical payload.
fn worth(report: &Report) -> String {
    let summary = &report.summary;
    let (Some(chance), Some(reached), Some(saved), Some(left), Some(payload)) = (
        summary.chance,
        summary.reached,
        summary.saved_ns,
        summary.could_save_ns,
        summary.payload_ns,
    ) else {
        return String::new();
    };
    format!(
        " (by chance {:.2}), {} of the possible gain; it saves {} a payload of {}, and could save {} more",
        chance.p50,
        percent(reached.p50),
        millis(saved.p50),
        millis(payload.p50),
        millis(left.p50),
    )
}

/// Draws how much of each column of the window is in `set`, in eighths.
fn timeline(set: &Intervals, (start, end): (u64, u64)) -> String {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let length = end.saturating_sub(start);
    let edge = |column: u64| {
        let offset = u128::from(length) * u128::from(column) / u128::from(COLUMNS);
        start + u64::try_from(offset).unwrap_or(length)
    };
    (0..COLUMNS)
        .map(|column| {
            let (from, to) = (edge(column), edge(column + 1));
            let busy = set.clip(from, to).total();
            let width = (to - from).max(1);
            // A small amount of work is visible, and only a full column looks full.
            EIGHTHS
                [usize::try_from((busy * 8 / width).max(u64::from(busy > 0))).unwrap_or(8).min(8)]
        })
        .collect()
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// Formats nanoseconds as milliseconds with three digits.
fn millis(ns: f64) -> String {
    format!("{:.3} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_shows_how_full_each_column_is() {
        let set = Intervals::union([(0, 36_000), (54_000, 54_010)]);
        let drawn = timeline(&set, (0, 72_000));
        assert_eq!(drawn.chars().count(), 72);
        assert!(drawn.chars().take(36).all(|c| c == '█'));
        assert_eq!(
            drawn.chars().skip(36).filter(|c| *c == '▁').count(),
            1,
            "a trace of work shows"
        );
        assert_eq!(drawn.chars().skip(36).filter(|c| *c == ' ').count(), 35);
    }

    #[test]
    fn empty_window_draws_nothing() {
        assert_eq!(timeline(&Intervals::default(), (5, 5)).trim(), "");
    }
}
