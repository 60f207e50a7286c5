//! Experiment files: the programs to compare, the corpora, and the figures to show.

use super::program::{Client, CpuSet, Program};
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Name of the configuration with which all others are compared.
pub const BASE: &str = "base";
/// Name of the second node with that configuration.
pub const AGAIN: &str = "base again";

/// Contents of an experiment file, see `lab/README.md`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name.
    pub name: String,
    /// Question that the experiment is to answer.
    pub question: String,
    /// Corpora to run on; relative paths start at the folder of the file.
    #[serde(default)]
    pub corpora: Vec<PathBuf>,
    /// Maximum number of blocks measured per corpus, after the warm-up.
    pub blocks: Option<u64>,
    /// Number of first blocks of each round, which are not measured.
    #[serde(default = "default_warmup")]
    pub warmup: u64,
    /// Number of times that everything is run from the genesis.
    #[serde(default = "default_rounds")]
    pub rounds: u32,
    /// Pause after each block of each node, for its background work, in milliseconds.
    #[serde(default = "default_gap_ms")]
    pub gap_ms: u64,
    /// Effect to look for, as a share of the time: the report says how many blocks it takes.
    #[serde(default = "default_effect")]
    pub effect: f64,
    /// Common part of all configurations.
    #[serde(default)]
    pub base: Base,
    /// Other configurations.
    #[serde(default)]
    pub variant: Vec<Variant>,
    /// Metrics to show.
    #[serde(default)]
    pub metric: Vec<Metric>,
}

/// The base configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Settings as in the node's own configuration file; missing ones keep their defaults.
    #[serde(default)]
    pub config: Table,
    /// Tandem binary to run instead of this one; a relative path starts at the folder of the file.
    pub binary: Option<PathBuf>,
    /// Another client to run instead of Tandem.
    pub client: Option<Client>,
    /// Processors of the node, `0` or `0,2-3`.
    pub cpus: Option<CpuSet>,
}

/// A configuration that is compared with the base.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name in the results.
    pub name: String,
    /// Settings that override those of the base. Not for another client.
    #[serde(default)]
    pub config: Table,
    /// Tandem binary to run instead of the base's.
    pub binary: Option<PathBuf>,
    /// Another client to run instead of Tandem.
    pub client: Option<Client>,
    /// Processors of the node instead of the base's.
    pub cpus: Option<CpuSet>,
}

/// A metric to read from the `/metrics` of every node, over the measured blocks only.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name as on `/metrics`, without `_bucket`, `_sum` or `_count`.
    pub name: String,
    /// Name in the table [default: the metric's].
    pub label: Option<String>,
    /// Labels that a series must have; matching series are added up.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Figures of a histogram to show: `p50`, `p99.9`, `max`, `mean`, `count`.
    #[serde(default = "default_show")]
    pub show: Vec<Figure>,
}

/// A figure of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Figure {
    /// A quantile, above 0 and below 1.
    Quantile(f64),
    /// The largest value.
    Max,
    /// The arithmetic mean.
    Mean,
    /// Number of values per block.
    Count,
}

impl TryFrom<String> for Figure {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let percent = |text: &str| text.strip_prefix('p')?.parse::<f64>().ok();
        match text.as_str() {
            "max" => Ok(Self::Max),
            "mean" => Ok(Self::Mean),
            "count" => Ok(Self::Count),
            _ => match percent(&text) {
                Some(percent) if percent > 0.0 && percent < 100.0 => {
                    Ok(Self::Quantile(percent / 100.0))
                }
                _ => Err(format!("{text}: expected p50, p99.9 and the like, max, mean or count")),
            },
        }
    }
}

impl From<Figure> for String {
    fn from(figure: Figure) -> Self {
        match figure {
            // Rounded, because 0.999 times 100 is not 99.9.
            Figure::Quantile(q) => format!("p{}", (q * 1e5).round() / 1e3),
            Figure::Max => "max".to_owned(),
            Figure::Mean => "mean".to_owned(),
            Figure::Count => "count".to_owned(),
        }
    }
}

fn default_warmup() -> u64 {
    10
}

fn default_rounds() -> u32 {
    1
}

fn default_gap_ms() -> u64 {
    50
}

fn default_effect() -> f64 {
    0.03
}

fn default_show() -> Vec<Figure> {
    [0.5, 0.9, 0.99].map(Figure::Quantile).into_iter().chain([Figure::Max]).collect()
}

/// A node to start.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// `base`, `base again`, or a variant's name.
    pub name: String,
    /// Contents of the configuration file; empty for another client.
    pub config: Table,
    /// Program to start, or to attach to.
    pub program: Program,
    /// Processors that it may use, `None` for all.
    pub cpus: Option<CpuSet>,
}

impl Experiment {
    /// Reads a file and checks everything that can be checked before a node runs.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has an unknown key, or cannot be carried out.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let mut experiment = Self::parse(&text).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for corpus in &mut experiment.corpora {
            *corpus = folder.join(&*corpus);
        }
        let variants = experiment.variant.iter_mut();
        let programs = variants.map(|variant| (&mut variant.binary, &mut variant.client));
        let base = (&mut experiment.base.binary, &mut experiment.base.client);
        for (binary, client) in programs.chain([base]) {
            let secret = client.as_mut().and_then(|client| client.jwt.as_mut());
            for path in binary.iter_mut().chain(secret) {
                if !path.starts_with("{") {
                    *path = folder.join(&*path);
                }
            }
        }
        Ok(experiment)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let experiment: Self = toml::from_str(text)?;
        ensure!(!experiment.name.trim().is_empty(), "name is empty");
        ensure!(experiment.blocks != Some(0), "blocks = 0 measures nothing");
        ensure!((1..=1_000).contains(&experiment.rounds), "rounds must be from 1 to 1000");
        ensure!(experiment.gap_ms <= 60_000, "gap_ms is above a minute");
        let effect = experiment.effect;
        ensure!((0.001..=1.0).contains(&effect), "effect must be from 0.001 to 1, a share");
        let mut names = BTreeSet::from([BASE, AGAIN]);
        for Variant { name, .. } in &experiment.variant {
            ensure!(!name.trim().is_empty(), "a variant has no name");
            if !names.insert(name) {
                bail!("two configurations are called {name:?}");
            }
        }
        experiment.check_programs()?;
        for setup in experiment.setups() {
            // Another version may have other settings, and says so itself.
            if setup.program == Program::Own {
                let config = Value::Table(setup.config).try_into::<tandem_cluster::Config>();
                config.with_context(|| format!("configuration of {:?}", setup.name))?;
            }
        }
        Ok(experiment)
    }

    /// Checks that each node is one program, and that a program which is there already serves one
    /// node and one round.
    fn check_programs(&self) -> anyhow::Result<()> {
        let base = (BASE, &self.base.config, &self.base.binary, &self.base.client);
        let variants = self.variant.iter();
        let variants = variants.map(|v| (v.name.as_str(), &v.config, &v.binary, &v.client));
        for (name, config, binary, client) in variants.chain([base]) {
            let Some(client) = client else { continue };
            ensure!(binary.is_none(), "{name:?} has a binary and a client");
            ensure!(config.is_empty(), "{name:?} is another client and has settings of Tandem");
            client.check().with_context(|| format!("client of {name:?}"))?;
            if client.start.is_none() {
                ensure!(name != BASE, "the base runs twice, so its client needs a start command");
                ensure!(self.rounds == 1, "{name:?} is there already: rounds must be 1");
            }
        }
        Ok(())
    }

    /// Returns the nodes to start: the base, the base again, the variants.
    pub fn setups(&self) -> Vec<Setup> {
        let base = &self.base;
        let base_twice = [BASE, AGAIN].map(|name| Setup {
            name: name.to_owned(),
            config: base.config.clone(),
            program: Program::of(base.binary.as_ref(), base.client.as_ref()),
            cpus: base.cpus.clone(),
        });
        let variants = self.variant.iter().map(|variant| {
            let mut config = Table::new();
            if variant.client.is_none() {
                merge(&mut config, &base.config);
            }
            merge(&mut config, &variant.config);
            let binary = variant.binary.as_ref().or(base.binary.as_ref());
            Setup {
                name: variant.name.clone(),
                config,
                program: Program::of(binary, variant.client.as_ref()),
                cpus: variant.cpus.clone().or_else(|| base.cpus.clone()),
            }
        });
        base_twice.into_iter().chain(variants).collect()
    }
}

/// Merges settings into others: tables key by key, everything else replaced.
fn merge(under: &mut Table, over: &Table) {
    for (key, value) in over {
        match (under.get_mut(key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            _ => {
                under.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        name = "caches"
        question = "Does it matter?"
        corpora = ["demo", "/absolute"]
        blocks = 20
        warmup = 5
        rounds = 2
        gap_ms = 10

        [base.config.executor]
        cache_accounts = 10
        cache_slots = 20

        [[variant]]
        name = "more"
        [variant.config.executor]
        cache_slots = 2000
        [variant.config.multiproof_workers]
        threads = 1

        [[metric]]
        name = "tandem_executor_new_payload_seconds"
        labels = { status = "valid" }
        show = ["p99.9", "max", "mean", "count"]
    "#;

    fn error(text: &str) -> String {
        format!("{:#}", Experiment::parse(text).unwrap_err())
    }

    #[test]
    fn variants_lie_over_the_base() {
        let experiment = Experiment::parse(WHOLE).unwrap();
        let setups = experiment.setups();
        assert_eq!(
            setups.iter().map(|setup| setup.name.as_str()).collect::<Vec<_>>(),
            ["base", "base again", "more"]
        );
        assert_eq!(setups[0].config, setups[1].config);
        let expected: Table = toml::from_str(
            "executor = { cache_accounts = 10, cache_slots = 2000 }
             multiproof_workers.threads = 1",
        )
        .unwrap();
        assert_eq!(setups[2].config, expected);
        let show: Vec<String> =
            experiment.metric[0].show.iter().copied().map(String::from).collect();
        assert_eq!(show, ["p99.9", "max", "mean", "count"]);
    }

    #[test]
    fn little_is_needed() {
        let experiment = Experiment::parse("name = \"floor\"\nquestion = \"?\"").unwrap();
        assert_eq!(experiment.setups().len(), 2);
        assert_eq!((experiment.warmup, experiment.rounds, experiment.blocks), (10, 1, None));
    }

    #[test]
    fn corpora_are_found_from_the_folder_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        std::fs::write(&path, WHOLE).unwrap();
        let corpora = Experiment::load(&path).unwrap().corpora;
        assert_eq!(corpora, [folder.path().join("demo"), PathBuf::from("/absolute")]);
        let missing = format!("{:#}", Experiment::load(&folder.path().join("no")).unwrap_err());
        assert!(missing.contains("/no"), "{missing}");
    }

    #[test]
    fn the_experiments_of_the_repository_can_be_carried_out() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|it| it == "toml")).collect();
        assert!(files.len() >= 7, "{files:?}");
        for path in files {
            let experiment = Experiment::load(&path).unwrap_or_else(|error| panic!("{error:#}"));
            assert!(experiment.corpora.iter().all(|corpus| corpus.exists()), "{}", path.display());
        }
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        assert!(error(&WHOLE.replace("rounds", "turns")).contains("turns"));
        assert!(error(&WHOLE.replace("rounds = 2", "rounds = 0")).contains("rounds"));
        assert!(error(&WHOLE.replace("blocks = 20", "blocks = 0")).contains("blocks"));
        assert!(error(&WHOLE.replace("\"more\"", "\"base again\"")).contains("base again"));
        assert!(error(&WHOLE.replace("p99.9", "p100")).contains("p100"));
        assert!(error(&WHOLE.replace("p99.9", "median")).contains("median"));
        assert!(error(&WHOLE.replace("labels", "label_set")).contains("label_set"));
        let misspelt = error(&WHOLE.replace("threads", "thread"));
        assert!(misspelt.contains("\"more\"") && misspelt.contains("thread"), "{misspelt}");
        let wrong_type = error(&WHOLE.replace("cache_slots = 20\n", "cache_slots = \"x\"\n"));
        assert!(wrong_type.contains("\"base\""), "{wrong_type}");
    }
}
