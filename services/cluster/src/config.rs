use serde::Deserialize;
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Settings of the services, as the TOML file has them: one table per service, every key optional.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[storage_writer]`
    pub storage_writer: tandem_storage_writer::Config,
    /// `[multiproof_workers]`
    pub multiproof_workers: tandem_multiproof_workers::Config,
    /// `[policies]`: how the proof pipeline goes about its work. They can be changed while the node runs.
    pub policies: tandem_policy::Policies,
    /// `[executor]`
    pub executor: tandem_executor::Config,
    /// `[blob_validator]`
    pub blob_validator: tandem_blob_validator::Config,
    /// `[peer_table]`
    pub peer_table: tandem_peer_table::Config,
    /// `[discovery]`
    pub discovery: tandem_discovery::Config,
    /// Whether discovery runs: it is the one service that speaks to strangers. A flag of the command
    /// line, not of the file.
    #[serde(skip)]
    pub with_discovery: bool,
    /// Whether discovery takes a free port when its own is taken.
    #[serde(skip)]
    pub discovery_port_moves: bool,
}

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// It is no TOML, or names a setting that does not exist.
    #[error("{path}: {error}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: Box<toml::de::Error>,
    },
}

impl Config {
    /// For many short chains in one process, a cluster each: caches and queues that hold a few
    /// blocks, one thread per pool, no discovery, no data directory. Goes with
    /// [`crate::Cluster::start_in_memory`]. What a cluster answers does not depend on these, only
    /// how soon it is overloaded.
    #[must_use]
    pub fn small() -> Self {
        let mut config = Self::default();
        config.storage_writer.store.cache_bytes_max = 8 << 20;
        config.storage_writer.store.memtable_bytes_max = 32 << 20;
        config.storage_writer.store.background_threads = 1;
        config.multiproof_workers.threads = 1;
        config.multiproof_workers.proof_threads = 1;
        config.multiproof_workers.mailbox_capacity = 64;
        config.multiproof_workers.trie_bytes_max = 16 << 20;
        config.executor.prewarm_threads = 1;
        config.executor.cache_accounts = 1_000;
        config.executor.cache_slots = 4_000;
        config.executor.cache_codes = 100;
        config.blob_validator.threads = 1;
        config.blob_validator.requests_max = 64;
        config.blob_validator.verdicts_max = 1_000;
        config.blob_validator.refusals_max = 100;
        config.peer_table.mailbox_capacity = 16;
        config.peer_table.contacts_max = 1_000;
        config
    }

    /// The same services on a data directory.
    #[must_use]
    pub fn at(mut self, datadir: &Path) -> Self {
        self.storage_writer.datadir = datadir.to_owned();
        self.peer_table.datadir = datadir.to_owned();
        self.discovery.datadir = datadir.to_owned();
        self
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`ConfigError`]; unknown keys are errors, so that a misspelt one is not ignored.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        toml::from_str(&text).map_err(|error| {
            let error = Box::new(error);
            ConfigError::Parse { path: path.to_owned(), error }
        })
    }
}

/// Where a node listens. Port 0 takes a free one.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Engine API, every request with a token.
    pub engine: SocketAddr,
    /// JSON-RPC without a token, and the recent traces.
    pub http: SocketAddr,
    /// `/metrics`, `/livez`, `/readyz`; `None` for none.
    pub metrics: Option<SocketAddr>,
    /// The file with the secret of the Engine API's tokens; made when missing.
    pub jwt_secret: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Config::load(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn policies_are_read_and_wrong_ones_named() {
        let text = "[policies]\nbatching = \"fixed{16,500}\"\nchunk_targets = 60\n";
        let policies = load(text).unwrap().policies;
        let got = policies.entries().map(|(key, value)| format!("{key}={value}"));
        assert_eq!(got[..3], ["batching=fixed{16,500}", "chunking=always", "chunk_targets=60"]);
        for (setting, reason) in [
            ("batchin = \"none\"", "unknown field `batchin`"),
            ("batching = \"some\"", "`some` is no value of batching, want none"),
            ("batching = 16", "invalid type: integer `16`"),
            ("chunk_targets = 0", "expected a nonzero u32"),
            ("transition_flush = \"fixed{0}\"", "`fixed{0}` is no value of transition_flush"),
        ] {
            let error = load(&format!("[policies]\n{setting}\n")).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
