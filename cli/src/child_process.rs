//! Processes of other programs, or of this one, on loopback ports.

use crate::lab::program::CpuSet;
use anyhow::Context;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of log lines that an error shows.
const LOG_LINES: usize = 15;
/// Pause between two looks at a process that is to end.
const POLL: Duration = Duration::from_millis(50);

/// A process that does not outlive this value.
pub struct ChildProcess {
    child: Child,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts a program with the arguments that `arguments` adds, on these processors. Its output
    /// goes to `log`.
    pub fn start(
        program: &Path,
        cpus: Option<&CpuSet>,
        log: PathBuf,
        arguments: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut command = Command::new(program);
        // Variables of this process are not meant for the nodes: the experiment has their settings.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "RUST_LOG" || text.starts_with("OTEL_") || text.starts_with("TANDEM_") {
                command.env_remove(&name);
            }
        }
        arguments(&mut command);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut start = || command.spawn().with_context(|| format!("start {}", program.display()));
        let child = match cpus {
            Some(cpus) => cpus.starting(start)?,
            None => start()?,
        };
        Ok(Self { child, log })
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks the process to end, and waits for it, at most for this time.
    pub fn end(&mut self, time_max: Duration) {
        let _ = Command::new("kill").arg(self.id().to_string()).status();
        let begin = Instant::now();
        while begin.elapsed() < time_max && matches!(self.ended(), Ok(None)) {
            sleep(POLL);
        }
    }

    /// Returns the exit status once the process has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("wait for a process")
    }

    /// Returns the log so far.
    pub fn whole_log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the end of the log.
    pub fn log(&self) -> String {
        let text = self.whole_log();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Errors mean that the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns ports that were free a moment ago, each another one.
pub fn free_ports<const COUNT: usize>() -> anyhow::Result<[u16; COUNT]> {
    let mut listeners = Vec::with_capacity(COUNT);
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("find a free port")?;
        *port = listener.local_addr()?.port();
        // Held until all are found, so that none comes twice.
        listeners.push(listener);
    }
    Ok(ports)
}
