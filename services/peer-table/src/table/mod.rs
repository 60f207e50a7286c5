//! The table itself: one structure in memory that knows every contact. On every change it updates
//! the indexes for its queries. It has no clock and no source of randomness: both are passed with
//! the call. Times are milliseconds on a clock that never goes back.
//!
//! ```text
//!  ids: id → slot          entries[slot], hashes[slot]: the contact
//!                            │ kept on every change
//!        ┌───────────────────┼──────────────────┬────────────────────┬───────────────────┐
//!  closest: proven,    candidates: lookup,   queues by class,    subnets: how       wakes: when it is
//!  unproven (trie)     record (dense)        oldest first        many of each       a candidate again
//! ```

mod candidates;
mod closest;
mod entry;
mod ids;
mod queues;
mod subnet;
#[cfg(test)]
mod tests;
mod wakes;

use crate::config::Config;
use candidates::Candidates;
use closest::ClosestIndex;
use entry::{Class, Entry, Record};
use ids::Ids;
use queues::Queues;
use rand::Rng;
use std::{hint::black_box, mem};
use subnet::Subnets;
use tandem_primitives::{B256, keccak256};
use tandem_proto::{
    event::{Contact, ContactEvent},
    limits::ENR_BYTES_MAX,
};
use wakes::Wakes;

/// Contacts with all indexes over them.
pub struct Table {
    rules: Rules,
    ids: Ids,
    /// Contacts by slot; slots in `free` are unused.
    entries: Vec<Entry>,
    /// keccak256 of the ids, by slot.
    hashes: Vec<B256>,
    free: Vec<u32>,
    proven: ClosestIndex,
    unproven: ClosestIndex,
    lookup: Candidates,
    enr: Candidates,
    queues: Queues,
    subnets: Subnets,
    wakes: Wakes,
    counts: Counts,
}

/// Contact with its standing, as a snapshot stores it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranked {
    /// The contact.
    pub contact: Contact,
    /// Sequence number of [`Contact::enr`], which may be older than [`Contact::enr_seq`]. Zero
    /// without a record.
    pub record_seq: u64,
    /// Reliability of its answers, 0 to 255.
    pub score: u8,
}

/// Counts of the table, for metrics and [`tandem_proto::peer_table::Stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Contacts that never answered.
    pub unproven: usize,
    /// Contacts with a proven endpoint.
    pub proven: usize,
    /// Proven contacts that answered lately.
    pub alive: usize,
    /// Contacts given up and remembered.
    pub disposed: usize,
    /// Contacts that a lookup may ask now.
    pub lookup_candidates: usize,
    /// Contacts whose record is wanted now.
    pub enr_candidates: usize,
    /// Contacts evicted for others, since the start.
    pub evicted: u64,
    /// Contacts refused, since the start.
    pub refused: u64,
}

/// [`Config`] in the units of the table.
#[derive(Debug)]
struct Rules {
    contacts_max: usize,
    subnet_answer_max: usize,
    ask_interval: u64,
    enr_interval: u64,
    retry_base: u64,
    retry_max: u64,
    failures_max: u8,
    unproven_failures_max: u8,
    disposed_for: u64,
}

impl Rules {
    fn new(config: &Config) -> Self {
        let millis = |secs: u32| u64::from(secs) * 1000;
        Self {
            // Slots are numbered in 31 bits.
            contacts_max: config.contacts_max.min(1 << 30),
            subnet_answer_max: config.subnet_answer_max,
            ask_interval: millis(config.ask_interval_secs),
            enr_interval: millis(config.enr_interval_secs),
            retry_base: millis(config.retry_base_secs),
            retry_max: millis(config.retry_max_secs),
            failures_max: config.failures_max,
            unproven_failures_max: config.unproven_failures_max,
            disposed_for: millis(config.disposed_secs),
        }
    }

    /// Returns the time for which a contact is left alone after this many failures in a row.
    fn backoff(&self, failures: u8) -> u64 {
        let doublings = u32::from(failures.saturating_sub(1)).min(30);
        (self.retry_base << doublings).min(self.retry_max)
    }
}

impl Table {
    /// Makes an empty table.
    pub fn new(config: &Config) -> Self {
        Self {
            rules: Rules::new(config),
            ids: Ids::default(),
            entries: Vec::new(),
            hashes: Vec::new(),
            free: Vec::new(),
            proven: ClosestIndex::default(),
            unproven: ClosestIndex::default(),
            lookup: Candidates::default(),
            enr: Candidates::default(),
            queues: Queues::default(),
            subnets: Subnets::new(config),
            wakes: Wakes::default(),
            counts: Counts::default(),
        }
    }

    /// Applies news of contacts, in the order of the events.
    pub fn apply(&mut self, contacts: &[Contact], now: u64) {
        for chunk in contacts.chunks(32) {
            self.touch(chunk);
            self.apply_chunk(chunk, now);
        }
    }

    /// Brings the data of a chunk into the cache. These lookups are independent, so the memory
    /// accesses overlap, while each update waits for the one before.
    fn touch(&self, contacts: &[Contact]) {
        let slots = contacts.iter().filter_map(|contact| self.ids.get(&contact.id, &self.entries));
        let known = slots.filter(|&slot| {
            let entry = &self.entries[slot as usize];
            entry.class > Class::Disposed && entry.record.is_some()
        });
        black_box(known.count());
    }

    fn apply_chunk(&mut self, contacts: &[Contact], now: u64) {
        for contact in contacts {
            match (self.ids.get(&contact.id, &self.entries), contact.event) {
                (Some(slot), _) => self.update(slot, contact, now),
                // Nothing is known of the contact, so its silence has no meaning.
                (None, ContactEvent::Asked | ContactEvent::Failed) => {}
                (None, ContactEvent::Seen) => {
                    self.insert(contact, Class::Unproven, now);
                }
                (None, ContactEvent::Answered | ContactEvent::EnrReceived) => {
                    self.insert(contact, Class::Proven, now);
                }
            }
        }
    }

    /// Makes contacts candidates again whose time has come, and forgets those given up long ago.
    /// Queries before this call do not reflect it.
    pub fn advance(&mut self, now: u64) {
        while let Some(slot) = self.wakes.pop(&mut self.entries, now) {
            let entry = &self.entries[slot as usize];
            if entry.class == Class::Disposed && entry.retry_at <= now {
                self.remove(slot);
            } else {
                self.refresh(slot, now);
            }
        }
    }

    /// Returns a contact that a lookup may ask, each equally likely, without its record. Takes
    /// constant time and does not allocate.
    pub fn sample_for_lookup(&self, rng: &mut impl Rng) -> Option<Contact> {
        Some(self.entries[self.lookup.sample(rng)? as usize].endpoint())
    }

    /// Returns a contact whose record is wanted, each equally likely, without the outdated one.
    /// Takes constant time and does not allocate.
    pub fn sample_for_enr(&self, rng: &mut impl Rng) -> Option<Contact> {
        Some(self.entries[self.enr.sample(rng)? as usize].endpoint())
    }

    /// Returns the contacts closest to a target (the hash of an id). Contacts with a proven
    /// endpoint come first; others follow if there are fewer than `count`. The configuration limits
    /// the contacts of one subnet.
    pub fn closest(&self, target: B256, count: usize) -> Vec<Contact> {
        // Contacts are chosen first and copied afterwards. Their reads then overlap in memory,
        // which counting references of their records would prevent.
        let mut chosen = Vec::with_capacity(count.min(self.ids.len()));
        let proven = self.proven.closest(target, &self.hashes);
        for slot in proven.chain(self.unproven.closest(target, &self.hashes)) {
            if chosen.len() == count {
                break;
            }
            let entry = &self.entries[slot as usize];
            let subnet = self.subnets.of(entry.ip);
            let same = chosen.iter().filter(|(_, other)| *other == subnet).count();
            if subnet.is_none() || same < self.rules.subnet_answer_max {
                chosen.push((entry, subnet));
            }
        }
        chosen.into_iter().map(|(entry, _)| entry.contact()).collect()
    }

    /// Returns the counts of the table.
    pub fn counts(&self) -> Counts {
        Counts {
            unproven: self.queues.len(Class::Unproven),
            proven: self.queues.len(Class::Proven),
            disposed: self.queues.len(Class::Disposed),
            lookup_candidates: self.lookup.len(),
            enr_candidates: self.enr.len(),
            ..self.counts
        }
    }

    /// Returns the best contacts that ever answered, at most `count`. Proven ones come first,
    /// ordered by score and then by how recently they were seen.
    pub fn best(&self, count: usize) -> Vec<Ranked> {
        let mut ranking = Vec::new();
        for class in [Class::Proven, Class::Unproven] {
            let slots = self.queues.newest_first(class).enumerate();
            let scored = slots.map(|(age, slot)| (slot, self.entries[slot as usize].score, age));
            let answered = scored.filter(|&(_, score, _)| class == Class::Proven || score > 0);
            ranking.extend(
                answered.map(|(slot, score, age)| (class < Class::Proven, !score, age, slot)),
            );
        }
        if count < ranking.len() {
            ranking.select_nth_unstable(count);
            ranking.truncate(count);
        }
        ranking.sort_unstable();
        ranking.into_iter().map(|(.., slot)| self.ranked(slot)).collect()
    }

    fn ranked(&self, slot: u32) -> Ranked {
        let entry = &self.entries[slot as usize];
        let record_seq = entry.record.as_ref().map_or(0, |record| record.seq);
        Ranked { contact: entry.contact(), record_seq, score: entry.score }
    }

    /// Adds contacts of an earlier run, best first. None counts as proven: addresses may have
    /// changed hands meanwhile.
    pub fn restore(&mut self, contacts: &[Ranked], now: u64) {
        // The best one is added last, so that it is evicted last.
        for Ranked { contact, record_seq, score } in contacts.iter().rev() {
            if self.ids.get(&contact.id, &self.entries).is_some() {
                continue;
            }
            let heard = Contact { event: ContactEvent::Seen, enr: None, ..contact.clone() };
            let Some(slot) = self.insert(&heard, Class::Unproven, now) else { continue };
            let entry = &mut self.entries[slot as usize];
            entry.score = *score;
            entry.enr_seq = contact.enr_seq.max(contact.enr.is_some().then_some(*record_seq));
            let record = contact.enr.as_ref().filter(|rlp| rlp.len() <= ENR_BYTES_MAX);
            entry.record = record.map(|rlp| Record::new(*record_seq, rlp));
            self.refresh(slot, now);
        }
    }

    fn update(&mut self, slot: u32, contact: &Contact, now: u64) {
        let entry = &mut self.entries[slot as usize];
        match (contact.event, entry.class) {
            // Hearsay neither moves a proven endpoint nor brings back a contact that was given up.
            (ContactEvent::Seen, Class::Proven | Class::Disposed) => return,
            (ContactEvent::Seen, Class::Unproven) => {
                if !self.relocate(slot, contact) {
                    return;
                }
                self.queues.touch(Class::Unproven, slot);
                self.take_record(slot, contact);
            }
            (ContactEvent::Answered | ContactEvent::EnrReceived, _) => {
                if !self.relocate(slot, contact) || !self.reclass(slot, Class::Proven) {
                    return;
                }
                self.answered(slot, contact, now);
            }
            (ContactEvent::Asked, _) => entry.ask_at = now + self.rules.ask_interval,
            // A failure at another address says nothing about the current one.
            (ContactEvent::Failed, Class::Unproven | Class::Proven) if entry.is_at(contact) => {
                self.failed(slot, now);
            }
            (ContactEvent::Failed, _) => return,
        }
        self.refresh(slot, now);
    }

    fn answered(&mut self, slot: u32, contact: &Contact, now: u64) {
        let entry = &mut self.entries[slot as usize];
        entry.failures = 0;
        entry.retry_at = 0;
        entry.score = entry.score.saturating_add(1);
        if contact.enr_seq.is_some() {
            entry.enr_seq = contact.enr_seq;
        }
        if contact.event == ContactEvent::EnrReceived {
            // This also holds if the record is older than the node announces. Otherwise a node that
            // always claims a newer one would be asked without end.
            entry.enr_at = now + self.rules.enr_interval;
        }
        self.take_record(slot, contact);
    }

    /// Keeps the record that came with a contact. A requested record must not be older than the one
    /// held. Any other is kept only if none is held.
    fn take_record(&mut self, slot: u32, contact: &Contact) {
        let asked = contact.event == ContactEvent::EnrReceived;
        let seq = contact.enr_seq.unwrap_or(0);
        let entry = &mut self.entries[slot as usize];
        if let Some(rlp) = contact.enr.as_ref().filter(|rlp| rlp.len() <= ENR_BYTES_MAX) {
            let wanted = match &entry.record {
                None => true,
                Some(held) => asked && (seq > held.seq || seq == held.seq && held.rlp != *rlp),
            };
            if wanted {
                entry.record = Some(Record::new(seq, rlp));
            }
        }
        // A node's claim that its record is older than one it signed before is ignored.
        entry.enr_seq = entry.enr_seq.max(entry.record.as_ref().map(|record| record.seq));
    }

    fn failed(&mut self, slot: u32, now: u64) {
        let entry = &mut self.entries[slot as usize];
        entry.failures = entry.failures.saturating_add(1);
        entry.score /= 2;
        let proven = entry.class == Class::Proven;
        let max = if proven { self.rules.failures_max } else { self.rules.unproven_failures_max };
        let disposed = entry.failures >= max;
        let wait =
            if disposed { self.rules.disposed_for } else { self.rules.backoff(entry.failures) };
        entry.retry_at = now + wait;
        if disposed {
            // Leaving the index of the closest ones always succeeds.
            self.reclass(slot, Class::Disposed);
        }
    }

    /// Moves a contact to the address of the given one. Returns `false`, with nothing changed, if
    /// that is not allowed.
    fn relocate(&mut self, slot: u32, contact: &Contact) -> bool {
        let entry = &mut self.entries[slot as usize];
        if entry.ip != contact.ip {
            let (from, to) = (self.subnets.of(entry.ip), self.subnets.of(contact.ip));
            let allowed = from == to || self.subnets.has_room(to);
            if !allowed || !subnet::is_usable(contact.ip, contact.udp_port) {
                self.counts.refused += 1;
                return false;
            }
            self.subnets.remove(from);
            self.subnets.add(to);
            (entry.ip, entry.tcp_port) = (contact.ip, 0);
        }
        if contact.udp_port != 0 {
            entry.udp_port = contact.udp_port;
        }
        if contact.tcp_port != 0 {
            entry.tcp_port = contact.tcp_port;
        }
        true
    }

    /// Adds a new contact, and evicts another if the table is full. Returns `None` if it is
    /// refused.
    fn insert(&mut self, contact: &Contact, class: Class, now: u64) -> Option<u32> {
        let Some(slot) = self.admit(contact, class) else {
            self.counts.refused += 1;
            return None;
        };
        self.ids.insert(slot, &self.entries);
        self.subnets.add(self.subnets.of(contact.ip));
        self.queues.push(class, slot);
        if class == Class::Proven {
            self.answered(slot, contact, now);
        } else {
            self.take_record(slot, contact);
        }
        self.refresh(slot, now);
        Some(slot)
    }

    /// Finds a slot for a new contact, and adds it there and to the index of the closest ones.
    fn admit(&mut self, contact: &Contact, class: Class) -> Option<u32> {
        if !subnet::is_usable(contact.ip, contact.udp_port)
            || !self.subnets.has_room(self.subnets.of(contact.ip))
            || self.rules.contacts_max == 0
        {
            return None;
        }
        if self.ids.len() == self.rules.contacts_max {
            // A contact that never answered does not evict one that did.
            let classes = [Class::Disposed, Class::Unproven, Class::Proven];
            let mut lower = classes.into_iter().filter(|&other| other <= class);
            let oldest = lower.find_map(|class| self.queues.front(class))?;
            self.remove(oldest);
            self.counts.evicted += 1;
        }
        let hash = keccak256(contact.id);
        let slot = self.free.pop().unwrap_or(self.entries.len() as u32);
        if slot as usize == self.entries.len() {
            self.entries.push(Entry::new(contact, class));
            self.hashes.push(hash);
        } else {
            self.entries[slot as usize] = Entry::new(contact, class);
            self.hashes[slot as usize] = hash;
        }
        if !self.index(slot, class) {
            self.free.push(slot);
            return None;
        }
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let (ip, class) = (entry.ip, entry.class);
        (entry.record, entry.wake_at) = (None, entry::NEVER);
        self.set_alive(slot, false);
        self.ids.remove(slot, &self.entries);
        self.subnets.remove(self.subnets.of(ip));
        self.unindex(slot, class);
        self.queues.remove(class, slot);
        self.lookup.set(slot, false);
        self.enr.set(slot, false);
        self.free.push(slot);
    }

    /// Updates whether a contact counts as alive.
    fn set_alive(&mut self, slot: u32, alive: bool) {
        match (mem::replace(&mut self.entries[slot as usize].alive, alive), alive) {
            (false, true) => self.counts.alive += 1,
            (true, false) => self.counts.alive -= 1,
            (false, false) | (true, true) => {}
        }
    }

    /// Moves a contact to another class, as the one seen last there. Returns `false`, with nothing
    /// changed, if the index of the closest ones refuses it.
    fn reclass(&mut self, slot: u32, to: Class) -> bool {
        let from = self.entries[slot as usize].class;
        if from == to {
            self.queues.touch(to, slot);
            return true;
        }
        if !self.index(slot, to) {
            return false;
        }
        self.unindex(slot, from);
        self.queues.remove(from, slot);
        self.queues.push(to, slot);
        self.entries[slot as usize].class = to;
        true
    }

    fn index(&mut self, slot: u32, class: Class) -> bool {
        let hash = &self.hashes[slot as usize];
        match class {
            Class::Proven => self.proven.insert(hash, slot),
            Class::Unproven => self.unproven.insert(hash, slot),
            Class::Disposed => true,
        }
    }

    fn unindex(&mut self, slot: u32, class: Class) {
        let hash = &self.hashes[slot as usize];
        match class {
            Class::Proven => self.proven.remove(hash, slot),
            Class::Unproven => self.unproven.remove(hash, slot),
            Class::Disposed => {}
        }
    }

    /// Updates the candidate sets after any change of a contact.
    fn refresh(&mut self, slot: u32, now: u64) {
        let alive = self.entries[slot as usize].is_alive();
        self.set_alive(slot, alive);
        let entry = &self.entries[slot as usize];
        let wake_at = entry.next_wake(now);
        self.lookup.set(slot, entry.wants_lookup(now));
        self.enr.set(slot, entry.wants_enr(now));
        self.wakes.schedule(&mut self.entries, slot, wake_at);
    }
}
