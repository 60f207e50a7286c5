//! Connections of an executor to its tx-executors.

use crate::Error;
use std::sync::Arc;
use tandem_proto::tx_executor::TxExecutorApi;
use tandem_rpc::Identity;
use tandem_tx_executor_client::{Client, ClientConfig};
use tokio::runtime::Handle;

/// Maximum number of tx-executors of an executor; each has a thread there.
const TX_EXECUTORS_MAX: usize = 64;

/// Connects in the background to the tx-executors at these addresses, whether or not they are
/// reachable.
///
/// # Errors
/// [`Error::Endpoint`], [`Error::TxExecutors`].
pub(crate) fn connect(
    urls: &[String],
    identity: &Identity,
    runtime: &Handle,
) -> Result<Vec<Arc<dyn TxExecutorApi>>, Error> {
    if urls.len() > TX_EXECUTORS_MAX {
        return Err(Error::TxExecutors { count: urls.len(), max: TX_EXECUTORS_MAX });
    }
    let connect = |url: &String| {
        let connection = identity.clone().into();
        let settings = ClientConfig { connection, ..ClientConfig::default() };
        Ok(Client::connect(url, settings, runtime)? as Arc<dyn TxExecutorApi>)
    };
    urls.iter().map(connect).collect()
}
