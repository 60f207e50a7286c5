use super::{
    error::{At, ConvertError, Reason},
    field::{at_most, count, items, length, nested, range, size, total},
};
use crate::{
    event::{
        ChainEvent, Contact, ContactEvent, PeersDiscovered, PeersTarget, TracesSlow, WorkerAlive,
    },
    limits::{
        DISCOVERED_CONTACTS_MAX, ENDPOINT_BYTES_MAX, ENR_BYTES_MAX, HEARTBEAT_MS, SLOW_TRACES_MAX,
    },
    wire::event::v1,
};
use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};
use tandem_membership::Heartbeat;
use tandem_primitives::{B512, Bytes as Rlp};

impl From<ChainEvent> for v1::ChainEvent {
    fn from(event: ChainEvent) -> Self {
        Self { block: Some(event.block.into()) }
    }
}

impl TryFrom<v1::ChainEvent> for ChainEvent {
    type Error = ConvertError;

    fn try_from(wire: v1::ChainEvent) -> Result<Self, ConvertError> {
        Ok(Self { block: nested(wire.block).at("chain_event.block")? })
    }
}

/// Flag: the sequence number of the contact's record is known.
const HAS_ENR_SEQ: u8 = 1;
/// Flag: the contact's record is present.
const HAS_ENR: u8 = 2;

const EVENTS: [ContactEvent; 5] = [
    ContactEvent::Seen,
    ContactEvent::Answered,
    ContactEvent::Failed,
    ContactEvent::Asked,
    ContactEvent::EnrReceived,
];

fn event_code(event: ContactEvent) -> u8 {
    match event {
        ContactEvent::Seen => 1,
        ContactEvent::Answered => 2,
        ContactEvent::Failed => 3,
        ContactEvent::Asked => 4,
        ContactEvent::EnrReceived => 5,
    }
}

pub(super) fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

impl From<&PeersDiscovered> for v1::PeersDiscovered {
    fn from(event: &PeersDiscovered) -> Self {
        let contacts = &event.contacts;
        let mut wire = Self::default();
        let mut ids = Vec::with_capacity(contacts.len() * 64);
        let mut ips = Vec::with_capacity(contacts.len() * 16);
        let mut events = Vec::with_capacity(contacts.len());
        let mut flags = Vec::with_capacity(contacts.len());
        let mut enrs = Vec::new();
        for contact in contacts {
            ids.extend_from_slice(contact.id.as_slice());
            ips.extend_from_slice(&ip_bytes(contact.ip));
            wire.udp_ports.push(contact.udp_port.into());
            wire.tcp_ports.push(contact.tcp_port.into());
            events.push(event_code(contact.event));
            let mut known = 0;
            if let Some(seq) = contact.enr_seq {
                known |= HAS_ENR_SEQ;
                wire.enr_seqs.push(seq);
            }
            if let Some(enr) = &contact.enr {
                known |= HAS_ENR;
                wire.enr_sizes.push(size(enr.len()));
                enrs.extend_from_slice(enr);
            }
            flags.push(known);
        }
        (wire.ids, wire.ips, wire.enrs) = (ids.into(), ips.into(), enrs.into());
        (wire.events, wire.flags) = (events.into(), flags.into());
        wire
    }
}

impl TryFrom<v1::PeersDiscovered> for PeersDiscovered {
    type Error = ConvertError;

    fn try_from(wire: v1::PeersDiscovered) -> Result<Self, ConvertError> {
        contacts(&wire).at("peers_discovered").map(|contacts| Self { contacts })
    }
}

/// Converts contacts from columns; errors name the column.
pub(super) fn contacts(wire: &v1::PeersDiscovered) -> Result<Vec<Contact>, ConvertError> {
    let ids = items::<64>(&wire.ids).at("ids")?;
    at_most(DISCOVERED_CONTACTS_MAX, ids.len()).at("ids")?;
    let expected = ids.len() as u64;
    let ips = items::<16>(&wire.ips).at("ips")?;
    count(expected, ips.len()).at("ips")?;
    count(expected, wire.udp_ports.len()).at("udp_ports")?;
    count(expected, wire.tcp_ports.len()).at("tcp_ports")?;
    count(expected, wire.events.len()).at("events")?;
    count(expected, wire.flags.len()).at("flags")?;
    let with = |flag| wire.flags.iter().filter(|&&flags| flags & flag != 0).count() as u64;
    count(with(HAS_ENR_SEQ), wire.enr_seqs.len()).at("enr_seqs")?;
    count(with(HAS_ENR), wire.enr_sizes.len()).at("enr_sizes")?;
    length(total(&wire.enr_sizes), wire.enrs.len()).at("enrs")?;

    let mut enr_seqs = wire.enr_seqs.iter();
    let mut enr_sizes = wire.enr_sizes.iter();
    let mut enrs = &wire.enrs[..];
    let mut contacts = Vec::with_capacity(ids.len());
    for (index, id) in ids.iter().enumerate() {
        let flags = wire.flags[index];
        range(0, u64::from(HAS_ENR_SEQ | HAS_ENR), flags).at_index(index).at("flags")?;
        let code = wire.events[index];
        range(1, EVENTS.len() as u64, code).at_index(index).at("events")?;
        let enr_seq = if flags & HAS_ENR_SEQ != 0 { enr_seqs.next().copied() } else { None };
        let mut enr = None;
        if flags & HAS_ENR != 0 {
            let size = enr_sizes.next().copied().unwrap_or_default();
            range(1, ENR_BYTES_MAX as u64, size).at_index(index).at("enr_sizes")?;
            // The lengths add up to the number of bytes, so the record is complete.
            let (record, rest) = enrs.split_at(enrs.len().min(size as usize));
            enrs = rest;
            enr = Some(Rlp::copy_from_slice(record));
        }
        contacts.push(Contact {
            id: B512::from(*id),
            ip: Ipv6Addr::from(ips[index]).to_canonical(),
            udp_port: port(wire.udp_ports[index]).at_index(index).at("udp_ports")?,
            tcp_port: port(wire.tcp_ports[index]).at_index(index).at("tcp_ports")?,
            enr_seq,
            enr,
            event: EVENTS[usize::from(code) - 1],
        });
    }
    Ok(contacts)
}

fn port(port: u32) -> Result<u16, Reason> {
    let max = u64::from(u16::MAX);
    u16::try_from(port).map_err(|_| Reason::OutOfRange { min: 0, max, got: port.into() })
}

impl From<PeersTarget> for v1::PeersTarget {
    fn from(event: PeersTarget) -> Self {
        Self { completion: event.completion }
    }
}

impl TryFrom<v1::PeersTarget> for PeersTarget {
    type Error = ConvertError;

    fn try_from(wire: v1::PeersTarget) -> Result<Self, ConvertError> {
        if (0.0..=1.0).contains(&wire.completion) {
            Ok(Self { completion: wire.completion })
        } else {
            Err(Reason::NotAFraction).at("peers_target.completion")
        }
    }
}

impl From<&TracesSlow> for v1::TracesSlow {
    fn from(event: &TracesSlow) -> Self {
        let ids = event.trace_ids.iter().flat_map(|id| id.to_be_bytes());
        Self { trace_ids: ids.collect::<Vec<u8>>().into() }
    }
}

impl TryFrom<v1::TracesSlow> for TracesSlow {
    type Error = ConvertError;

    fn try_from(wire: v1::TracesSlow) -> Result<Self, ConvertError> {
        trace_ids(&wire.trace_ids).at("traces_slow.trace_ids").map(|trace_ids| Self { trace_ids })
    }
}

fn trace_ids(bytes: &[u8]) -> Result<Vec<u128>, ConvertError> {
    let ids = items::<16>(bytes)?;
    at_most(SLOW_TRACES_MAX, ids.len())?;
    let mut trace_ids = Vec::with_capacity(ids.len());
    for (index, id) in ids.iter().enumerate() {
        let id = u128::from_be_bytes(*id);
        if id == 0 {
            return Err(Reason::Missing).at_index(index);
        }
        trace_ids.push(id);
    }
    Ok(trace_ids)
}

impl From<&WorkerAlive> for v1::WorkerAlive {
    fn from(WorkerAlive(heartbeat): &WorkerAlive) -> Self {
        Self {
            id: heartbeat.id.to_string(),
            incarnation: heartbeat.incarnation,
            sequence: heartbeat.sequence,
            endpoint: heartbeat.endpoint.clone(),
            interval_ms: u32::try_from(heartbeat.interval.as_millis()).unwrap_or(u32::MAX),
            leaving: heartbeat.leaving,
        }
    }
}

impl TryFrom<v1::WorkerAlive> for WorkerAlive {
    type Error = ConvertError;

    fn try_from(wire: v1::WorkerAlive) -> Result<Self, ConvertError> {
        heartbeat(wire).at("worker_alive").map(Self)
    }
}

fn heartbeat(wire: v1::WorkerAlive) -> Result<Heartbeat, ConvertError> {
    let (least, most) = (*HEARTBEAT_MS.start(), *HEARTBEAT_MS.end());
    range(least, most, wire.interval_ms).at("interval_ms")?;
    range(1, ENDPOINT_BYTES_MAX as u64, wire.endpoint.len() as u64).at("endpoint")?;
    Ok(Heartbeat {
        id: wire.id.parse().map_err(|_| Reason::NotAName).at("id")?,
        incarnation: wire.incarnation,
        sequence: wire.sequence,
        endpoint: wire.endpoint,
        interval: Duration::from_millis(wire.interval_ms.into()),
        leaving: wire.leaving,
    })
}
