//! The vectors of c-kzg-4844: commitments, proofs and cells of blobs, through the code that
//! blob-validator verifies with. A vector is one file in a folder named after the function.

use super::support::lies_in;
use crate::{Case, Outcome, Setting, Suite};
use anyhow::Context as _;
use flate2::read::GzDecoder;
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};
use tandem_kzg::{
    Setup,
    vectors::{self, FUNCTIONS},
};

const NAME: &str = "kzg";

/// Suite of files `*.yaml`, plain or gzipped, below folders named after the library's functions.
pub struct Kzg;

/// Returns the function of a vector.
fn function(path: &Path) -> Option<&'static str> {
    FUNCTIONS.into_iter().find(|function| lies_in(path, function))
}

fn is_yaml(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".yaml") || name.ends_with(".yaml.gz")
}

impl Suite for Kzg {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        is_yaml(path) && function(path).is_some()
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let function = function(path).context("in no folder of a function")?;
        let text = read(path)?;
        // The files all have the same name; their folders differ.
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = match file.strip_suffix(".gz").unwrap_or(&file) {
            "data.yaml" => {
                path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy()
            }
            _ => file,
        };
        let name = format!("{function}/{name}");
        let run = move |_: &Setting| match vectors::run(Setup::load(), function, &text) {
            vectors::Outcome::Passed => Outcome::Passed,
            vectors::Outcome::Failed(reason) => Outcome::Failed(reason),
            vectors::Outcome::Skipped(reason) => Outcome::Skipped(reason.to_owned()),
        };
        Ok(vec![Case { suite: NAME, fork: "-".to_owned(), name, run: Box::new(run) }])
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(fs::read_to_string(path)?);
    }
    let mut text = String::new();
    GzDecoder::new(File::open(path)?).read_to_string(&mut text)?;
    Ok(text)
}
