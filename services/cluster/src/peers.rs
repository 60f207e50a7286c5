//! Runs discovery and peer-table alone, in their own process.

use crate::{Config, Error};
use std::sync::Arc;
use tandem_bus::Bus;
use tandem_discovery::Discovery;
use tandem_discv4::ForkId;
use tandem_peer_table::PeerTable;
use tandem_peer_table_client::{Client, ClientConfig};
use tandem_proto::{
    discovery::{DiscoveryApi, Status},
    peer_table::PeerTableApi,
};
use tandem_rpc::Identity;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// The services that find peers, running in this process.
pub struct Peers {
    table: Arc<dyn PeerTableApi>,
    /// The table, if it runs in this process.
    own: Option<Arc<PeerTable>>,
    discovery: Arc<Discovery>,
}

/// Resources that the services that find peers share with their process.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// Identity with which a peer-table in another process is called.
    pub identity: Identity,
    /// Bus on which discovery publishes the nodes it found, and hears how many peers are wanted.
    pub bus: Bus,
    /// Bus of the client of a peer-table in another process. The client forwards its events.
    pub direct: Bus,
    /// Cancelled when a thread panics.
    pub fatal: CancellationToken,
}

impl Peers {
    /// Starts peer-table and discovery. Only their parts of the configuration are used. `fork_id`
    /// is announced to other nodes (EIP-2124).
    ///
    /// # Errors
    /// [`Error::Discovery`], [`Error::Threads`].
    pub fn start(
        config: Config,
        fork_id: Option<ForkId>,
        within: Surroundings,
    ) -> Result<Self, Error> {
        let Surroundings { bus, fatal, .. } = within.clone();
        let deps = tandem_peer_table::Deps { bus, fatal };
        let own = PeerTable::start(config.peer_table, deps)?;
        match Self::over(own.clone(), &config.discovery, fork_id, within) {
            Ok(peers) => Ok(Self { own: Some(own), ..peers }),
            Err(error) => {
                own.stop();
                Err(error)
            }
        }
    }

    /// Starts discovery over a peer-table in another process, such as `http://10.0.0.7:9602`. An
    /// absent peer-table is not an error: it may start later, and restart.
    ///
    /// # Errors
    /// [`Error::Endpoint`], [`Error::Discovery`], [`Error::Threads`].
    pub fn start_over(
        endpoint: &str,
        config: &tandem_discovery::Config,
        fork_id: Option<ForkId>,
        within: Surroundings,
        runtime: &Handle,
    ) -> Result<Self, Error> {
        let (identity, direct) = (within.identity.clone(), within.direct.clone());
        let settings = ClientConfig { connection: identity.into(), ..ClientConfig::default() };
        let table = Client::connect(endpoint, settings, direct, runtime)?;
        Self::over(table, config, fork_id, within)
    }

    fn over(
        table: Arc<dyn PeerTableApi>,
        config: &tandem_discovery::Config,
        fork_id: Option<ForkId>,
        within: Surroundings,
    ) -> Result<Self, Error> {
        let Surroundings { bus, fatal, .. } = within;
        let deps = tandem_discovery::Deps { table: table.clone(), bus, fork_id, fatal };
        let discovery = Discovery::start(config.clone(), deps)?;
        Ok(Self { table, own: None, discovery })
    }

    /// Returns the status of discovery.
    pub fn status(&self) -> Status {
        self.discovery.status()
    }

    /// Returns the table. Its calls wait for an answer, so they must not run on the async reactor.
    pub fn table(&self) -> Arc<dyn PeerTableApi> {
        self.table.clone()
    }

    /// Stops discovery first, then the table if it runs here. The table writes its snapshot. May
    /// block.
    pub fn stop(&self) {
        self.discovery.stop();
        if let Some(table) = &self.own {
            table.stop();
        }
    }
}
