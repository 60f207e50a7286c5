//! Text form of a comparison.

use std::fmt::{self, Write};

use crate::compare::{Comparison, Figure};
use crate::stats::BLOCKS_MIN;

/// Returns the comparison as a compact text: a line for each figure, then the verdict.
pub fn comparison_text(comparison: &Comparison) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_comparison(&mut out, comparison);
    out
}

fn write_comparison(out: &mut String, comparison: &Comparison) -> fmt::Result {
    write!(out, "{} blocks in both", comparison.pairs)?;
    for (n, what) in [
        (comparison.unpaired, "in one only"),
        (comparison.different_blocks, "of the same number but another hash"),
        (comparison.unnamed, "payloads without a block"),
    ] {
        if n > 0 {
            write!(out, ", {n} {what}")?;
        }
    }
    writeln!(out)?;
    if comparison.pairs > 0 {
        writeln!(
            out,
            "\n{:<16}{:>14}{:>14}   change by block, 95 % interval",
            "median", "base", "new"
        )?;
    }
    line(out, "newPayload", comparison.new_payload_ns.as_ref(), millis, ratio, true)?;
    line(out, "overlap", comparison.overlap.as_ref(), two_digits, signed, false)?;
    line(out, "tail", comparison.tail_ns.as_ref(), millis, signed_millis, false)?;
    line(out, "serialization", comparison.serialization.as_ref(), two_digits, signed, false)?;
    if !comparison.most_slower.is_empty() {
        writeln!(out, "\nslower most")?;
    }
    for one in &comparison.most_slower {
        let block = match (&one.block_number, &one.block_hash) {
            (Some(number), _) => number.to_string(),
            (None, hash) => hash.clone().unwrap_or_default(),
        };
        writeln!(out, "{block:>12}  × {:.3}  trace {}", one.ratio, one.trace_id)?;
    }
    if let [Some(base), Some(new)] = comparison.overlap_verdicts
        && base != new
    {
        writeln!(out, "\noverlap was {base}, is {new}")?;
    }
    let why = match comparison.pairs {
        0 => "  (nothing to pair)".to_owned(),
        n if n < BLOCKS_MIN => format!("  (under {BLOCKS_MIN} blocks say nothing)"),
        _ => String::new(),
    };
    let verdict = comparison.verdict.map_or("none", |verdict| verdict.of_time());
    writeln!(out, "\nverdict: {verdict}{why}  (bootstrap seed {})", comparison.seed)?;
    if comparison.partial {
        writeln!(out, "PARTIAL ANSWER: something is missing from an input")?;
    }
    Ok(())
}

fn line(
    out: &mut String,
    name: &str,
    figure: Option<&Figure>,
    value: fn(f64) -> String,
    change: fn(f64) -> String,
    is_time: bool,
) -> fmt::Result {
    let Some(figure) = figure else { return Ok(()) };
    let estimate = &figure.change;
    let [median, low, high] = [estimate.median, estimate.low, estimate.high].map(change);
    let interval = format!("{median}  [{low}, {high}]");
    let verdict =
        if is_time { figure.verdict.of_time().to_owned() } else { figure.verdict.to_string() };
    writeln!(
        out,
        "{name:<16}{:>14}{:>14}   {interval:<36}  {verdict}",
        value(figure.base),
        value(figure.new)
    )
}

fn millis(ns: f64) -> String {
    format!("{:.3} ms", ns / 1e6)
}

fn signed_millis(ns: f64) -> String {
    format!("{:+.3} ms", ns / 1e6)
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

fn signed(value: f64) -> String {
    format!("{value:+.3}")
}

fn ratio(value: f64) -> String {
    format!("× {value:.3}")
}
