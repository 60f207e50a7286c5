//! The runner on a suite of its own, whose cases do what their names say.

use super::{report::Counts, *};
use crate::case::note_payload_time;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};
use tempfile::TempDir;

/// Suite of files that end in `.cases`: one case per line.
struct Lines;

impl Suite for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn takes(&self, path: &Path, _start: &str) -> bool {
        path.extension().is_some_and(|extension| extension == "cases")
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let text = fs::read_to_string(path)?;
        assert!(!text.starts_with("panic in load"), "loading fails");
        anyhow::ensure!(!text.starts_with("not a fixture"), "not a fixture");
        let case = |line: &str| {
            let name = line.to_owned();
            Case { suite: "lines", fork: "-".to_owned(), name, run: action(line) }
        };
        Ok(text.lines().map(case).collect())
    }
}

fn action(line: &str) -> Box<dyn FnOnce(&Setting) -> Outcome + Send> {
    let word = line.split(' ').next().unwrap_or_default().to_owned();
    Box::new(move |_: &Setting| match word.as_str() {
        "panic" => panic!("the case panicked"),
        "fail" => Outcome::Failed("wanted 1, got 2".to_owned()),
        "skip" => Outcome::Skipped("for a reason".to_owned()),
        "timed" => {
            [1_500, 250].into_iter().map(Duration::from_micros).for_each(note_payload_time);
            Outcome::Passed
        }
        _ => Outcome::Passed,
    })
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn options(folder: &TempDir) -> Options {
    let paths = vec![folder.path().canonicalize().unwrap()];
    Options { paths, filter: None, sample: None, list: false, threads: 2, rpc: None }
}

fn report(options: &Options) -> Report {
    run_with(&[&Lines], options).unwrap()
}

fn counts(report: &Report) -> (usize, usize, usize) {
    let Counts { passed, failed, skipped } = report.counts();
    (passed, failed, skipped)
}

#[test]
fn a_panic_fails_its_case_and_the_rest_goes_on() {
    let folder = folder(&[
        ("a.cases", "pass 1\npanic\npass 2\nskip\nfail"),
        ("b.cases", "panic in load"),
        ("c.cases", "not a fixture"),
        ("d.cases", "pass 3"),
    ]);
    let report = report(&options(&folder));
    assert_eq!(counts(&report), (3, 4, 1));
    assert!(!report.is_success());
    let reasons = report.cases.iter().filter_map(|case| match &case.outcome {
        Outcome::Failed(reason) => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [
            "wanted 1, got 2",
            "panic: the case panicked",
            "cannot be read: loading fails",
            "cannot be read: not a fixture",
        ]
    );
    let text = report.text();
    assert_eq!(text.lines().last(), Some("3 passed, 4 failed, 1 skipped"));
    assert!(text.contains("skipped:      1 of lines: for a reason"), "{text}");
}

#[test]
fn a_failure_comes_with_the_command_that_repeats_only_it() {
    let folder = folder(&[("a.cases", "fail\nfail 'so'\npass")]);
    let mut options = options(&folder);
    let text = report(&options).text();
    let file = options.paths[0].join("a.cases");
    let command = format!("tandem conformance {} --exact --filter", file.display());
    assert!(text.contains(&format!("{command} fail\n")), "{text}");
    assert!(text.contains(&(command + r" 'fail '\''so'\'''")), "{text}");
    options.filter = Some(Filter::Exact("fail".to_owned()));
    assert_eq!(counts(&report(&options)), (0, 1, 0));
    options.filter = Some(Filter::Contains("fail".to_owned()));
    assert_eq!(counts(&report(&options)), (0, 2, 0));
}

#[test]
fn success_needs_a_case_that_passed() {
    let folder = folder(&[("a.cases", "skip\npass")]);
    let mut options = options(&folder);
    assert!(report(&options).is_success());
    options.filter = Some(Filter::Exact("skip".to_owned()));
    assert!(!report(&options).is_success());
    options.filter = Some(Filter::Contains("nothing has this".to_owned()));
    let nothing = report(&options);
    assert!(!nothing.is_success());
    assert_eq!(nothing.text().lines().last(), Some("0 passed, 0 failed, 0 skipped"));
}

#[test]
fn a_list_runs_nothing() {
    let folder = folder(&[("a.cases", "panic\nfail")]);
    let report = report(&Options { list: true, ..options(&folder) });
    assert!(report.is_success());
    let text = report.text();
    assert!(text.starts_with("lines\t-\t") && text.contains("\tpanic\n"), "{text}");
    assert_eq!(text.lines().last(), Some("2 cases in 1 files"));
}

#[test]
fn a_sample_is_the_same_with_any_threads_and_in_any_folder() {
    let cases: String = (0..400).map(|n| format!("pass {n}\n")).collect();
    let names = |of: &TempDir, threads| {
        let sample = Some("1/4".parse().unwrap());
        let report = report(&Options { sample, threads, ..options(of) });
        report.cases.into_iter().map(|case| case.name).collect::<BTreeSet<_>>()
    };
    let (here, there) = (folder(&[("a.cases", &cases)]), folder(&[("x/y/a.cases", &cases)]));
    let chosen = names(&here, 1);
    assert!((60..140).contains(&chosen.len()), "{}", chosen.len());
    assert_eq!(names(&here, 3), chosen);
    assert_eq!(names(&there, 2), chosen);
}

#[test]
fn files_that_no_suite_takes_are_counted_by_folder() {
    let folder = folder(&[
        ("a/one.cases", "pass"),
        ("a/notes.txt", ""),
        ("b/c/notes.txt", ""),
        ("b/notes.txt", ""),
        (".git/config", ""),
    ]);
    let options = options(&folder);
    let (report, root) = (report(&options), &options.paths[0]);
    let unclaimed: Vec<_> = report.unclaimed.clone().into_iter().collect();
    assert_eq!(unclaimed, [(root.join("a"), 1), (root.join("b"), 2)]);
    let line = format!("no suite for 2 files in {}", root.join("b").display());
    assert!(report.text().contains(&line), "{}", report.text());
}

#[test]
fn a_path_that_is_not_there_is_an_error_with_its_name() {
    let folder = folder(&[("a.cases", "pass")]);
    let mut options = options(&folder);
    options.paths.push(folder.path().join("missing"));
    let error = run_with(&[&Lines], &options).unwrap_err();
    assert!(format!("{error:#}").contains("missing"), "{error:#}");
}

#[test]
fn the_json_has_every_case() {
    let folder = folder(&[("a.cases", "fail\npass\nskip"), ("b.txt", "")]);
    let sample = Some("1/1".parse().unwrap());
    let json = report(&Options { sample, ..options(&folder) }).json();
    for (counted, want) in [("passed", 1), ("failed", 1), ("skipped", 1), ("files", 1)] {
        assert_eq!(json[counted], want, "{counted}");
    }
    assert_eq!(json["sample"], json!({"part": 1, "of": 1, "seed": 0}));
    assert_eq!(json["filesWithoutSuite"].as_object().unwrap().len(), 1);
    let of = |key: &str| -> Vec<Value> {
        json["cases"].as_array().unwrap().iter().map(|case| case[key].clone()).collect()
    };
    assert_eq!(of("suite"), ["lines"; 3]);
    assert_eq!(of("name"), ["fail", "pass", "skip"]);
    assert_eq!(of("outcome"), ["failed", "passed", "skipped"]);
    assert_eq!(of("reason"), [json!("wanted 1, got 2"), Value::Null, json!("for a reason")]);
    for (file, time) in of("file").iter().zip(of("milliseconds")) {
        assert!(file.as_str().unwrap().ends_with("/a.cases") && time.as_f64().unwrap() >= 0.0);
    }
}

#[test]
fn the_times_of_payloads_are_those_of_their_case() {
    let folder = folder(&[("a.cases", "pass\ntimed 1\npass 2\ntimed 2")]);
    let json = report(&options(&folder)).json();
    let times = json["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| (case["name"].as_str().unwrap(), case["newPayloadMilliseconds"].clone()));
    let timed = json!([1.5, 0.25]);
    assert_eq!(
        times.collect::<Vec<_>>(),
        [
            ("pass", json!([])),
            ("pass 2", json!([])),
            ("timed 1", timed.clone()),
            ("timed 2", timed)
        ]
    );
}
