//! Parts of a suite.

use std::{cell::RefCell, mem, net::SocketAddr, path::Path, time::Duration};
use tandem_policy::Policies;

/// Result of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The case ended as its fixture says.
    Passed,
    /// The case ended otherwise; the text names the expected and the actual result.
    Failed(String),
    /// The case was not run; the reason appears in the report.
    Skipped(String),
}

/// One case of a fixture file.
pub struct Case {
    /// Name of the case's suite ([`Suite::name`]).
    pub suite: &'static str,
    /// The fork (or transition) whose rules it tests, `-` if that does not apply.
    pub fork: String,
    /// The case's name, unique in its file.
    pub name: String,
    /// Function that runs the case. Called once, on any thread.
    pub run: Box<dyn FnOnce(&Setting) -> Outcome + Send>,
}

/// Way to run a case. The runner derives it from the case's name, so it never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setting {
    /// Whether calls go over HTTP with a token instead of to the handlers.
    pub http: bool,
    /// Whether the database is in a temporary directory instead of in memory.
    pub database: bool,
    /// Policies of the node; they never change the result.
    pub policies: Policies,
    /// JSON-RPC port of a running node to send exchanges to, instead of starting one.
    pub rpc: Option<SocketAddr>,
}

/// One fixture format.
pub trait Suite: Sync {
    /// Returns the suite's name in the report.
    fn name(&self) -> &'static str;

    /// Returns whether a file is one of the suite's fixtures. Its path decides and, if that is not
    /// enough, the first bytes of its text.
    fn takes(&self, path: &Path, start: &str) -> bool;

    /// Returns whether its cases start a node, so that [`Setting`] affects them.
    fn uses_node(&self) -> bool {
        false
    }

    /// Reads the cases of a file. Cases that cannot be run are included and say so when run.
    ///
    /// # Errors
    /// If the file is not what its path promises.
    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>>;
}

thread_local! {
    /// Times of the payloads of the case that runs on this thread: a case runs on only one.
    static PAYLOAD_TIMES: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
}

/// Records how long the node took to answer a payload of the case that runs on this thread.
pub(crate) fn note_payload_time(elapsed: Duration) {
    PAYLOAD_TIMES.with_borrow_mut(|times| times.push(elapsed));
}

/// Returns the times recorded on this thread since the last call.
pub(crate) fn take_payload_times() -> Vec<Duration> {
    PAYLOAD_TIMES.with_borrow_mut(mem::take)
}
