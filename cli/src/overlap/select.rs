//! Options that select payloads and spans, shared by both forms of the command.

use std::ops::RangeInclusive;

use clap::ValueEnum;
use tandem_overlap::{Busy, Filter, Options, Pattern, Selection, Side};

use super::when::When;

/// Names, filters and clocks.
#[derive(clap::Args, Debug, Clone)]
pub struct SelectArgs {
    /// Vocabulary of span names
    #[arg(long, value_enum, default_value_t = Preset::Tandem)]
    pub preset: Preset,
    /// Name of the span that is one payload; * stands for any characters [default: by preset]
    #[arg(long, value_name = "PATTERN")]
    pub root: Option<String>,
    /// Names of the spans of the payload side, instead of the preset's
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub a: Vec<String>,
    /// Names of the spans of the proof side, instead of the preset's
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub b: Vec<String>,
    /// Only payloads whose root span is of this service; Jaeger is asked for its traces [default:
    /// any; for Jaeger executor, or the client of --preset]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub service: Vec<String>,
    /// Only payloads that began at this time or later: 2026-01-31T12:00:00Z, or 15m for that long
    /// ago
    #[arg(long, value_name = "TIME")]
    pub since: Option<When>,
    /// Only payloads that began before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<When>,
    /// Only payloads of these blocks, ends included: 100..200, 100.., ..200 or 150
    #[arg(long, value_name = "RANGE", value_parser = parse_blocks)]
    pub blocks: Option<RangeInclusive<u64>>,
    /// Only payloads that took this long or longer
    #[arg(long, value_name = "MS", value_parser = parse_ms)]
    pub min_ms: Option<u64>,
    /// Only payloads whose root span, or the process that made it, has this attribute, such as
    /// run=x after --otlp.resource run=x
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_tag)]
    pub tag: Vec<(String, String)>,
    /// Analyse the newest N payloads
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = parse_count)]
    pub limit: usize,
    /// Subtract the offsets of other hosts' clocks, from a first reading of the same traces: those
    /// with a lower and an upper bound (known), also those with one (all), or none. Clocks that
    /// differ and stay as they are withhold the verdict
    #[arg(
        long, value_name = "WHICH", default_value = "known",
        num_args = 0..=1, require_equals = true, default_missing_value = "all",
    )]
    pub align_clocks: Align,
}

/// Clocks to correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Align {
    /// Clocks with a lower and an upper bound
    Known,
    /// Clocks with one bound too
    All,
    /// None
    None,
}

/// Known vocabularies of span names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Tandem's names
    Tandem,
    /// reth's names, versions 1.9 to 2.5; its workers are busy while their proof calculations run
    Reth,
    /// geth's names, version 1.17
    Geth,
}

fn parse_count(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("expected a number above 0")
}

fn parse_tag(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    if key.is_empty() { Err("expected KEY=VALUE") } else { Ok((key.to_owned(), value.to_owned())) }
}

/// Parses milliseconds into nanoseconds.
fn parse_ms(text: &str) -> Result<u64, &'static str> {
    let usable = |ms: &f64| (0.0..1e12).contains(ms);
    let ms: f64 = text.parse().ok().filter(usable).ok_or("expected milliseconds, 0 or more")?;
    Ok((ms * 1e6) as u64)
}

fn parse_blocks(text: &str) -> Result<RangeInclusive<u64>, &'static str> {
    const FORM: &str = "expected 100..200, 100.., ..200 or 150, the second not below the first";
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    if first.is_empty() && last.is_empty() {
        return Err(FORM);
    }
    let end = |text: &str, open: u64| match text {
        "" => Ok(open),
        text => text.parse().map_err(|_| FORM),
    };
    let (first, last) = (end(first, 0)?, end(last, u64::MAX)?);
    if first > last {
        return Err(FORM);
    }
    Ok(first..=last)
}

impl SelectArgs {
    /// Returns the options of the analysis, without a timeline.
    pub fn options(&self) -> Options {
        let mut options = Options::new(self.selection(), self.limit);
        options.filter = self.filter();
        options.timeline = false;
        options
    }

    fn filter(&self) -> Filter {
        let now_ns = super::now_ns();
        let at = |when: Option<When>| when.map(|when| when.unix_ns(now_ns));
        // An open end sets no bound, so that payloads without a number stay.
        let first = self.blocks.as_ref().map(|blocks| *blocks.start());
        let last = self.blocks.as_ref().map(|blocks| *blocks.end());
        Filter {
            services: self.service.clone(),
            since_unix_ns: at(self.since),
            until_unix_ns: at(self.until),
            first_block: first.filter(|first| *first != 0),
            last_block: last.filter(|last| *last != u64::MAX),
            least_ns: self.min_ms,
            tags: self.tag.clone(),
        }
    }

    fn selection(&self) -> Selection {
        let preset = match self.preset {
            Preset::Tandem => tandem_overlap::Preset::Tandem,
            Preset::Reth => tandem_overlap::Preset::Reth,
            Preset::Geth => tandem_overlap::Preset::Geth,
        };
        let mut selection = Selection::from(preset);
        if let Some(root) = &self.root {
            selection.root = Pattern::new(root);
        }
        // Patterns of the user are taken literally: a span without busy intervals is busy
        // throughout, unless the vocabulary says that its containers are not.
        let side = |patterns: &[String], busy: Busy| Side::new(patterns.iter().cloned(), busy);
        if !self.a.is_empty() {
            selection.a = side(&self.a, selection.a.busy);
        }
        if !self.b.is_empty() {
            selection.b = side(&self.b, selection.b.busy);
        }
        selection
    }

    /// Returns the services whose traces Jaeger is asked for.
    pub fn services(&self) -> Vec<&str> {
        match (self.service.is_empty(), self.preset) {
            (false, _) => self.service.iter().map(String::as_str).collect(),
            (true, Preset::Tandem) => vec!["executor"],
            (true, Preset::Reth) => vec!["reth"],
            (true, Preset::Geth) => vec!["geth"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_a_number_or_a_range_with_both_ends() {
        assert_eq!(parse_blocks("100..200"), Ok(100..=200));
        assert_eq!(parse_blocks("150"), Ok(150..=150));
        assert_eq!(parse_blocks("100.."), Ok(100..=u64::MAX));
        assert_eq!(parse_blocks("..200"), Ok(0..=200));
        for wrong in ["", "..", "200..100", "a..b", "1..2..3", "-1", "1..=2"] {
            assert!(parse_blocks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn least_times_are_milliseconds() {
        assert_eq!(parse_ms("2.5"), Ok(2_500_000));
        for wrong in ["-1", "x", "NaN", "inf", ""] {
            assert!(parse_ms(wrong).is_err(), "{wrong}");
        }
    }
}
