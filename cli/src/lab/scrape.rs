//! Gains of counters and histograms between two readings of `/metrics`.

use super::experiment::{Figure, Metric};
use crate::scrape::Scrape;
use serde::Serialize;

/// Reading of a node's metric over the measured blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// The node has no such metric, or no value in that time.
    Nothing,
    /// Gain of a counter per block.
    PerBlock(f64),
    /// Value of a gauge at the end.
    Value(f64),
    /// Figures of a histogram, in the order of [`Metric::show`].
    Histogram(Vec<Bounded>),
}

/// A figure between the two bounds that a histogram's buckets give.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounded {
    /// Lower bound; the figure is above it.
    pub above: Option<f64>,
    /// Upper bound; the figure is at most this.
    pub up_to: Option<f64>,
}

impl Bounded {
    fn exactly(value: f64) -> Self {
        Self { above: None, up_to: Some(value) }
    }
}

/// Returns the gain of a metric from the first to the second reading of each pair, over this many
/// blocks in total. There is one pair per round.
pub fn read(pairs: &[(Scrape, Scrape)], metric: &Metric, blocks: usize) -> Reading {
    let Some((_, last)) = pairs.last() else { return Reading::Nothing };
    let gain = |name: &str| {
        pairs.iter().fold(None, |gain, (before, after)| {
            let Some(now) = after.sum(name, &metric.labels) else { return gain };
            let more = now - before.sum(name, &metric.labels).unwrap_or(0.0);
            Some(gain.unwrap_or(0.0) + more)
        })
    };
    let per_block = |gain: f64| gain / blocks.max(1) as f64;
    match last.kind(&metric.name) {
        Some("histogram") => {}
        Some("gauge") => {
            let value = last.sum(&metric.name, &metric.labels);
            return value.map_or(Reading::Nothing, Reading::Value);
        }
        _ => {
            let gain = gain(&metric.name);
            return gain.map_or(Reading::Nothing, |gain| Reading::PerBlock(per_block(gain)));
        }
    }
    let count = gain(&format!("{}_count", metric.name)).unwrap_or(0.0);
    if count <= 0.0 {
        return Reading::Nothing;
    }
    let buckets = gained_buckets(pairs, metric);
    let sum = gain(&format!("{}_sum", metric.name)).unwrap_or(0.0);
    let figures = metric.show.iter().map(|figure| match figure {
        Figure::Quantile(q) => quantile(&buckets, count, *q),
        Figure::Max => quantile(&buckets, count, 1.0),
        Figure::Mean => Bounded::exactly(sum / count),
        Figure::Count => Bounded::exactly(per_block(count)),
    });
    Reading::Histogram(figures.collect())
}

fn gained_buckets(pairs: &[(Scrape, Scrape)], metric: &Metric) -> Vec<(f64, f64)> {
    let mut gained: Vec<(f64, f64)> = Vec::new();
    let mut add = |bound: f64, more: f64| match gained.iter_mut().find(|(b, _)| *b == bound) {
        Some((_, count)) => *count += more,
        None => gained.push((bound, more)),
    };
    for (before, after) in pairs {
        after
            .buckets(&metric.name, &metric.labels)
            .into_iter()
            .for_each(|(bound, count)| add(bound, count));
        before
            .buckets(&metric.name, &metric.labels)
            .into_iter()
            .for_each(|(bound, count)| add(bound, -count));
    }
    gained.sort_by(|a, b| a.0.total_cmp(&b.0));
    gained
}

/// Returns the bucket that holds the value of rank `q * count`. Its bounds are all that is known:
/// values inside it are not interpolated, since between 1 and 2 messages there is nothing.
fn quantile(buckets: &[(f64, f64)], count: f64, q: f64) -> Bounded {
    // 99.9 percent of a thousand is not the thousandth, whatever rounding gives.
    let rank = (q * count * (1.0 - 1e-12)).ceil().max(1.0);
    let holds = buckets.iter().position(|(_, up_to_here)| *up_to_here >= rank);
    let at = holds.unwrap_or(buckets.len());
    let bound = |index: Option<usize>| Some(buckets.get(index?)?.0).filter(|b| b.is_finite());
    Bounded { above: bound(at.checked_sub(1)), up_to: bound(Some(at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
# HELP batch Messages per batch
# TYPE batch histogram
batch_bucket{le="1"} 10
batch_bucket{le="2"} 10
batch_bucket{le="16"} 10
batch_bucket{le="+Inf"} 10
batch_sum 10
batch_count 10
# TYPE walks counter
walks 5
"#;

    const AFTER: &str = r#"
# TYPE batch histogram
batch_bucket{le="1"} 60
batch_bucket{le="2"} 105
batch_bucket{le="16"} 109
batch_bucket{le="+Inf"} 110
batch_sum 250.5
batch_count 110
# TYPE walks counter
walks{kind="a"} 15
walks{kind="b\"}\\,"} 20
# TYPE bytes gauge
bytes 7e3
# TYPE unused histogram
unused_bucket{le="+Inf"} 0
unused_sum 0
unused_count 0
"#;

    fn metric(name: &str, labels: &[(&str, &str)]) -> Metric {
        Metric {
            name: name.to_owned(),
            label: None,
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            show: vec![
                Figure::Quantile(0.5),
                Figure::Quantile(0.51),
                Figure::Quantile(0.99),
                Figure::Max,
                Figure::Mean,
                Figure::Count,
            ],
        }
    }

    fn read_once(metric: &Metric) -> Reading {
        read(&[(Scrape::parse(BEFORE), Scrape::parse(AFTER))], metric, 10)
    }

    #[test]
    fn a_histogram_is_read_over_the_time_between() {
        // 100 values came: 50 of 1, 45 of 2, 4 up to 16, 1 beyond.
        let between = |above, up_to| Bounded { above, up_to };
        assert_eq!(
            read_once(&metric("batch", &[])),
            Reading::Histogram(vec![
                between(None, Some(1.0)),
                between(Some(1.0), Some(2.0)),
                between(Some(2.0), Some(16.0)),
                between(Some(16.0), None),
                between(None, Some(2.405)),
                between(None, Some(10.0)),
            ])
        );
        assert_eq!(read_once(&metric("unused", &[])), Reading::Nothing);
    }

    #[test]
    fn counters_gain_and_gauges_stand() {
        assert_eq!(read_once(&metric("walks", &[])), Reading::PerBlock(3.0));
        assert_eq!(read_once(&metric("walks", &[("kind", "b\"}\\,")])), Reading::PerBlock(2.0));
        assert_eq!(read_once(&metric("walks", &[("kind", "c")])), Reading::Nothing);
        assert_eq!(read_once(&metric("bytes", &[])), Reading::Value(7000.0));
        assert_eq!(read_once(&metric("missing", &[])), Reading::Nothing);
    }

    #[test]
    fn rounds_add_up() {
        let rounds = [(BEFORE, AFTER), ("", BEFORE)]
            .map(|(before, after)| (Scrape::parse(before), Scrape::parse(after)));
        assert_eq!(read(&rounds, &metric("walks", &[]), 10), Reading::PerBlock(3.5));
        let Reading::Histogram(figures) = read(&rounds, &metric("batch", &[]), 10) else {
            panic!("it is a histogram")
        };
        // 110 values: the median is 1 now, and 10 of the ones came in the second round.
        assert_eq!(figures[1], Bounded { above: None, up_to: Some(1.0) });
        assert_eq!(figures[5], Bounded::exactly(11.0));
        assert_eq!(read(&[], &metric("walks", &[]), 10), Reading::Nothing);
    }

    #[test]
    fn a_rank_is_not_rounded_up() {
        let buckets = [(1.0, 999.0), (2.0, 1_000.0)];
        let of = |text: &str| match Figure::try_from(text.to_owned()).unwrap() {
            Figure::Quantile(q) => quantile(&buckets, 1_000.0, q).up_to,
            other => panic!("{other:?}"),
        };
        assert_eq!((of("p99.9"), of("p99.91"), of("p0.1")), (Some(1.0), Some(2.0), Some(1.0)));
        assert_eq!(quantile(&buckets, 1_000.0, 1.0).up_to, Some(2.0));
    }
}
