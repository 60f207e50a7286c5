//! Two adjacent versions can communicate: released contracts have changed only by additions, and
//! messages of other versions are still understood.
#![allow(clippy::unwrap_used, missing_docs)]

mod contract;
mod rules;
mod samples;

use std::path::PathBuf;

/// Returns the path of a file in this crate's folder.
fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns whether missing files are to be written.
fn updates() -> bool {
    std::env::var_os("TANDEM_UPDATE").is_some_and(|value| value == "1")
}
