//! Another user of the machine, beside `tandem cluster` with default settings.

use super::probe::{Kind, Target, Tried, call_all, summary};
use crate::{
    Setting,
    blocks::write_genesis,
    figure::{Figure, Limit, Report},
};
use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use std::{
    env,
    fs::{self, File, Permissions},
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// User and group of the neighbour, those of the user `nobody`.
const NEIGHBOUR: u32 = 65_534;
/// Longest time until the cluster is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(120);
/// Longest time of the neighbour's calls.
const PROBE_TIME_MAX: Duration = Duration::from_secs(300);

/// Task of the neighbour: everything that any user of the machine can find out.
#[derive(Serialize, Deserialize)]
struct Task {
    targets: Vec<Target>,
    sockets: Vec<PathBuf>,
    data: PathBuf,
    processes: Vec<u32>,
}

/// Calls, files and passwords that the neighbour reached.
#[derive(Serialize, Deserialize)]
struct Reached {
    tried: Vec<Tried>,
    /// Files of the data directory that it can read or write.
    files: Vec<PathBuf>,
    /// Command lines that hold a password.
    passwords: Vec<String>,
}

/// Measures the figures.
pub fn measure(setting: &Setting, report: &mut Report) {
    report.measure("neighbour: another user beside tandem cluster", || {
        ensure!(fs::metadata("/proc/self")?.uid() == 0, "only root can become another user");
        let cluster = Cluster::start(&setting.tandem)?;
        let reached = cluster.visit()?;
        let (through, note) = summary(&reached.tried);
        let files: Vec<_> = reached.files.iter().map(|file| file.display().to_string()).collect();
        let text = files.iter().take(6).cloned().collect::<Vec<_>>().join(", ");
        Ok(vec![
            Figure::new(
                "neighbour: state-changing calls of another user, through",
                through as f64,
                Limit::Exactly(0.0),
            )
            .note(note),
            Figure::new(
                "neighbour: files of the data directory open to another user",
                files.len() as f64,
                Limit::Exactly(0.0),
            )
            .note(text),
            Figure::new(
                "neighbour: passwords in command lines",
                reached.passwords.len() as f64,
                Limit::Exactly(0.0),
            )
            .note(reached.passwords.join(", ")),
        ])
    });
}

/// A `tandem cluster` in a folder that every user may enter.
struct Cluster {
    child: Child,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn start(tandem: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tandem-figures-").tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let genesis = folder.path().join("genesis.json");
        write_genesis(&genesis)?;
        let mut command = Command::new(tandem);
        command.arg("cluster").arg("--datadir").arg(folder.path().join("data"));
        command.arg("--genesis").arg(genesis);
        // Only the ports differ from the defaults, which may be in use.
        command.args(["--authrpc.port", "0", "--http.port", "0"]);
        command.args(["--discovery.addr", "127.0.0.1", "--discovery.port", "0"]);
        let says = File::create(folder.path().join("says"))?;
        command.stdin(Stdio::null()).stdout(says.try_clone()?).stderr(says);
        let child = command.spawn().context("start tandem cluster")?;
        let mut cluster = Self { child, folder };
        super::kube::wait("the cluster to be ready", READY_TIME_MAX, || {
            if let Some(status) = cluster.child.try_wait()? {
                bail!("tandem cluster ended with {status}: {}", cluster.says());
            }
            Ok(cluster.says().contains("ready: ").then_some(()))
        })?;
        Ok(cluster)
    }

    fn says(&self) -> String {
        fs::read_to_string(self.folder.path().join("says")).unwrap_or_default()
    }

    /// Runs the calls as another user and returns what it reached.
    fn visit(&self) -> anyhow::Result<Reached> {
        let says = self.says();
        let data = self.folder.path().join("data");
        let (targets, processes) = read_table(&says);
        ensure!(targets.len() > 4, "the table of processes is read: {says}");
        let task = Task { targets, sockets: sockets_below(&data), data, processes };
        // The neighbour may not be allowed to enter this program's folder.
        let program = self.folder.path().join("figures");
        fs::copy(env::current_exe()?, &program)?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        let mut command = Command::new(&program);
        command.args(["neighbour-calls", "--tandem", "/"]).uid(NEIGHBOUR).gid(NEIGHBOUR);
        command.current_dir("/");
        let input = serde_json::to_vec(&task)?;
        let out = super::kube::run(&mut command, Some(&input), PROBE_TIME_MAX)?;
        serde_json::from_str(&out).context("parse what the neighbour says")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        // The cluster stops its processes; if it cannot be asked, they end with it.
        let asked = Command::new("kill").args(["-TERM", &id]).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Reads ports and process ids from the table that `tandem cluster` prints.
fn read_table(says: &str) -> (Vec<Target>, Vec<u32>) {
    let (mut targets, mut processes) = (Vec::new(), Vec::new());
    for line in says.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, pid, rest @ ..] = words.as_slice() else { continue };
        let Ok(pid) = pid.parse() else { continue };
        processes.push(pid);
        for pair in rest.windows(2) {
            let Ok(port) = pair[1].trim_end_matches(',').parse::<u16>() else { continue };
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let kind = match pair[0] {
                "grpc" => Kind::Grpc(service_of(name).to_owned()),
                "nats" => Kind::Nats,
                "engine" => Kind::Engine,
                "http" => Kind::Http,
                _ => continue,
            };
            targets.push(Target { kind, address });
        }
    }
    (targets, processes)
}

/// Returns the name of a process's gRPC service.
pub fn service_of(role: &str) -> &'static str {
    match role {
        "storage-writer" => "StorageWriter",
        "blob-validator" => "BlobValidator",
        "peer-table" => "PeerTable",
        _ => "MultiproofWorkers",
    }
}

fn sockets_below(folder: &Path) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    walk(folder, &mut |path| {
        if fs::metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            sockets.push(path.to_owned());
        }
    });
    sockets
}

fn walk(folder: &Path, see: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, see);
        } else {
            see(&path);
        }
    }
}

/// Performs the neighbour's task and prints the result. Runs as the other user.
///
/// # Errors
/// If the task cannot be read.
#[expect(clippy::print_stdout, reason = "the answer to the program that started this one")]
pub fn calls() -> anyhow::Result<()> {
    let task: Task = serde_json::from_reader(std::io::stdin())?;
    let mut tried = call_all(&task.targets)?;
    for socket in &task.sockets {
        let connected = UnixStream::connect(socket);
        let said = connected.as_ref().map_or_else(ToString::to_string, |_| "connected".to_owned());
        let what = format!("socket {}", socket.display());
        tried.push(Tried { what, is_through: connected.is_ok(), said });
    }
    let mut files = Vec::new();
    walk(&task.data, &mut |path| {
        let is_open = File::open(path).is_ok() || File::options().append(true).open(path).is_ok();
        if is_open {
            files.push(path.strip_prefix(&task.data).unwrap_or(path).to_owned());
        }
    });
    let mut passwords = Vec::new();
    for process in task.processes {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let holds = |word: &str| word.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
        passwords.extend(line.split(' ').filter(|word| holds(word)).map(str::to_owned));
    }
    let text = serde_json::to_string(&Reached { tried, files, passwords })?;
    println!("{text}");
    std::io::stdout().flush().context("print")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_cluster_is_read() {
        let says = "process pid where log\nstorage-writer 12 grpc 9600, metrics 9100 /tmp/a.log\n\
            nats-server 13 nats 4222 /tmp/b.log\nexecutor 14 engine 1, http 2, metrics 3 /c.log\n\
            ready: Engine API at http://127.0.0.1:1\n";
        let (targets, processes) = read_table(says);
        assert_eq!(processes, [12, 13, 14]);
        let kinds: Vec<_> = targets.iter().map(|target| target.kind.clone()).collect();
        let grpc = Kind::Grpc("StorageWriter".to_owned());
        assert_eq!(kinds, [grpc, Kind::Nats, Kind::Engine, Kind::Http]);
        assert_eq!(targets[0].address.port(), 9600);
    }
}
