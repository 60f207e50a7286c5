//! Messages between peer-sessions and tx-pool.

use super::{
    error::{At, ConvertError, Reason},
    field::{at_most, count, hash_list, items, range, required, size, sizes_from, split},
    peer_sessions::{id_bytes, peer_id},
};
use crate::{
    exchange::{PoolMessage, SessionsMessage},
    limits::{EXCHANGED_ANNOUNCEMENTS_MAX, EXCHANGED_TRANSACTIONS_MAX, WANTED_TRANSACTIONS_MAX},
    peer_sessions::{Announcement, Gossip},
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
    /// Leaves out announcements beyond [`EXCHANGED_ANNOUNCEMENTS_MAX`].
    fn from(mut all: Vec<Announcement>) -> Self {
        all.truncate(EXCHANGED_ANNOUNCEMENTS_MAX);
        Self {
            kinds: all.iter().map(|it| it.kind).collect::<Vec<_>>().into(),
            sizes: all.iter().map(|it| it.bytes).collect(),
            hashes: hash_list(all.iter().map(|it| &it.hash)),
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
        let columns = wire.kinds.iter().zip(wire.sizes).zip(hashes);
        let announcement =
            |((&kind, bytes), hash)| Announcement { kind, bytes, hash: B256::from(hash) };
        Ok(columns.map(announcement).collect())
    }
}

fn hashes(bytes: &Bytes) -> Result<Vec<B256>, Reason> {
    let hashes = items::<32>(bytes)?;
    range(1, WANTED_TRANSACTIONS_MAX as u64, hashes.len() as u64)?;
    Ok(hashes.iter().map(B256::from).collect())
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
            PoolMessage::Ask { id, peer, hashes } => {
                What::Ask(Ask { id, peer: id_bytes(peer), hashes: hash_list(hashes.iter()) })
            }
            PoolMessage::Report { peer, misconduct } => What::Report((peer, misconduct).into()),
            PoolMessage::Pooled { id, transactions } => {
                What::Pooled(Pooled { id, transactions: Some(transactions.into()) })
            }
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
                hashes: hashes(&ask.hashes).at("exchange.ask.hashes")?,
            },
            What::Report(report) => {
                let (peer, misconduct) = report.try_into().at("exchange")?;
                Self::Report { peer, misconduct }
            }
            What::Pooled(pooled) => {
                let transactions =
                    required(pooled.transactions).at("exchange.pooled.transactions")?;
                let transactions = transactions.try_into().at("exchange.pooled.transactions")?;
                Self::Pooled { id: pooled.id, transactions }
            }
        })
    }
}

impl From<SessionsMessage> for v1::ExchangeTransactionsResponse {
    fn from(message: SessionsMessage) -> Self {
        use sessions_wire::{Announced, Answer, Received, Wanted, What, answer};
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
                    Ok(transactions) => answer::Result::Transactions(transactions.into()),
                    Err(error) => answer::Result::Error((&error).into()),
                });
                What::Answer(Answer { id, result })
            }
            SessionsMessage::Wanted { id, hashes, bytes_max } => {
                What::Wanted(Wanted { id, hashes: hash_list(hashes.iter()), bytes_max })
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
                        Ok(all.try_into().at("exchange.answer.transactions")?)
                    }
                    answer::Result::Error(error) => {
                        Err(error.try_into().at("exchange.answer.error")?)
                    }
                };
                Self::Answer { id: answer.id, result }
            }
            What::Wanted(wanted) => Self::Wanted {
                id: wanted.id,
                hashes: hashes(&wanted.hashes).at("exchange.wanted.hashes")?,
                bytes_max: wanted.bytes_max,
            },
        })
    }
}
