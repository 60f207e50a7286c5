//! Helpers shared by the suites of plain vectors (those without a node).

use crate::{Case, Outcome};
use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::{fs, path::Path};

/// Returns whether one of the folders on a file's path, or the file, has this name.
pub(super) fn lies_in(path: &Path, folder: &str) -> bool {
    path.components().any(|part| part.as_os_str() == folder)
}

/// Returns whether the name ends in `.json`.
pub(super) fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Reads a file that is one JSON document.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}

/// Reads the cases of a file that is one object, in its order, by name.
pub(super) fn read_cases<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<(String, T)>> {
    let cases: Map<String, Value> = read_json(path)?;
    let parse = |(name, value)| {
        let case = serde_json::from_value(value).with_context(|| format!("case {name}"))?;
        anyhow::Ok((name, case))
    };
    cases.into_iter().filter(|(name, _)| name != "_info").map(parse).collect()
}

/// Creates a case that passes if `run` returns without an error.
pub(super) fn case(
    suite: &'static str,
    fork: impl Into<String>,
    name: impl Into<String>,
    run: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Case {
    let run = Box::new(move |_: &_| match run() {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    });
    Case { suite, fork: fork.into(), name: name.into(), run }
}

/// Creates a case that is not run.
pub(super) fn skipped(
    suite: &'static str,
    fork: impl Into<String>,
    name: impl Into<String>,
    reason: impl Into<String>,
) -> Case {
    let reason = reason.into();
    let run = Box::new(move |_: &_| Outcome::Skipped(reason));
    Case { suite, fork: fork.into(), name: name.into(), run }
}

/// Decodes hexadecimal digits, with or without `0x`.
pub(super) fn bytes(text: &str) -> anyhow::Result<Vec<u8>> {
    const_hex::decode(text).with_context(|| format!("{text:.40} is not hexadecimal"))
}

/// Fails unless the two are equal.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    got: T,
    want: T,
) -> anyhow::Result<()> {
    anyhow::ensure!(got == want, "{what}: got {got:?}, want {want:?}");
    Ok(())
}
