//! Renders the report as text for people.

use super::experiment::Figure;
use super::report::{LabReport, MetricReport, NodeReport, OTHERS_MAX, RunReport, WORK_MIN_MS};
use super::scrape::{Bounded, Reading};
use std::fmt::{Result, Write};
use tandem_overlap::stats::{BLOCKS_MIN, Estimate};

/// Returns the whole report.
pub fn render(report: &LabReport) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = write_report(&mut text, report);
    text
}

fn write_report(out: &mut String, report: &LabReport) -> Result {
    writeln!(out, "{}: {}", report.experiment, report.question.trim())?;
    for run in &report.runs {
        writeln!(out)?;
        write_run(out, run, report.cpus)?;
    }
    Ok(())
}

fn write_run(out: &mut String, run: &RunReport, cpus: usize) -> Result {
    writeln!(
        out,
        "{}: {} blocks measured ({} rounds, {} blocks of warm-up in each), {} Mgas, \
         {} transactions, {} ms of rest before each call",
        run.corpus,
        run.blocks,
        run.rounds,
        run.warmup,
        run.gas / 1_000_000,
        run.transactions,
        run.gap_ms
    )?;
    match &run.failure {
        None => writeln!(out, "all answers VALID, each latestValidHash the payload's own")?,
        Some(failure) => writeln!(out, "NOT CLEAN, ended early: {failure}")?,
    }
    if let Some(others) = run.others_cpus {
        let disturbed = match run.disturbed {
            true => format!(": DISTURBED (above {OTHERS_MAX}), do not trust times or ratios"),
            false => String::new(),
        };
        writeln!(out, "other processes used {others:.2} of {cpus} CPUs{disturbed}")?;
    }
    if run.blocks == 0 {
        return Ok(());
    }
    if run.nodes.iter().filter_map(|node| node.ratio).any(|ratio| ratio.blocks < BLOCKS_MIN) {
        writeln!(out, "under {BLOCKS_MIN} blocks say nothing about a difference")?;
    }
    let width = run.nodes.iter().map(|node| node.name.chars().count()).max().unwrap_or(0) + 2;
    write_programs(out, run, width)?;
    write_times(out, run, width)?;
    write_quantiles(out, run, width)?;
    write_costs(out, run, width)?;
    write_traces(out, run, width)?;
    run.metrics.iter().try_for_each(|metric| write_metric(out, run, metric, width))
}

/// Writes what the nodes are, if they are not all this program on all processors.
fn write_programs(out: &mut String, run: &RunReport, width: usize) -> Result {
    let first = run.nodes.first().map(|node| &node.program);
    if run.nodes.iter().all(|node| Some(&node.program) == first && node.cpus.is_none()) {
        return Ok(());
    }
    writeln!(out, "\n{:width$}program", "node")?;
    for node in &run.nodes {
        write!(out, "{:width$}{}", node.name, node.version.as_ref().unwrap_or(&node.program))?;
        match &node.cpus {
            Some(cpus) => writeln!(out, ", on processors {}", String::from(cpus.clone()))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// Writes how the quantiles compare, and what the run could find.
fn write_quantiles(out: &mut String, run: &RunReport, width: usize) -> Result {
    if run.nodes.iter().all(|node| node.comparison.is_none()) {
        return Ok(());
    }
    write!(out, "\n{:width$}", "ratio to base")?;
    for name in ["p50", "p95", "p99"] {
        write!(out, "{name:>8}  {:16}", "95 % interval")?;
    }
    writeln!(out, "  could find")?;
    for node in &run.nodes {
        let Some(comparison) = &node.comparison else { continue };
        write!(out, "{:width$}", node.name)?;
        for value in [comparison.p50, comparison.p95, comparison.p99] {
            let interval = format!("[{:.3}, {:.3}]", value.low, value.high);
            write!(out, "{:>8.3}  {interval:16}", value.ratio)?;
        }
        match &node.power {
            Some(power) => writeln!(
                out,
                "  {:.1} %; {:.1} % takes {} blocks",
                power.smallest_effect * 100.0,
                power.wished_effect * 100.0,
                power.blocks_for_wished
            )?,
            None => writeln!(out)?,
        }
    }
    writeln!(
        out,
        "intervals draw segments of consecutive blocks ({} here at most); could find: the effect \
         that nine such runs in ten would find, with all comparisons of this report",
        run.nodes.iter().filter_map(|node| Some(node.comparison?.segment)).max().unwrap_or(1)
    )
}

/// Writes what the processes used per block.
fn write_costs(out: &mut String, run: &RunReport, width: usize) -> Result {
    writeln!(
        out,
        "\n{:width$}{:>10}{:>10}{:>12}{:>12}{:>9}",
        "per block", "CPU ms", "switches", "page faults", "from disk", "memory"
    )?;
    for node in &run.nodes {
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
        let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
        writeln!(
            out,
            "{:width$}{:>10}{:>10}{:>12}{:>12}{:>9}",
            node.name,
            number(node.cpu_ms_per_block),
            number(node.context_switches_per_block),
            number(node.minor_faults_per_block),
            number(node.major_faults_per_block),
            node.memory_peak_bytes.map_or("-".into(), mb)
        )?;
    }
    writeln!(out, "rests between blocks included; memory: peak, not per block")
}

fn write_times(out: &mut String, run: &RunReport, width: usize) -> Result {
    writeln!(
        out,
        "\n{:width$}{:>9}{:>9}{:>9}{:>8}  {:16}  answer",
        "newPayload", "p50 ms", "p95 ms", "p99 ms", "ratio", "95 % interval"
    )?;
    for node in &run.nodes {
        let quantiles = node.new_payload.as_ref();
        let milliseconds = |value: Option<f64>| value.map_or("-".into(), |ms| format!("{ms:.2}"));
        write!(out, "{:width$}", node.name)?;
        for value in [
            quantiles.map(|summary| summary.p50_ms),
            quantiles.map(|summary| summary.p95_ms),
            quantiles.map(|summary| summary.p99_ms),
        ] {
            write!(out, "{:>9}", milliseconds(value))?;
        }
        match &node.comparison {
            Some(comparison) => {
                let median = comparison.median;
                let interval = format!("[{:.3}, {:.3}]", median.low, median.high);
                write!(out, "{:>8.3}  {interval:16}  ", median.ratio)?;
            }
            None => write!(out, "{:>8}  {:16}  ", "-", "")?,
        }
        writeln!(out, "{}", answer(node))?;
    }
    writeln!(
        out,
        "ratio: median over blocks of the time as a ratio to the base's on the same block; the \
         interval is a bootstrap's"
    )
}

fn answer(node: &NodeReport) -> String {
    match (&node.verdict, &node.ratio) {
        (Some(verdict), _) => verdict.to_string(),
        (None, Some(_)) => "the noise of this machine today (A/A)".to_owned(),
        (None, None) => String::new(),
    }
}

fn write_traces(out: &mut String, run: &RunReport, width: usize) -> Result {
    writeln!(
        out,
        "\n{:width$}{:>7}{:>9}{:>9}  {:16}{:>8}{:>9}{:>9}{:>9}  verdict",
        "traces, medians",
        "blocks",
        "overlap",
        "to base",
        "95 % interval",
        "serial",
        "tail ms",
        "A ms",
        "B ms"
    )?;
    for node in &run.nodes {
        let traces = &node.traces;
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        write!(out, "{:width$}{:>7}{:>9}", node.name, traces.both_sides, number(traces.overlap))?;
        match &traces.overlap_difference {
            Some(estimate) => {
                write!(out, "{:>+9.2}  {:16}", estimate.median, interval(estimate, 2))?;
            }
            None => write!(out, "{:>9}  {:16}", "-", "")?,
        }
        for value in [traces.serialization, traces.tail_ms, traces.a_ms, traces.b_ms] {
            write!(out, "{:>9}", number(value))?;
        }
        match &traces.verdict {
            Some(verdict) => writeln!(out, "  {verdict}")?,
            None => writeln!(out)?,
        }
    }
    let missing: usize = run.nodes.iter().map(|node| run.blocks - node.traces.found).sum();
    if missing > 0 {
        writeln!(out, "{missing} traces were not recorded, or no longer there")?;
    }
    writeln!(
        out,
        "blocks: those with work on both sides; A, B: busy time of execution, of the proof side"
    )?;
    if run.nodes.iter().any(|node| node.traces.worked.is_some()) {
        write_worked(out, run, width)?;
    }
    Ok(())
}

fn write_worked(out: &mut String, run: &RunReport, width: usize) -> Result {
    writeln!(
        out,
        "\n{:width$}{:>7}{:>9}{:>9}{:>9}{:>9}",
        "overlap", "blocks", "p1", "p5", "least", "of block"
    )?;
    for node in &run.nodes {
        match &node.traces.worked {
            Some(worked) => writeln!(
                out,
                "{:width$}{:>7}{:>9.2}{:>9.2}{:>9.2}{:>9}",
                node.name,
                worked.n,
                worked.overlap_p1,
                worked.overlap_p5,
                worked.least.overlap,
                worked.least.number
            )?,
            None => writeln!(out, "{:width$}{:>7}", node.name, 0)?,
        }
    }
    writeln!(
        out,
        "blocks: those with over {WORK_MIN_MS} ms of work on both sides; least: the lowest median of a block over \
         its rounds"
    )
}

fn interval(estimate: &Estimate, digits: usize) -> String {
    format!("[{:.digits$}, {:.digits$}]", estimate.low, estimate.high)
}

fn write_metric(out: &mut String, run: &RunReport, report: &MetricReport, width: usize) -> Result {
    let MetricReport { metric, readings } = report;
    let label = metric.label.as_ref().unwrap_or(&metric.name);
    writeln!(out, "\n{label} ({})", metric.name)?;
    if readings.iter().all(|reading| *reading == Reading::Nothing) {
        return writeln!(out, "  no node has it");
    }
    if readings.iter().any(|reading| matches!(reading, Reading::Histogram(_))) {
        write!(out, "{:width$}", "")?;
        for figure in &metric.show {
            let figure = match figure {
                Figure::Count => "per block".to_owned(),
                figure => String::from(*figure),
            };
            write!(out, "{figure:>11}")?;
        }
        writeln!(out)?;
    }
    let seconds = metric.name.ends_with("_seconds");
    for (node, reading) in run.nodes.iter().zip(readings) {
        write!(out, "{:width$}", node.name)?;
        match reading {
            Reading::Nothing => write!(out, "{:>11}", "-")?,
            Reading::Value(value) => write!(out, "{:>11}", short(*value, seconds))?,
            Reading::PerBlock(gain) => write!(out, "{:>11} per block", short(*gain, false))?,
            Reading::Histogram(figures) => {
                for (figure, bounded) in metric.show.iter().zip(figures) {
                    let unit = seconds && *figure != Figure::Count;
                    write!(out, "{:>11}", bounds(*figure, bounded, unit))?;
                }
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Formats a figure of a histogram: `≤5` is in a bucket that ends at 5.
fn bounds(figure: Figure, bounded: &Bounded, seconds: bool) -> String {
    let exact = matches!(figure, Figure::Mean | Figure::Count);
    match (bounded.up_to, bounded.above) {
        (Some(value), _) if exact => short(value, seconds),
        (Some(value), _) => format!("≤{}", short(value, seconds)),
        (None, Some(value)) => format!(">{}", short(value, seconds)),
        (None, None) => "-".to_owned(),
    }
}

/// Formats a number in few characters; seconds as milliseconds.
fn short(value: f64, seconds: bool) -> String {
    let (value, unit) = if seconds { (value * 1e3, " ms") } else { (value, "") };
    let digits = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        size if size < 1.0 => 3,
        size if size < 100.0 => 2,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::experiment::Metric;
    use super::super::report::tests::{decided, experiment, measured};
    use super::*;

    fn report(run: RunReport) -> LabReport {
        LabReport {
            schema: "tandem.lab/1",
            experiment: "caches".into(),
            question: "Does it matter?\n".into(),
            version: "0",
            cpus: 2,
            runs: vec![run],
        }
    }

    #[test]
    fn the_text_has_the_answers() {
        let mut run = decided(&experiment(), measured(40, 1.5));
        let up_to = |value: f64| Bounded { above: None, up_to: Some(value) };
        run.metrics.push(MetricReport {
            metric: Metric {
                name: "proof_seconds".into(),
                label: Some("proof duration".into()),
                labels: Default::default(),
                show: vec![Figure::Quantile(0.99), Figure::Max, Figure::Mean, Figure::Count],
            },
            readings: vec![
                Reading::Nothing,
                Reading::Histogram(vec![
                    up_to(0.00025),
                    Bounded { above: Some(10.0), up_to: None },
                    up_to(0.0012345),
                    up_to(12.5),
                ]),
                Reading::Nothing,
            ],
        });
        let text = render(&report(run));
        for part in [
            "caches: Does it matter?\n",
            "demo: 40 blocks measured",
            "all answers VALID",
            "0.10 of 2 CPUs\n",
            "(A/A)",
            "1.500  [1.500, 1.500]",
            "slower",
            "3.0 % takes",
            "from disk",
            "-0.40",
            "proof duration (proof_seconds)",
            "≤0.250 ms",
            ">10000 ms",
            "1.23 ms",
            "12.50",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("DISTURBED") && !text.contains("no longer there"), "{text}");
    }

    #[test]
    fn what_went_wrong_is_said_first() {
        let mut failed = measured(4, 1.0);
        (failed.failure, failed.others_cpu_seconds) = (Some("INVALID".into()), Some(20.0));
        failed.rows[0].nodes[1].trace = None;
        let text = render(&report(RunReport::new(&experiment(), "demo".into(), failed)));
        for part in
            ["NOT CLEAN, ended early: INVALID", "DISTURBED", "under 8 blocks", "1 traces were"]
        {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
