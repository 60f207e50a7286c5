//! What a suite is made of.

use std::{cell::RefCell, mem, path::Path, time::Duration};
use tandem_policy::Policies;

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As its fixture says.
    Passed,
    /// Otherwise; the text says what was wanted and what came.
    Failed(String),
    /// Not run; the reason stands in the report.
    Skipped(String),
}

/// One case of a fixture file.
pub struct Case {
    /// [`Suite::name`].
    pub suite: &'static str,
    /// The fork (or transition) whose rules it tests, `-` where that means nothing.
    pub fork: String,
    /// Its name, unique in its file.
    pub name: String,
    /// Runs it. Called once, on any thread.
    pub run: Box<dyn FnOnce(&Setting) -> Outcome + Send>,
}

/// How to run a case: decided by the runner from the case's name, the same each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setting {
    /// Over HTTP with a token instead of calling the handlers.
    pub http: bool,
    /// On a database in a temporary directory instead of in memory.
    pub database: bool,
    /// By these policies; what comes out is the same by all of them.
    pub policies: Policies,
}

/// One fixture format.
pub trait Suite: Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;

    /// Whether this file is one of its fixtures, judged by its path and, where that is not enough,
    /// by the first bytes of its text.
    fn takes(&self, path: &Path, start: &str) -> bool;

    /// Whether its cases start a node, so that [`Setting`] means something to them.
    fn uses_node(&self) -> bool {
        false
    }

    /// Reads the cases of a file. Cases that cannot be run are among them and say so when run.
    ///
    /// # Errors
    /// When the file is not what its path promises.
    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>>;
}

thread_local! {
    /// Times of the payloads of the case that runs on this thread: a case runs on one.
    static PAYLOAD_TIMES: RefCell<Vec<Duration>> = const { RefCell::new(Vec::new()) };
}

/// Notes how long the node took to answer a payload of the case that runs on this thread.
pub(crate) fn note_payload_time(elapsed: Duration) {
    PAYLOAD_TIMES.with_borrow_mut(|times| times.push(elapsed));
}

/// What was noted on this thread since the last call.
pub(crate) fn take_payload_times() -> Vec<Duration> {
    PAYLOAD_TIMES.with_borrow_mut(mem::take)
}
