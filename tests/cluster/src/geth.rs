//! geth's discovery, where geth is installed: real nodes that talk only to this machine.

use std::{
    env,
    fs::{self, File},
    io,
    net::{Ipv4Addr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Longest wait for geth's discovery after its start.
const START_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum of ports to try.
const ATTEMPTS_MAX: usize = 5;

/// A `geth` that finds nodes on 127.0.0.0/8 and does little else.
pub struct Geth {
    child: Child,
    enode: String,
}

impl Geth {
    /// Returns the path of geth: `go install github.com/ethereum/go-ethereum/cmd/geth@v1.17.8`.
    pub fn binary() -> Option<PathBuf> {
        let path = PathBuf::from(env::var_os("HOME")?).join("go/bin/geth");
        path.exists().then_some(path)
    }

    /// Starts a geth with its files in `folder`. Whatever it is bound to, it listens on 127.0.0.1,
    /// as that is where its packets come from. It has mainnet's genesis and thus announces it. It
    /// wants no peers, as a node that lacks peers searches for them without end.
    ///
    /// # Errors
    /// geth's error, with the end of its log.
    pub fn start(binary: &Path, folder: &Path, bootnodes: &str) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut attempts = 1..ATTEMPTS_MAX;
        loop {
            // Another process may take the port before geth does, also as the local end of a
            // connection.
            match Self::start_on_a_port(binary, folder, bootnodes) {
                Err(error)
                    if error.to_string().contains("address already in use")
                        && attempts.next().is_some() => {}
                started => return started,
            }
        }
    }

    fn start_on_a_port(binary: &Path, folder: &Path, bootnodes: &str) -> io::Result<Self> {
        let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
        let log = folder.join("geth.log");
        let file = File::create(&log)?;
        let child = Command::new(binary)
            .args(["--port", &port, "--discovery.port", &port, "--bootnodes", bootnodes])
            .args(["--nat", "extip:127.0.0.1", "--netrestrict", "127.0.0.0/8"])
            .args(["--discovery.dns", "", "--discovery.v5=false", "--maxpeers", "0"])
            .args(["--authrpc.port", "0", "--ipcdisable", "--cache", "16", "--datadir"])
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()?;
        let mut geth = Self { child, enode: String::new() };
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(&log)?;
            let line = text.lines().find(|line| line.contains("Started P2P networking"));
            if let Some((_, enode)) = line.and_then(|line| line.split_once("self=")) {
                enode.trim().clone_into(&mut geth.enode);
                return Ok(geth);
            }
            if started.elapsed() > START_TIME_MAX || geth.child.try_wait()?.is_some() {
                return Err(io::Error::other(format!("geth does not start: {text}")));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Returns the node URL.
    pub fn enode(&self) -> &str {
        &self.enode
    }
}

impl Drop for Geth {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
