//! Single HTML file with data, style and script. It loads nothing from elsewhere.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Value, json};

use crate::analyze::{PayloadDetail, PayloadReport, Timeline};
use crate::model::Span;
use crate::report::Report;

const TEMPLATE: &str = include_str!("timeline.html");
/// Place of the data in the template.
const DATA_MARK: &str = "/*DATA*/null";

/// Returns the timeline of the payloads of `report`.
///
/// At most 64 payloads and 200,000 spans are embedded: the payloads with the least overlap first,
/// then the slowest, then the youngest. None are embedded if [`Options::timeline`](crate::Options)
/// was off. The page says how many payloads there were.
pub fn html(report: &Report) -> String {
    let mut names = Names::default();
    let payloads: Vec<Value> = report
        .payloads
        .iter()
        .zip(&report.details)
        .filter_map(|(one, detail)| {
            let detail = detail.as_ref()?;
            Some(payload(one, detail, detail.timeline.as_ref()?, &mut names))
        })
        .collect();
    let data = json!({
        "schema": "tandem.timeline/1",
        "selection": { "a": report.selection.a.label(), "b": report.selection.b.label() },
        "thresholds": report.thresholds,
        "verdict": report.verdict,
        "partial": report.partial,
        "notes": report.notes.iter().cloned().chain(report.problems.lines()).collect::<Vec<_>>(),
        "summary": report.summary,
        "payloads_total": report.payloads.len(),
        "jaeger_ui": report.jaeger_ui,
        "names": names.list,
        "payloads": payloads,
    });
    TEMPLATE.replacen(DATA_MARK, &script_json(&data), 1)
}

/// Returns JSON that is safe inside a `<script>` element. It has no `<`, so neither `</script` nor
/// `<!--`. It also has neither of the two line separators that older JavaScript forbade in strings.
fn script_json(data: &impl Serialize) -> String {
    serde_json::to_string(data)
        .unwrap_or_else(|_| "null".to_owned())
        .replace('<', "\\u003c")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// Table of repeated texts, each once. The rest of the data refers to them by number.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    known: HashMap<String, usize>,
}

impl Names {
    fn number(&mut self, text: &str) -> usize {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        self.list.push(text.to_owned());
        self.known.insert(text.to_owned(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// Returns the data of a payload. Times are nanoseconds since its start, as whole numbers below
/// 2^53.
fn payload(
    report: &PayloadReport,
    detail: &PayloadDetail,
    timeline: &Timeline,
    names: &mut Names,
) -> Value {
    let (start, _) = detail.window;
    let flat = |parts: &[(u64, u64)]| {
        parts
            .iter()
            .flat_map(|(from, to)| [offset(*from, start), offset(*to, start)])
            .collect::<Vec<i64>>()
    };
    let side_a: HashSet<usize> = timeline.a_members.iter().copied().collect();
    let side_b: HashSet<usize> = timeline.b_members.iter().copied().collect();
    let side = |at: &usize| u8::from(side_a.contains(at)) | u8::from(side_b.contains(at)) << 1;
    let services = service_labels(timeline);
    let spans: Vec<Value> = timeline
        .members
        .iter()
        .map(|&at| {
            let span = &timeline.spans[at];
            json!([
                names.number(&span.name),
                names.number(&services[&(&*span.service, &*span.host)]),
                names.number(&thread(span)),
                offset(span.start_ns, start),
                offset(span.end_ns, start),
                side(&at),
                flat(timeline.derived_busy.get(&at).unwrap_or(&span.busy)),
                attributes(span, names),
            ])
        })
        .collect();
    json!({ "report": report, "a": flat(detail.a.as_slice()), "b": flat(detail.b.as_slice()), "spans": spans })
}

fn offset(at: u64, start: u64) -> i64 {
    i64::try_from(i128::from(at) - i128::from(start)).unwrap_or(i64::MAX)
}

/// Returns the label of each service of each host. It includes the host if the service runs on
/// several hosts of the payload.
fn service_labels(timeline: &Timeline) -> HashMap<(&str, &str), String> {
    let origins: HashSet<(&str, &str)> = timeline
        .members
        .iter()
        .map(|at| (&*timeline.spans[*at].service, &*timeline.spans[*at].host))
        .collect();
    let hosts = |service: &str| origins.iter().filter(|(one, _)| *one == service).count();
    origins
        .iter()
        .map(|&(service, host)| {
            let label = match hosts(service) {
                1 => service.to_owned(),
                _ => format!("{service} @ {host}"),
            };
            ((service, host), label)
        })
        .collect()
}

/// Returns the lane of a span inside its service: its thread, by name and number.
fn thread(span: &Span) -> String {
    let text = |key: &str| span.attribute(key).map(ToString::to_string);
    match (text("thread.name"), text("thread.id")) {
        (Some(name), Some(id)) => format!("{name} #{id}"),
        (Some(name), None) => name,
        (None, Some(id)) => format!("thread #{id}"),
        (None, None) => text("worker")
            .or_else(|| text("worker_id"))
            .map_or_else(String::new, |id| format!("worker {id}")),
    }
}

/// Returns `[key, value, key, value, …]`, without attributes that the lane already shows.
fn attributes(span: &Span, names: &mut Names) -> Vec<Value> {
    let mut flat = Vec::new();
    for (key, value) in &span.attributes {
        if key != "thread.name" && key != "thread.id" {
            flat.push(json!(names.number(key)));
            flat.push(json!(value.to_string()));
        }
    }
    flat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_json_cannot_end_its_script_element() {
        let json = script_json(&json!({"name": "</script><!-- \u{2028}"}));
        assert!(!json.contains('<'));
        assert!(!json.contains('\u{2028}'));
        let back: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(back["name"], "</script><!-- \u{2028}");
    }

    #[test]
    fn template_has_one_place_for_the_data_and_no_network_in_it() {
        assert_eq!(TEMPLATE.matches(DATA_MARK).count(), 1);
        for forbidden in ["http://", "https://", "src=", "@import", "fetch(", "XMLHttpRequest"] {
            assert!(!TEMPLATE.contains(forbidden), "{forbidden}");
        }
    }
}
