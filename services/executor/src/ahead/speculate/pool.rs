//! Prewarm threads: started once, asleep between blocks.

use super::{experience::Experience, job::Job, rounds};
use parking_lot::{Condvar, Mutex};
use std::{io, sync::Arc, thread::JoinHandle};
use tandem_actor::{spawn, spawn_in_background};
use tandem_telemetry::BusyIntervals;
use tokio_util::sync::CancellationToken;
use tracing::{Span, info_span};

/// The prewarm threads. A block has one of two crews, because a thread cannot take back that it has
/// lowered its priority.
pub struct Prewarmers {
    /// Threads in the background, for blocks that the engine executes itself as well.
    beside: Crew,
    /// Threads for blocks in rounds, where the engine waits for their results.
    rounds: Crew,
    experience: Experience,
}

/// Threads that work on the same blocks.
#[derive(Default)]
struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    posted: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Block to work on.
    job: Option<(Arc<Job>, Span)>,
    /// Number of blocks posted so far.
    number: u64,
    stopped: bool,
}

/// Block that the threads work on until this is dropped.
pub struct Posted<'a> {
    pub job: Arc<Job>,
    shared: &'a Shared,
    experience: &'a Experience,
}

impl Prewarmers {
    /// Starts two crews of this many threads.
    ///
    /// # Errors
    /// Returns the operating system's error if it cannot start a thread.
    pub fn start(threads: usize, fatal: &CancellationToken) -> io::Result<Self> {
        let (mut beside, mut rounds) = (Crew::default(), Crew::default());
        for n in 0..threads {
            let (shared, fatal) = (beside.shared.clone(), fatal.clone());
            let name = format!("prewarm-{n}");
            beside.threads.push(spawn_in_background(&name, fatal, move || shared.run())?);
        }
        for n in 0..threads {
            let (shared, fatal) = (rounds.shared.clone(), fatal.clone());
            rounds.threads.push(spawn(&format!("rounds-{n}"), fatal, move || shared.run())?);
        }
        Ok(Self { beside, rounds, experience: Experience::default() })
    }

    /// Returns the experience with recent blocks.
    pub fn experience(&self) -> &Experience {
        &self.experience
    }

    /// Returns whether there is no thread.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the number of threads of a block.
    pub fn count(&self) -> usize {
        self.beside.threads.len()
    }

    /// Lets the threads work on a block. `span` is the parent of their spans.
    pub fn post(&self, job: Arc<Job>, span: Span) -> Posted<'_> {
        let crew = if job.is_in_rounds() { &self.rounds } else { &self.beside };
        {
            let mut state = crew.shared.posted.lock();
            state.job = Some((job.clone(), span));
            state.number += 1;
        }
        crew.shared.changed.notify_all();
        Posted { job, shared: &crew.shared, experience: &self.experience }
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.shared.posted.lock().job.take_if(|(job, _)| Arc::ptr_eq(job, &self.job));
        self.job.close();
        self.job.note_experience(self.experience);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.posted.lock().stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut seen = 0;
        let mut stacks = rounds::Stacks::new();
        while let Some((job, parent)) = self.next(&mut seen) {
            let span = info_span!(parent: &parent, "prewarm");
            drop(parent);
            let mut busy = BusyIntervals::new(&span);
            let (working, entered) = (busy.enter(), span.enter());
            match job.is_in_rounds() {
                true => rounds::work(&job, &mut stacks),
                false => job.work(),
            }
            drop((working, entered));
            // Work beyond that end is not the block's execution any more.
            if let Some(end) = job.closed_ns() {
                busy.cut(end);
            }
        }
    }

    fn next(&self, seen: &mut u64) -> Option<(Arc<Job>, Span)> {
        let mut state = self.posted.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(posted) = state.job.clone()
                && *seen != state.number
            {
                *seen = state.number;
                return Some(posted);
            }
            self.changed.wait(&mut state);
        }
    }
}
