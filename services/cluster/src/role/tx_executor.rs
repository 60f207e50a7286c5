//! Runs tx-executor: the EVM for leased transactions, without a state of its own.

use super::Process;
use crate::{Config, Error};
use std::{net::SocketAddr, sync::Arc};
use tandem_executor::machines::TransactionWorkers;
use tandem_proto::access;
use tandem_tx_executor::{Deps, Server, TxExecutor};

/// Starts a tx-executor with its calls at `grpc`.
///
/// # Errors
/// [`Error::Listen`], [`Error::Threads`], [`Error::Tls`].
pub async fn tx_executor(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
) -> Result<(), Error> {
    let (listener, identity) =
        process.listen_grpc("grpc", grpc, access::TX_EXECUTOR, &config.tls).await?;
    let execution = Arc::new(TransactionWorkers::new(config.tx_executor.code_bytes_max));
    let deps = Deps { execution, fatal: process.fatal().clone() };
    let executor = TxExecutor::start(config.tx_executor, deps)?;
    let server = Server::new(executor.clone()).offered_as(identity);
    process.serve(server.serve(listener, process.stopping().clone()));
    process.at_end(move || executor.stop());
    process.started();
    Ok(())
}
