//! Tests dashboards and rules against the existing metrics.

use crate::deploy::{files, program, skipped, succeeds, text, yaml};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};
use tandem_cluster_tests::repository;

/// A query and its location.
pub struct Query {
    pub place: String,
    pub text: String,
}

/// A use of a metric in a query: its name and the required labels.
#[derive(Debug, PartialEq, Eq)]
pub struct Use {
    /// Name as in the query, with a suffix such as `_bucket`.
    pub name: String,
    /// Labels compared with `=`.
    pub labels: Vec<(String, String)>,
}

/// Returns the queries of all dashboards, with Grafana's variable replaced.
pub fn dashboards() -> Vec<Query> {
    let mut queries = Vec::new();
    for file in files("deploy/grafana/dashboards") {
        let board: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        for panel in board["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            let targets = panel["targets"].as_array().into_iter().flatten();
            queries.extend(targets.map(|target| Query {
                place: format!("{name}: {title}"),
                text: target["expr"].as_str().unwrap().replace("$__rate_interval", "1m"),
            }));
        }
    }
    queries
}

/// Returns the queries of all rules, and the names that rules record.
fn rules() -> (Vec<Query>, BTreeSet<String>) {
    let rules = yaml("deploy/rules.yml");
    let groups = rules["groups"].as_array().unwrap().iter();
    let (mut queries, mut recorded) = (Vec::new(), BTreeSet::new());
    for rule in groups.flat_map(|group| group["rules"].as_array().unwrap()) {
        let name = rule["record"].as_str().or(rule["alert"].as_str()).unwrap();
        let text = rule["expr"].as_str().unwrap().to_owned();
        queries.push(Query { place: format!("rules.yml: {name}"), text });
        recorded.extend(rule["record"].as_str().map(str::to_owned));
    }
    (queries, recorded)
}

/// Returns the project's metrics in a query.
fn uses(query: &str) -> Vec<Use> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find("tandem") {
        rest = &rest[at..];
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let end = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let matchers = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let matchers = matchers.map_or("", |(matchers, _)| matchers);
        let labels = matchers.split(',').filter_map(|matcher| {
            let (label, value) = matcher.split_once('=')?;
            let exact = value.trim().strip_prefix('"')?.strip_suffix('"')?;
            (!label.ends_with('!')).then(|| (label.trim().to_owned(), exact.to_owned()))
        });
        found.push(Use { name: name.to_owned(), labels: labels.collect() });
        rest = after;
    }
    found
}

/// Returns all uses of the project's metrics in dashboards and rules, with their locations.
pub fn all_uses() -> Vec<(String, Use)> {
    let (rules, recorded) = rules();
    let queries = dashboards().into_iter().chain(rules);
    let uses = queries.flat_map(|Query { place, text }| {
        uses(&text).into_iter().map(move |found| (place.clone(), found))
    });
    uses.filter(|(_, found)| !recorded.contains(&found.name)).collect()
}

/// Returns the metric of a series: the histogram for its buckets, sum and count.
pub fn metric_of(series: &str, is_metric: impl Fn(&str) -> bool) -> Option<String> {
    let stems = ["", "_bucket", "_sum", "_count"].into_iter();
    let mut stems = stems.filter_map(|suffix| series.strip_suffix(suffix));
    stems.find(|stem| is_metric(stem)).map(str::to_owned)
}

/// Returns the names of metrics in the code: string literals in the modules that declare them.
fn declared() -> BTreeSet<String> {
    fn walk(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" && name != "benches" {
                walk(&path, names);
            } else if ["metrics.rs", "telemetry.rs", "process.rs"].contains(&name.as_str()) {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap();
                let literals = code.split('"').skip(1).step_by(2);
                let ours = literals.filter(|literal| {
                    literal.starts_with("tandem_") && !literal.contains(|c: char| c.is_whitespace())
                });
                names.extend(ours.map(str::to_owned));
            }
        }
    }
    let mut names = BTreeSet::new();
    for folder in ["crates", "services", "tracing"] {
        walk(&repository().join(folder), &mut names);
    }
    assert!(names.len() > 100, "the scan found the metrics: {names:?}");
    names
}

/// Returns whether there is a metric of this name.
pub fn is_declared(name: &str) -> bool {
    declared().contains(name)
}

#[test]
fn every_metric_of_dashboards_and_rules_is_declared_in_the_code() {
    let declared = declared();
    let uses = all_uses();
    assert!(uses.len() > 150, "{} uses", uses.len());
    let mut wrong = Vec::new();
    for (place, Use { name, .. }) in &uses {
        match metric_of(name, |stem| declared.contains(stem)) {
            None => wrong.push(format!("{place}: there is no {name}")),
            // A histogram has no series of its own name. A timestamp is a gauge.
            Some(metric)
                if metric == *name
                    && metric.ends_with("_seconds")
                    && !metric.ends_with("_timestamp_seconds") =>
            {
                wrong.push(format!("{place}: {name} is a histogram"));
            }
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn dashboards_name_the_provisioned_source_and_no_two_share_a_name() {
    let sources = yaml("deploy/grafana/provisioning/datasources/prometheus.yml");
    let source = &sources["datasources"][0]["uid"];
    let (mut ids, mut titles) = (BTreeSet::new(), BTreeSet::new());
    for file in files("deploy/grafana/dashboards") {
        let board: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert!(ids.insert(board["uid"].to_string()) && titles.insert(board["title"].to_string()));
        let mut panels = BTreeSet::new();
        for panel in board["panels"].as_array().unwrap() {
            assert!(panels.insert(panel["id"].as_u64().unwrap()), "{} {panel}", file.display());
            for target in panel["targets"].as_array().into_iter().flatten() {
                assert_eq!(&target["datasource"]["uid"], source, "{panel}");
            }
        }
    }
    assert_eq!(ids.len(), 5);
}

#[test]
fn prometheus_asks_every_service_on_the_port_of_the_image() {
    let config = yaml("deploy/prometheus.yml");
    let jobs: BTreeMap<_, _> = config["scrape_configs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| (job["job_name"].as_str().unwrap(), &job["dns_sd_configs"][0]))
        .collect();
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_object().unwrap();
    let watched = services.iter().filter(|(_, service)| service["healthcheck"].is_object());
    let watched: BTreeSet<_> = watched.map(|(name, _)| name.as_str()).collect();
    assert_eq!(jobs.keys().copied().collect::<BTreeSet<_>>(), watched);
    let port = text("deploy/Dockerfile");
    let (_, port) = port.split_once("TANDEM_METRICS_PORT=").unwrap();
    let port = port.lines().next().unwrap();
    for (name, found) in jobs {
        assert_eq!(
            (found["names"][0].as_str(), found["port"].to_string()),
            (Some(name), port.into())
        );
    }
}

/// An alert only helps a reader who is told what to do about it.
#[test]
fn every_alert_has_a_runbook() {
    let manual = text("docs/runbooks.md");
    let sections: BTreeMap<_, _> = manual
        .split("\n## ")
        .filter(|section| section.starts_with("Tandem"))
        .map(|section| section.split_once('\n').unwrap())
        .collect();
    let rules = yaml("deploy/rules.yml");
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let mut alerts = BTreeSet::new();
    for rule in rules.filter(|rule| rule["alert"].is_string()) {
        let name = rule["alert"].as_str().unwrap();
        assert!(alerts.insert(name), "{name} is there twice");
        let runbook = format!("docs/runbooks.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], runbook, "{name}");
        let section = sections.get(name).unwrap_or_else(|| panic!("{name} has no runbook"));
        for part in ["**Means.** ", "**Look at.** ", "**Do.** "] {
            assert!(section.contains(part), "{name} has no {part}");
        }
    }
    assert_eq!(sections.keys().copied().collect::<BTreeSet<_>>(), alerts);
}

/// Each alert fires in one example, and is silent in another.
#[test]
fn every_alert_has_an_example() {
    let examples = yaml("deploy/rules-test.yml");
    let tests = examples["tests"].as_array().unwrap().iter();
    let checks = tests.flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let (mut fires, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for check in checks {
        let name = check["alertname"].as_str().unwrap();
        let expected = check["exp_alerts"].as_array().unwrap();
        if expected.is_empty() {
            silent.insert(name)
        } else {
            fires.insert(name)
        };
    }
    let manual = text("docs/runbooks.md");
    for alert in manual.lines().filter_map(|line| line.strip_prefix("## Tandem")) {
        let alert = format!("Tandem{alert}");
        assert!(fires.contains(alert.as_str()), "no example says when {alert} fires");
        assert!(silent.contains(alert.as_str()), "no example says when {alert} is silent");
    }
}

/// promtool's own checks: files are well formed, and alerts fire as in rules-test.yml.
#[test]
fn alerts_fire_when_they_should() {
    let Some(promtool) = program("promtool") else {
        return skipped("promtool (Debian: prometheus) is not installed");
    };
    let run = |arguments: &[&str]| {
        succeeds(Command::new(&promtool).args(arguments).current_dir(repository().join("deploy")));
    };
    run(&["check", "config", "prometheus.yml"]);
    run(&["check", "rules", "rules.yml"]);
    run(&["test", "rules", "rules-test.yml"]);
    // The queries of the dashboards are checked as rules, for their syntax.
    let queries = dashboards();
    let rules = queries.iter().enumerate();
    let rules =
        rules.map(|(n, query)| json!({ "record": format!("query:{n}"), "expr": query.text }));
    let rules = json!({ "groups": [{ "name": "dashboards", "rules": rules.collect::<Vec<_>>() }] });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), rules.to_string()).unwrap();
    run(&["check", "rules", file.path().to_str().unwrap()]);
}

#[test]
fn uses_are_found_with_their_labels() {
    let found = uses(r#"sum(rate(tandem_a_sum{from="x",reason!="y"}[5m])) / tandem:b:ratio > 0"#);
    let labels = vec![("from".to_owned(), "x".to_owned())];
    assert_eq!(
        found,
        [
            Use { name: "tandem_a_sum".to_owned(), labels },
            Use { name: "tandem:b:ratio".to_owned(), labels: Vec::new() },
        ]
    );
}
