//! Log lines of a test's thread.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Longest wait for anything, on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Captures the log of this thread until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        let logs = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(logs.clone())
            .finish();
        (logs, tracing::subscriber::set_default(subscriber))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns how many lines contain this text.
    pub fn count(&self, mark: &str) -> usize {
        self.text().lines().filter(|line| line.contains(mark)).count()
    }

    /// Waits for a line that contains this text.
    pub async fn say(&self, mark: &str) {
        self.say_times(mark, 1).await;
    }

    /// Waits for `times` lines that contain this text.
    pub async fn say_times(&self, mark: &str, times: usize) {
        let said = async {
            while self.count(mark) < times {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(PATIENCE, said).await;
        assert!(waited.is_ok(), "nobody said {mark:?} in\n{}", self.text());
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
