//! geth with data of its own, and an Engine API.

use crate::{client::Client, node::CALL_TIME_MAX};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};
use tandem_testkit::geth::{Geth, run};
use tempfile::TempDir;

/// Folder of one geth, which must not go before the process has ended.
pub struct GethData {
    folder: TempDir,
    secret: PathBuf,
    address: SocketAddr,
}

impl GethData {
    /// Makes the data of a geth from a genesis file.
    ///
    /// # Errors
    /// If a file cannot be written, or there is no free port.
    pub fn init(genesis: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        run(folder.path(), "geth", "init", &[genesis]);
        let secret = folder.path().join("jwt.hex");
        // The secret only keeps others on this machine from calling by mistake.
        fs::write(&secret, "5e".repeat(32))?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Ok(Self { folder, secret, address })
    }

    /// Starts the process. `mode` is how it synchronises: `full` or `snap`.
    pub fn start(&self, mode: &str) -> Geth {
        let (port, secret) = (self.address.port().to_string(), self.secret.to_string_lossy());
        let flags = ["--port", "0", "--syncmode", mode, "--authrpc.jwtsecret", &secret];
        Geth::start(self.folder.path(), "geth", &[&flags[..], &["--authrpc.port", &port]].concat())
    }

    /// Returns a client of its Engine API.
    ///
    /// # Errors
    /// If there is no secret.
    pub fn engine(&self) -> anyhow::Result<Client> {
        Client::engine(self.address, &self.secret, CALL_TIME_MAX)
    }
}
