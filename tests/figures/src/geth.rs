//! geth with data of its own, and an Engine API.

use crate::{
    client::{Client, forkchoice},
    node::CALL_TIME_MAX,
};
use anyhow::ensure;
use serde_json::{Value, json};
use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use tandem_testkit::geth::{Geth, run};
use tempfile::TempDir;

/// Longest download, and longest check of the flat state after it.
const DOWNLOAD_TIME_MAX: Duration = Duration::from_secs(3_600);

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
        Self::init_in(&env::temp_dir(), genesis)
    }

    /// As [`GethData::init`], in a folder below this one.
    ///
    /// # Errors
    /// As for [`GethData::init`].
    pub fn init_in(parent: &Path, genesis: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir_in(parent)?;
        run(folder.path(), "geth", "init", &[genesis]);
        let secret = folder.path().join("jwt.hex");
        // The secret only keeps others on this machine from calling by mistake.
        fs::write(&secret, "5e".repeat(32))?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Ok(Self { folder, secret, address })
    }

    /// Starts the process. `mode` is how it synchronises: `full` or `snap`.
    pub fn start(&self, mode: &str) -> Geth {
        self.start_by(Command::new("geth"), &["--syncmode", mode])
    }

    /// Starts the process by a command that ends in `geth`, with further flags.
    pub fn start_by(&self, command: Command, flags: &[&str]) -> Geth {
        let (port, secret) = (self.address.port().to_string(), self.secret.to_string_lossy());
        let own = ["--port", "0", "--authrpc.jwtsecret", &secret, "--authrpc.port", &port];
        Geth::start_by(command, self.folder.path(), "geth", &[&own[..], flags].concat())
    }

    /// Returns the folder of the database.
    pub fn database(&self) -> PathBuf {
        self.folder.path().join("geth")
    }

    /// Returns what the process has logged since its last start.
    ///
    /// # Errors
    /// If there is no log.
    pub fn log(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("geth.log"))?)
    }

    /// Downloads the state of a chain from one server up to this head, checks the flat state, and ends. Returns the
    /// seconds until it had the head.
    ///
    /// # Errors
    /// If geth does not answer or needs too long.
    pub fn download(&self, server: &str, head: &str) -> anyhow::Result<f64> {
        let mut geth = self.start("snap");
        geth.eval(&format!("admin.addPeer('{server}')"));
        let (mut engine, head) = (self.engine()?, json!(head));
        let begin = Instant::now();
        wait("geth's download", DOWNLOAD_TIME_MAX, || follows(&mut engine, &head))?;
        let seconds = begin.elapsed().as_secs_f64();
        // Until then, geth reads accounts and slots from the tries, and serves no ranges.
        wait("geth's check of the flat state", DOWNLOAD_TIME_MAX, || {
            let log = self.log()?;
            Ok(!log.contains("Started snapshot generation") || log.contains("Generated snapshot"))
        })?;
        geth.end();
        Ok(seconds)
    }

    /// Returns a client of its Engine API.
    ///
    /// # Errors
    /// If there is no secret.
    pub fn engine(&self) -> anyhow::Result<Client> {
        Client::engine(self.address, &self.secret, CALL_TIME_MAX)
    }
}

/// Names a head to a geth that downloads. Returns whether it has arrived there.
///
/// # Errors
/// If it does not answer, or refuses the head.
pub fn follows(engine: &mut Client, head: &Value) -> anyhow::Result<bool> {
    match forkchoice(engine, head) {
        Ok(status) => Ok(status["status"] == "VALID"),
        // Its downloader is starting over, and says so for a moment.
        Err(error) if error.to_string().contains("beacon syncer reorging") => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until something is there.
///
/// # Errors
/// If `is_there` fails, or the wait takes longer than `time_max`; that error says what was waited for.
pub fn wait(
    what: &str,
    time_max: Duration,
    mut is_there: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !is_there()? {
        ensure!(begin.elapsed() < time_max, "waited {time_max:.0?} for {what}");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}
