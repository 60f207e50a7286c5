//! Fixture files, and the suites that take them.

use crate::Suite;
use anyhow::Context as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// Bytes of a file that [`Suite::takes`] sees.
const START_LEN: u64 = 4096;

/// A file that a suite takes.
pub struct Claimed {
    /// The suite that takes the file.
    pub suite: &'static dyn Suite,
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub len: u64,
}

/// Files found under some paths.
#[derive(Default)]
pub struct Found {
    /// The fixtures, largest first, so that the long ones start early.
    pub claimed: Vec<Claimed>,
    /// Files that no suite takes, counted by the highest folder that contains no fixtures.
    pub unclaimed: BTreeMap<PathBuf, usize>,
}

impl Found {
    /// Searches files and folders for fixtures of these suites.
    ///
    /// # Errors
    /// If a path does not exist or cannot be read.
    pub fn under(roots: &[PathBuf], suites: &[&'static dyn Suite]) -> anyhow::Result<Self> {
        let mut files = BTreeSet::new();
        for root in roots {
            let root = root.canonicalize().with_context(|| format!("read {}", root.display()))?;
            walk(&root, &mut files)?;
        }
        let mut found = Self::default();
        let mut others = Vec::new();
        for path in files {
            let start = start_of(&path).with_context(|| format!("read {}", path.display()))?;
            match suites.iter().find(|suite| suite.takes(&path, &start)) {
                Some(suite) => {
                    let len = fs::metadata(&path)?.len();
                    found.claimed.push(Claimed { suite: *suite, path, len });
                }
                None => others.push(path),
            }
        }
        found.count_unclaimed(&others);
        found.claimed.sort_by_key(|file| std::cmp::Reverse(file.len));
        Ok(found)
    }

    fn count_unclaimed(&mut self, others: &[PathBuf]) {
        let parents = self.claimed.iter().flat_map(|file| file.path.ancestors().skip(1));
        let taken: BTreeSet<&Path> = parents.collect();
        for path in others {
            // Up to the first folder that also contains a fixture.
            let folders = path.ancestors().skip(1);
            let highest = folders.take_while(|folder| !taken.contains(folder)).last();
            let folder = highest.or(path.parent()).unwrap_or(path);
            *self.unclaimed.entry(folder.to_owned()).or_default() += 1;
        }
    }
}

fn walk(path: &Path, files: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    if !path.is_dir() {
        files.insert(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        if !is_hidden {
            walk(&path, files)?;
        }
    }
    Ok(())
}

fn start_of(path: &Path) -> anyhow::Result<String> {
    let mut start = Vec::new();
    File::open(path)?.take(START_LEN).read_to_end(&mut start)?;
    Ok(String::from_utf8_lossy(&start).into_owned())
}
