//! Choice of the cases to run, and of their settings. Only the case's id decides, so it is the same
//! each time.

use crate::{Case, Setting};
use alloy_primitives::keccak256;
use anyhow::Context as _;
use std::{path::Path, str::FromStr};
use tandem_policy::Policies;

/// Divisor for the cases that start a node: one in this many goes over HTTP, and another one in
/// this many uses a database.
const ONE_IN: u64 = 16;

/// Policies that differ from the defaults, each in several places at once. Each set applies to one
/// in [`ONE_IN`] of the cases that start a node.
const POLICIES: [&[&str]; 4] = [
    &[
        "batching=fixed{16,500}",
        "chunking=while-idle",
        "transition_flush=fixed{8}",
        "receipts_root=incremental",
    ],
    &[
        "batching=pressure{4,10}",
        "chunking=never",
        "transition_flush=adaptive{500000,5,2}",
        "receipts_root=background",
    ],
    &["batching=window{100}", "transition_flush=fixed{100}"],
    &["batching=drain", "chunk_targets=1", "transition_flush=fixed{2}", "receipts_root=background"],
];

/// Returns the id of a case everywhere: suite, file and name, without the folders above.
pub fn id(case: &Case, path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{}/{file}/{}", case.suite, case.name)
}

/// Returns a pseudorandom number, the same for the same id and purpose.
fn number(id: &str, purpose: &str) -> u64 {
    let hash = keccak256(format!("{purpose}\n{id}"));
    u64::from_be_bytes(hash[..8].try_into().unwrap_or_default())
}

/// Returns the setting of the case with this id.
pub fn setting(id: &str) -> Setting {
    let place = number(id, "setting") % ONE_IN;
    let policies = policies(number(id, "policies") % ONE_IN);
    Setting { http: place == 0, database: place == 1, policies, rpc: None }
}

fn policies(number: u64) -> Policies {
    let mut policies = Policies::default();
    let changes = usize::try_from(number).ok().and_then(|number| POLICIES.get(number));
    for change in changes.copied().unwrap_or_default() {
        let set = policies.assign(change);
        debug_assert!(set.is_ok(), "{change}");
    }
    policies
}

/// A share of the cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Numerator of the share.
    pub part: u64,
    /// Denominator of the share.
    pub of: u64,
    /// Seed; another seed chooses other cases.
    pub seed: u64,
}

impl Sample {
    /// Returns whether the case with this id is in the sample.
    pub fn has(&self, id: &str) -> bool {
        number(id, &format!("sample {}", self.seed)) % self.of < self.part
    }
}

impl FromStr for Sample {
    type Err = anyhow::Error;

    /// Reads `N/M` with seed 0.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (part, of) = text.split_once('/').context("not of the form N/M")?;
        let sample = Self { part: part.parse()?, of: of.parse()?, seed: 0 };
        anyhow::ensure!(sample.part > 0 && sample.part <= sample.of, "not within 1/M and M/M");
        Ok(sample)
    }
}

/// A choice of cases by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    /// Cases whose name or path contains this text.
    Contains(String),
    /// Cases with exactly this name.
    Exact(String),
}

impl Filter {
    /// Returns whether the case of this file and name is chosen.
    pub fn has(&self, path: &Path, name: &str) -> bool {
        match self {
            Self::Exact(want) => name == want,
            Self::Contains(part) => {
                name.contains(part) || path.to_string_lossy().contains(part.as_str())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_strictly() {
        assert_eq!("5/100".parse::<Sample>().unwrap(), Sample { part: 5, of: 100, seed: 0 });
        for wrong in ["", "5", "0/5", "6/5", "1/0", "-1/5", "1/5/6", "a/b"] {
            assert!(wrong.parse::<Sample>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn samples_have_about_their_share_and_differ_by_seed() {
        let chosen = |seed| {
            let sample = Sample { part: 10, of: 100, seed };
            (0..10_000).filter(|n| sample.has(&n.to_string())).collect::<Vec<_>>()
        };
        assert!((800..1200).contains(&chosen(0).len()));
        assert_eq!(chosen(1), chosen(1));
        assert_ne!(chosen(0), chosen(1));
    }

    #[test]
    fn a_quarter_of_the_cases_runs_by_other_policies() {
        let chosen: Vec<_> = (0..1000).map(|n| setting(&n.to_string()).policies).collect();
        let others = chosen.iter().filter(|policies| **policies != Policies::default()).count();
        assert!((200..300).contains(&others), "{others}");
        for (number, changes) in (0..).zip(POLICIES) {
            let set = policies(number);
            assert!(chosen.contains(&set));
            let entries = set.entries().map(|(key, value)| format!("{key}={value}"));
            assert!(changes.iter().all(|change| entries.contains(&(*change).to_owned())));
        }
    }

    #[test]
    fn filters_look_at_name_and_path() {
        let path = Path::new("a/b.json");
        for (filter, has) in [
            (Filter::Contains("b.j".into()), true),
            (Filter::Contains("ase".into()), true),
            (Filter::Contains("x".into()), false),
            (Filter::Exact("case".into()), true),
            (Filter::Exact("cas".into()), false),
            (Filter::Exact("a/b.json".into()), false),
        ] {
            assert_eq!(filter.has(path, "case"), has, "{filter:?}");
        }
    }
}
