use crate::{Heartbeat, WorkerId};
use std::{collections::BTreeMap, time::Duration};

/// Workers known at most, those included that are gone. There are 16 shards.
pub const MEMBERS_MAX: usize = 64;

/// Workers known at most to which no connection was made yet. Anybody may invent names.
pub const UNPROVEN_MAX: usize = MEMBERS_MAX / 2;

/// Heartbeats that a worker may miss while others are heard.
pub const MISSED_MAX: u32 = 3;

/// Heartbeats that all may miss together before they are taken to be gone.
pub const SILENT_MAX: u32 = 10;

/// How far a worker's clock may be ahead of the receiver's when it starts.
pub const AHEAD_MAX: Duration = Duration::from_secs(10);

/// Time after which a worker that is gone is forgotten, and with it the order of its heartbeats.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Longest interval that counts for a worker to which no connection was made yet.
pub const UNPROVEN_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Time that such a worker keeps its place for certain. Afterwards a newcomer may have it.
pub const PROBATION: Duration = Duration::from_secs(10);

/// Who is alive, by heartbeats.
///
/// A worker is gone when it says so, or when its heartbeats stay away while others are heard: for more
/// than [`MISSED_MAX`] of its intervals. If those of **all** stay away it is more likely that the bus
/// has stopped, so that time counts for one interval only, until nobody was heard for more than
/// [`SILENT_MAX`] intervals. While it is known that nothing can be heard, [`Self::hold`] keeps everybody.
///
/// Times are since any fixed moment; one that goes backwards counts as no time at all. A heartbeat
/// that comes late, twice or out of order changes nothing.
///
/// **What a heartbeat cannot do.** One that claims to be of the future is refused, and a worker that is
/// gone for [`FORGOTTEN_AFTER`] is forgotten. So neither a clock that was wrong nor a forged goodbye
/// keeps a worker out for longer. Names to which no connection was made yet ([`Self::prove`]) take
/// [`UNPROVEN_MAX`] places at most, and never that of a proven worker that is alive.
#[derive(Clone, Debug, Default)]
pub struct Members {
    known: BTreeMap<WorkerId, Member>,
    /// When anybody was heard last.
    heard: Duration,
    /// Time in which somebody was heard.
    shared: Duration,
}

/// When something is heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Since any fixed moment.
    pub elapsed: Duration,
    /// Milliseconds since the Unix epoch, by the receiver's clock.
    pub unix_ms: u64,
}

/// What came of a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// Others are alive now than before, or elsewhere.
    pub changed: bool,
    /// Why the heartbeat itself counts for nothing.
    pub ignored: Option<Ignored>,
}

/// Why a heartbeat counts for nothing. That it came twice or out of order is no reason to speak of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ignored {
    /// The worker claims to have started later than it is now.
    #[error("it claims to have started {} s from now: its clock or this one is wrong", ahead.as_secs())]
    Future {
        /// By how much.
        ahead: Duration,
    },
    /// A later incarnation of the worker is known.
    #[error("a worker of this name has started {} ms later", by.as_millis())]
    Stale {
        /// By how much.
        by: Duration,
    },
    /// There is no place for another worker.
    #[error("there is no place for another worker")]
    NoPlace,
}

impl Ignored {
    /// Its label in metrics.
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
    /// When it got its place.
    since: Duration,
    heard: Duration,
    shared: Duration,
    /// Since when it is gone, if it is.
    gone: Option<Duration>,
    /// A connection to it was made.
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
    /// Takes in a heartbeat.
    pub fn hear(&mut self, now: Now, heartbeat: Heartbeat) -> Heard {
        let Now { elapsed, unix_ms } = now;
        self.forget(elapsed);
        let ahead = Duration::from_millis(heartbeat.incarnation.saturating_sub(unix_ms));
        let taken = if ahead > AHEAD_MAX {
            Err(Some(Ignored::Future { ahead }))
        } else {
            self.consider(elapsed, heartbeat)
        };
        // Afterwards: the others are looked at with the time that this one has brought.
        let given_up = self.advance(elapsed);
        match taken {
            Ok(changed) => Heard { changed: changed | given_up, ignored: None },
            Err(ignored) => Heard { changed: given_up, ignored },
        }
    }

    /// Takes in a heartbeat of a time that may be; whether anything changed by it. An error says that it
    /// counts for nothing, and why if there is anything to say.
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
        // One that said goodbye says nothing more in that life.
        let same_life = before.incarnation == heartbeat.incarnation;
        if same_life && (before.leaving || heartbeat.sequence <= before.sequence) {
            return Err(None);
        }
        Ok(self.take(now, heartbeat))
    }

    /// Notes the newest heartbeat of a worker; whether that one comes, goes, restarts or moves.
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

    /// A connection to this worker was made.
    pub fn prove(&mut self, id: &WorkerId) {
        if let Some(member) = self.known.get_mut(id).filter(|member| member.is_alive()) {
            member.proven = true;
        }
    }

    /// Gives up those whose heartbeats have stayed away; whether there were any.
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

    /// Forgets those that are gone for long.
    fn forget(&mut self, now: Duration) {
        let lasts = |gone: Duration| now.saturating_sub(gone) < FORGOTTEN_AFTER;
        self.known.retain(|_, member| member.gone.is_none_or(lasts));
    }

    /// Nobody could be heard until now: everybody who was alive still is.
    pub fn hold(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
        for member in self.known.values_mut().filter(|member| member.is_alive()) {
            member.shared = self.shared;
        }
    }

    /// Last heartbeats of those who are alive, ordered by name.
    pub fn alive(&self) -> impl Iterator<Item = &Heartbeat> {
        self.known.values().filter(|member| member.is_alive()).map(|member| &member.heartbeat)
    }

    /// Makes room for a newcomer. If need be it takes the place of the worker that is gone for longest,
    /// or else of the unproven one that has had its place for longest. Returns whether that one was
    /// alive; `None` when there is no room.
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
        // Those that are gone before those that are alive, unproven ones before others.
        let order = |member: &Member| (member.is_alive(), member.proven, member.gone, member.since);
        let first = self.known.iter().filter(|(_, member)| may_go(member));
        let first = first.min_by_key(|(_, member)| order(member)).map(|(id, _)| id.clone())?;
        self.known.remove(&first).map(|member| member.is_alive())
    }
}
