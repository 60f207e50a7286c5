use crate::{Heartbeat, WorkerId};
use std::{collections::BTreeMap, time::Duration};

/// Maximum number of known workers, including those that are gone. There are 16 shards.
pub const MEMBERS_MAX: usize = 64;

/// Maximum number of known workers without a connection so far, since anyone can invent names.
pub const UNPROVEN_MAX: usize = MEMBERS_MAX / 2;

/// Number of heartbeats that a worker may miss while others are heard.
pub const MISSED_MAX: u32 = 3;

/// Number of heartbeats that all workers may miss together before they count as gone.
pub const SILENT_MAX: u32 = 10;

/// Maximum lead of a worker's clock over the receiver's clock when the worker starts.
pub const AHEAD_MAX: Duration = Duration::from_secs(10);

/// Time after which a worker that is gone is forgotten, including the order of its heartbeats.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Maximum heartbeat interval honored for a worker without a connection so far.
pub const UNPROVEN_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Time for which a worker without a connection keeps its place. Afterwards a newcomer may replace
/// it.
pub const PROBATION: Duration = Duration::from_secs(10);

/// Tracks which workers are alive, by their heartbeats.
///
/// A worker is gone when it says so. It is also gone when it misses more than [`MISSED_MAX`] of its
/// intervals while others are heard. When **all** workers fall silent, the bus has more likely
/// stopped. That silence counts as a single interval until it exceeds [`SILENT_MAX`] intervals.
/// While the receiver knows that it can hear nothing, [`Self::hold`] keeps all workers alive.
///
/// Times are measured from any fixed moment; a time that goes backwards counts as no time elapsed.
/// A heartbeat that is late, repeated or out of order changes nothing.
///
/// **Limits of a heartbeat.** A heartbeat from the future is refused, and a worker that is gone for
/// [`FORGOTTEN_AFTER`] is forgotten. Neither a wrong clock nor a forged goodbye can therefore lock
/// a worker out for longer. Workers without a connection so far ([`Self::prove`]) take at most
/// [`UNPROVEN_MAX`] places. They never displace a proven worker that is alive.
#[derive(Clone, Debug, Default)]
pub struct Members {
    known: BTreeMap<WorkerId, Member>,
    /// Time of the last heartbeat from any worker.
    heard: Duration,
    /// Total time during which at least one worker was heard.
    shared: Duration,
}

/// Time at which a heartbeat arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Time since any fixed moment.
    pub elapsed: Duration,
    /// Milliseconds since the Unix epoch, by the receiver's clock.
    pub unix_ms: u64,
}

/// Effect of a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// Whether the set of alive workers or one of their endpoints changed.
    pub changed: bool,
    /// Reason why the heartbeat itself was ignored.
    pub ignored: Option<Ignored>,
}

/// Reason why a heartbeat is ignored. Repeated and out-of-order heartbeats are ignored without a
/// reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ignored {
    /// The worker claims to have started in the future.
    #[error("it claims to have started {} s from now: its clock or this one is wrong", ahead.as_secs())]
    Future {
        /// Lead over the receiver's clock.
        ahead: Duration,
    },
    /// A later incarnation of the worker is known.
    #[error("a worker of this name has started {} ms later", by.as_millis())]
    Stale {
        /// Time between the two starts.
        by: Duration,
    },
    /// No place is left for another worker.
    #[error("there is no place for another worker")]
    NoPlace,
}

impl Ignored {
    /// Returns the label for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Future { .. } => "future",
            Self::Stale { .. } => "stale",
            Self::NoPlace => "no_place",
        }
    }
}

#[derive(Clone, Debug)]
struct Member {
    heartbeat: Heartbeat,
    /// Time at which the worker got its place.
    since: Duration,
    heard: Duration,
    shared: Duration,
    /// Time at which the worker was given up or left, `None` while it is alive.
    gone: Option<Duration>,
    /// Whether a connection to the worker was made.
    proven: bool,
}

impl Member {
    fn is_alive(&self) -> bool {
        self.gone.is_none()
    }

    fn interval(&self) -> Duration {
        let most = if self.proven { Duration::MAX } else { UNPROVEN_INTERVAL_MAX };
        self.heartbeat.interval.min(most)
    }
}

impl Members {
    /// Processes a heartbeat.
    pub fn hear(&mut self, now: Now, heartbeat: Heartbeat) -> Heard {
        let Now { elapsed, unix_ms } = now;
        self.forget(elapsed);
        let ahead = Duration::from_millis(heartbeat.incarnation.saturating_sub(unix_ms));
        let taken = if ahead > AHEAD_MAX {
            Err(Some(Ignored::Future { ahead }))
        } else {
            self.consider(elapsed, heartbeat)
        };
        // Last, so that the other workers are judged by the time that this heartbeat has added.
        let given_up = self.advance(elapsed);
        match taken {
            Ok(changed) => Heard { changed: changed | given_up, ignored: None },
            Err(ignored) => Heard { changed: given_up, ignored },
        }
    }

    /// Processes a heartbeat that is not from the future. Returns whether it changed anything. An
    /// error means that the heartbeat is ignored and holds the reason, if it is worth reporting.
    fn consider(&mut self, now: Duration, heartbeat: Heartbeat) -> Result<bool, Option<Ignored>> {
        let Some(Member { heartbeat: before, .. }) = self.known.get(&heartbeat.id) else {
            // A goodbye of an unknown worker changes nothing.
            if heartbeat.leaving {
                return Err(None);
            }
            let evicted = self.make_room(now).ok_or(Some(Ignored::NoPlace))?;
            return Ok(self.take(now, heartbeat) | evicted);
        };
        if let Some(by @ 1..) = before.incarnation.checked_sub(heartbeat.incarnation) {
            return Err(Some(Ignored::Stale { by: Duration::from_millis(by) }));
        }
        // After its goodbye, an incarnation is ignored.
        let same_life = before.incarnation == heartbeat.incarnation;
        if same_life && (before.leaving || heartbeat.sequence <= before.sequence) {
            return Err(None);
        }
        Ok(self.take(now, heartbeat))
    }

    /// Stores the newest heartbeat of a worker. Returns whether the worker joins, leaves, restarts
    /// or moves.
    fn take(&mut self, now: Duration, heartbeat: Heartbeat) -> bool {
        let before = self.known.get(&heartbeat.id);
        let (since, proven) = before.map_or((now, false), |it| (it.since, it.proven));
        let (id, leaving) = (heartbeat.id.clone(), heartbeat.leaving);
        let mut member = Member {
            heartbeat,
            since,
            heard: self.heard.max(now),
            shared: self.shared,
            gone: leaving.then_some(now),
            proven,
        };
        let gap = now.saturating_sub(self.heard);
        self.shared = self.shared.saturating_add(gap.min(member.interval()));
        self.heard = member.heard;
        member.shared = self.shared;
        let identity = |it: &Member| {
            it.is_alive().then(|| (it.heartbeat.incarnation, it.heartbeat.endpoint.clone()))
        };
        let after = identity(&member);
        let before = self.known.insert(id, member);
        before.as_ref().and_then(identity) != after
    }

    /// Records that a connection to this worker was made.
    pub fn prove(&mut self, id: &WorkerId) {
        if let Some(member) = self.known.get_mut(id).filter(|member| member.is_alive()) {
            member.proven = true;
        }
    }

    /// Marks workers as gone whose heartbeats are overdue. Returns whether there were any.
    pub fn advance(&mut self, now: Duration) -> bool {
        let silence = now.saturating_sub(self.heard);
        let mut changed = false;
        for member in self.known.values_mut().filter(|member| member.is_alive()) {
            let interval = member.interval();
            let missed = self.shared.saturating_sub(member.shared);
            let is_alive = missed <= interval.saturating_mul(MISSED_MAX)
                && silence <= interval.saturating_mul(SILENT_MAX);
            if !is_alive {
                (member.gone, changed) = (Some(now), true);
            }
        }
        changed
    }

    /// Forgets workers that are gone for [`FORGOTTEN_AFTER`].
    fn forget(&mut self, now: Duration) {
        let lasts = |gone: Duration| now.saturating_sub(gone) < FORGOTTEN_AFTER;
        self.known.retain(|_, member| member.gone.is_none_or(lasts));
    }

    /// Records that nothing could be heard until now. All alive workers stay alive.
    pub fn hold(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
        for member in self.known.values_mut().filter(|member| member.is_alive()) {
            member.shared = self.shared;
        }
    }

    /// Returns the last heartbeats of the alive workers, ordered by name.
    pub fn alive(&self) -> impl Iterator<Item = &Heartbeat> {
        self.known.values().filter(|member| member.is_alive()).map(|member| &member.heartbeat)
    }

    /// Makes room for a newcomer. If necessary, it evicts the worker that is gone for the longest
    /// time, or else the unproven worker with the oldest place. Returns whether the evicted worker
    /// was alive, or `None` when there is no room.
    fn make_room(&mut self, now: Duration) -> Option<bool> {
        let unproven = self.known.values().filter(|member| !member.proven).count();
        let only_unproven = unproven >= UNPROVEN_MAX;
        if !only_unproven && self.known.len() < MEMBERS_MAX {
            return Some(false);
        }
        let may_go = |member: &Member| match member.gone {
            Some(_) => !(only_unproven && member.proven),
            None => !member.proven && now.saturating_sub(member.since) >= PROBATION,
        };
        // Gone workers go before alive ones, and unproven workers before proven ones.
        let order = |member: &Member| (member.is_alive(), member.proven, member.gone, member.since);
        let first = self.known.iter().filter(|(_, member)| may_go(member));
        let first = first.min_by_key(|(_, member)| order(member)).map(|(id, _)| id.clone())?;
        self.known.remove(&first).map(|member| member.is_alive())
    }
}
