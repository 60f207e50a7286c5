use crate::{Heartbeat, WorkerId};
use std::{collections::BTreeMap, time::Duration};

/// Workers known at most, those included that are gone. There are 16 shards.
pub const MEMBERS_MAX: usize = 64;

/// Heartbeats that a worker may miss while others are heard.
pub const MISSED_MAX: u32 = 3;

/// Heartbeats that all may miss together before they are taken to be gone.
pub const SILENT_MAX: u32 = 10;

/// Who is alive, by heartbeats.
///
/// A worker is gone when it says so, or when its heartbeats stay away while others are heard: for more
/// than [`MISSED_MAX`] of its intervals. If those of **all** stay away it is more likely that the bus
/// has stopped, so that time counts for one interval only, until nobody was heard for more than
/// [`SILENT_MAX`] intervals. While it is known that nothing can be heard, [`Self::hold`] keeps everybody.
///
/// Times are since any fixed moment; one that goes backwards counts as no time at all. A heartbeat
/// that comes late, twice or out of order changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Members {
    known: BTreeMap<WorkerId, Member>,
    /// When anybody was heard last.
    heard: Duration,
    /// Time in which somebody was heard.
    shared: Duration,
}

#[derive(Clone, Debug)]
struct Member {
    heartbeat: Heartbeat,
    heard: Duration,
    shared: Duration,
    alive: bool,
}

impl Members {
    /// Takes in a heartbeat; whether others are alive now than before, or elsewhere. A newcomer
    /// among [`MEMBERS_MAX`] that are alive is not taken in.
    pub fn hear(&mut self, now: Duration, heartbeat: Heartbeat) -> bool {
        let place = |it: &Heartbeat| (it.incarnation, it.sequence);
        let before = self.known.get(&heartbeat.id);
        if before.is_some_and(|before| place(&heartbeat) <= place(&before.heartbeat)) {
            return self.advance(now);
        }
        // One that said goodbye says nothing more in that life.
        let left = before.filter(|before| before.heartbeat.leaving);
        if left.is_some_and(|left| left.heartbeat.incarnation == heartbeat.incarnation) {
            return self.advance(now);
        }
        if before.is_none() && !self.make_room() {
            return self.advance(now);
        }
        let gap = now.saturating_sub(self.heard);
        self.shared = self.shared.saturating_add(gap.min(heartbeat.interval));
        self.heard = self.heard.max(now);
        let alive = !heartbeat.leaving;
        let (id, heard, shared) = (heartbeat.id.clone(), self.heard, self.shared);
        let member = Member { heartbeat, heard, shared, alive };
        let identity = |it: &Member| {
            it.alive.then(|| (it.heartbeat.incarnation, it.heartbeat.endpoint.clone()))
        };
        let after = identity(&member);
        let before = self.known.insert(id, member).as_ref().and_then(identity);
        // Both, in this order: the others are looked at with the time that this one has brought.
        self.advance(now) | (before != after)
    }

    /// Gives up those whose heartbeats have stayed away; whether there were any.
    pub fn advance(&mut self, now: Duration) -> bool {
        let silence = now.saturating_sub(self.heard);
        let mut changed = false;
        for member in self.known.values_mut().filter(|member| member.alive) {
            let interval = member.heartbeat.interval;
            let missed = self.shared.saturating_sub(member.shared);
            member.alive = missed <= interval.saturating_mul(MISSED_MAX)
                && silence <= interval.saturating_mul(SILENT_MAX);
            changed |= !member.alive;
        }
        changed
    }

    /// Nobody could be heard until now: everybody who was alive still is.
    pub fn hold(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
        for member in self.known.values_mut().filter(|member| member.alive) {
            member.shared = self.shared;
        }
    }

    /// Last heartbeats of those who are alive, ordered by name.
    pub fn alive(&self) -> impl Iterator<Item = &Heartbeat> {
        self.known.values().filter(|member| member.alive).map(|member| &member.heartbeat)
    }

    /// Room for a newcomer, if need be in the place of the one that is gone for longest.
    fn make_room(&mut self) -> bool {
        if self.known.len() < MEMBERS_MAX {
            return true;
        }
        let gone = self.known.iter().filter(|(_, member)| !member.alive);
        let oldest = gone.min_by_key(|(_, member)| member.heard).map(|(id, _)| id.clone());
        oldest.is_some_and(|id| self.known.remove(&id).is_some())
    }
}
