//! Lease of the lead among several candidates, over a store with compare-and-set. It has no I/O and no
//! clock: times and answers come in, requests go out.
//!
//! ```text
//!  candidate ── poll ──► Read, or Write if the revision is still R ──► store, such as NATS JetStream KV
//!            ◄─ answer ─ record and revision, or a conflict       ◄──
//!            ── held(now) ──► may it take writes now?
//! ```
//!
//! **Rule.** The holder writes its record three times in a lease. It may take writes until `ttl - margin` after
//! the *start* of its last write that succeeded. Another candidate may take the lease when it has seen the
//! record unchanged for `ttl + margin`. Each candidate measures with its own clock from its own events, and
//! no two clocks are compared. The store applied the holder's write after the holder began it, and before
//! the candidate saw it. So the holder has stopped by then, if `2 · margin` is more than what the two
//! clocks drift apart in that time ([`Settings::drift_max`]). The record carries the holder's
//! `ttl + margin`, and a candidate never waits for less.
//!
//! **Terms.** A take-over writes a term above that in the store and above all that the candidate knows.
//! Compare-and-set admits one of several candidates, so terms rise with every take-over.
//!
//! **Lost answers.** A write whose answer is lost may have been applied. If the candidate later reads its
//! own record, it renews it. Only a write that is known to have succeeded extends the time in which the
//! candidate may take writes.
//!
//! **Lost store.** A missing record is treated as a record of another holder: it must be missing for
//! `ttl + margin`, because its holder may still take writes.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod record;
mod settings;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use record::{HOLDER_LENGTH_MAX, Record, RecordError};
pub use settings::{Settings, SettingsError, TTL_MAX, TTL_MIN};

/// Request to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Read the record and its revision.
    Read,
    /// Write the record if the revision is still the expected one.
    Write {
        /// Expected revision.
        expected: u64,
        /// New record.
        record: Record,
    },
}

/// Answer of the store to the request with the same number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Content of the store. It may be older than the newest one.
    Found {
        /// Revision, which every change raises; 0 if there never was a record.
        revision: u64,
        /// Record, `None` if it was removed or never written.
        record: Option<Record>,
    },
    /// The record was written and has this revision.
    Written(u64),
    /// The revision was another one, and nothing was written.
    Conflict,
    /// The store could not be asked. The request may have been carried out.
    Failed,
}

/// Lease that a candidate holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Term in which the candidate leads.
    pub term: u32,
    /// Own time until which it may take writes.
    pub until: Duration,
}

/// Knowledge of a candidate, from its database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Whether it may take the lease from another holder.
    pub takes_over: bool,
    /// Whether it may write the first record.
    pub begins: bool,
    /// Highest term that it knows.
    pub known_term: u32,
}

/// Record that a candidate sees.
#[derive(Clone, Debug)]
struct Seen {
    revision: u64,
    record: Option<Record>,
    /// Own time at which it was first seen.
    since: Duration,
}

/// Request whose answer is awaited.
#[derive(Clone, Debug)]
struct Pending {
    number: u64,
    started: Duration,
    request: Request,
}

/// One candidate for the lease. All times are those of its own monotonic clock.
#[derive(Debug)]
pub struct Lease {
    name: String,
    settings: Settings,
    seen: Option<Seen>,
    held: Option<Held>,
    pending: Option<Pending>,
    /// Number of the last request.
    requests: u64,
    /// Own time of the next request.
    next: Duration,
    /// Whether the lease is to be given back.
    leaves: bool,
}

impl Lease {
    /// Creates a candidate. Its name has 1 to [`HOLDER_LENGTH_MAX`] characters and no space. It must differ
    /// from the name of every other process, also from that of an earlier process on the same machine.
    pub fn new(name: String, settings: Settings) -> Self {
        Self {
            name,
            settings,
            seen: None,
            held: None,
            pending: None,
            requests: 0,
            next: Duration::ZERO,
            leaves: false,
        }
    }

    /// Returns the lease if the candidate may take writes now.
    pub fn held(&self, now: Duration) -> Option<Held> {
        self.held.filter(|held| now < held.until)
    }

    /// Returns the record as the candidate last saw it.
    pub fn record(&self) -> Option<&Record> {
        self.seen.as_ref()?.record.as_ref()
    }

    /// Returns whether the candidate left and no record in the store keeps others waiting for it.
    pub fn is_given_back(&self) -> bool {
        let Some(seen) = &self.seen else { return false };
        let is_own = |record: &Record| record.holder == self.name && !record.is_free;
        self.leaves && !seen.record.as_ref().is_some_and(is_own)
    }

    /// Gives the lease back for good. The candidate takes no write from now on, and tells the store next.
    pub fn leave(&mut self, now: Duration) {
        self.held = None;
        self.leaves = true;
        self.next = now;
    }

    /// Returns the own time at which to call [`Self::poll`] again.
    pub fn next(&self) -> Duration {
        match &self.pending {
            Some(pending) => pending.started + self.settings.interval(),
            None => self.next,
        }
    }

    /// Returns the request to make now, with its number, if there is one. A request without an answer for
    /// an interval has failed, and an answer that comes later is ignored.
    pub fn poll(&mut self, now: Duration, wish: Wish) -> Option<(u64, Request)> {
        if now < self.next() {
            return None;
        }
        if self.pending.take().is_some() {
            self.seen = None;
        }
        let request = self.decide(now, wish);
        self.requests += 1;
        self.next = now + self.settings.interval();
        self.pending =
            Some(Pending { number: self.requests, started: now, request: request.clone() });
        Some((self.requests, request))
    }

    fn decide(&self, now: Duration, wish: Wish) -> Request {
        let Some(seen) = &self.seen else { return Request::Read };
        let write = |term, is_free| Request::Write {
            expected: seen.revision,
            record: Record {
                holder: self.name.clone(),
                term,
                write: self.requests + 1,
                stands: self.settings.waits(),
                is_free,
            },
        };
        let is_over = now.saturating_sub(seen.since) >= self.stands(seen.record.as_ref());
        match &seen.record {
            Some(record) if record.holder == self.name => match (self.leaves, record.is_free) {
                (true, false) => write(record.term, true),
                (true, true) => Request::Read,
                // No other candidate was admitted since, also if the time to take writes is over.
                (false, _) => write(record.term.max(wish.known_term), false),
            },
            _ if self.leaves || !is_over => Request::Read,
            None if wish.begins => write(wish.known_term, false),
            Some(record) if wish.takes_over => {
                let term = record.term.max(wish.known_term).checked_add(1);
                term.map_or(Request::Read, |term| write(term, false))
            }
            _ => Request::Read,
        }
    }

    /// Returns for how long this record of another candidate must stand before the lease is free.
    fn stands(&self, record: Option<&Record>) -> Duration {
        match record {
            Some(record) if record.is_free => Duration::ZERO,
            Some(record) => record.stands.max(self.settings.waits()),
            None => self.settings.waits(),
        }
    }

    /// Takes the answer to the request with this number. Late answers change nothing.
    pub fn answer(&mut self, now: Duration, number: u64, answer: Answer) {
        let Some(pending) = self.pending.take_if(|pending| pending.number == number) else {
            return;
        };
        match (answer, pending.request) {
            (Answer::Found { revision, record }, Request::Read) => self.see(now, revision, record),
            (Answer::Written(revision), Request::Write { record, .. }) => {
                let until = pending.started + self.settings.holds();
                self.held = (!self.leaves).then_some(Held { term: record.term, until });
                self.seen = Some(Seen { revision, record: Some(record), since: now });
            }
            (Answer::Conflict, Request::Write { .. }) => {
                // Another candidate wrote, or an own write whose answer was lost was applied.
                self.seen = None;
                self.next = now;
            }
            // After a failed write it is unknown which record is there. After a failed read the wait
            // begins again: when the store comes back, its holder is to renew first.
            (_, Request::Read | Request::Write { .. }) => self.seen = None,
        }
    }

    fn see(&mut self, now: Duration, revision: u64, record: Option<Record>) {
        let same = |seen: &Seen| (seen.revision, &seen.record) == (revision, &record);
        let since = self.seen.as_ref().filter(|seen| same(seen)).map_or(now, |seen| seen.since);
        match record.as_ref().filter(|record| record.holder == self.name) {
            Some(own) if self.leaves && own.is_free => {}
            Some(_) => self.next = now,
            None => {
                // Another candidate was admitted, or the store lost the record.
                self.held = None;
                let over = since + self.stands(record.as_ref());
                // A free lease is taken at once, but is not asked for all the time.
                if over > now || since == now {
                    self.next = self.next.min(over);
                }
            }
        }
        self.seen = Some(Seen { revision, record, since });
    }
}
