//! What Helm renders, compared with what it rendered before, so that a change shows in a review.

use super::{CASES, FOR, KEPT, MADE, chart, helm, is_up_to_date, run, template, values};
use sha2::{Digest, Sha256};
use std::{fs, path::PathBuf, process::Command};

/// Longer lines are kept as their digest.
const LINE_MAX: usize = 2000;

fn path(case: &str) -> PathBuf {
    chart().join(format!("golden/{case}.yaml"))
}

/// What is kept of a case.
pub fn kept(case: &str) -> String {
    fs::read_to_string(path(case)).unwrap()
}

/// Without what is made anew each time, and without files that stand in the repository anyway.
fn normalized(rendered: &str) -> String {
    let mut out = String::new();
    for document in rendered.split_inclusive("\n---\n") {
        let is_secret = document.lines().any(|line| line == "kind: Secret");
        let mut in_data = false;
        for line in document.lines() {
            in_data = line == "data:" || (in_data && line.starts_with(' '));
            match line.split_once(": ") {
                Some((key, _)) if is_secret && in_data => {
                    out += &format!("{key}: {MADE:?}");
                }
                Some((key, value)) if line.len() > LINE_MAX => {
                    let digest = const_hex::encode(Sha256::digest(value));
                    out += &format!("{key}: \"{} bytes, SHA-256 {digest}\"", value.len());
                }
                _ => out += line,
            }
            out.push('\n');
        }
    }
    out
}

#[test]
fn what_is_rendered_is_what_is_kept() {
    let Some(helm) = helm() else { return };
    for case in KEPT {
        let rendered = template(&helm, case, &[]).unwrap();
        fs::create_dir_all(chart().join("golden")).unwrap();
        is_up_to_date(&path(case), &normalized(&rendered));
    }
}

#[test]
fn helm_finds_nothing_to_complain_of() {
    let Some(helm) = helm() else { return };
    for case in CASES {
        let mut lint = Command::new(&helm);
        lint.args(["lint", "--strict"]).args(FOR).arg("--values").arg(values(case)).arg(chart());
        run(&mut lint).unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}

/// A packaged chart has no links that lead out of it.
#[test]
fn a_packaged_chart_renders_the_same() {
    let Some(helm) = helm() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut package = Command::new(&helm);
    package.arg("package").arg(chart()).arg("--destination").arg(folder.path());
    run(&mut package).unwrap();
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let mut command = Command::new(&helm);
    command.args(["template", "tandem"]).arg(file).args(FOR).arg("--values");
    let packaged = run(command.arg(values("production"))).unwrap();
    let unpacked = template(&helm, "production", &[]).unwrap();
    assert!(normalized(&packaged) == normalized(&unpacked));
}

#[test]
fn secrets_and_long_lines_are_not_kept() {
    let long = "x".repeat(LINE_MAX);
    let rendered = format!(
        "kind: Secret\ndata:\n  a: b\nother: c\n---\nkind: ConfigMap\ndata:\n  a: {long}\n"
    );
    let kept = normalized(&rendered);
    assert!(kept.contains("  a: \"made at the install\"\nother: c\n---\n"), "{kept}");
    assert!(kept.contains("  a: \"2000 bytes, SHA-256 "), "{kept}");
}
