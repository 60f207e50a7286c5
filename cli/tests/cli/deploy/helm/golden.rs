//! Compares what Helm renders with an earlier rendering, so that a diff shows every change.

use super::{CASES, FOR, KEPT, MADE, chart, helm, is_up_to_date, run, template, values};
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Longer lines are kept as their digest.
const LINE_MAX: usize = 2000;

fn path(case: &str) -> PathBuf {
    chart().join(format!("golden/{case}.yaml"))
}

/// Returns the kept rendering of a case.
pub fn kept(case: &str) -> String {
    fs::read_to_string(path(case)).unwrap()
}

/// Annotations with the time at which a certificate was made.
const TIMES: [&str; 3] =
    ["tandem/certificate", "tandem/certificate-made", "tandem/certificate-due"];

/// Removes content that is made anew each time, and files that are in the repository anyway.
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
                Some((key, _)) if TIMES.contains(&key.trim()) => out += &format!("{key}: {MADE:?}"),
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

/// Files that the chart shares with the rest of the repository are copies, so that the chart is
/// self-contained.
#[test]
fn files_of_the_chart_are_those_of_deploy() {
    let mut pairs = vec![("deploy/nats.conf".into(), "nats.conf".to_owned())];
    pairs.push(("deploy/rules.yml".into(), "rules.yml".to_owned()));
    for board in crate::deploy::files("deploy/grafana/dashboards") {
        let name = format!("dashboards/{}", board.file_name().unwrap().to_string_lossy());
        pairs.push((board, name));
    }
    for (original, copy) in &pairs {
        is_up_to_date(&chart().join("files").join(copy), &crate::deploy::text(original));
    }
    let boards = fs::read_dir(chart().join("files/dashboards")).unwrap().count();
    assert_eq!(boards + 2, pairs.len(), "a copy has no original");
    fn no_links(folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            assert!(!kind.is_symlink(), "{} leads out of the chart", entry.path().display());
            if kind.is_dir() {
                no_links(&entry.path());
            }
        }
    }
    no_links(&chart());
}

/// A packaged chart renders the same as the folder.
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
        "kind: Secret\ndata:\n  a: b\nother: c\n  tandem/certificate-due: \"1\"\n---\nkind: ConfigMap\ndata:\n  a: {long}\n"
    );
    let kept = normalized(&rendered);
    assert!(kept.contains("  a: \"made at the install\"\nother: c\n"), "{kept}");
    assert!(kept.contains("  tandem/certificate-due: \"made at the install\"\n---\n"), "{kept}");
    assert!(kept.contains("  a: \"2000 bytes, SHA-256 "), "{kept}");
}
