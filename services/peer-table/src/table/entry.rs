//! One contact as the table holds it.

use std::net::IpAddr;
use tandem_primitives::{B512, Bytes};
use tandem_proto::event::{Contact, ContactEvent};

/// Value of a contact, which decides on eviction: lower classes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// Given up after failures, and remembered so that hearsay does not bring it back.
    Disposed,
    /// Known only from others.
    Unproven,
    /// Has answered from its address.
    Proven,
}

impl Class {
    pub(super) const COUNT: usize = 3;
}

/// Node record (EIP-778).
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Sequence number of the record.
    pub(super) seq: u64,
    /// RLP of the record.
    pub(super) rlp: Bytes,
}

impl Record {
    pub(super) fn new(seq: u64, rlp: &Bytes) -> Self {
        // The bytes are copied, because a slice would keep a large message alive. They are cloned
        // once, because the first clone is the one that allocates, and sampling must not allocate.
        let rlp = Bytes::copy_from_slice(rlp);
        drop(rlp.clone());
        Self { seq, rlp }
    }
}

/// One contact. It takes three cache lines; the first two hold all that sampling reads.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    pub(super) id: B512,
    /// Sequence number of the newest record: the one that the node announced, or the one held.
    pub(super) enr_seq: Option<u64>,
    /// End of the backoff; for a disposed contact, the end of remembering it. In milliseconds, as
    /// all times here.
    pub(super) retry_at: u64,
    /// Time before which it is not asked for nodes.
    pub(super) ask_at: u64,
    /// Time of the table's next look at it, [`NEVER`] if nothing changes with time.
    pub(super) wake_at: u64,
    pub(super) udp_port: u16,
    pub(super) tcp_port: u16,
    pub(super) ip: IpAddr,
    pub(super) class: Class,
    /// Number of failures since the last answer.
    pub(super) failures: u8,
    /// Score that rises by one for an answer and is halved for a failure.
    pub(super) score: u8,
    pub(super) record: Option<Record>,
    /// Time before which it is not asked for its record.
    pub(super) enr_at: u64,
    /// Whether it counts as alive.
    pub(super) alive: bool,
}

const _: () = assert!(std::mem::offset_of!(Entry, record) == 128 && size_of::<Entry>() == 192);

/// Number of failures in a row after which a contact no longer counts as alive. A single failure
/// may be a lost packet.
const LOST_AFTER: u8 = 2;

/// Time that never comes.
pub(super) const NEVER: u64 = u64::MAX;

impl Entry {
    /// Makes a contact that was just heard of, in no set yet.
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

    /// Returns the contact for callers, with its record.
    pub(super) fn contact(&self) -> Contact {
        let enr = self.record.as_ref().map(|record| record.rlp.clone());
        Contact { enr, ..self.endpoint() }
    }

    /// Returns the contact for callers, without its record.
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

    /// Returns whether its endpoint is proven and it answered lately.
    pub(super) fn is_alive(&self) -> bool {
        self.class == Class::Proven && self.failures < LOST_AFTER
    }

    /// Returns whether the contact has this address.
    pub(super) fn is_at(&self, contact: &Contact) -> bool {
        self.ip == contact.ip && self.udp_port == contact.udp_port
    }

    /// Returns whether a lookup may ask it at this time.
    pub(super) fn wants_lookup(&self, now: u64) -> bool {
        self.class > Class::Disposed && self.retry_at <= now && self.ask_at <= now
    }

    /// Returns whether it may be asked for its record at this time. Its endpoint must be proven: an
    /// unproven node would not answer (EIP-868).
    pub(super) fn wants_enr(&self, now: u64) -> bool {
        self.lacks_record() && self.retry_at <= now && self.enr_at <= now
    }

    fn lacks_record(&self) -> bool {
        let outdated = self.record.as_ref().is_none_or(|record| self.enr_seq > Some(record.seq));
        self.class == Class::Proven && outdated
    }

    /// Returns the next time after `now` at which its candidacy may change by itself.
    pub(super) fn next_wake(&self, now: u64) -> u64 {
        if self.retry_at > now {
            return self.retry_at;
        }
        let ask_at = if self.ask_at > now { self.ask_at } else { NEVER };
        let enr_at = if self.lacks_record() && self.enr_at > now { self.enr_at } else { NEVER };
        ask_at.min(enr_at)
    }
}
