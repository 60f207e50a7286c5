//! Requests to peer-table and its answers.

use super::{
    error::{At, ConvertError},
    event::contacts,
    field::{at_most, hash, hash_bytes, nested, range},
};
use crate::{
    event::{Contact, PeersDiscovered, PeersTarget},
    limits::CLOSEST_CONTACTS_MAX,
    peer_table::Stats,
    wire::{event, peer_table::v1},
};
use tandem_primitives::B256;

fn contact_list(contacts: Vec<Contact>) -> Option<event::v1::PeersDiscovered> {
    Some((&PeersDiscovered { contacts }).into())
}

/// Reads at most one contact.
fn sample(wire: Option<event::v1::PeersDiscovered>) -> Result<Option<Contact>, ConvertError> {
    let wire = wire.unwrap_or_default();
    at_most(1, wire.ids.len() / 64).at("ids")?;
    Ok(contacts(&wire)?.pop())
}

impl From<Vec<Contact>> for v1::ApplyBatchRequest {
    fn from(contacts: Vec<Contact>) -> Self {
        Self { contacts: contact_list(contacts) }
    }
}

impl TryFrom<v1::ApplyBatchRequest> for Vec<Contact> {
    type Error = ConvertError;

    fn try_from(wire: v1::ApplyBatchRequest) -> Result<Self, ConvertError> {
        contacts(&wire.contacts.unwrap_or_default()).at("apply_batch.contacts")
    }
}

impl From<Option<Contact>> for v1::SampleForLookupResponse {
    fn from(contact: Option<Contact>) -> Self {
        Self { contacts: contact_list(contact.into_iter().collect()) }
    }
}

impl TryFrom<v1::SampleForLookupResponse> for Option<Contact> {
    type Error = ConvertError;

    fn try_from(wire: v1::SampleForLookupResponse) -> Result<Self, ConvertError> {
        sample(wire.contacts).at("sample_for_lookup.contacts")
    }
}

impl From<Option<Contact>> for v1::SampleForEnrResponse {
    fn from(contact: Option<Contact>) -> Self {
        Self { contacts: contact_list(contact.into_iter().collect()) }
    }
}

impl TryFrom<v1::SampleForEnrResponse> for Option<Contact> {
    type Error = ConvertError;

    fn try_from(wire: v1::SampleForEnrResponse) -> Result<Self, ConvertError> {
        sample(wire.contacts).at("sample_for_enr.contacts")
    }
}

impl From<(B256, usize)> for v1::ClosestRequest {
    /// Limits the count to [`CLOSEST_CONTACTS_MAX`].
    fn from((target, count): (B256, usize)) -> Self {
        Self { target: hash_bytes(target), count: count.min(CLOSEST_CONTACTS_MAX) as u32 }
    }
}

impl TryFrom<v1::ClosestRequest> for (B256, usize) {
    type Error = ConvertError;

    fn try_from(wire: v1::ClosestRequest) -> Result<Self, ConvertError> {
        range(1, CLOSEST_CONTACTS_MAX as u64, wire.count).at("closest.count")?;
        Ok((hash(&wire.target).at("closest.target")?, wire.count as usize))
    }
}

impl From<Vec<Contact>> for v1::ClosestResponse {
    fn from(contacts: Vec<Contact>) -> Self {
        Self { contacts: contact_list(contacts) }
    }
}

impl TryFrom<v1::ClosestResponse> for Vec<Contact> {
    type Error = ConvertError;

    fn try_from(wire: v1::ClosestResponse) -> Result<Self, ConvertError> {
        contacts(&wire.contacts.unwrap_or_default()).at("closest.contacts")
    }
}

impl From<Stats> for v1::GetStatsResponse {
    fn from(stats: Stats) -> Self {
        Self {
            contacts: stats.contacts,
            proven: stats.proven,
            disposed: stats.disposed,
            lookup_candidates: stats.lookup_candidates,
            enr_candidates: stats.enr_candidates,
            evicted: stats.evicted,
            refused: stats.refused,
            connected: stats.connected,
            target: stats.target,
        }
    }
}

impl From<v1::GetStatsResponse> for Stats {
    fn from(wire: v1::GetStatsResponse) -> Self {
        Self {
            contacts: wire.contacts,
            proven: wire.proven,
            disposed: wire.disposed,
            lookup_candidates: wire.lookup_candidates,
            enr_candidates: wire.enr_candidates,
            evicted: wire.evicted,
            refused: wire.refused,
            connected: wire.connected,
            target: wire.target,
        }
    }
}

impl From<u32> for v1::SetConnectedRequest {
    fn from(count: u32) -> Self {
        Self { count }
    }
}

impl From<v1::SetConnectedRequest> for u32 {
    fn from(wire: v1::SetConnectedRequest) -> Self {
        wire.count
    }
}

impl From<PeersTarget> for v1::WatchTargetResponse {
    fn from(target: PeersTarget) -> Self {
        Self { target: Some(target.into()) }
    }
}

impl TryFrom<v1::WatchTargetResponse> for PeersTarget {
    type Error = ConvertError;

    fn try_from(wire: v1::WatchTargetResponse) -> Result<Self, ConvertError> {
        nested(wire.target).at("watch_target.target")
    }
}
