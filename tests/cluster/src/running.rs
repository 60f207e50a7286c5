//! A running `tandem` process with a log, whatever its command.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tandem_bus_tests::eventually;

/// A process with a log. Dropping it kills it.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts `tandem` with these arguments, its log in `folder` under this name.
    pub fn start(
        binary: &Path,
        folder: &Path,
        name: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Self {
        Self::start_with(binary, folder, name, arguments, &[])
    }

    /// Like [`Running::start`], with these environment variables.
    pub fn start_with(
        binary: &Path,
        folder: &Path,
        name: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        variables: &[(&str, &str)],
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = Command::new(binary)
            .args(arguments)
            // Flags override them.
            .envs([("RUST_LOG", "info"), ("TANDEM_TRACE_LEVEL", "off")])
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Waits for `mark` in the log. Returns the text after it, up to the next space or quote.
    pub fn says(&mut self, mark: &str) -> String {
        eventually(mark, || {
            let log = fs::read_to_string(&self.log).unwrap();
            let text = log.split_once(mark).and_then(|(_, rest)| {
                let end = rest.find(|c: char| c.is_whitespace() || c == '"')?;
                Some(rest[..end].to_owned())
            });
            assert!(text.is_some() || self.child.try_wait().unwrap().is_none(), "{log}");
            text
        })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything it has written.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills it with SIGKILL: it writes nothing more.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Terminates it with SIGTERM. Returns its exit status and the time it took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        signal(self.pid(), Signal::TERM);
        (self.ends(), begun.elapsed())
    }

    /// Returns whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it has ended by itself.
    pub fn ends(&mut self) -> ExitStatus {
        eventually("the end of a process", || self.child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to an existing process.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
}
