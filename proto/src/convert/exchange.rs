//! Messages between peer-sessions and tx-pool.

use super::{
    error::{At, ConvertError, Reason},
    field::{
        at_most, count, hash_list, items, length, range, required, size, sizes_from, split, total,
    },
    peer_sessions::{id_bytes, peer_id},
};
use crate::{
    blob_validator::{CELL_BYTES, CellSet},
    exchange::{PoolMessage, SessionsMessage},
    limits::{EXCHANGED_ANNOUNCEMENTS_MAX, EXCHANGED_TRANSACTIONS_MAX, WANTED_TRANSACTIONS_MAX},
    peer_sessions::{AnnouncedBlobs, Announcement, Found, Gossip, Part, TransactionCells, Wanted},
    wire::peer_sessions::v1::{
        self, exchange_transactions_request as pool_wire,
        exchange_transactions_response as sessions_wire,
    },
};
use bytes::Bytes;
use tandem_primitives::{B256, Bytes as Raw};

impl From<Vec<Raw>> for v1::Transactions {
    /// Leaves out transactions beyond [`EXCHANGED_TRANSACTIONS_MAX`], and empty ones.
    fn from(mut transactions: Vec<Raw>) -> Self {
        transactions.retain(|raw| !raw.is_empty());
        transactions.truncate(EXCHANGED_TRANSACTIONS_MAX);
        let sizes = transactions.iter().map(|raw| size(raw.len())).collect();
        let items = match transactions.len() {
            1 => transactions.swap_remove(0).0,
            _ => transactions.concat().into(),
        };
        Self { sizes, items }
    }
}

impl TryFrom<v1::Transactions> for Vec<Raw> {
    type Error = ConvertError;

    fn try_from(wire: v1::Transactions) -> Result<Self, ConvertError> {
        at_most(EXCHANGED_TRANSACTIONS_MAX, wire.sizes.len()).at("sizes")?;
        sizes_from(1, &wire.sizes).at("sizes")?;
        Ok(split(&wire.sizes, wire.items).at("items")?.collect())
    }
}

impl From<Vec<Announcement>> for v1::Announcements {
    /// Leaves out announcements beyond [`EXCHANGED_ANNOUNCEMENTS_MAX`]. Either all of them have their
    /// blobs apart, or none.
    fn from(mut all: Vec<Announcement>) -> Self {
        all.truncate(EXCHANGED_ANNOUNCEMENTS_MAX);
        let cells = all.iter().find_map(|it| match it.blobs {
            AnnouncedBlobs::Apart(cells) => Some(cells),
            AnnouncedBlobs::Inside(_) => None,
        });
        let inside = |it: &Announcement| match it.blobs {
            AnnouncedBlobs::Inside(bytes) => bytes,
            AnnouncedBlobs::Apart(_) => 0,
        };
        let has_blobs = all.iter().any(|it| inside(it) > 0);
        Self {
            kinds: all.iter().map(|it| it.kind).collect::<Vec<_>>().into(),
            sizes: all.iter().map(|it| it.bytes).collect(),
            hashes: hash_list(all.iter().map(|it| &it.hash)),
            blob_sizes: all.iter().filter(|_| has_blobs).map(inside).collect(),
            cells: set_bytes(cells),
        }
    }
}

impl TryFrom<v1::Announcements> for Vec<Announcement> {
    type Error = ConvertError;

    fn try_from(wire: v1::Announcements) -> Result<Self, ConvertError> {
        at_most(EXCHANGED_ANNOUNCEMENTS_MAX, wire.kinds.len()).at("kinds")?;
        let expected = wire.kinds.len() as u64;
        count(expected, wire.sizes.len()).at("sizes")?;
        let hashes = items::<32>(&wire.hashes).at("hashes")?;
        count(expected, hashes.len()).at("hashes")?;
        if !wire.blob_sizes.is_empty() {
            count(expected, wire.blob_sizes.len()).at("blob_sizes")?;
        }
        let cells = set(&wire.cells).at("cells")?;
        let columns = wire.kinds.iter().zip(wire.sizes).zip(hashes).enumerate();
        let announcement = |(index, ((&kind, bytes), hash)): (usize, ((&u8, u64), &[u8; 32]))| {
            let inside = wire.blob_sizes.get(index).copied().unwrap_or(0);
            let blobs = cells.map_or(AnnouncedBlobs::Inside(inside), AnnouncedBlobs::Apart);
            Announcement { kind, bytes, hash: B256::from(hash), blobs }
        };
        Ok(columns.map(announcement).collect())
    }
}

fn set_bytes(cells: Option<CellSet>) -> Bytes {
    cells.map(|cells| Bytes::copy_from_slice(&cells.0)).unwrap_or_default()
}

fn set(bytes: &[u8]) -> Result<Option<CellSet>, Reason> {
    if bytes.is_empty() {
        return Ok(None);
    }
    length(16, bytes.len())?;
    Ok(bytes.first_chunk().copied().map(CellSet))
}

fn wanted(hashes: &[u8], cells: &[u8], without_blobs: bool) -> Result<Wanted, ConvertError> {
    let hashes = items::<32>(hashes).at("hashes")?;
    range(1, WANTED_TRANSACTIONS_MAX as u64, hashes.len() as u64).at("hashes")?;
    let hashes = hashes.iter().map(B256::from).collect();
    let part = match set(cells).at("cells")? {
        Some(cells) => Part::Cells(cells),
        None if without_blobs => Part::WithoutBlobs,
        None => Part::WithBlobs,
    };
    Ok(Wanted { hashes, part })
}

/// Returns the cells of a part as a field, and whether it is without blobs.
fn part_fields(part: Part) -> (Bytes, bool) {
    match part {
        Part::WithBlobs => (Bytes::new(), false),
        Part::WithoutBlobs => (Bytes::new(), true),
        Part::Cells(cells) => (set_bytes(Some(cells)), false),
    }
}

impl From<Vec<TransactionCells>> for v1::Cells {
    /// Leaves out transactions beyond [`WANTED_TRANSACTIONS_MAX`].
    fn from(mut all: Vec<TransactionCells>) -> Self {
        all.truncate(WANTED_TRANSACTIONS_MAX);
        let mut cells = Vec::with_capacity(all.iter().map(|it| it.cells.len() * CELL_BYTES).sum());
        all.iter().flat_map(|it| &it.cells).for_each(|cell| cells.extend_from_slice(cell));
        Self {
            hashes: hash_list(all.iter().map(|it| &it.hash)),
            counts: all.iter().map(|it| size(it.cells.len())).collect(),
            cells: cells.into(),
        }
    }
}

impl TryFrom<v1::Cells> for Vec<TransactionCells> {
    type Error = ConvertError;

    fn try_from(wire: v1::Cells) -> Result<Self, ConvertError> {
        let hashes = items::<32>(&wire.hashes).at("hashes")?;
        at_most(WANTED_TRANSACTIONS_MAX, hashes.len()).at("hashes")?;
        count(hashes.len() as u64, wire.counts.len()).at("counts")?;
        let bytes = total(&wire.counts).saturating_mul(CELL_BYTES as u64);
        length(bytes, wire.cells.len()).at("cells")?;
        let mut rest = wire.cells;
        let of_one = |(hash, count): (&[u8; 32], u32)| {
            let own = rest.split_to(rest.len().min(count as usize * CELL_BYTES));
            let cells = own.chunks(CELL_BYTES).map(|cell| own.slice_ref(cell).into()).collect();
            TransactionCells { hash: B256::from(hash), cells }
        };
        Ok(hashes.iter().zip(wire.counts).map(of_one).collect())
    }
}

impl From<PoolMessage> for v1::ExchangeTransactionsRequest {
    fn from(message: PoolMessage) -> Self {
        use pool_wire::{Ask, Pooled, Tell, What, tell::News};
        let what = match message {
            PoolMessage::Tell { peer, gossip } => {
                let news = Some(match gossip {
                    Gossip::Transactions(all) => News::Transactions(all.into()),
                    Gossip::Announcements(all) => News::Announcements(all.into()),
                });
                What::Tell(Tell { peer: id_bytes(peer), news })
            }
            PoolMessage::Ask { id, peer, wanted: Wanted { hashes, part } } => {
                let (cells, without_blobs) = part_fields(part);
                let (peer, hashes) = (id_bytes(peer), hash_list(hashes.iter()));
                What::Ask(Ask { id, peer, hashes, cells, without_blobs })
            }
            PoolMessage::Report { peer, misconduct } => What::Report((peer, misconduct).into()),
            PoolMessage::Pooled { id, found } => What::Pooled(match found {
                Found::Transactions(all) => {
                    Pooled { id, transactions: Some(all.into()), cells: None }
                }
                Found::Cells(all) => Pooled { id, transactions: None, cells: Some(all.into()) },
            }),
        };
        Self { what: Some(what) }
    }
}

impl TryFrom<v1::ExchangeTransactionsRequest> for PoolMessage {
    type Error = ConvertError;

    fn try_from(wire: v1::ExchangeTransactionsRequest) -> Result<Self, ConvertError> {
        use pool_wire::{What, tell::News};
        Ok(match required(wire.what).at("exchange.what")? {
            What::Tell(tell) => {
                let peer = peer_id(&tell.peer).at("exchange.tell.peer")?;
                let gossip = match required(tell.news).at("exchange.tell.news")? {
                    News::Transactions(all) => {
                        Gossip::Transactions(all.try_into().at("exchange.tell.transactions")?)
                    }
                    News::Announcements(all) => {
                        Gossip::Announcements(all.try_into().at("exchange.tell.announcements")?)
                    }
                };
                Self::Tell { peer, gossip }
            }
            What::Ask(ask) => Self::Ask {
                id: ask.id,
                peer: peer_id(&ask.peer).at("exchange.ask.peer")?,
                wanted: wanted(&ask.hashes, &ask.cells, ask.without_blobs).at("exchange.ask")?,
            },
            What::Report(report) => {
                let (peer, misconduct) = report.try_into().at("exchange")?;
                Self::Report { peer, misconduct }
            }
            What::Pooled(pooled) => {
                let found = match pooled.cells {
                    Some(cells) => Found::Cells(cells.try_into().at("exchange.pooled.cells")?),
                    None => {
                        let all =
                            required(pooled.transactions).at("exchange.pooled.transactions")?;
                        Found::Transactions(all.try_into().at("exchange.pooled.transactions")?)
                    }
                };
                Self::Pooled { id: pooled.id, found }
            }
        })
    }
}

impl From<SessionsMessage> for v1::ExchangeTransactionsResponse {
    fn from(message: SessionsMessage) -> Self {
        use sessions_wire::{Announced, Answer, Received, What, answer};
        let what = match message {
            SessionsMessage::Joined(peer) => What::Joined(id_bytes(peer)),
            SessionsMessage::Left(peer) => What::Left(id_bytes(peer)),
            SessionsMessage::Announced { peer, announcements } => What::Announced(Announced {
                peer: id_bytes(peer),
                announcements: Some(announcements.into()),
            }),
            SessionsMessage::Received { peer, transactions } => What::Received(Received {
                peer: id_bytes(peer),
                transactions: Some(transactions.into()),
            }),
            SessionsMessage::Answer { id, result } => {
                let result = Some(match result {
                    Ok(Found::Transactions(all)) => answer::Result::Transactions(all.into()),
                    Ok(Found::Cells(all)) => answer::Result::Cells(all.into()),
                    Err(error) => answer::Result::Error((&error).into()),
                });
                What::Answer(Answer { id, result })
            }
            SessionsMessage::Wanted { id, wanted: Wanted { hashes, part }, bytes_max } => {
                let (cells, without_blobs) = part_fields(part);
                let hashes = hash_list(hashes.iter());
                let wanted = sessions_wire::Wanted { id, hashes, bytes_max, cells, without_blobs };
                What::Wanted(wanted)
            }
        };
        Self { what: Some(what) }
    }
}

impl TryFrom<v1::ExchangeTransactionsResponse> for SessionsMessage {
    type Error = ConvertError;

    fn try_from(wire: v1::ExchangeTransactionsResponse) -> Result<Self, ConvertError> {
        use sessions_wire::{What, answer};
        Ok(match required(wire.what).at("exchange.what")? {
            What::Joined(peer) => Self::Joined(peer_id(&peer).at("exchange.joined")?),
            What::Left(peer) => Self::Left(peer_id(&peer).at("exchange.left")?),
            What::Announced(announced) => {
                let all =
                    required(announced.announcements).at("exchange.announced.announcements")?;
                Self::Announced {
                    peer: peer_id(&announced.peer).at("exchange.announced.peer")?,
                    announcements: all.try_into().at("exchange.announced.announcements")?,
                }
            }
            What::Received(received) => {
                let all = required(received.transactions).at("exchange.received.transactions")?;
                Self::Received {
                    peer: peer_id(&received.peer).at("exchange.received.peer")?,
                    transactions: all.try_into().at("exchange.received.transactions")?,
                }
            }
            What::Answer(answer) => {
                let result = match required(answer.result).at("exchange.answer.result")? {
                    answer::Result::Transactions(all) => {
                        Ok(Found::Transactions(all.try_into().at("exchange.answer.transactions")?))
                    }
                    answer::Result::Cells(all) => {
                        Ok(Found::Cells(all.try_into().at("exchange.answer.cells")?))
                    }
                    answer::Result::Error(error) => {
                        Err(error.try_into().at("exchange.answer.error")?)
                    }
                };
                Self::Answer { id: answer.id, result }
            }
            What::Wanted(asked) => Self::Wanted {
                id: asked.id,
                wanted: wanted(&asked.hashes, &asked.cells, asked.without_blobs)
                    .at("exchange.wanted")?,
                bytes_max: asked.bytes_max,
            },
        })
    }
}
