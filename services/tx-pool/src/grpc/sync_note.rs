use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Time for which a note counts. Its sender may have ended since.
const FOR: Duration = Duration::from_secs(30);

/// Note of the executor that the head is behind.
#[derive(Debug)]
pub struct SyncNote {
    begin: Instant,
    /// Milliseconds from the beginning until the note is void.
    until: AtomicU64,
}

impl Default for SyncNote {
    fn default() -> Self {
        Self { begin: Instant::now(), until: AtomicU64::new(0) }
    }
}

impl SyncNote {
    /// Notes whether the head is behind.
    pub fn set(&self, now: Instant, is_syncing: bool) {
        let until = if is_syncing { self.since_begin(now + FOR) } else { 0 };
        self.until.store(until, Relaxed);
    }

    /// Returns whether the head is behind, as far as is known.
    pub fn is_syncing(&self, now: Instant) -> bool {
        self.since_begin(now) < self.until.load(Relaxed)
    }

    fn since_begin(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begin).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_counts_until_it_is_taken_back_or_old() {
        let (note, now) = (SyncNote::default(), Instant::now());
        assert!(!note.is_syncing(now));
        note.set(now, true);
        assert!(note.is_syncing(now));
        assert!(note.is_syncing(now + FOR - Duration::from_secs(1)));
        assert!(!note.is_syncing(now + FOR + Duration::from_secs(1)));
        note.set(now, false);
        assert!(!note.is_syncing(now));
    }
}
