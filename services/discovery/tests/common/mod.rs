//! A minimal peer-table: all contacts in a map, with closest found by sorting.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tandem_bus::{Bus, Subscription};
use tandem_discv4::{distance, node_id};
use tandem_primitives::{B256, B512};
use tandem_proto::{
    event::{Contact, ContactEvent, PEERS_DISCOVERED, PeersDiscovered},
    peer_table::{PeerTableApi, Result, Stats},
};

#[derive(Default)]
pub struct MemoryTable {
    turn: AtomicUsize,
    contacts: Mutex<BTreeMap<B512, (Contact, u32)>>,
    heard: Mutex<Option<Subscription>>,
}

impl MemoryTable {
    /// Makes a table that listens to the bus.
    pub fn on(bus: &Bus) -> Self {
        Self { heard: Mutex::new(Some(bus.subscribe(PEERS_DISCOVERED))), ..Self::default() }
    }

    pub fn contacts(&self) -> Vec<Contact> {
        self.hear();
        self.contacts.lock().unwrap().values().map(|(contact, _)| contact.clone()).collect()
    }

    pub fn proven(&self) -> usize {
        self.contacts().iter().filter(|contact| contact.event == ContactEvent::Answered).count()
    }

    pub fn with_enr(&self) -> usize {
        self.contacts().iter().filter(|contact| contact.enr.is_some()).count()
    }

    pub fn learn(&self, contact: Contact) {
        let mut contacts = self.contacts.lock().unwrap();
        let unproven = Contact { event: ContactEvent::Seen, ..contact.clone() };
        let (known, failures) = contacts.entry(contact.id).or_insert((unproven, 0));
        match contact.event {
            ContactEvent::Seen | ContactEvent::Asked => {}
            ContactEvent::Answered => {
                let enr = known.enr.take();
                (*known, *failures) = (Contact { enr, ..contact }, 0);
            }
            ContactEvent::EnrReceived => {
                (known.enr, known.enr_seq, *failures) = (contact.enr, contact.enr_seq, 0);
            }
            ContactEvent::Failed => *failures += 1,
        }
        if *failures >= 3 {
            contacts.remove(&contact.id);
        }
    }

    fn hear(&self) {
        let mut heard = self.heard.lock().unwrap();
        while let Some(payload) = heard.as_mut().and_then(Subscription::try_next) {
            let batch = PeersDiscovered::decode(&payload).unwrap();
            batch.contacts.into_iter().for_each(|contact| self.learn(contact));
        }
    }
}

impl PeerTableApi for MemoryTable {
    fn apply_batch(&self, contacts: Vec<Contact>) -> Result<()> {
        contacts.into_iter().for_each(|contact| self.learn(contact));
        Ok(())
    }

    fn sample_for_lookup(&self) -> Result<Option<Contact>> {
        // Contacts are taken in turn, which visits all as often as drawing does.
        let (contacts, turn) = (self.contacts(), self.turn.fetch_add(1, Ordering::Relaxed));
        Ok((!contacts.is_empty()).then(|| contacts[turn % contacts.len()].clone()))
    }

    fn sample_for_enr(&self) -> Result<Option<Contact>> {
        let wanted = |c: &Contact| c.event == ContactEvent::Answered && c.enr.is_none();
        Ok(self.contacts().into_iter().find(wanted))
    }

    fn closest(&self, target: B256, count: usize) -> Result<Vec<Contact>> {
        let mut contacts = self.contacts();
        contacts.sort_by_cached_key(|contact| {
            let proven = contact.event == ContactEvent::Answered;
            (!proven, distance(&target, &node_id(&contact.id)))
        });
        contacts.truncate(count);
        Ok(contacts)
    }

    fn stats(&self) -> Result<Stats> {
        Ok(Stats { contacts: self.contacts().len() as u64, ..Stats::default() })
    }

    fn set_connected(&self, _: u32) -> Result<()> {
        Ok(())
    }
}
