//! Connections of an executor to its tx-executors.

use crate::Error;
use std::sync::Arc;
use tandem_proto::tx_executor::TxExecutorApi;
use tandem_rpc::Identity;
use tandem_tx_executor_client::{self as client, ClientConfig};
use tokio::runtime::Handle;

/// Maximum number of tx-executors of an executor; each has a thread there.
const TX_EXECUTORS_MAX: usize = 64;

/// Connects in the background to the tx-executors at these addresses, whether or not they are
/// reachable. A host name counts as [`client::PLACES`] tx-executors.
///
/// # Errors
/// [`Error::Endpoint`], [`Error::TxExecutors`].
pub(crate) fn connect(
    urls: &[String],
    identity: &Identity,
    runtime: &Handle,
) -> Result<Vec<Arc<dyn TxExecutorApi>>, Error> {
    let settings = ClientConfig { connection: identity.clone().into(), ..ClientConfig::default() };
    let mut executors = Vec::new();
    for url in urls {
        executors.extend(client::connect(url, &settings, runtime)?);
    }
    match executors.len() {
        ..=TX_EXECUTORS_MAX => Ok(executors),
        count => Err(Error::TxExecutors { count, max: TX_EXECUTORS_MAX }),
    }
}
