//! The committed inputs: one file each, named by content.

use crate::Target;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Returns the folder of a target's inputs.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// Returns all committed inputs of a target, ordered by name. The result is empty if there is no
/// folder.
///
/// # Errors
/// If a file cannot be read.
pub fn load(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let folder = folder(target);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        inputs.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    inputs.sort();
    Ok(inputs)
}
