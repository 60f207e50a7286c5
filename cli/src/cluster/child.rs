//! A process of a cluster: starts it, watches it, restarts it and stops it.

use super::plan::{OURS, Role};
use crate::environment::variable;
use anyhow::Context;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, set_parent_process_death_signal,
    waitid,
};
use std::{
    env,
    fs::{self, OpenOptions},
    io, mem,
    os::unix::process::CommandExt,
    process::{self, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Pause before the first restart of a process; doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Run time after which the pause before a restart is the shortest again.
const SETTLED: Duration = Duration::from_secs(10);
/// Longest wait for a process that was told to end.
const END_MAX: Duration = Duration::from_secs(11);
/// Name of the setting for how long an executor keeps its ports open at the end.
const LINGER: &str = "TANDEM__EXECUTOR__LINGER_SECONDS";
/// Number of log lines that are shown.
const LOG_LINES: usize = 15;

/// A process and its role.
pub struct Child {
    pub role: Role,
    state: State,
    pause: Duration,
}

enum State {
    Runs { process: process::Child, since: Instant },
    Pauses { until: Instant },
}

impl Child {
    /// Starts the process with an empty log.
    pub fn start(role: Role) -> anyhow::Result<Self> {
        fs::write(&role.log, "").with_context(|| format!("write {}", role.log.display()))?;
        let state = spawn(&role)?;
        Ok(Self { role, state, pause: PAUSE_MIN })
    }

    /// Returns the process id, or 0 while the process does not run.
    pub fn pid(&self) -> u32 {
        match &self.state {
            State::Runs { process, .. } => process.id(),
            State::Pauses { .. } => 0,
        }
    }

    /// Restarts the process if it has ended and the pause is over. A needed process that ends before
    /// the cluster was ready is not restarted: prints the reason and returns false.
    pub fn look(&mut self, ready: bool) -> anyhow::Result<bool> {
        match &mut self.state {
            State::Runs { process, since } => {
                let Some(status) = process.try_wait().context("wait for a process")? else {
                    return Ok(true);
                };
                if since.elapsed() >= SETTLED {
                    self.pause = PAUSE_MIN;
                }
                if !ready {
                    self.explain(status);
                    if self.role.is_needed {
                        return Ok(false);
                    }
                }
                eprintln!("{} ended ({status}), starts again", self.role.name);
                self.state = State::Pauses { until: Instant::now() + self.pause };
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
            State::Pauses { until } if Instant::now() >= *until => {
                self.state = spawn(&self.role)?;
                eprintln!("{} runs again, pid {}", self.role.name, self.pid());
            }
            State::Pauses { .. } => {}
        }
        Ok(true)
    }

    fn explain(&self, status: ExitStatus) {
        let log = fs::read_to_string(&self.role.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        eprintln!("{} ended ({status}), its log says\n{end}", self.role.name);
    }

    fn tell(&self, signal: Signal) {
        if let State::Runs { process, .. } = &self.state {
            // An error means that the process has ended.
            let _ = kill_process(Pid::from_child(process), signal);
        }
    }

    /// Returns whether the process has ended, and does not reap it (see [`stop_all`]).
    fn has_ended(&self) -> bool {
        let State::Runs { process, .. } = &self.state else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(Pid::from_child(process)), options), Ok(None))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let State::Runs { process, .. } = &mut self.state {
            // Errors mean that the process has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn spawn(role: &Role) -> anyhow::Result<State> {
    let log = OpenOptions::new().append(true).create(true).open(&role.log);
    let log = log.with_context(|| format!("open {}", role.log.display()))?;
    let mut command = Command::new(&role.binary);
    command
        .args(&role.arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // The terminal's SIGINT is for this process, which stops the others in order.
        .process_group(0);
    // Variables with the names of these flags are meant for this process, not for the services.
    for flag in OURS {
        command.env_remove(variable(flag));
    }
    for variable in &role.unset {
        command.env_remove(variable);
    }
    // There is no other executor that could take over calls at the end.
    if env::var_os(LINGER).is_none() {
        command.env(LINGER, "0");
    }
    let parent = rustix::process::getpid();
    let end_with_parent = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have died just before.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    };
    // SAFETY: between fork and exec only system calls are made, nothing is allocated or locked.
    unsafe { command.pre_exec(end_with_parent) };
    let process = command.spawn().with_context(|| format!("start {}", role.name))?;
    Ok(State::Runs { process, since: Instant::now() })
}

/// Stops processes in the reverse order of their start, so that callers end first. Services that do
/// not call each other end together.
///
/// Does not reap the processes: this process ends next, and then the system reaps them. On Linux, a
/// process that reaps another one can spin in the kernel until the other one's entries in `/proc` are
/// gone. On a busy machine that took from seconds to minutes.
pub async fn stop_all(mut children: Vec<Child>) {
    while let Some(stage) = children.last().map(|child| child.role.stage) {
        let first = children.iter().position(|child| child.role.stage == stage).unwrap_or(0);
        let ending = children.split_off(first);
        ending.iter().for_each(|child| child.tell(Signal::TERM));
        let started = Instant::now();
        while !ending.iter().all(Child::has_ended) {
            if started.elapsed() > END_MAX {
                for child in ending.iter().filter(|child| !child.has_ended()) {
                    eprintln!("{} does not end and is killed", child.role.name);
                    child.tell(Signal::KILL);
                }
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        ending.into_iter().for_each(mem::forget);
    }
}
