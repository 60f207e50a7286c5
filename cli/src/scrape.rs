//! Parses `/metrics` (Prometheus' text format 0.0.4).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One reading of a process' `/metrics`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Scrape {
    series: Vec<Series>,
    /// Types from the `# TYPE` lines.
    types: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Labels that a series must have; it may have more.
pub type Labels = BTreeMap<String, String>;

impl Scrape {
    /// Parses the text. Lines that are not series are skipped.
    pub fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                if let Some((name, kind)) = rest.split_once(' ') {
                    scrape.types.insert(name.to_owned(), kind.trim().to_owned());
                }
            } else if let Some(series) = parse_series(line) {
                scrape.series.push(series);
            }
        }
        scrape
    }

    /// Returns `counter`, `gauge` or `histogram`, if the text gives the type of this metric.
    pub fn kind(&self, name: &str) -> Option<&str> {
        self.types.get(name).map(String::as_str)
    }

    /// Returns the sum of the series with this name and these labels, or `None` if there is none.
    pub fn sum(&self, name: &str, labels: &Labels) -> Option<f64> {
        let found = self.found(name, labels).map(|series| series.value);
        found.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// Returns the sum of the series with this name, for each value of one label.
    pub fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for series in self.found(name, &Labels::new()) {
            if let Some(value) = series.labels.get(label) {
                *sums.entry(value.clone()).or_default() += series.value;
            }
        }
        sums
    }

    fn found<'a>(&'a self, name: &'a str, labels: &'a Labels) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |series| {
            let has = |(key, value)| series.labels.get(key) == Some(value);
            series.name == name && labels.iter().all(has)
        })
    }

    /// Returns the upper bounds of a histogram's buckets with the number of values up to each, in
    /// order.
    pub fn buckets(&self, name: &str, labels: &Labels) -> Vec<(f64, f64)> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for series in self.found(&format!("{name}_bucket"), labels) {
            let bound = series.labels.get("le").and_then(|bound| parse_value(bound));
            let Some(bound) = bound else { continue };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += series.value,
                None => buckets.push((bound, series.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

fn parse_value(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok(),
    }
}

fn parse_series(line: &str) -> Option<Series> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let name = line[..end].to_owned();
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    // A timestamp may follow the value.
    let value = parse_value(rest.split_whitespace().next()?)?;
    Some(Series { name, labels, value })
}

/// Reads `key="value",…}` and returns what follows.
fn parse_labels<'a>(mut text: &'a str, labels: &mut BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some(rest);
        }
        let (key, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = rest.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.insert(key.trim().to_owned(), value);
        text = &rest[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
# TYPE reads counter
reads{from="cache",kind="a"} 3
reads{from="cache",kind="b"} 4
reads{from="storage",kind="a"} 1
reads 9
# TYPE took histogram
took_bucket{status="VALID",le="2"} 2
took_bucket{status="VALID",le="+Inf"} 3
took_bucket{status="INVALID",le="2"} 5
took_bucket{status="VALID",le="1"} 1
"#;

    #[test]
    fn series_are_added_up_by_what_is_asked() {
        let scrape = Scrape::parse(TEXT);
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        assert_eq!(scrape.sum("reads", &labels(&[("from", "cache")])), Some(7.0));
        assert_eq!(scrape.sum("reads", &Labels::new()), Some(17.0));
        assert_eq!(scrape.sum("read", &Labels::new()), None);
        let by_from = scrape.by_label("reads", "from");
        assert_eq!(by_from, [("cache".to_owned(), 7.0), ("storage".to_owned(), 1.0)].into());
        let valid = scrape.buckets("took", &labels(&[("status", "VALID")]));
        assert_eq!(valid, [(1.0, 1.0), (2.0, 2.0), (f64::INFINITY, 3.0)]);
        assert_eq!(
            (scrape.kind("took"), scrape.kind("reads")),
            (Some("histogram"), Some("counter"))
        );
        assert_eq!(scrape.kind("took_bucket"), None);
    }

    #[test]
    fn damaged_lines_are_passed_over() {
        for line in ["", "name", "name{", "name{a=\"", "name{a=\"b\\", "name{a=b} 1", "name x"] {
            assert!(parse_series(line).is_none(), "{line}");
        }
        assert!(parse_series("name 1 1700000000").is_some());
    }
}
