//! Tx-executors outside of the cluster: processes of their own, each behind a network that can be
//! disturbed.

use super::SHARE;
use crate::{
    node::{Kind, Node, free_ports},
    quota::Quota,
};
use anyhow::{Context as _, ensure};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tandem_testkit::network::{Network, Proxy};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// Time that a disturbance lasts.
const DISTURBED: Duration = Duration::from_millis(300);
/// Delay of a slow network, one way.
const SLOW: Duration = Duration::from_millis(20);

/// Way in which a tx-executor or its network fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process is killed, and started again.
    Kill,
    /// The process stops, and goes on later.
    Stop,
    /// The connection is reset.
    Reset,
    /// All connections end, and no new one is accepted for a while.
    Cut,
    /// Nothing comes through for a while.
    Silent,
    /// Everything takes longer for a while.
    Slow,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 6] =
        [Self::Kill, Self::Stop, Self::Reset, Self::Cut, Self::Silent, Self::Slow];
}

/// Tx-executors.
pub struct Outside {
    binary: PathBuf,
    all: Vec<Member>,
    /// Runs the networks.
    runtime: Runtime,
    folder: TempDir,
}

struct Member {
    port: u16,
    network: Proxy,
    child: Child,
    /// Group of the process, which can be removed only without it.
    share: Option<Quota>,
}

impl Outside {
    /// Starts tx-executors.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn start(binary: &Path, count: usize) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        let mut started = Self { binary: binary.to_owned(), all: Vec::new(), runtime, folder };
        for number in 0..count {
            let [address, ..] = free_ports()?;
            let child = started.spawn(number, address.port())?;
            let network = Proxy::start(address, started.runtime.handle());
            started.all.push(Member { port: address.port(), network, child, share: None });
        }
        Ok(started)
    }

    fn spawn(&self, number: usize, port: u16) -> anyhow::Result<Child> {
        let log = self.folder.path().join(format!("tx-executor-{number}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(&self.binary);
        command.args(["tx-executor", "--grpc.port", &port.to_string(), "--metrics.port", "0"]);
        // As in `ONE_THREAD`.
        command.args(["--threads", "1"]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().context("start a tx-executor")
    }

    /// Starts a cluster that uses them.
    ///
    /// # Errors
    /// As for [`Node::start`].
    pub fn start_cluster(&self, genesis: &Path) -> anyhow::Result<Node> {
        let urls = self.all.iter().map(|member| format!("\"http://{}\"", member.network.address));
        let urls: Vec<_> = urls.collect();
        let config = format!("[executor]\ntx_executors = [{}]\n", urls.join(", "));
        // They have no certificates of its authority.
        let flags = vec!["--insecure".to_owned()];
        Node::start_configured(Kind::Six, &self.binary, genesis, &config, flags)
    }

    /// Gives each process its share of a processor.
    ///
    /// # Errors
    /// As for [`Quota::of_each`].
    pub fn limit(&mut self) -> anyhow::Result<()> {
        for member in &mut self.all {
            member.share = Some(Quota::of_each(&[member.child.id()], SHARE)?);
        }
        Ok(())
    }

    /// Delays everything between them and the executor by this time, one way.
    pub fn delay(&self, delay: Duration) {
        self.all.iter().for_each(|member| member.network.set(Network::Slow(delay)));
    }

    /// Disturbs a tx-executor, and mends it after a while.
    ///
    /// # Errors
    /// If a process cannot be signalled, or started again.
    pub fn disturb(&mut self, number: usize, fault: Fault) -> anyhow::Result<()> {
        let member = &mut self.all[number];
        let during = |network: Network, member: &Member| {
            member.network.set(network);
            thread::sleep(DISTURBED);
            member.network.set(Network::Works);
        };
        match fault {
            Fault::Kill => {
                member.child.kill()?;
                member.child.wait()?;
                let (port, is_limited) = (member.port, member.share.take().is_some());
                thread::sleep(DISTURBED);
                let child = self.spawn(number, port)?;
                let share = is_limited.then(|| Quota::of_each(&[child.id()], SHARE)).transpose()?;
                let member = &mut self.all[number];
                (member.child, member.share) = (child, share);
            }
            Fault::Stop => {
                signal(&member.child, "STOP")?;
                thread::sleep(DISTURBED);
                signal(&member.child, "CONT")?;
            }
            Fault::Reset => drop(member.network.reset()),
            Fault::Cut => during(Network::Cut, member),
            Fault::Silent => during(Network::Silent, member),
            Fault::Slow => during(Network::Slow(SLOW), member),
        }
        Ok(())
    }
}

fn signal(child: &Child, name: &str) -> anyhow::Result<()> {
    let sent =
        Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status()?;
    ensure!(sent.success(), "SIG{name} was not sent");
    Ok(())
}

impl Drop for Member {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
