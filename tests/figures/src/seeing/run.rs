//! A node's run over a corpus, and the analysis of its traces.

use super::{GAP, WARMUP};
use crate::{
    Setting,
    corpus::Corpus,
    figure::{Figure, Limit},
    node::Node,
};
use anyhow::{Context as _, ensure};
use tandem_overlap::{
    Input, Options, Selection, StageGain, Verdict, analyze_with, read, stats::quantile,
};

/// Analysis of the traces of a run, without its first blocks.
pub struct Run {
    input: Input,
    pub report: tandem_overlap::Report,
    /// Milliseconds of each newPayload.
    pub times: Vec<f64>,
    /// Spans of each payload, in ascending order.
    spans: Vec<f64>,
    /// Bytes of all traces as OTLP/JSON.
    bytes: usize,
}

impl Run {
    /// Replays the corpus on a node with these settings, on these processors, and reads its ring.
    ///
    /// # Errors
    /// If a block is not VALID, or traces are missing.
    pub fn of(
        setting: &Setting,
        corpus: &Corpus,
        config: &str,
        processors: Option<&str>,
    ) -> anyhow::Result<Self> {
        let node = Node::start_on(processors, &setting.tandem, &corpus.genesis, config)?;
        Self::on(&node, corpus)
    }

    /// Replays the corpus on a node that has just started, and reads the rings of its processes.
    ///
    /// # Errors
    /// As for [`Self::of`].
    pub fn on(node: &Node, corpus: &Corpus) -> anyhow::Result<Self> {
        let mut times = corpus.replay(node, GAP)?;
        let traces = node.traces()?;
        let mut bytes = traces.iter().map(String::len).sum::<usize>();
        let input = input_of(&traces)?;
        let counted = times.len() - WARMUP.min(times.len() / 2);
        let report = analyze_with(input.clone(), options(counted));
        ensure!(report.payloads.len() == counted, "{} payloads", report.payloads.len());
        let mut spans: Vec<_> = report.payloads.iter().map(|one| one.spans as f64).collect();
        spans.sort_by(f64::total_cmp);
        bytes /= times.len();
        let times = times.split_off(times.len() - counted);
        Ok(Self { input, report, times, spans, bytes })
    }

    /// Returns the stages again, with the gain if each lost this part of its time.
    pub fn what_if(&self, part: f64) -> Vec<StageGain> {
        let options = Options { what_if_part: Some(part), ..options(self.times.len()) };
        analyze_with(self.input.clone(), options).what_if
    }

    /// Returns the figures of a run with the usual settings. They have no limits.
    ///
    /// # Errors
    /// If no payload has work on both sides.
    pub fn usual(&self) -> anyhow::Result<Vec<Figure>> {
        let stated = |name: &str, value: Option<f64>| {
            let value = value.with_context(|| format!("no {name}"))?;
            anyhow::Ok(Figure::new(format!("usual settings: {name}"), value, Limit::None))
        };
        let summary = &self.report.summary;
        let median = |of: Option<tandem_overlap::Distribution>| of.map(|of| of.p50);
        let reached = stated("part of the gain", median(summary.reached))?;
        Ok(vec![
            reached.note(format!("{}; {}", self.verdict(), self.words())),
            stated("weight", median(summary.weight))?,
            stated("tail / payload", median(summary.tail_share))?,
            stated("spans a payload, median", quantile(&self.spans, 0.5))?,
            stated("spans a payload, most", quantile(&self.spans, 1.0))?,
            stated("bytes a payload, OTLP/JSON", Some(self.bytes as f64))?,
        ])
    }

    /// Returns the part of the gain, and the largest over the mean busy time of the workers. They
    /// have no limits.
    ///
    /// # Errors
    /// If no payload has work on both sides.
    pub fn shared(&self, name: &str) -> anyhow::Result<Vec<Figure>> {
        let summary = &self.report.summary;
        let reached = summary.reached.context("no payload with both sides")?;
        let note = format!("{}; {}", self.verdict(), self.words());
        let reached = Figure::new(name, reached.p50, Limit::None).note(note);
        let imbalance = summary.imbalance.map(|imbalance| {
            let name = name.replace("part of the gain", "largest / mean busy time");
            Figure::new(name, imbalance.p50, Limit::None)
        });
        Ok([reached].into_iter().chain(imbalance).collect())
    }

    /// Returns the number of payloads with this verdict.
    pub fn count(&self, verdict: Verdict) -> f64 {
        let with = |one: &&tandem_overlap::PayloadReport| one.verdict == Some(verdict);
        self.report.payloads.iter().filter(with).count() as f64
    }

    /// Returns the verdict on the median payload.
    pub fn verdict(&self) -> String {
        self.report.verdict.map_or_else(|| "no verdict".to_owned(), |verdict| verdict.to_string())
    }

    /// Returns the number of payloads by verdict.
    pub fn words(&self) -> String {
        let count = |verdict| format!("{} {}", self.count(verdict), verdict);
        let words = Verdict::ALL.into_iter().filter(|verdict| self.count(*verdict) > 0.0);
        words.map(count).collect::<Vec<_>>().join(", ")
    }
}

/// Analyses the last payloads in the traces of a node's processes.
///
/// # Errors
/// If they cannot be understood.
pub fn report_of(traces: &[String], payloads: usize) -> anyhow::Result<tandem_overlap::Report> {
    Ok(analyze_with(input_of(traces)?, options(payloads)))
}

fn input_of(traces: &[String]) -> anyhow::Result<Input> {
    let mut input = Input::default();
    for text in traces {
        input.merge(read("the node", text.as_bytes()));
    }
    ensure!(input.problems.is_empty(), "{:?}", input.problems.lines());
    Ok(input)
}

/// Returns the options of the analysis of so many payloads.
fn options(payloads: usize) -> Options {
    Options { timeline: false, what_if: true, ..Options::new(Selection::default(), payloads) }
}
