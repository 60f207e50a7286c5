//! Result of a replay: latencies per call, and the first unexpected answer.

use super::{CallTimes, Entry};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use tandem_overlap::stats::quantile;

/// Times of one block.
#[derive(Debug, Clone, Serialize)]
pub struct BlockTimes {
    /// Height of the block.
    pub number: u64,
    /// Hash of the block.
    pub hash: String,
    /// Gas that the block uses.
    pub gas: u64,
    /// Number of its transactions.
    pub transactions: usize,
    /// Whether the block is left out of the statistics.
    pub warmup: bool,
    /// Time of `engine_newPayload`, in milliseconds.
    pub new_payload_ms: f64,
    /// Time of `engine_forkchoiceUpdated`, in milliseconds; `None` if it was not called.
    pub forkchoice_updated_ms: Option<f64>,
    /// Trace in which the payload was to be recorded, 32 hexadecimal digits; `None` if none was
    /// requested.
    pub trace_id: Option<String>,
}

impl BlockTimes {
    /// Returns the times of a block's calls.
    pub fn new(entry: Entry, times: CallTimes, warmup: bool) -> Self {
        let Entry { number, hash, gas, transactions, .. } = entry;
        let CallTimes { new_payload_ms, forkchoice_updated_ms, trace_id } = times;
        let trace_id = trace_id.map(|id| format!("{id:032x}"));
        Self {
            number,
            hash,
            gas,
            transactions,
            warmup,
            new_payload_ms,
            forkchoice_updated_ms,
            trace_id,
        }
    }
}

/// Latencies of one kind of call over the measured blocks, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Call: `newPayload`, `forkchoiceUpdated`, or `both` (their sum for each block).
    pub call: &'static str,
    /// Number of calls.
    pub n: usize,
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Median, interpolated linearly between the closest ranks, as are the other quantiles.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Longest time.
    pub max_ms: f64,
    /// Gas of the blocks over the time of the calls, in millions per second.
    pub mgas_per_second: f64,
}

/// First unexpected answer.
#[derive(Debug, Clone, Serialize)]
pub struct Mismatch {
    /// Method called.
    pub method: String,
    /// Height of the block.
    pub number: u64,
    /// Hash of the block.
    pub hash: String,
    /// Relevant members, as expected.
    pub expected: String,
    /// Relevant members as received, or the error.
    pub got: String,
    /// Whole answer.
    pub answer: String,
}

/// Result of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// URL of the Engine API that was called.
    pub engine: String,
    /// Name that the client gives itself, if any.
    pub client: Option<String>,
    /// Payload file.
    pub corpus: String,
    /// Blocks answered as expected, with their times.
    pub blocks: Vec<BlockTimes>,
    /// Statistics over the blocks after the warm-up; empty if there is no such block.
    pub calls: Vec<Summary>,
    /// Time from the first payload to the last answer, in seconds.
    pub wall_seconds: f64,
    /// URL at which Jaeger shows the traces of the blocks, if they were requested.
    pub jaeger_ui: Option<String>,
    /// Reason why the replay stopped early, `None` if every answer was VALID.
    pub failure: Option<Mismatch>,
}

impl ReplayReport {
    /// Returns whether every payload was answered VALID.
    pub fn is_valid(&self) -> bool {
        self.failure.is_none()
    }

    /// Returns the table (and the mismatch, if any) as text for people.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = self.write_to(&mut text);
        text
    }

    /// Writes the pages of the slowest measured blocks.
    fn write_slowest(&self, out: &mut String) -> std::fmt::Result {
        let Some(url) = &self.jaeger_ui else { return Ok(()) };
        let mut blocks: Vec<_> = self.blocks.iter().filter(|block| !block.warmup).collect();
        blocks.sort_by(|a, b| b.new_payload_ms.total_cmp(&a.new_payload_ms));
        let pages = blocks.iter().filter_map(|block| Some((block, block.trace_id.as_ref()?)));
        for (at, (block, trace_id)) in pages.take(SLOWEST).enumerate() {
            let title = if at == 0 { "\nslowest newPayload\n" } else { "" };
            writeln!(
                out,
                "{title}{:>18}{:>10.3} ms  {}/trace/{trace_id}",
                block.number,
                block.new_payload_ms,
                url.trim_end_matches('/')
            )?;
        }
        Ok(())
    }

    fn write_to(&self, out: &mut String) -> std::fmt::Result {
        let measured = self.blocks.iter().filter(|block| !block.warmup).count();
        let client = self.client.as_deref().unwrap_or("unnamed client");
        writeln!(out, "{client} at {}", self.engine)?;
        writeln!(
            out,
            "{}: {} blocks VALID, {measured} of them measured, {:.1} s",
            self.corpus,
            self.blocks.len(),
            self.wall_seconds
        )?;
        if !self.calls.is_empty() {
            writeln!(
                out,
                "\n{:<18}{:>7}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
                "call (ms)", "n", "mean", "p50", "p95", "p99", "max", "Mgas/s"
            )?;
        }
        for summary in &self.calls {
            write!(out, "{:<18}{:>7}", summary.call, summary.n)?;
            let Summary { mean_ms, p50_ms, p95_ms, p99_ms, max_ms, .. } = *summary;
            for value in [mean_ms, p50_ms, p95_ms, p99_ms, max_ms] {
                write!(out, "{value:>10.3}")?;
            }
            writeln!(out, "{:>10.1}", summary.mgas_per_second)?;
        }
        self.write_slowest(out)?;
        if let Some(Mismatch { method, number, hash, expected, got, answer }) = &self.failure {
            writeln!(out, "\nstopped at block {number} ({hash}): {method}")?;
            writeln!(out, "  - expected  {expected}\n  + got       {got}")?;
            writeln!(out, "whole answer: {answer}")?;
        }
        Ok(())
    }
}

/// Number of blocks whose traces are named.
const SLOWEST: usize = 5;

/// Returns statistics over the measured blocks: newPayload, and if forkchoices were updated,
/// forkchoiceUpdated and the sum of both.
pub fn summarize(blocks: &[BlockTimes]) -> Vec<Summary> {
    let measured: Vec<_> = blocks.iter().filter(|block| !block.warmup).collect();
    let gas: u64 = measured.iter().map(|block| block.gas).sum();
    let new_payload: Vec<_> = measured.iter().map(|block| block.new_payload_ms).collect();
    let forkchoice: Vec<_> =
        measured.iter().filter_map(|block| block.forkchoice_updated_ms).collect();
    let both: Vec<_> = measured
        .iter()
        .filter_map(|block| Some(block.new_payload_ms + block.forkchoice_updated_ms?))
        .collect();
    [("newPayload", new_payload), ("forkchoiceUpdated", forkchoice), ("both", both)]
        .into_iter()
        .filter_map(|(call, times)| summary(call, times, gas))
        .collect()
}

/// Returns statistics over times in milliseconds, or `None` if there are none.
pub fn summary(call: &'static str, mut times: Vec<f64>, gas: u64) -> Option<Summary> {
    times.sort_by(f64::total_cmp);
    let total: f64 = times.iter().sum();
    Some(Summary {
        call,
        n: times.len(),
        mean_ms: total / times.len() as f64,
        p50_ms: quantile(&times, 0.5)?,
        p95_ms: quantile(&times, 0.95)?,
        p99_ms: quantile(&times, 0.99)?,
        max_ms: *times.last()?,
        mgas_per_second: gas as f64 / 1000.0 / total.max(f64::MIN_POSITIVE),
    })
}

/// Returns a duration in milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, new_payload_ms: f64, forkchoice_updated_ms: Option<f64>) -> BlockTimes {
        BlockTimes {
            number,
            hash: format!("{number:#x}"),
            gas: 1_000_000,
            transactions: 1,
            warmup: number <= 2,
            new_payload_ms,
            forkchoice_updated_ms,
            trace_id: None,
        }
    }

    #[test]
    fn the_warm_up_is_left_out() {
        let blocks: Vec<_> = [1000.0, 1000.0, 2.0, 4.0, 6.0]
            .into_iter()
            .zip(1..)
            .map(|(time, number)| block(number, time, Some(1.0)))
            .collect();
        let calls = summarize(&blocks);
        assert_eq!(
            calls.iter().map(|summary| summary.call).collect::<Vec<_>>(),
            ["newPayload", "forkchoiceUpdated", "both"]
        );
        assert_eq!(
            (calls[0].n, calls[0].mean_ms, calls[0].p50_ms, calls[0].max_ms),
            (3, 4.0, 4.0, 6.0)
        );
        // 3 Mgas in 12 ms.
        assert_eq!(calls[0].mgas_per_second, 250.0);
        assert_eq!(calls[2].mean_ms, 5.0);
        assert!(summarize(&blocks[..2]).is_empty());
        let without: Vec<_> = (3..5).map(|number| block(number, 1.0, None)).collect();
        assert_eq!(summarize(&without).len(), 1);
    }
}
