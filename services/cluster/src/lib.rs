//! Starts the services in one process. `tandem node`, the demo and the tests share one
//! [`Cluster::start`]; [`Cluster::start_in_memory`] does the same over a database in memory.
//! [`Peers::start`] starts only the two services that find peers. [`role`] has each service as a
//! process.
//!
//! ```text
//!            ┌──────────── executor ────────────┐
//!   HTTP ───►│ rpc ─► engine                    │
//!            └───┬────────────────────┬─────────┘
//!     ProofApi   │                    │ StorageApi        (function calls, no sockets)
//!            ┌───▼──────────────┐   ┌─▼───────────────┐
//!            │ multiproof-      ├──►│ storage-writer  ├── RocksDB
//!            │ workers          │   └─┬───────────────┘
//!            └──────────────────┘     └─► bus: chain.persisted
//!
//!   UDP ────► discovery ── PeerTableApi ──► peer-table      blob-validator
//!                  └─► bus: peers.discovered ──┘ ▲  └─► bus: peers.target ─► discovery
//!   TCP ────► peer-sessions ── PeerTableApi ─────┘
//!                  └── StorageApi ──► storage-writer
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod config;
mod forks;
mod history;
mod http;
mod import;
mod peer_methods;
mod peers;
mod policies;
mod pool;
mod profile;
mod public;
pub mod role;
mod secret;
mod sessions;
mod start;
mod sync;
mod traces;
mod tx_executors;

pub use check::check;
pub use config::{Config, ConfigError, Ports};
pub use history::{Export, ExportError};
pub use import::{BlockFile, ImportError, Imported, import};
pub use peers::{Peers, Surroundings};
pub use policies::follow_policies;
pub use start::{Cluster, Error};
pub use sync::start_sync;
pub use tandem_discovery::{Config as DiscoveryConfig, Network, load_or_create_node_key};
pub use tandem_executor::{Config as ExecutorConfig, Handle, rpc::ClientInfo};
pub use tandem_peer_sessions::Config as SessionsConfig;
pub use tandem_rpc::{EVENT_INTERVAL, Identity, TlsConfig, certificates, install_ring};
pub use tandem_storage_writer::{Difference, Report};
