use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tandem_rpc::TlsConfig;
use tandem_telemetry::Traces;
use toml::{Table, Value};

/// Settings of the services, as in the TOML file: one table per service, every key optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[storage_writer]`
    pub storage_writer: tandem_storage_writer::Config,
    /// `[multiproof_workers]`
    pub multiproof_workers: tandem_multiproof_workers::Config,
    /// `[fleet]`: the workers of an executor that runs in its own process
    pub fleet: tandem_multiproof_workers_client::fleet::Config,
    /// `[policies]`: how the proof pipeline works. They can be changed while the node runs.
    pub policies: tandem_policy::Policies,
    /// `[executor]`
    pub executor: tandem_executor::Config,
    /// `[blob_validator]`
    pub blob_validator: tandem_blob_validator::Config,
    /// `[peer_table]`
    pub peer_table: tandem_peer_table::Config,
    /// `[discovery]`
    pub discovery: tandem_discovery::Config,
    /// `[peer_sessions]`
    pub peer_sessions: tandem_peer_sessions::Config,
    /// `[sync]`: blocks from peers
    pub sync: tandem_sync::Config,
    /// `[tx_pool]`: transactions that are in no block
    pub tx_pool: tandem_tx_pool::Config,
    /// `[follower]`: how close a follower keeps to its leader
    pub follower: tandem_follower::Config,
    /// `[tx_executor]`: threads and memory of a tx-executor
    pub tx_executor: tandem_tx_executor::Config,
    /// `[tls]`: the certificates that identify services to each other over gRPC
    pub tls: TlsConfig,
    /// `[traces]`: which traces are exported
    pub traces: Traces,
    /// Whether discovery runs. A flag of the command line, not a key of the file.
    #[serde(skip)]
    pub with_discovery: bool,
    /// Whether discovery takes a free port when its own is taken.
    #[serde(skip)]
    pub discovery_port_moves: bool,
    /// Whether sessions with peers are held. A flag of the command line, not a key of the file.
    #[serde(skip)]
    pub with_sessions: bool,
    /// Whether sessions take a free port when theirs is taken.
    #[serde(skip)]
    pub sessions_port_moves: bool,
    /// Whether the metrics take a free port when theirs is taken.
    #[serde(skip)]
    pub metrics_port_moves: bool,
}

/// Error in the configuration, in its file or in an environment variable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        error: io::Error,
    },
    /// The file is not valid TOML, or names a setting that does not exist.
    #[error("{path}: {error}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Place and cause of the error.
        error: Box<toml::de::Error>,
    },
    /// An environment variable names a setting that does not exist, or has an invalid value.
    #[error("{name}: {reason}")]
    Variable {
        /// The variable.
        name: String,
        /// Cause of the error.
        reason: String,
    },
}

/// Prefix of environment variables that are settings.
const VARIABLE: &str = "TANDEM__";

impl Config {
    /// Returns settings for many short chains in one process, each in its own cluster. Caches and
    /// queues hold a few blocks, each pool has one thread, and there is no discovery and no data
    /// directory. Use it with [`crate::Cluster::start_in_memory`]. These settings do not change the
    /// answers of a cluster, only how soon it is overloaded.
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
        config.executor.call_threads = 1;
        config.executor.cache_accounts = 1_000;
        config.executor.cache_slots = 4_000;
        config.executor.cache_codes = 100;
        config.blob_validator.threads = 1;
        config.blob_validator.requests_max = 64;
        config.blob_validator.verdicts_max = 1_000;
        config.blob_validator.refusals_max = 100;
        config.peer_table.mailbox_capacity = 16;
        config.peer_table.contacts_max = 1_000;
        config.tx_pool.intake_threads = 1;
        config.tx_pool.intake_max = 1024;
        config
    }

    /// Returns these settings with the services on a data directory.
    #[must_use]
    pub fn at(mut self, datadir: &Path) -> Self {
        self.storage_writer.datadir = datadir.to_owned();
        self.peer_table.datadir = datadir.to_owned();
        self.discovery.datadir = datadir.to_owned();
        self.tx_pool.datadir = datadir.to_owned();
        self
    }

    /// Returns these settings with the values that all services must share. The table of
    /// storage-writer sets how far the base stays behind the head, and how long side chains are
    /// kept.
    #[must_use]
    pub(crate) fn agreed(mut self) -> Self {
        let storage = &self.storage_writer;
        self.executor.persist_depth = storage.persist_depth;
        self.executor.unfinalized_blocks_max = storage.unfinalized_blocks_max;
        self
    }

    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`ConfigError`]. Unknown keys are errors, so that a misspelt key is not ignored.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with(Some(path), [])
    }

    /// Reads a TOML file, if one is given, and overrides its keys by environment variables.
    /// `TANDEM__EXECUTOR__PREWARM_THREADS` is the key `executor.prewarm_threads`; its value is TOML
    /// or plain text. Variables with another prefix are ignored.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load_with(
        path: Option<&Path>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut settings = path.map_or_else(|| Ok(Table::new()), read)?;
        for (name, value) in variables {
            let Some(key) = name.strip_prefix(VARIABLE) else { continue };
            let own = nested(key, &value);
            // Parsed alone, so that the error names the variable.
            if let Err(error) = Self::deserialize(Value::Table(own.clone())) {
                let reason = error.message().to_owned();
                return Err(ConfigError::Variable { name, reason });
            }
            merge(&mut settings, own);
        }
        Self::deserialize(Value::Table(settings)).map_err(|error| {
            let path = path.map_or_else(PathBuf::new, Path::to_owned);
            ConfigError::Parse { path, error: Box::new(error) }
        })
    }

    /// Returns all settings as a file that [`Self::load`] reads.
    ///
    /// # Errors
    /// [`ConfigError::Variable`] if a setting cannot be written as TOML, such as a number beyond 63
    /// bits.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| ConfigError::Variable {
            name: "settings".to_owned(),
            reason: error.to_string(),
        })
    }
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
    let wrong = |error| ConfigError::Parse { path: path.to_owned(), error: Box::new(error) };
    // Parsed as text first, so that the error has the line. A value built from a table does not
    // know it.
    toml::from_str::<Config>(&text).map_err(wrong)?;
    text.parse().map_err(wrong)
}

/// Returns a table with the one value that a name such as `EXECUTOR__PREWARM_THREADS` stands for.
fn nested(key: &str, text: &str) -> Table {
    let parsed = format!("value = {text}").parse::<Table>();
    let value = parsed.ok().filter(|table| table.len() == 1).and_then(|mut t| t.remove("value"));
    let mut value = value.unwrap_or_else(|| Value::String(text.to_owned()));
    let mut parts = key.split("__").map(str::to_lowercase);
    let first = parts.next().unwrap_or_default();
    let rest: Vec<_> = parts.collect();
    for part in rest.into_iter().rev() {
        value = Value::Table(Table::from_iter([(part, value)]));
    }
    Table::from_iter([(first, value)])
}

fn merge(settings: &mut Table, over: Table) {
    for (key, value) in over {
        match (settings.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(over)) => merge(below, over),
            (_, value) => {
                settings.insert(key, value);
            }
        }
    }
}

/// Addresses on which a node listens. Port 0 takes a free port.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Engine API. Every request needs a token.
    pub engine: SocketAddr,
    /// JSON-RPC without a token.
    pub http: SocketAddr,
    /// `/metrics`, `/livez`, `/readyz` and `/debug/traces`; not served if `None`.
    pub metrics: Option<SocketAddr>,
    /// File with the secret for the tokens of the Engine API; created if missing.
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

    fn with(file: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), file).unwrap();
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Config::load_with(Some(path.path()), variables).map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_stands_over_the_file() {
        let file = "[executor]\nprewarm_threads = 3\ncache_codes = 7\n[storage_writer.store]\n\
            background_threads = 9\n";
        let config = with(
            file,
            &[
                ("TANDEM__EXECUTOR__PREWARM_THREADS", "2"),
                ("TANDEM__STORAGE_WRITER__STORE__CACHE_BYTES_MAX", "1000"),
                ("TANDEM__POLICIES__BATCHING", "fixed{16,500}"),
                ("TANDEM__DISCOVERY__ADDR", "127.0.0.9"),
                ("TANDEM__DISCOVERY__BOOTNODES", "[\"enode://a\", \"enode://b\"]"),
                ("TANDEM__MULTIPROOF_WORKERS__VERIFY_NODES", "false"),
                ("TANDEM__TRACES__SAMPLING", "slow{150}"),
                ("TANDEM__TLS__CA", "/etc/tandem/tls/ca.crt"),
                ("TANDEM__TLS__RELOAD_SECONDS", "5"),
                ("TANDEM_METRICS_PORT", "no setting"),
                ("PATH", "/bin"),
            ],
        );
        let config = config.unwrap();
        assert_eq!((config.executor.prewarm_threads, config.executor.cache_codes), (2, 7));
        let store = &config.storage_writer.store;
        assert_eq!((store.cache_bytes_max, store.background_threads), (1000, 9));
        assert_eq!(config.policies.batching.to_string(), "fixed{16,500}");
        assert_eq!(config.discovery.addr.to_string(), "127.0.0.9");
        assert_eq!(config.discovery.bootnodes, ["enode://a", "enode://b"]);
        assert_eq!(config.traces.sampling.to_string(), "slow{150}");
        assert!(!config.multiproof_workers.verify_nodes);
        let tls = (config.tls.ca.unwrap(), config.tls.reload_seconds);
        assert_eq!(tls, ("/etc/tandem/tls/ca.crt".into(), 5));
    }

    #[test]
    fn a_variable_that_is_no_setting_is_named() {
        for (name, value, reason) in [
            ("TANDEM__EXECUTOR__PREWARM_THREAD", "2", "unknown field `prewarm_thread`"),
            ("TANDEM__EXECUTER__PREWARM_THREADS", "2", "unknown field `executer`"),
            ("TANDEM__", "2", "unknown field ``"),
            ("TANDEM__TRACES__SAMPLING", "ratio{2}", "invalid sampling of traces `ratio{2}`"),
            ("TANDEM__EXECUTOR__PREWARM_THREADS", "two", "invalid type: string \"two\""),
            ("TANDEM__EXECUTOR__PREWARM_THREADS", "1\ncache_codes = 2", "invalid type: string"),
        ] {
            let error = with("", &[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{name}: ")) && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn what_storage_writer_is_told_holds_for_those_that_keep_layers_over_it() {
        let config = load("[storage_writer]\npersist_depth = 3\nunfinalized_blocks_max = 5\n");
        let config = config.unwrap().agreed();
        assert_eq!((config.executor.persist_depth, config.executor.unfinalized_blocks_max), (3, 5));
    }

    #[test]
    fn settings_are_printed_as_a_file_that_can_be_read() {
        let mut config = Config::default();
        config.executor.prewarm_threads = 11;
        config.discovery.network = Some(tandem_discovery::Network::Hoodi);
        config.blob_validator.grpc_addr = Some("127.0.0.1:9603".parse().unwrap());
        config.tls.cert = Some("/etc/tandem/tls/tls.crt".into());
        config.traces.sampling = tandem_telemetry::Sampling::Ratio(0.25);
        let text = config.to_toml().unwrap();
        let read = load(&text).unwrap();
        assert_eq!(read.to_toml().unwrap(), text);
        assert_eq!(read.executor.prewarm_threads, 11);
        assert_eq!((read.discovery, read.tls), (config.discovery, config.tls));
        assert_eq!(read.traces, config.traces);
    }

    #[test]
    fn policies_are_read_and_wrong_ones_named() {
        let text = "[policies]\nbatching = \"fixed{16,500}\"\nchunk_targets = 60\n";
        let policies = load(text).unwrap().policies;
        let got = policies.entries().map(|(key, value)| format!("{key}={value}"));
        assert_eq!(got[..3], ["batching=fixed{16,500}", "chunking=always", "chunk_targets=60"]);
        for (setting, reason) in [
            ("batchin = \"none\"", "unknown field `batchin`"),
            ("batching = \"some\"", "invalid value `some` for `batching`; expected `none`"),
            ("batching = 16", "invalid type: integer `16`"),
            ("chunk_targets = 0", "expected a nonzero u32"),
            ("transition_flush = \"fixed{0}\"", "invalid value `fixed{0}` for `transition_flush`"),
        ] {
            let error = load(&format!("[policies]\n{setting}\n")).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
