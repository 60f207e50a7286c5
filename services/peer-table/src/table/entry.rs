//! One contact as the table holds it.

use std::net::IpAddr;
use tandem_primitives::{B512, Bytes};
use tandem_proto::event::{Contact, ContactEvent};

/// How much a contact is worth, which decides who makes room: lower classes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// Given up after failures, and remembered so that hearsay does not bring it back.
    Disposed,
    /// Heard of.
    Unproven,
    /// It answered from its address.
    Proven,
}

impl Class {
    pub(super) const COUNT: usize = 3;
}

/// A node's record (EIP-778).
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Its sequence number.
    pub(super) seq: u64,
    /// Its RLP.
    pub(super) rlp: Bytes,
}

impl Record {
    pub(super) fn new(seq: u64, rlp: &Bytes) -> Self {
        // Copied, because it may be a slice of a large message and would keep all of that. Cloned
        // once, because the first clone is the one that allocates, and sampling must not.
        let rlp = Bytes::copy_from_slice(rlp);
        drop(rlp.clone());
        Self { seq, rlp }
    }
}

/// One contact. Three cache lines, the first two with all that sampling reads.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    pub(super) id: B512,
    /// Sequence number of the newest record: what the node itself said, or the one held.
    pub(super) enr_seq: Option<u64>,
    /// Backing off until then; of a disposed contact, remembered until then. Milliseconds, as all
    /// times here.
    pub(super) retry_at: u64,
    /// Not to be asked for nodes before then.
    pub(super) ask_at: u64,
    /// When the table next looks at it by itself, [`NEVER`] when nothing changes with time.
    pub(super) wake_at: u64,
    pub(super) udp_port: u16,
    pub(super) tcp_port: u16,
    pub(super) ip: IpAddr,
    pub(super) class: Class,
    /// Failures since the last answer.
    pub(super) failures: u8,
    /// One up for an answer, half for a failure.
    pub(super) score: u8,
    pub(super) record: Option<Record>,
    /// Not to be asked for its record before then.
    pub(super) enr_at: u64,
    /// It counts as one that is there.
    pub(super) alive: bool,
}

const _: () = assert!(std::mem::offset_of!(Entry, record) == 128 && size_of::<Entry>() == 192);

/// Failures in a row after which a contact no longer counts as one that is there. A single failure
/// may be a lost packet.
const LOST_AFTER: u8 = 2;

/// After all times.
pub(super) const NEVER: u64 = u64::MAX;

impl Entry {
    /// A contact just heard of, in no set yet.
    pub(super) fn new(contact: &Contact, class: Class) -> Self {
        Self {
            id: contact.id,
            enr_seq: None,
            ip: contact.ip,
            udp_port: contact.udp_port,
            tcp_port: contact.tcp_port,
            class,
            failures: 0,
            score: 0,
            retry_at: 0,
            ask_at: 0,
            enr_at: 0,
            alive: false,
            wake_at: NEVER,
            record: None,
        }
    }

    /// As it is given out, with its record.
    pub(super) fn contact(&self) -> Contact {
        let enr = self.record.as_ref().map(|record| record.rlp.clone());
        Contact { enr, ..self.endpoint() }
    }

    /// As it is given out, without its record.
    pub(super) fn endpoint(&self) -> Contact {
        let proven = self.class == Class::Proven;
        Contact {
            id: self.id,
            ip: self.ip,
            udp_port: self.udp_port,
            tcp_port: self.tcp_port,
            enr_seq: self.enr_seq,
            enr: None,
            event: if proven { ContactEvent::Answered } else { ContactEvent::Seen },
        }
    }

    /// Whether its endpoint is proven and it answered lately.
    pub(super) fn is_alive(&self) -> bool {
        self.class == Class::Proven && self.failures < LOST_AFTER
    }

    /// Whether this is where the contact is.
    pub(super) fn is_at(&self, contact: &Contact) -> bool {
        self.ip == contact.ip && self.udp_port == contact.udp_port
    }

    /// Whether a lookup may turn to it at this time.
    pub(super) fn wants_lookup(&self, now: u64) -> bool {
        self.class > Class::Disposed && self.retry_at <= now && self.ask_at <= now
    }

    /// Whether it may be asked for its record at this time. Only a node with a proven endpoint: an
    /// unproven one would not answer (EIP-868).
    pub(super) fn wants_enr(&self, now: u64) -> bool {
        self.lacks_record() && self.retry_at <= now && self.enr_at <= now
    }

    fn lacks_record(&self) -> bool {
        let outdated = self.record.as_ref().is_none_or(|record| self.enr_seq > Some(record.seq));
        self.class == Class::Proven && outdated
    }

    /// The next time after `now` at which what it wants may change by itself.
    pub(super) fn next_wake(&self, now: u64) -> u64 {
        if self.retry_at > now {
            return self.retry_at;
        }
        let ask_at = if self.ask_at > now { self.ask_at } else { NEVER };
        let enr_at = if self.lacks_record() && self.enr_at > now { self.enr_at } else { NEVER };
        ask_at.min(enr_at)
    }
}
