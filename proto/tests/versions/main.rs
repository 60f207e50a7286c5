//! Two adjacent versions speak to each other: no contract that was released has changed but by what was
//! added, and what other versions have said is still understood.
#![allow(clippy::unwrap_used, missing_docs)]

mod contract;
mod rules;
mod samples;

use std::path::PathBuf;

/// A file of this crate's folder.
fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Whether what is missing is to be written.
fn updates() -> bool {
    std::env::var_os("TANDEM_UPDATE").is_some_and(|value| value == "1")
}
