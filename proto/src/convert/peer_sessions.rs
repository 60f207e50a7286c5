//! Requests to peer-sessions and its answers.

use super::{
    error::{At, ConvertError},
    event::ip_bytes,
    field::{
        at_most, count, hash, hash_bytes, hash_list, items, length, range, required, size,
        sizes_from, split, total,
    },
    status::{cut, said, sent, status},
};
use crate::{
    limits::{CLIENT_NAME_BYTES_MAX, FETCH_ITEMS_MAX, SESSIONS_MAX},
    peer_sessions::{BlockRange, Direction, Error, Fetch, Fetched, Misconduct, PeerId, Session},
    storage::BlockRef,
    wire::peer_sessions::v1::{self, error as error_wire, fetch_request as fetch_wire},
};
use bytes::Bytes;
use std::net::Ipv6Addr;
use tandem_primitives::B256;
use tonic::{Code, Status};

pub(super) fn peer_id(bytes: &[u8]) -> Result<PeerId, super::Reason> {
    length(64, bytes.len())?;
    Ok(PeerId::from_slice(bytes))
}

pub(super) fn id_bytes(id: PeerId) -> Bytes {
    Bytes::copy_from_slice(id.as_slice())
}

const INBOUND: u8 = 1;
const OUTBOUND: u8 = 2;

impl From<Vec<Session>> for v1::ListSessionsResponse {
    /// Leaves out sessions beyond [`SESSIONS_MAX`].
    fn from(mut sessions: Vec<Session>) -> Self {
        sessions.truncate(SESSIONS_MAX);
        let column = |bytes: fn(&Session) -> &[u8]| {
            sessions.iter().flat_map(bytes).copied().collect::<Bytes>()
        };
        let direction = |session: &Session| match session.direction {
            Direction::Inbound => INBOUND,
            Direction::Outbound => OUTBOUND,
        };
        Self {
            ids: column(|session| session.id.as_slice()),
            client_sizes: sessions.iter().map(|session| size(session.client.len())).collect(),
            clients: column(|session| session.client.as_bytes()),
            ips: sessions.iter().flat_map(|session| ip_bytes(session.address.ip())).collect(),
            ports: sessions.iter().map(|session| session.address.port().into()).collect(),
            directions: sessions.iter().map(direction).collect(),
            eth_versions: sessions.iter().map(|session| session.eth_version).collect(),
            snap_versions: sessions
                .iter()
                .map(|session| session.snap_version.unwrap_or(0))
                .collect(),
            earliest: sessions.iter().map(|session| session.range.earliest).collect(),
            latest: sessions.iter().map(|session| session.range.latest).collect(),
            latest_hashes: column(|session| session.range.latest_hash.as_slice()),
        }
    }
}

impl TryFrom<v1::ListSessionsResponse> for Vec<Session> {
    type Error = ConvertError;

    fn try_from(wire: v1::ListSessionsResponse) -> Result<Self, ConvertError> {
        sessions(&wire).at("list_sessions")
    }
}

/// Converts sessions from columns; errors name the column.
fn sessions(wire: &v1::ListSessionsResponse) -> Result<Vec<Session>, ConvertError> {
    let ids = items::<64>(&wire.ids).at("ids")?;
    at_most(SESSIONS_MAX, ids.len()).at("ids")?;
    let expected = ids.len() as u64;
    count(expected, wire.client_sizes.len()).at("client_sizes")?;
    length(total(&wire.client_sizes), wire.clients.len()).at("clients")?;
    let ips = items::<16>(&wire.ips).at("ips")?;
    count(expected, ips.len()).at("ips")?;
    count(expected, wire.ports.len()).at("ports")?;
    count(expected, wire.directions.len()).at("directions")?;
    count(expected, wire.eth_versions.len()).at("eth_versions")?;
    // A server of version 0.1.0 does not know them.
    if !wire.snap_versions.is_empty() {
        count(expected, wire.snap_versions.len()).at("snap_versions")?;
    }
    count(expected, wire.earliest.len()).at("earliest")?;
    count(expected, wire.latest.len()).at("latest")?;
    let latest_hashes = items::<32>(&wire.latest_hashes).at("latest_hashes")?;
    count(expected, latest_hashes.len()).at("latest_hashes")?;

    let mut clients = &wire.clients[..];
    let mut sessions = Vec::with_capacity(ids.len());
    for (index, id) in ids.iter().enumerate() {
        let size = wire.client_sizes[index];
        range(0, CLIENT_NAME_BYTES_MAX as u64, size).at_index(index).at("client_sizes")?;
        // The lengths add up to the number of bytes, so the name is complete.
        let (client, rest) = clients.split_at(clients.len().min(size as usize));
        clients = rest;
        let port = wire.ports[index];
        range(0, u16::MAX.into(), port).at_index(index).at("ports")?;
        let direction = wire.directions[index];
        range(INBOUND.into(), OUTBOUND.into(), direction).at_index(index).at("directions")?;
        let (earliest, latest) = (wire.earliest[index], wire.latest[index]);
        range(earliest, u64::MAX, latest).at_index(index).at("latest")?;
        let direction = match direction {
            INBOUND => Direction::Inbound,
            _ => Direction::Outbound,
        };
        sessions.push(Session {
            id: id.into(),
            client: String::from_utf8_lossy(client).into_owned(),
            address: (Ipv6Addr::from(ips[index]).to_canonical(), port as u16).into(),
            direction,
            eth_version: wire.eth_versions[index],
            snap_version: wire.snap_versions.get(index).copied().filter(|version| *version > 0),
            range: BlockRange { earliest, latest, latest_hash: latest_hashes[index].into() },
        });
    }
    Ok(sessions)
}

/// Reads the hashes of wanted blocks.
fn hashes(bytes: &[u8]) -> Result<Vec<B256>, super::Reason> {
    let hashes = items::<32>(bytes)?;
    range(1, FETCH_ITEMS_MAX as u64, hashes.len() as u64)?;
    Ok(hashes.iter().map(B256::from).collect())
}

impl From<(PeerId, Fetch)> for v1::FetchRequest {
    fn from((peer, fetch): (PeerId, Fetch)) -> Self {
        use fetch_wire::{Headers, Receipts, What, headers::Start};
        let what = match fetch {
            Fetch::Headers { start, limit, skip, reverse } => {
                let start = Some(match start {
                    BlockRef::Hash(hash) => Start::Hash(hash_bytes(hash)),
                    BlockRef::Number(number) => Start::Number(number),
                });
                What::Headers(Headers { start, limit, skip, reverse })
            }
            Fetch::Bodies(hashes) => What::Bodies(hash_list(hashes.iter())),
            Fetch::Receipts { first, hashes } => {
                What::Receipts(Receipts { first, hashes: hash_list(hashes.iter()) })
            }
            Fetch::AccessLists(hashes) => What::AccessLists(hash_list(hashes.iter())),
            Fetch::State(request) => What::State(request.into()),
        };
        Self { peer: id_bytes(peer), what: Some(what) }
    }
}

impl TryFrom<v1::FetchRequest> for (PeerId, Fetch) {
    type Error = ConvertError;

    fn try_from(wire: v1::FetchRequest) -> Result<Self, ConvertError> {
        use fetch_wire::{What, headers::Start};
        let peer = peer_id(&wire.peer).at("fetch.peer")?;
        let fetch = match required(wire.what).at("fetch.what")? {
            What::Headers(headers) => {
                let start = match required(headers.start).at("fetch.headers.start")? {
                    Start::Hash(bytes) => BlockRef::Hash(hash(&bytes).at("fetch.headers.hash")?),
                    Start::Number(number) => BlockRef::Number(number),
                };
                let (limit, skip, reverse) = (headers.limit, headers.skip, headers.reverse);
                range(1, FETCH_ITEMS_MAX as u64, limit).at("fetch.headers.limit")?;
                Fetch::Headers { start, limit, skip, reverse }
            }
            What::Bodies(bytes) => Fetch::Bodies(hashes(&bytes).at("fetch.bodies")?),
            What::Receipts(receipts) => Fetch::Receipts {
                first: receipts.first,
                hashes: hashes(&receipts.hashes).at("fetch.receipts.hashes")?,
            },
            What::AccessLists(bytes) => {
                Fetch::AccessLists(hashes(&bytes).at("fetch.access_lists")?)
            }
            What::State(request) => Fetch::State(request.try_into().at("fetch.state")?),
        };
        Ok((peer, fetch))
    }
}

const HEADERS: u32 = 1;
const BODIES: u32 = 2;
const RECEIPTS: u32 = 3;
const ACCESS_LISTS: u32 = 4;
const STATE: u32 = 5;

impl From<Fetched> for v1::FetchResponse {
    fn from(fetched: Fetched) -> Self {
        let (kind, items, incomplete) = match fetched {
            Fetched::Headers(items) => (HEADERS, items, false),
            Fetched::Bodies(items) => (BODIES, items, false),
            Fetched::Receipts { incomplete, blocks } => (RECEIPTS, blocks, incomplete),
            Fetched::AccessLists(lists) => {
                let lists = lists.into_iter().map(Option::unwrap_or_default);
                (ACCESS_LISTS, lists.collect(), false)
            }
            Fetched::State(items) => {
                return Self { kind: STATE, state: Some(items.into()), ..Self::default() };
            }
        };
        let sizes = items.iter().map(|item| size(item.len())).collect();
        Self { kind, sizes, items: items.concat().into(), incomplete, state: None }
    }
}

impl TryFrom<v1::FetchResponse> for Fetched {
    type Error = ConvertError;

    fn try_from(wire: v1::FetchResponse) -> Result<Self, ConvertError> {
        at_most(FETCH_ITEMS_MAX, wire.sizes.len()).at("fetch.sizes")?;
        range(HEADERS.into(), STATE.into(), wire.kind).at("fetch.kind")?;
        if wire.kind == STATE {
            let items = required(wire.state).at("fetch.state")?;
            return Ok(Self::State(items.try_into().at("fetch.state")?));
        }
        sizes_from(u64::from(wire.kind != ACCESS_LISTS), &wire.sizes).at("fetch.sizes")?;
        let items: Vec<_> = split(&wire.sizes, wire.items).at("fetch.items")?.collect();
        Ok(match wire.kind {
            HEADERS => Self::Headers(items),
            BODIES => Self::Bodies(items),
            RECEIPTS => Self::Receipts { incomplete: wire.incomplete, blocks: items },
            _ => {
                let lists = items.into_iter().map(|list| Some(list).filter(|it| !it.is_empty()));
                Self::AccessLists(lists.collect())
            }
        })
    }
}

const MISCONDUCTS: [Misconduct; 3] = [Misconduct::Invalid, Misconduct::Useless, Misconduct::Slow];

impl From<(PeerId, Misconduct)> for v1::ReportRequest {
    fn from((peer, misconduct): (PeerId, Misconduct)) -> Self {
        let misconduct = match misconduct {
            Misconduct::Invalid => 1,
            Misconduct::Useless => 2,
            Misconduct::Slow => 3,
        };
        Self { peer: id_bytes(peer), misconduct }
    }
}

impl TryFrom<v1::ReportRequest> for (PeerId, Misconduct) {
    type Error = ConvertError;

    fn try_from(wire: v1::ReportRequest) -> Result<Self, ConvertError> {
        range(1, MISCONDUCTS.len() as u64, wire.misconduct).at("report.misconduct")?;
        let misconduct = MISCONDUCTS[wire.misconduct as usize - 1];
        Ok((peer_id(&wire.peer).at("report.peer")?, misconduct))
    }
}

impl From<&Error> for v1::Error {
    /// Cuts texts at [`ERROR_TEXT_BYTES_MAX`](crate::limits::ERROR_TEXT_BYTES_MAX).
    fn from(error: &Error) -> Self {
        use error_wire::{Empty, Kind};
        let kind = match error {
            Error::Gone => Kind::Gone(Empty {}),
            Error::Busy => Kind::Busy(Empty {}),
            Error::Timeout => Kind::Timeout(Empty {}),
            Error::Refused(text) => Kind::Refused(cut(text)),
            Error::Unavailable(text) => Kind::Unavailable(cut(text)),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::Error> for Error {
    type Error = ConvertError;

    fn try_from(wire: v1::Error) -> Result<Self, ConvertError> {
        use error_wire::Kind;
        Ok(match required(wire.kind).at("kind")? {
            Kind::Gone(_) => Self::Gone,
            Kind::Busy(_) => Self::Busy,
            Kind::Timeout(_) => Self::Timeout,
            Kind::Refused(text) => Self::Refused(text),
            Kind::Unavailable(text) => Self::Unavailable(text),
        })
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Gone => Code::NotFound,
            Error::Busy => Code::ResourceExhausted,
            Error::Timeout => Code::DeadlineExceeded,
            Error::Refused(_) => Code::FailedPrecondition,
            Error::Unavailable(_) => Code::Unavailable,
        };
        status(code, &error.to_string(), &v1::Error::from(&error))
    }
}

impl From<Status> for Error {
    /// Returns the error that was sent, or else [`Error::Unavailable`]: the caller must do without
    /// the answer, whatever the reason.
    fn from(status: Status) -> Self {
        sent::<v1::Error, _>(&status).unwrap_or_else(|| Self::Unavailable(said(&status)))
    }
}

impl From<ConvertError> for Error {
    /// Reports a malformed answer.
    fn from(error: ConvertError) -> Self {
        Self::Unavailable(cut(&format!("malformed answer: {error}")))
    }
}
