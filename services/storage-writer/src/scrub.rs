//! Check of the whole database in the background, a little at a time: tries against the flat state, codes
//! against their hashes, and the checksum and form of every record. Damage shows before a block or a
//! caller needs the record. Tries are rebuilt at once, as the flat state has all that they say.
//!
//! A pass has a part for each shard of the state and for each table. The database notes which part is
//! next, so a restart repeats one part at most. The thread has the class idle, reads no faster than
//! the settings say, and leaves the block cache as it is.

use crate::{
    Error, meta, metrics,
    shared::Shared,
    verify::{check_shard_at_pace, mend_shard},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_actor::{Running, take_idle_priority};
use tandem_primitives::Shard;
use tandem_store::{Durability, Store};
use tracing::{error, info, warn};

/// Parts of a pass: the shards of the state, then the tables.
const PARTS: u16 = (Shard::COUNT + Store::TABLES) as u16;

/// Pause before the next look while the state is downloaded, and after a failure.
const LATER: Duration = Duration::from_secs(60);

/// Longest pause before the next look at the clock.
const REST_MAX: Duration = Duration::from_secs(3600);

/// Time by which reading may be ahead of the pace before the thread sleeps, and behind it before what it
/// missed is forgotten.
const SLACK: Duration = Duration::from_millis(20);

/// Settings of the check in the background.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrubConfig {
    /// Bytes that are read in a second; 0 for no check.
    pub bytes_per_second: u64,
    /// Seconds from the end of a pass to the begin of the next one.
    pub rest_seconds: u64,
}

impl Default for ScrubConfig {
    fn default() -> Self {
        Self { bytes_per_second: 2 << 20, rest_seconds: 24 * 3600 }
    }
}

/// Extent and findings of the check since the start.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScrubStatus {
    /// Number of passes that ended.
    pub passes: u64,
    /// Number of faults that were found.
    pub faults: u64,
    /// The fault that was found last.
    pub last_fault: Option<String>,
}

/// Thread that checks the database.
pub struct Scrubber {
    status: Arc<Mutex<ScrubStatus>>,
    /// Dropped to end the thread.
    stop: Mutex<Option<Sender<()>>>,
}

impl Scrubber {
    /// Starts the thread, unless the settings want none.
    ///
    /// # Errors
    /// When the operating system cannot create it.
    pub fn start(shared: &Arc<Shared>, running: &Running) -> io::Result<Self> {
        let status = Arc::<Mutex<ScrubStatus>>::default();
        let (stop, stopped) = bounded(0);
        if shared.config.scrub.bytes_per_second > 0 {
            let work = Work { shared: shared.clone(), status: status.clone(), stopped };
            running.spawn("scrub", move || work.run())?;
        }
        Ok(Self { status, stop: Mutex::new(Some(stop)) })
    }

    pub fn stop(&self) {
        drop(self.stop.lock().take());
    }

    pub fn status(&self) -> ScrubStatus {
        self.status.lock().clone()
    }
}

struct Work {
    shared: Arc<Shared>,
    status: Arc<Mutex<ScrubStatus>>,
    stopped: Receiver<()>,
}

impl Work {
    fn run(self) {
        take_idle_priority();
        // A process that ends soon writes nothing.
        let has_rest = self.shared.config.scrub.rest_seconds > 0;
        let mut pause = if has_rest { LATER } else { Duration::ZERO };
        let mut noted = None;
        while self.may_go_on_after(pause) {
            pause = match self.step(&mut noted) {
                Ok(pause) => pause,
                Err(Error::Stopping) => return,
                Err(error) => {
                    warn!(%error, "database not checked");
                    LATER
                }
            };
        }
    }

    /// Waits. Returns false when the service stops.
    fn may_go_on_after(&self, pause: Duration) -> bool {
        self.stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
    }

    /// Checks the next part, if it is time for it. `noted` is the next part and the end of the last pass, once
    /// they are known. Returns the pause until the next step.
    fn step(&self, noted: &mut Option<(u16, u64)>) -> Result<Duration, Error> {
        let shared = &self.shared;
        if shared.is_downloading.load(Relaxed) {
            return Ok(LATER);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (part, ended) = match *noted {
            Some(noted) => noted,
            None => self.read_note(now)?,
        };
        let rest = ended.saturating_add(shared.config.scrub.rest_seconds).saturating_sub(now);
        // A pass that was begun goes on.
        if part == 0 && rest > 0 {
            *noted = Some((part, ended));
            return Ok(Duration::from_secs(rest).min(REST_MAX));
        }
        self.check(part)?;
        let next = if part + 1 < PARTS { (part + 1, ended) } else { (0, now) };
        *noted = Some(next);
        self.note(next);
        if next.0 == 0 {
            let mut status = self.status.lock();
            status.passes += 1;
            info!(faults = status.faults, "database checked");
        }
        Ok(Duration::ZERO)
    }

    /// Returns what the database has noted. A new database, or one from before this check, is checked when
    /// the first rest is over.
    fn read_note(&self, now: u64) -> Result<(u16, u64), Error> {
        let noted = match meta::scrub(&self.shared.store.view()) {
            Err(error) if error.is_damage() => {
                self.found(1, error.to_string());
                None
            }
            noted => noted?,
        };
        Ok(noted.unwrap_or_else(|| {
            self.note((0, now));
            (0, now)
        }))
    }

    /// Notes the next part. A database that takes no writes is checked all the same.
    fn note(&self, next: (u16, u64)) {
        let mut batch = self.shared.store.batch();
        meta::put_scrub(&mut batch, next);
        ::metrics::gauge!(metrics::SCRUB_PROGRESS).set(f64::from(next.0) / f64::from(PARTS));
        if let Err(error) = self.shared.store.write(batch, Durability::Process) {
            warn!(%error, "progress of the check is not noted");
        }
    }

    fn check(&self, part: u16) -> Result<(), Error> {
        let mut pace = Pace::new(self.shared.config.scrub.bytes_per_second);
        let mut may_go_on = |bytes| {
            ::metrics::counter!(metrics::SCRUB_BYTES).increment(bytes as u64);
            match pace.ahead_after(bytes) {
                Some(ahead) => self.may_go_on_after(ahead),
                None => true,
            }
        };
        match Shard::all().nth(usize::from(part)) {
            Some(shard) => self.check_shard(shard, &mut may_go_on),
            None => {
                let mut stops = false;
                let table = usize::from(part) - Shard::COUNT;
                let fault = self.shared.store.scrub_table(table, &mut |bytes| {
                    stops |= !may_go_on(bytes);
                    !stops
                });
                if let Some(fault) = fault {
                    self.found(1, fault);
                }
                if stops { Err(Error::Stopping) } else { Ok(()) }
            }
        }
    }

    fn check_shard(&self, shard: Shard, pace: &mut dyn FnMut(usize) -> bool) -> Result<(), Error> {
        let shared = &self.shared;
        let checked = check_shard_at_pace(&shared.store.scan_snapshot(), shard, pace);
        let (differences, first) = match checked {
            Ok((differences, first)) => (differences, first.map(|first| first.to_string())),
            Err(error) if error.is_damage() => (1, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        let Some(first) = first else { return Ok(()) };
        self.found(differences, first);
        // While this lock is held, the base does not move.
        let _mended = shared.mended.lock();
        match mend_shard(&shared.store, shard) {
            Ok(nodes) => {
                ::metrics::counter!(metrics::TRIES_REBUILT).increment(1);
                warn!(?shard, nodes, "tries rebuilt from the flat state");
                Ok(())
            }
            Err(error) if error.is_damage() => {
                error!(?shard, %error, "tries cannot be rebuilt");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn found(&self, faults: u64, first: String) {
        error!(faults, fault = %first, "the database is damaged; tandem verify checks all of it");
        ::metrics::counter!(metrics::SCRUB_FAULTS).increment(faults);
        let mut status = self.status.lock();
        status.faults += faults;
        status.last_fault = Some(first);
    }
}

/// Pace of reading.
struct Pace {
    bytes_per_second: u64,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), begun: Instant::now(), bytes: 0 }
    }

    /// Notes bytes that were read. Returns how long to wait, if that is worth it.
    fn ahead_after(&mut self, bytes: usize) -> Option<Duration> {
        self.bytes += bytes as u64;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_second as f64);
        let took = self.begun.elapsed();
        if took > due + SLACK {
            // A slow disk is not made to catch up.
            (self.begun, self.bytes) = (Instant::now(), 0);
            return None;
        }
        due.checked_sub(took).filter(|ahead| *ahead > SLACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_faster_than_the_pace_waits_and_slower_reading_is_not_made_up_for() {
        let mut pace = Pace::new(1000);
        assert!(pace.ahead_after(5).is_none(), "too little to wait for");
        let ahead = pace.ahead_after(995).unwrap();
        assert!(ahead > Duration::from_millis(900) && ahead <= Duration::from_secs(1));
        pace.begun -= Duration::from_secs(60);
        assert!(pace.ahead_after(1).is_none());
        let ahead = pace.ahead_after(1000).unwrap();
        assert!(ahead > Duration::from_millis(900), "the minute is not made up for: {ahead:?}");
    }
}
