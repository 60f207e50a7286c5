//! Output of commands: to standard output, and into files.

use anyhow::Context;
use std::{
    fs,
    io::{ErrorKind, Write},
    path::Path,
};

/// Writes to standard output. A reader that stops early, like `head`, is fine.
///
/// # Errors
/// Returns an error if standard output fails otherwise.
pub fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("print"),
        _ => Ok(()),
    }
}

/// Writes a file.
///
/// # Errors
/// Returns an error that names the file.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
    fs::write(path, contents).with_context(|| format!("write {}", path.display()))
}
